package admin_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

// ledger gives the owner's connection to a new one.
func ledger(t *testing.T) (*pgx.Conn, string) {
	t.Helper()
	url := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	return connect(t, url), url
}

func exec(t *testing.T, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// release ends the attempt that holds the window.
func release(t *testing.T, c *pgx.Conn, w window.Window, outcome string) {
	t.Helper()
	exec(t, c, "SELECT onceguard.release($1, $2, (SELECT execution_id FROM onceguard.job_lease WHERE job_name = $1 AND window_start = $2), $3)", w.JobName, w.Start, outcome)
}

// A rerun after a bad input must take the mended one.
func TestRerunFreesThePayload(t *testing.T) {
	c, _ := ledger(t)
	ask(t, c, at(0), ", payload_digest => 'wrong'")
	release(t, c, at(0), "failed")
	if got := ask(t, c, at(0), ", payload_digest => 'mended'"); got != "refuse payload" {
		t.Fatal(got)
	}
	if _, err := admin.Rerun(t.Context(), c, at(0), "ann", "input mended"); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, c, at(0), ", payload_digest => 'mended'"); got != "run retry" {
		t.Fatal(got)
	}
	if got := ask(t, c, at(0), ", payload_digest => 'wrong'"); got != "refuse payload" {
		t.Fatal(got)
	}
}

// A window that was asked to stop for one which a person then cancels is not given up.
func TestCancelWithdrawsWhatTheWindowHadAskedFor(t *testing.T) {
	ctx := t.Context()
	c, _ := ledger(t)
	const replace = ", overlap => 'replace'"
	ask(t, c, at(0), replace)
	if got := ask(t, c, at(1), replace); got != "wait replacing" {
		t.Fatal(got)
	}
	heartbeat := func() (answer string) {
		t.Helper()
		if err := c.QueryRow(ctx, "SELECT onceguard.heartbeat(job_name, window_start, execution_id, '1 hour') FROM onceguard.job_lease WHERE window_start = $1", start).Scan(&answer); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if got := heartbeat(); got != "cancel" {
		t.Fatal(got)
	}
	if err := admin.Cancel(ctx, c, at(2), "ann", "another one"); err != nil {
		t.Fatal(err)
	}
	if got := heartbeat(); got != "cancel" {
		t.Fatal("another window's cancel withdrew it: ", got)
	}
	if err := admin.Cancel(ctx, c, at(1), "ann", "not this one"); err != nil {
		t.Fatal(err)
	}
	if got := heartbeat(); got != "ok" {
		t.Fatal(got)
	}
	// Open again, it has to ask again.
	if _, err := admin.Rerun(ctx, c, at(1), "ann", "after all"); err != nil {
		t.Fatal(err)
	}
	if got := heartbeat(); got != "ok" {
		t.Fatal(got)
	}
	release(t, c, at(0), "failed")
	if got := ask(t, c, at(0), replace); got != "run retry" {
		t.Fatal(got)
	}
}

// A decision that is left open blocks all claims of its job: the server ends it.
func TestAnOpenDecisionDoesNotBlockForEver(t *testing.T) {
	ctx := t.Context()
	c, url := ledger(t)
	other := connect(t, url)
	ask(t, c, at(0), "")
	release(t, c, at(0), "failed")
	for name, decide := range map[string]func() error{
		"rerun":  func() error { _, err := admin.Rerun(ctx, c, at(0), "ann", "again"); return err },
		"cancel": func() error { return admin.Cancel(ctx, c, at(1), "ann", "not") },
		"prune":  func() error { _, err := admin.Prune(ctx, c, job, start); return err },
	} {
		for _, limit := range []struct{ set, want string }{{"0", "5s"}, {"1h", "5s"}, {"2s", "2s"}} {
			exec(t, c, "SET idle_in_transaction_session_timeout = '"+limit.set+"'")
			exec(t, c, "BEGIN")
			if err := decide(); err != nil {
				t.Fatal(name, err)
			}
			var got string
			if err := c.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&got); err != nil || got != limit.want {
				t.Errorf("%s under %s: %s, %v", name, limit.set, got, err)
			}
			exec(t, c, "ROLLBACK")
			if err := c.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&got); err != nil || got != limit.set {
				t.Errorf("%s left %s in the session, %v", name, got, err)
			}
		}
	}
	exec(t, c, "SET idle_in_transaction_session_timeout = '200ms'")
	exec(t, c, "BEGIN")
	if _, err := admin.Rerun(ctx, c, at(0), "ann", "left open"); err != nil {
		t.Fatal(err)
	}
	exec(t, other, "SET lock_timeout = '60s'") // claim has one of its own, of 2 s
	exec(t, other, "SELECT FROM onceguard.job WHERE name = $1 FOR UPDATE", job)
	if err := c.Ping(ctx); err == nil {
		t.Error("the open decision is still there")
	}
}

func TestArgumentsAreNamed(t *testing.T) {
	c, _ := ledger(t)
	for want, sql := range map[string]string{
		"job_name must be 1 to 1000 characters": "SELECT onceguard.cancel(repeat('x', 2000), '2024-01-01T00:00Z', 'ann', 'why')",
		"job_name must not be empty":            "SELECT onceguard.prune(NULL, '2024-01-01T00:00Z')",
		"upto must be an instant in the past":   "SELECT onceguard.prune('shop/a', NULL)",
		"window_start must be an instant":       "SELECT onceguard.rerun('shop/a', 'infinity', 'ann', 'why')",
		`"shop/a#1" must be "namespace/name"`:   "SELECT onceguard.grant_job(session_user, 'shop/a#1')",
		`"foo" must be "namespace/name"`:        "SELECT onceguard.grant_job(session_user, 'foo')",
		`"<NULL>" must be`:                      "SELECT onceguard.grant_job(session_user, NULL)",
	} {
		if _, err := c.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "22023") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if err := admin.Cancel(t.Context(), c, window.Window{JobName: strings.Repeat("x", 1001), Start: start}, "ann", "why"); !errors.Is(err, admin.ErrInvalid) {
		t.Error(err)
	}
}

// fill adds completed windows of hours [0, hours) to names.
func fill(t *testing.T, c *pgx.Conn, hours int, names ...string) {
	t.Helper()
	exec(t, c, "INSERT INTO onceguard.job (name) SELECT DISTINCT split_part(split_part(n, '#', 1), '@', 1) FROM unnest($1::text[]) n ON CONFLICT DO NOTHING", names)
	exec(t, c, `INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, completed_at)
		SELECT n, $3::timestamptz + h * interval '1 hour', 'completed', gen_random_uuid(), 1, 1, clock_timestamp()
		FROM generate_series(0, $2::int - 1) h, unnest($1::text[]) n`, names, hours, start)
	exec(t, c, `INSERT INTO onceguard.job_attempt (job_name, window_start, attempt, execution_id, fencing_token, outcome)
		SELECT e.job_name, e.window_start, 1, e.execution_id, 1, 'completed' FROM onceguard.job_execution e WHERE e.job_name = ANY ($1)`, names)
}

// Claims wait while a step of prune holds the job's lock: it reads what it deletes, however
// long the history is, this job's and that of others.
func TestPruneReadsWhatItDeletes(t *testing.T) {
	ctx := t.Context()
	c, _ := ledger(t)
	const hours = 8000
	for _, n := range []string{"shop/a", "shop/a#0", "shop/a@u", "shop/a-b", "shop/b"} {
		fill(t, c, hours, n)
	}
	end := start.Add(hours * time.Hour)
	kept := func() (n int) {
		t.Helper()
		if err := c.QueryRow(ctx, "SELECT count(*) FROM onceguard.job_execution").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	rows := func() (n int) { // that were read so far
		t.Helper()
		if err := c.QueryRow(ctx, "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE schemaname = 'onceguard' AND relname = 'job_execution'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec(t, c, "VACUUM ANALYZE")
	for step := range 2 {
		before := kept()
		exec(t, c, "BEGIN")
		read := -rows()
		exec(t, c, "SELECT onceguard.prune('shop/a', $1)", end)
		read += rows()
		exec(t, c, "COMMIT")
		deleted := before - kept()
		if deleted < 4900 || deleted > 5100 || read > 3*deleted {
			t.Errorf("step %d read %d rows to delete %d", step, read, deleted)
		} else {
			t.Logf("step %d read %d rows to delete %d", step, read, deleted)
		}
	}
	if came, err := admin.Prune(ctx, c, job, end); err != nil || !came.Equal(end) || kept() != 2*hours {
		t.Error(came, err, kept())
	}
}
