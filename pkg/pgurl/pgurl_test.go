package pgurl_test

import (
	"errors"
	"math/rand/v2"
	"net/url"
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

// No piece of an unescaped password becomes the host, the database or anything else that
// messages show: it is taken whole, or refused by a text that does not depend on it.
func unescaped(t *testing.T, password string) {
	t.Helper()
	_, refusal := pgurl.Parse("postgres://u:a b@db/app", "prog")
	for _, around := range [][2]string{
		{"postgres://u:", "@db:5432/app?sslmode=disable"},
		{"postgres://u:", "@db/app"},
		{"postgres://u:", "@db"},
		{"postgresql://u:", "@db,db:5432/app?options=-cx%3D1&sslmode=disable"},
		{"postgres://db/app?sslmode=disable&user=u&password=", "&connect_timeout=7"},
	} {
		cfg, err := pgurl.Parse(around[0]+password+around[1], "prog")
		if err != nil {
			if !errors.Is(err, pgurl.ErrInvalid) || err.Error() != refusal.Error() {
				t.Errorf("%q in %q: %v", password, around, err)
			}
			continue
		}
		want, err := url.PathUnescape(password) // nobody can tell %41 from A
		if err != nil {
			want = password
		}
		delete(cfg.RuntimeParams, "options")
		delete(cfg.RuntimeParams, "application_name")
		shown := []string{cfg.User, cfg.Host, cfg.Database}
		for _, f := range cfg.Fallbacks {
			shown = append(shown, f.Host)
		}
		for _, s := range shown {
			if s != "u" && s != "db" && s != "app" && (s != "" || strings.HasSuffix(around[1], "app")) {
				t.Errorf("%q in %q is shown as %q", password, around, s)
			}
		}
		if cfg.Password != want || cfg.Port != 5432 || len(cfg.RuntimeParams) != 0 {
			t.Errorf("%q in %q: password %q, port %d, parameters %v", password, around, cfg.Password, cfg.Port, cfg.RuntimeParams)
		}
	}
}

func TestNoPieceOfAPasswordIsShown(t *testing.T) {
	t.Setenv("PGDATABASE", "")
	for _, password := range []string{
		"/S3cretRest", "12/S3cretRest", "12/S3cret?Rest", "/S3cret?Rest=x", "/a@b", "a@b/c", "S3cret@h/x", "S3c@ret:12", "S3c@ret,Rest",
		"S3c@ret?Re=st", "S3c@[ret", "S3c@ret?sslrootcert=/Rest", "[S3c/ret]", " S3cret ", "\tS3cret", "S3cret\x00", "S3c#ret/Rest", "S3c%zzret", "S3c%",
		"S3c%2Fret/x", "S3c&ret", "S3c&Re=st", "S3c=ret", "a,b:12/S3cret", "12,13/S3cret", "12#/S3cret", "窗/口@x",
	} {
		unescaped(t, password)
	}
	const signs = "/@:?#%[]& =,+;\\\"'~.$!*()<>|^`{}-_09aFzé\n"
	letters := []rune(signs)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		password := make([]rune, 1+random.IntN(16))
		for i := range password {
			password[i] = letters[random.IntN(len(letters))]
		}
		unescaped(t, string(password))
	}
}

func FuzzUnescapedPassword(f *testing.F) {
	f.Add("12/S3cretRest")
	f.Add("S3c@ret?Re=st")
	f.Fuzz(func(t *testing.T, password string) { unescaped(t, password) })
}

// What has an @ or a / where it belongs stays valid.
func TestOrdinaryURLsAreTaken(t *testing.T) {
	for _, text := range []string{
		"postgres://db/app", "postgres://u@db/app", "postgres://u:p%2F%40@db,db2:5433/app?search_path=a&my.setting=1",
		"postgres://u:p@[::1]:5432/app", "postgres:///app?host=/run/postgresql&user=u", "postgres://u%40tenant:p@db/app",
		"postgres://db/app?user=u&password=p%26x&application_name=mine&sslmode=disable",
	} {
		if _, err := pgurl.Parse(text, "prog"); err != nil {
			t.Errorf("%s: %v", text, err)
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
