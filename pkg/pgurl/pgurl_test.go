package pgurl_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/pgurl"
)

func TestParse(t *testing.T) {
	cfg, err := pgurl.Parse("postgres://u:p%23ss@db:5432/app?default_query_exec_mode=cache_describe\n", "prog")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Password != "p#ss" || cfg.ConnectTimeout != 5*time.Second || cfg.RuntimeParams["application_name"] != "prog" || len(cfg.RuntimeParams) != 1 {
		t.Fatalf("%v %v", cfg.ConnectTimeout, cfg.RuntimeParams)
	}
	cfg, err = pgurl.Parse("postgres://db/app?connect_timeout=2&application_name=mine", "prog")
	if err != nil || cfg.ConnectTimeout != 2*time.Second || cfg.RuntimeParams["application_name"] != "mine" {
		t.Fatal(cfg, err)
	}
}

// These are taken as people mean them.
func TestUnescapedPasswords(t *testing.T) {
	for _, password := range []string{"p#ss", "p?ss", "p:ss", "p+ss"} {
		cfg, err := pgurl.Parse("postgres://u:"+password+"@db:5432/app?sslmode=disable", "prog")
		if err != nil || cfg.Password != password || cfg.Host != "db" || cfg.Database != "app" {
			t.Errorf("%s: %v", password, err)
		}
	}
}

// An error helps and repeats nothing of the URL.
func TestErrorsKeepSecrets(t *testing.T) {
	for url, hint := range map[string]string{
		"":                                     "empty",
		"postgres://u:hunter2/x@db:5432/app":   "%2F",
		"postgres://u:hunter2%f&L@db:5432/app": "%25",
		"postgres://u:hunter2 x@db:5432/app":   "%20",
		"host=db user=u password=hunter2 x dbname=app": "postgres://",
		"hunter2": "postgres://",
		"postgres://u:hunter2@db/app?sslmode=hunter2":                      "sslmode",
		"postgres://u:hunter2@db/app?connect_timeout=hunter2":              "connect_timeout",
		"postgres://u:hunter2@db/app?sslmode=verify-full&sslrootcert=/no.": "/no.",
	} {
		_, err := pgurl.Parse(url, "prog")
		if !errors.Is(err, pgurl.ErrInvalid) || !strings.Contains(err.Error(), hint) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want a hint %q", url, err, hint)
		}
	}
}

func FuzzErrorsKeepSecrets(f *testing.F) {
	f.Add("postgres://u:%s@db:5432/app")
	f.Add("postgres://u:p%s@db:port/app?x=%s")
	f.Add("postgresql://[::1/%s")
	f.Fuzz(func(t *testing.T, url string) {
		const secret = "hunter2hunter2"
		if _, err := pgurl.Parse(strings.ReplaceAll(url, "%s", secret), "prog"); err != nil && strings.Contains(err.Error(), secret) &&
			!strings.Contains(url, "ssl") { // a file's name is shown
			t.Fatalf("%v", err)
		}
	})
}
