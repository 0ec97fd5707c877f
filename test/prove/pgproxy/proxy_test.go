package pgproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// rig is a proxy before a database with the table kept (n int).
type rig struct {
	*pgproxy.Proxy
	t    *testing.T
	url  string    // through the proxy
	look *pgx.Conn // past it
}

func newRig(t *testing.T, c *tls.Config) *rig {
	t.Helper()
	direct := postgres.Database(t)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t}
	if r.Proxy, err = pgproxy.Start(u.Host, c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if r.url, err = r.URL(direct); err != nil {
		t.Fatal(err)
	}
	if r.look, err = pgx.Connect(t.Context(), direct); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.look.Close(context.Background()) })
	if _, err := r.look.Exec(t.Context(), "CREATE TABLE kept (n int)"); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) connect(url string) *pgx.Conn {
	r.t.Helper()
	c, err := pgx.Connect(r.t.Context(), url)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (r *rig) kept() (n int) {
	r.t.Helper()
	if err := r.look.QueryRow(r.t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) wait(what string, ready func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waiting for %s", what)
		}
	}
}

// cancelled says whether the cancel request that pgx sends for a connection that broke, on
// one of its own, has come and gone.
func (r *rig) cancelled() bool {
	live, _ := r.Live()
	return live == 1 && slices.ContainsFunc(r.Seen(), func(m pgproxy.Message) bool { return m.Type == "CancelRequest" })
}

func (r *rig) gone() bool { live, _ := r.Live(); return live == 0 }

const insert = "INSERT INTO kept VALUES (1)"

// place finds a message by direction and type.
func place(d pgproxy.Direction, kind string, f pgproxy.Fault) pgproxy.Rule {
	return func(m pgproxy.Message) pgproxy.Fault {
		if m.Direction == d && m.Type == kind {
			return f
		}
		return pgproxy.Fault{}
	}
}

// Without a fault nobody notices the proxy, and it names what it sees.
func TestPassesEverythingOn(t *testing.T) {
	r := newRig(t, nil)
	c := r.connect(r.url)
	r.Watch(nil)
	if _, err := c.Exec(t.Context(), insert, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range r.Seen() {
		names = append(names, m.String())
	}
	want := "0 to server 0 Query " + insert + "|0 to client 0 CommandComplete INSERT 0 1|0 to client 1 ReadyForQuery"
	if got := strings.Join(names, "|"); got != want {
		t.Errorf("saw %s\nwant %s", got, want)
	}
	if n := pgproxy.RoundTrips(r.Seen()); n != 1 {
		t.Errorf("%d round trips", n)
	}
	// Large in both directions, COPY, prepared statements, an error, a cancel request.
	big := strings.Repeat("x", 4<<20)
	var back string
	if err := c.QueryRow(t.Context(), "SELECT $1::text", big).Scan(&back); err != nil || back != big {
		t.Fatal(len(back), err)
	}
	if n, err := c.CopyFrom(t.Context(), pgx.Identifier{"kept"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}, {2}})); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	var pg *pgconn.PgError
	if _, err := c.Exec(t.Context(), "SELECT 1/0"); !errors.As(err, &pg) || pg.Code != "22012" {
		t.Fatal(err)
	}
	r.Watch(nil)
	slow := make(chan error, 1)
	go func() { _, err := c.Exec(context.Background(), "SELECT pg_sleep(60)"); slow <- err }()
	r.wait("the slow query", func() bool { return pgproxy.RoundTrips(r.Seen()) == 1 })
	for {
		if err := c.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-slow:
			if !errors.As(err, &pg) || pg.Code != "57014" {
				t.Fatal(err)
			}
		case <-time.After(50 * time.Millisecond):
			continue
		}
		break
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wait("the end", r.gone)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

// A cut before a message keeps it from its receiver, a cut after does not; either way the
// client has an error, which says nothing about the server.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		direction pgproxy.Direction
		kind      string
		after     bool
		kept      int
	}{
		{pgproxy.ToServer, "Query", false, 0},
		{pgproxy.ToServer, "Query", true, 1},
		{pgproxy.ToClient, "CommandComplete", false, 1},
		{pgproxy.ToClient, "CommandComplete", true, 1},
	} {
		r := newRig(t, nil)
		client := r.connect(r.url)
		r.Watch(place(c.direction, c.kind, pgproxy.Fault{Kind: pgproxy.Cut, After: c.after}))
		if _, err := client.Exec(t.Context(), insert, pgx.QueryExecModeSimpleProtocol); err == nil {
			t.Errorf("%+v: no error", c)
		}
		r.wait("the end", r.gone)
		if n := r.kept(); n != c.kept || len(r.Fired()) != 1 {
			t.Errorf("%+v: %d rows, fired %v", c, n, r.Fired())
		}
	}
}

// What a client has sent before it was cut off reaches the server late.
func TestCutOfTheClientIsHeardLate(t *testing.T) {
	r := newRig(t, nil)
	client := r.connect(r.url)
	r.Watch(place(pgproxy.ToServer, "Query", pgproxy.Fault{Kind: pgproxy.CutClient}))
	if _, err := client.Exec(t.Context(), insert, pgx.QueryExecModeSimpleProtocol); err == nil {
		t.Error("no error")
	}
	r.wait("the cancel request", r.cancelled) // else it may meet the statement
	if live, broken := r.Live(); live != 1 || broken != 1 || r.kept() != 0 {
		t.Errorf("%d live, %d broken, %d rows", live, broken, r.kept())
	}
	r.Release()
	r.wait("the end", r.gone)
	if n := r.kept(); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// Nobody is told: the client gives up by itself, the server when it is told.
func TestSilence(t *testing.T) {
	for _, kind := range []pgproxy.Kind{pgproxy.Silence, pgproxy.CutServer} {
		r := newRig(t, nil)
		client := r.connect(r.url)
		r.Watch(place(pgproxy.ToClient, "CommandComplete", pgproxy.Fault{Kind: kind}))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, func() {
			defer cancel()
			for end := time.Now().Add(time.Minute); len(r.Fired()) == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		})
		if _, err := client.Exec(ctx, "BEGIN; "+insert, pgx.QueryExecModeSimpleProtocol); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", kind, err)
		}
		if kind == pgproxy.Silence {
			r.wait("the cancel request", r.cancelled)
			r.Release()
		}
		r.wait("the end", r.gone)
		if n := r.kept(); n != 0 {
			t.Errorf("%s: %d rows", kind, n)
		}
	}
}

// A delayed message holds up those behind it, and then all goes on.
func TestDelay(t *testing.T) {
	r := newRig(t, nil)
	client := r.connect(r.url)
	r.Watch(place(pgproxy.ToServer, "Query", pgproxy.Fault{Kind: pgproxy.Delay}))
	done := make(chan error, 1)
	go func() {
		_, err := client.Exec(context.Background(), insert, pgx.QueryExecModeSimpleProtocol)
		done <- err
	}()
	r.wait("the message", func() bool { return len(r.Fired()) == 1 })
	if n := r.kept(); n != 0 {
		t.Errorf("%d rows", n)
	}
	r.wait("the answer", func() bool {
		r.Release()
		select {
		case err := <-done:
			return err == nil
		default:
			return false
		}
	})
	if n := r.kept(); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// Messages are seen inside TLS too, and a connection can be cut where it begins.
func TestTLS(t *testing.T) {
	c, err := pgproxy.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c)
	secure := strings.Replace(r.url, "sslmode=disable", "sslmode=require", 1)
	client := r.connect(secure)
	if _, encrypted := client.PgConn().Conn().(*tls.Conn); !encrypted {
		t.Fatal("no TLS")
	}
	r.Watch(place(pgproxy.ToServer, "Query", pgproxy.Fault{Kind: pgproxy.Cut, After: true}))
	if _, err := client.Exec(t.Context(), insert, pgx.QueryExecModeSimpleProtocol); err == nil {
		t.Error("no error")
	}
	r.wait("the end", r.gone)
	if n := r.kept(); n != 1 {
		t.Errorf("%d rows", n)
	}
	for _, first := range []string{"SSLRequest", "StartupMessage", "SASLInitialResponse"} {
		r.Watch(place(pgproxy.ToServer, first, pgproxy.Fault{Kind: pgproxy.Cut}))
		if _, err := pgx.Connect(t.Context(), secure); err == nil || len(r.Fired()) == 0 {
			t.Errorf("%s: %v, fired %v", first, err, r.Fired())
		}
	}
}
