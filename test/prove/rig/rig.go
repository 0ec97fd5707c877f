// Package rig is what the proofs against a real Postgres stand on: a migrated database
// with a table of effects, ledgers and plain sessions, waiting without sleeping blindly,
// and a way to break a function of the ledger on purpose.
package rig

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

// Patience bounds every wait for something that must come.
const Patience = 60 * time.Second

// Noon is the first window of every proof; it is past, as a pruned window must be.
var Noon = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// Database is a fresh, migrated database with a table effect: the business.
func Database(t testing.TB) (ownerURL string) {
	t.Helper()
	url := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	Exec(t, Session(t, url), `CREATE TABLE effect (job_name text, window_start timestamptz, execution_id uuid, piece int NOT NULL DEFAULT 0)`)
	return url
}

// Ledger speaks to the ledger as a guard does.
func Ledger(t testing.TB, url string) *ledger.Ledger {
	t.Helper()
	l := ledger.New(func(context.Context) (string, error) { return url, nil }, zap.NewNop())
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// Session is a connection as another driver uses it.
func Session(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// Exec runs SQL that must succeed.
func Exec(t testing.TB, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value is the one value of a query.
func Value[T any](t testing.TB, c *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Until polls until ok says yes.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it never came: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Attempt is a new attempt at the nth window of a job.
func Attempt(job string, n int) claim.Attempt {
	return Again(window.Window{JobName: job, Start: Noon.Add(time.Duration(n) * time.Minute)})
}

// Again is a new attempt at a window.
func Again(w window.Window) claim.Attempt {
	return claim.Attempt{Window: w, ExecutionID: uuid.New()}
}

// Args are the first three arguments of every function of the ledger.
func Args(a claim.Attempt) []any {
	return []any{a.Window.JobName, a.Window.Start, a.ExecutionID.String()}
}

// The statements of a business transaction in a driver of one's own.
const (
	BeginSQL    = "SELECT onceguard.begin($1, $2, $3)"
	EffectSQL   = "INSERT INTO effect (job_name, window_start, execution_id) VALUES ($1, $2, $3)"
	CompleteSQL = "SELECT onceguard.complete($1, $2, $3)"
)

// BeginInsistent begins a's transaction with the limit on its idling switched off. Both go
// out at once: in between a busy machine could idle for longer than the lease.
func BeginInsistent(ctx context.Context, tx pgx.Tx, a claim.Attempt) error {
	var b pgx.Batch
	b.Queue(BeginSQL, Args(a)...)
	b.Queue("SET LOCAL idle_in_transaction_session_timeout = 0")
	return tx.SendBatch(ctx, &b).Close()
}

// Break replaces text in the definition of one function of the ledger and gives the
// SQL that mends it. A text that is not there is an error: the bug would be none.
func Break(ctx context.Context, owner *pgx.Conn, function, old, instead string) (mend string, err error) {
	var source string
	if err := owner.QueryRow(ctx, "SELECT pg_get_functiondef(('onceguard.' || $1)::regproc)", function).Scan(&source); err != nil {
		return "", fmt.Errorf("%s: %w", function, err)
	}
	if n := strings.Count(source, old); n == 0 {
		return "", fmt.Errorf("%s has no longer the text %q: adapt the bug", function, old)
	}
	if _, err := owner.Exec(ctx, strings.ReplaceAll(source, old, instead)); err != nil {
		return "", fmt.Errorf("%s with %q: %w", function, instead, err)
	}
	return source, nil
}

// BreakFence takes out what stops a stale attempt: both places where the ledger compares
// the execution_id of a commit with the window's.
func BreakFence(t testing.TB, owner *pgx.Conn) {
	t.Helper()
	for _, f := range [][3]string{
		{"complete", "AND t.execution_id = complete.execution_id AND t.status = 'running'", ""},
		{"barrier", "AND t.execution_id = NEW.execution_id", ""},
	} {
		if _, err := Break(t.Context(), owner, f[0], f[1], f[2]); err != nil {
			t.Fatal(err)
		}
	}
}
