package pgurl_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/pgurl"
)

// Without sslmode an address is tried twice, and it failed for one reason.
func TestAFailedConnectionSaysEachCauseOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // nobody listens there now
	for _, c := range []struct {
		what, url, cause string
		times            int
		lookup           func(context.Context, string) ([]string, error)
	}{
		{"refused", "postgres://u:hunter2@" + address + "/app", "connection refused", 1, nil},
		{"two addresses", "postgres://u:hunter2@" + address + ",127.0.0.1:1/app", "connection refused", 2, nil},
		{"no such name", "postgres://u:hunter2@db.invalid/app", "no such host", 1, func(_ context.Context, name string) ([]string, error) {
			return nil, &net.DNSError{Err: "no such host", Name: name}
		}},
	} {
		cfg, err := pgurl.Parse(c.url, "prog")
		if err != nil {
			t.Fatal(err)
		}
		if c.lookup != nil {
			cfg.LookupFunc = c.lookup
		}
		_, err = pgx.ConnectConfig(t.Context(), cfg)
		text := pgurl.Reason(err).Error()
		if n := strings.Count(text, c.cause); n != c.times || strings.Contains(text, "\n") || !strings.HasPrefix(text, "failed to connect to `user=u database=app`: ") {
			t.Errorf("%s: the cause stands %d times in %q", c.what, n, text)
		}
		if _, ok := errors.AsType[*pgconn.ConnectError](pgurl.Reason(err)); !ok {
			t.Errorf("%s: the error below is lost", c.what)
		}
	}
	for said, want := range map[string]string{"one": "one", "a:\n\tb\n\tb": "a: b", "a: b\nb\nc": "a: b; c"} {
		if got := pgurl.Reason(fmt.Errorf("%s", said)).Error(); got != want {
			t.Errorf("%q became %q, want %q", said, got, want)
		}
	}
	if pgurl.Reason(nil) != nil {
		t.Error("no error became one")
	}
}
