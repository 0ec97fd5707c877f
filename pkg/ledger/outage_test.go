package ledger_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

// private is a server of the test's own, which it may kill, with a migrated database.
func private(t *testing.T) (*postgres.Server, string) {
	t.Helper()
	s, err := postgres.Start(t.Context(), postgres.Options{})
	if err != nil {
		postgres.Unavailable(t, err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), postgres.Immediate) })
	url := s.URL("postgres")
	if _, _, err := migrate.Up(t.Context(), url, zaptest.NewLogger(t)); err != nil {
		t.Fatal(err)
	}
	return s, url
}

// The server vanishes and comes back: errors say so, the next call connects again, and
// what was claimed and completed is still there.
func TestServerComesBack(t *testing.T) {
	ctx := t.Context()
	s, url := private(t)
	l := open(t, url)
	a := attempt("shop/a")
	mustRun(t, l, a, claim.First)
	for _, mode := range []postgres.Mode{postgres.Fast, postgres.Killed} {
		if err := s.Kill(ctx, mode); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := l.Heartbeat(ctx, a, lease); !errors.Is(err, ledger.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if err := s.Restart(ctx, mode); err != nil {
			t.Fatal(err)
		}
		if b, err := l.Heartbeat(ctx, a, lease); err != nil || b != claim.BeatOK {
			t.Fatal(b, err)
		}
	}
	if err := l.Complete(ctx, a, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(ctx, postgres.Killed); err != nil {
		t.Fatal(err)
	}
	// The connection broke while it rested. It is found out before it is used, or the call
	// fails as unavailable and the next one is right.
	got, err := l.Claim(ctx, request(attempt("shop/a")))
	if errors.Is(err, ledger.ErrUnavailable) {
		got, err = l.Claim(ctx, request(attempt("shop/a")))
	}
	if err != nil || got.Reason != claim.AlreadyCompleted {
		t.Fatalf("%+v, %v", got, err)
	}
}

// COMMIT waits for a synchronous standby that does not come. A context that ends must
// not disturb it: no cancel request, no answer "completed" and none "not completed".
// When an administrator cancels the wait, the WARNING is no success either.
func TestCommitThatWaitsForAStandby(t *testing.T) {
	ctx := t.Context()
	s, url := private(t)
	l, admin := open(t, url), session(t, url)
	a := attempt("shop/a")
	mustRun(t, l, a, claim.First)
	exec(t, admin, "SET synchronous_commit = local")
	standby := func(name string) {
		exec(t, admin, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'")
		exec(t, admin, "SELECT pg_reload_conf()")
		w := &world{owner: admin}
		waitFor(t, w, "SELECT current_setting('synchronous_standby_names') = '"+name+"'")
	}
	waiting := "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')"
	w := &world{owner: admin}

	standby("nobody")
	short, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	if err := l.Complete(short, a, claim.Completion{}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatal(err)
	}
	if r, err := l.Resolve(ctx, a, uuid.New()); err != nil || r != claim.ResolvedPending {
		t.Fatal(r, err)
	}
	waitFor(t, w, waiting)
	standby("")
	waitFor(t, w, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
	if r, err := l.Resolve(ctx, a, uuid.New()); err != nil || r != claim.ResolvedCommitted {
		t.Fatal(r, err)
	}
	if text, err := os.ReadFile(s.Log()); err != nil || strings.Contains(string(text), "canceling wait") {
		t.Fatalf("the commit's wait was cancelled: %v", err)
	}

	b := attempt("shop/b")
	mustRun(t, l, b, claim.First)
	standby("nobody")
	done := make(chan error, 1)
	go func() { done <- l.Complete(context.Background(), b, claim.Completion{}) }()
	waitFor(t, w, waiting)
	exec(t, admin, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	if err := <-done; !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatalf("a commit that is on no standby was answered with %v", err)
	}
	standby("")
	if err := l.Complete(ctx, b, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
}

func TestConfigurationErrors(t *testing.T) {
	ctx := t.Context()
	owner := database(t)
	change := func(f func(u *url.URL)) string {
		u, err := url.Parse(owner)
		if err != nil {
			t.Fatal(err)
		}
		f(u)
		return u.String()
	}
	empty := postgres.Database(t)
	for name, c := range map[string]struct {
		url  string
		want error
	}{
		"no URL":           {"", ledger.ErrConfig},
		"not a URL":        {"secret-value", ledger.ErrConfig},
		"wrong password":   {change(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "secret-value") }), ledger.ErrConfig},
		"no such role":     {change(func(u *url.URL) { u.User = url.UserPassword("nobody", "secret-value") }), ledger.ErrConfig},
		"no such database": {change(func(u *url.URL) { u.Path = "/none" }), ledger.ErrConfig},
		"nobody listens":   {change(func(u *url.URL) { u.Host = "127.0.0.1:1" }), ledger.ErrUnavailable},
		"no such host":     {change(func(u *url.URL) { u.Host = "db.invalid:5432" }), ledger.ErrUnavailable},
		"not migrated":     {empty, ledger.ErrSchema},
	} {
		t.Run(name, func(t *testing.T) {
			err := open(t, c.url).CheckSchema(ctx)
			if !errors.Is(err, c.want) || strings.Contains(err.Error(), "secret-value") {
				t.Fatalf("%v; want %v", err, c.want)
			}
			t.Log(err)
		})
	}
	missing := errors.New("Secret shop/onceguard-ledger-default is missing")
	l := ledger.New(func(context.Context) (string, error) { return "", missing }, zaptest.NewLogger(t))
	if err := l.CheckSchema(ctx); !errors.Is(err, ledger.ErrConfig) || !errors.Is(err, missing) {
		t.Fatal(err)
	}
}

// The URL is read anew for each connection: a mended Secret works without a restart.
func TestMendedSecret(t *testing.T) {
	right := database(t)
	current := "postgres://nobody:wrong@" + strings.SplitN(strings.SplitN(right, "@", 2)[1], "?", 2)[0]
	l := ledger.New(func(context.Context) (string, error) { return current, nil }, zaptest.NewLogger(t), ledger.Application("onceguard-guard/p1"))
	t.Cleanup(func() { l.Close(context.Background()) })
	if err := l.CheckSchema(t.Context()); !errors.Is(err, ledger.ErrConfig) {
		t.Fatal(err)
	}
	current = right
	if err := l.CheckSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !value[bool](t, session(t, right), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'onceguard-guard/p1')") {
		t.Fatal("the application's name is not shown")
	}
}

func TestSchemaVersions(t *testing.T) {
	w := newWorld(t)
	if got := value[int](t, w.owner, "SELECT version FROM onceguard.schema_version()"); got != ledger.SchemaVersion || got != migrate.Latest() {
		t.Fatalf("schema_version() says %d, the program %d, the migrations %d", got, ledger.SchemaVersion, migrate.Latest())
	}
	for versions, ok := range map[string]bool{"6, 1": false, "7, 7": true, "8, 7": true, "9, 8": false} {
		exec(t, w.owner, "CREATE OR REPLACE FUNCTION onceguard.schema_version(OUT version int, OUT min_compatible int) LANGUAGE sql IMMUTABLE AS 'SELECT "+versions+"'")
		if err := w.l.CheckSchema(t.Context()); (err == nil) != ok || (!ok && !errors.Is(err, ledger.ErrSchema)) {
			t.Errorf("%s: %v", versions, err)
		}
	}
}

// A call ends when its context does, whatever the server does.
func TestCallsAreBounded(t *testing.T) {
	w := newWorld(t)
	exec(t, w.owner, "BEGIN")
	exec(t, w.owner, "LOCK TABLE onceguard.job_lease")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := w.l.Heartbeat(ctx, w.a, lease); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatal(err)
	}
	// lock_timeout of the function bounds it on the server's side.
	if _, err := w.l.Heartbeat(t.Context(), w.a, lease); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatal(err)
	}
	exec(t, w.owner, "ROLLBACK")
	if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatOK {
		t.Fatal(b, err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if _, err := w.l.Heartbeat(ended, w.a, lease); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
