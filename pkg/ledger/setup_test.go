package ledger_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap/zaptest"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

const lease = 30 * time.Second

// database is a fresh, migrated database.
func database(t testing.TB) (ownerURL string) {
	t.Helper()
	url := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), url, zaptest.NewLogger(t)); err != nil {
		t.Fatal(err)
	}
	return url
}

func open(t testing.TB, url string) *ledger.Ledger {
	t.Helper()
	l := ledger.New(func(context.Context) (string, error) { return url, nil }, zaptest.NewLogger(t))
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// session is a connection as people and other drivers use it.
func session(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func exec(t testing.TB, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t testing.TB, c *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func attempt(job string) claim.Attempt {
	return claim.Attempt{Window: window.Window{JobName: job, Start: noon}, ExecutionID: uuid.New()}
}

func request(a claim.Attempt) claim.Request {
	return claim.Request{Attempt: a, Lease: lease, Origin: claim.Origin{
		Trigger: "scheduled", Source: "timestamp",
		Namespace: "shop", Job: "order-sync-1", JobUID: "u1", Pod: "order-sync-1-abc", PodUID: uuid.NewString(), Node: "n1",
		WindowEnd: noon.Add(time.Hour), Schedule: "0 * * * *", TimeZone: "UTC",
	}}
}

// mustRun claims and demands the verdict run.
func mustRun(t testing.TB, l *ledger.Ledger, a claim.Attempt, want claim.Reason) claim.Answer {
	t.Helper()
	got, err := l.Claim(t.Context(), request(a))
	if err != nil || got.Verdict != claim.Run || got.Reason != want {
		t.Fatalf("claim: %+v, %v; want run, %s", got, err, want)
	}
	return got
}

// age ends the lease of a window, as time would.
func age(t testing.TB, owner *pgx.Conn, a claim.Attempt) {
	t.Helper()
	exec(t, owner, "UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 second' WHERE job_name = $1 AND window_start = $2",
		a.Window.JobName, a.Window.Start)
}

// empty takes all windows out of a ledger.
func empty(t testing.TB, owner *pgx.Conn) {
	t.Helper()
	exec(t, owner, "TRUNCATE onceguard.job, onceguard.job_execution, onceguard.job_lease, onceguard.job_attempt, onceguard.job_skip, onceguard.job_checkpoint, onceguard.job_decision, onceguard.job_schedule, onceguard.job_gap, onceguard.job_plan")
}

// mutate breaks a rule of a function, to see that a test notices; it gives the source as
// it was.
func mutate(t testing.TB, owner *pgx.Conn, function, rule, broken string) (source string) {
	t.Helper()
	source = value[string](t, owner, "SELECT pg_get_functiondef(('onceguard.' || $1)::regproc)", function)
	mutant := strings.Replace(source, rule, broken, 1)
	if mutant == source {
		t.Fatalf("%s has no longer: %s", function, rule)
	}
	exec(t, owner, mutant)
	return source
}

// superURL is the superuser's URL of an owner's database.
func superURL(t testing.TB, ownerURL string) string {
	t.Helper()
	u, err := url.Parse(ownerURL)
	if err != nil {
		t.Fatal(err)
	}
	return postgres.Shared(t).URL(u.Path[1:])
}
