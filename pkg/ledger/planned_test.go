package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// A civil time that comes for the second time: closed with what it repeats, and the rule is
// recorded with each window.
func TestRepeatsIsRecorded(t *testing.T) {
	w := newWorld(t)
	first := attempt("shop/clocks")
	r := under(first, claim.Terms{})
	r.Origin.DST = contract.DSTOnce
	w.asks(t, r, claim.Run, claim.First)
	second := under(later(first, time.Hour), claim.Terms{Repeats: noon})
	second.Origin.DST = contract.DSTOnce
	got := w.asks(t, second, claim.Skip, claim.DST)
	if got.Holder.Window != first.Window || got.Holder.ExecutionID != first.ExecutionID {
		t.Fatalf("%+v", got.Holder)
	}
	if err := w.l.RecordSkip(t.Context(), second, claim.DST); err != nil {
		t.Fatal(err)
	}
	const recorded = `SELECT string_agg(concat_ws(' ', e.status, e.reason, e.dst, e.superseded_by = $1, e.closed_by, s.reason), ', ' ORDER BY e.window_start)
		FROM onceguard.job_execution e LEFT JOIN onceguard.job_skip s USING (job_name, window_start) WHERE e.job_name = 'shop/clocks'`
	if s := value[string](t, w.owner, recorded, noon); s != "running once, skipped dst once t shop/order-sync-1-abc dst" {
		t.Fatal(s)
	}
	if again := w.asks(t, under(later(first, time.Hour), claim.Terms{}), claim.Skip, claim.DST); again.Holder.Pod != "shop/order-sync-1-abc" {
		t.Fatalf("who closed it: %+v", again.Holder)
	}
}

// reads are the tables of the windows engine that a claim looks into: it keeps a lock on
// each until its transaction ends.
func reads(t *testing.T, owner *pgx.Conn, sql string, args ...any) (verdict, tables string) {
	t.Helper()
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := tx.QueryRow(t.Context(), sql, args...).Scan(&verdict); err != nil {
		t.Fatal(err)
	}
	err = tx.QueryRow(t.Context(), `SELECT coalesce(string_agg(DISTINCT c.relname, ' ' ORDER BY c.relname), '') FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		WHERE l.pid = pg_backend_pid() AND c.relkind = 'r' AND c.relname IN ('job_plan', 'job_gap', 'job_schedule')`).Scan(&tables)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, tables
}

// Plans and gaps cost nothing where they do not matter: a claim that runs, is a duplicate
// or waits looks for them only under serial order.
func TestClaimLooksForPlansWhereTheyMatter(t *testing.T) {
	w := newWorld(t)
	const ask = "SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, gen_random_uuid(), '30s'"
	old := noon.AddDate(-10, 0, 0)
	for _, c := range []struct {
		job           string
		at            time.Time
		terms         string
		verdict, want string
	}{
		{"shop/new", noon, "", "run first", ""},
		{"shop/new", noon, ", overlap => 'skip', start_deadline => '10000 days', max_attempts => 3, hold_on_crash => true", "run first", ""},
		{w.a.Window.JobName, noon, ", overlap => 'skip'", "wait busy", ""},
		{w.a.Window.JobName, noon.Add(time.Hour), ", overlap => 'wait'", "wait overlap", ""},
		{w.a.Window.JobName, noon.Add(time.Hour), ", overlap => 'replace'", "wait replacing", ""},
		{w.a.Window.JobName, noon.Add(time.Hour), ", overlap => 'skip'", "skip overlap", "job_plan"},
		{"shop/new", old, ", start_deadline => '1 minute'", "skip late", "job_plan"},
		{"shop/new", noon, ", repeats => '2020-01-01'", "skip dst", "job_plan"},
		{"shop/new", noon, ", serial => true", "run first", "job_plan"},
		{w.a.Window.JobName, noon.Add(time.Hour), ", serial => true, previous => '2026-11-30 12:00Z'", "wait order", "job_plan"},
		{"shop/new", noon, ", serial => true, previous => '2020-01-01'", "wait order", "job_gap job_plan job_schedule"},
	} {
		verdict, tables := reads(t, w.owner, ask+c.terms+")", c.job, c.at)
		if verdict != c.verdict || tables != c.want {
			t.Errorf("%s%s: %s and it reads %q; want %s and %q", c.job, c.terms, verdict, tables, c.verdict, c.want)
		}
	}
}

// What order looks for among plans, gaps and history is found by the primary keys, however
// many there are.
func TestOrderReadsFewPlansAndGaps(t *testing.T) {
	w := newWorld(t)
	exec(t, w.owner, "INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before) VALUES ('shop/many', 'u', 'shop/many', '2020-01-01', '2026-11-30 11:50Z')")
	exec(t, w.owner, `INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason)
		SELECT 'shop/many', 'u', w, w, 1, 'missed', 'controller' FROM generate_series(timestamptz '2026-11-01 00:00Z', '2026-11-30 11:58Z', '2 minutes') w`)
	exec(t, w.owner, `INSERT INTO onceguard.job_plan (job_name, window_start) SELECT 'shop/later', $1::timestamptz + n * interval '1 minute' FROM generate_series(0, 5000) n`, noon)
	exec(t, w.owner, `INSERT INTO onceguard.job_execution (job_name, window_start, status, attempt, fencing_token, execution_id, completed_at)
		SELECT 'shop/many', w, 'completed', 1, 1, gen_random_uuid(), now() FROM generate_series(timestamptz '2026-11-01 00:01Z', '2026-11-30 11:57Z', '2 minutes') w`)
	exec(t, w.owner, "INSERT INTO onceguard.job_plan (job_name, window_start, cron_job_uid) VALUES ('shop/many', '2026-11-30 11:57Z', 'u')") // of a window that is closed
	for _, known := range []bool{false, true} {
		if known {
			exec(t, w.owner, "ANALYZE onceguard.job_gap, onceguard.job_plan, onceguard.job_execution, onceguard.job_schedule")
		}
		c := session(t, w.url)
		exec(t, c, "BEGIN")
		// Since the beginning of order the record is read as a whole: of one window here.
		got := value[string](t, c, `SELECT verdict || ' ' || reason FROM onceguard.claim('shop/many', $1, gen_random_uuid(), '30s',
			serial => true, since => '2026-11-30 11:57Z', previous => '2026-11-30 11:58Z')`, noon)
		if got != "run first" {
			t.Fatal(got)
		}
		for _, table := range []string{"job_gap", "job_plan", "job_execution"} {
			if n := value[int](t, c, "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relid = $1::regclass", "onceguard."+table); n > 20 {
				t.Errorf("statistics %v: the claim reads %d rows of %s", known, n, table)
			}
		}
		exec(t, c, "ROLLBACK")
	}
}

// What is late is never older than what the engine has judged: an old row of another state
// of affairs does not hold up the order.
func TestOrderIgnoresWhatWasLateBeforeTheJudgement(t *testing.T) {
	w := newWorld(t)
	engine := people{t.Context(), w.owner}
	a := attempt("shop/judged")
	for minutes, s := range []disposition.Status{disposition.Late, disposition.Skipped} {
		at := noon.Add(time.Duration(minutes) * time.Minute)
		if err := engine.Judge(a.Window.JobName, "u", at, at, s); err != nil {
			t.Fatal(err)
		}
	}
	terms := claim.Terms{Serial: true, Since: noon, Previous: noon.Add(time.Minute)}
	w.asks(t, under(later(a, 2*time.Minute), terms), claim.Wait, claim.Order)
	exec(t, w.owner, "UPDATE onceguard.job_schedule SET judged_before = $1", noon.Add(time.Second))
	w.asks(t, under(later(a, 2*time.Minute), terms), claim.Run, claim.First)
}

// A plan that is made while a claim waits for the job's row is seen by it: it is judged once
// more under the lock.
func TestPlanAgainstClaim(t *testing.T) {
	planFirst := func(t *testing.T, w *world) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		old := noon.AddDate(-10, 0, 0)
		p, c := session(t, w.url), session(t, w.url)
		exec(t, p, "BEGIN")
		exec(t, p, "SELECT FROM onceguard.job WHERE name = $1 FOR NO KEY UPDATE", w.a.Window.JobName)
		verdict := make(chan string, 1)
		failed := make(chan error, 1)
		go func() {
			var v string
			err := c.QueryRow(ctx, "SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, gen_random_uuid(), '30s', start_deadline => '1 minute')", w.a.Window.JobName, old).Scan(&v)
			failed <- err
			verdict <- v
		}()
		waitFor(t, w, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%claim(%')")
		exec(t, p, "INSERT INTO onceguard.job_plan (job_name, window_start) VALUES ($1, $2)", w.a.Window.JobName, old)
		exec(t, p, "COMMIT")
		if err := <-failed; err != nil {
			t.Fatal(errors.Unwrap(err), err)
		}
		return <-verdict
	}
	if v := planFirst(t, newWorld(t)); v != "run first" {
		t.Fatal(v)
	}
	t.Run("judged before the lock only", func(t *testing.T) {
		w := newWorld(t)
		mutate(t, w.owner, "claim", "verdict := NULL; reason := NULL; close := NULL;", "locked := true; EXIT WHEN close IS NOT NULL; verdict := NULL; reason := NULL; close := NULL;")
		if v := planFirst(t, w); v != "skip late" {
			t.Fatalf("%s: the test would not notice a missing second look", v)
		}
	})
}
