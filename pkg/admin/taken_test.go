package admin_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/window"
)

// caughtUp is what the engine plans.
func caughtUp(t *testing.T, c *pgx.Conn, hours ...int) {
	t.Helper()
	for _, h := range hours {
		exec(t, c, `INSERT INTO onceguard.job_plan (job_name, window_start, cron_job_uid, cron_job, reason) VALUES ($1, $2, 'u1', 'shop/a', 'controller')`, job, at(h).Start)
	}
}

func backfill(t *testing.T, c *pgx.Conn, reprocess admin.Reprocess, hour int) admin.Backfilled {
	t.Helper()
	b, err := admin.Backfill(t.Context(), c, job, hours(hour, hour), reprocess, "ann", "why")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func takeBack(t *testing.T, c *pgx.Conn, from, to, want int) {
	t.Helper()
	if n, err := admin.CancelBackfill(t.Context(), c, job, at(from).Start, at(to).Start, "bob", "enough"); err != nil || n != want {
		t.Fatal(n, err)
	}
}

// What has completed since it was asked for is not run again, whatever was asked.
func TestBackfillOpensOnlyWhatItNeeds(t *testing.T) {
	c := watched(t)
	ask(t, c, at(0), "")
	release(t, c, at(0), "failed")
	if b := backfill(t, c, admin.ReprocessCompleted, 0); b.Planned != 1 {
		t.Fatal(b)
	}
	complete(t, c, at(0)) // its own Job tries again
	if b := backfill(t, c, admin.ReprocessCompleted, 0); b.Done != 1 {
		t.Error(b)
	}
	if making(t, c, 0) {
		t.Error("a Job is made for a window that is done")
	}
	if got := value(t, c, "SELECT state || ' ' || generation FROM onceguard.windows"); got != "done 1" {
		t.Error(got)
	}
}

// A catch-up that is taken back does not run: not planned again, nor when its Job comes.
func TestTakenBackStaysSo(t *testing.T) {
	c := watched(t)
	caughtUp(t, c, 3, 11) // judged_before is hour 10
	takeBack(t, c, 0, 20, 2)
	for _, h := range []int{3, 11} {
		if got := ask(t, c, at(h), ""); got != "skip cancelled" {
			t.Error(h, got)
		}
	}
	// Nor with reprocess none: only who asks for more runs it.
	if b := backfill(t, c, admin.ReprocessNone, 3); b.Kept != 1 {
		t.Error(b)
	}
	if b := backfill(t, c, admin.ReprocessFailed, 3); b.Planned != 1 || !making(t, c, 3) {
		t.Error(b)
	}
	if got := ask(t, c, at(3), ""); got != "run retry" {
		t.Error(got)
	}
}

// An Indexed Job claims by its indexes, so those are cancelled.
func TestTakenBackFromIndexes(t *testing.T) {
	c := watched(t)
	index := func(name string, hour int) window.Window {
		return window.Window{JobName: job + name, Start: at(hour).Start}
	}
	complete(t, c, index("#0", 6))
	complete(t, c, index("#1", 6))
	caughtUp(t, c, 3)
	if !making(t, c, 3) {
		t.Fatal("no Job is made")
	}
	takeBack(t, c, 3, 3, 1)
	for _, name := range []string{"#0", "#1"} {
		if got := ask(t, c, index(name, 3), ""); got != "skip cancelled" {
			t.Error(name, got)
		}
	}
	if got := value(t, c, "SELECT count(*)::text FROM onceguard.windows WHERE job_name = $1", job); got != "0" {
		t.Error(got, "windows under a name that nothing claims")
	}
}

// What was done, and was to run again, is done again as long as nothing tried it.
func TestTakenBackIsDoneAsBefore(t *testing.T) {
	c := watched(t)
	for h := range 2 {
		complete(t, c, at(h))
	}
	exec(t, c, `UPDATE onceguard.job_execution SET result = '{"rows": 3}', processed = 3`)
	before := value(t, c, "SELECT (to_jsonb(e) - 'updated_at')::text FROM onceguard.job_execution e WHERE window_start = $1", at(0).Start)
	for h := range 2 {
		if b := backfill(t, c, admin.ReprocessCompleted, h); b.Planned != 1 || !making(t, c, h) {
			t.Fatal(b)
		}
	}
	ask(t, c, at(1), "")
	release(t, c, at(1), "failed")
	takeBack(t, c, 0, 1, 2)
	if after := value(t, c, "SELECT (to_jsonb(e) - 'updated_at')::text FROM onceguard.job_execution e WHERE window_start = $1", at(0).Start); after != before {
		t.Errorf("%s\n%s", before, after)
	}
	for h, want := range []string{"skip completed", "skip cancelled"} {
		if got := ask(t, c, at(h), ""); got != want {
			t.Error(h, got)
		}
	}
	if b := backfill(t, c, admin.ReprocessNone, 0); b.Done != 1 {
		t.Error(b)
	}
}

// A window that a person opens again gets a Job again.
func TestRerunOfPlanned(t *testing.T) {
	c := watched(t)
	for h, open := range []func(window.Window) error{
		func(w window.Window) error { _, err := admin.Rerun(t.Context(), c, w, "ann", "again"); return err },
		func(w window.Window) error { return admin.Release(t.Context(), c, w, "ann", "again") },
	} {
		ask(t, c, at(h), "")
		release(t, c, at(h), "failed")
		if b := backfill(t, c, admin.ReprocessFailed, h); b.Planned != 1 || !making(t, c, h) {
			t.Fatal(b)
		}
		exec(t, c, "UPDATE onceguard.job_execution SET status = $2, reason = nullif($2, 'failed') WHERE window_start = $1", at(h).Start, []string{"failed", "held"}[h])
		if err := open(at(h)); err != nil {
			t.Fatal(err)
		}
		if got := value(t, c, "SELECT made::text FROM onceguard.plans WHERE window_start = $1", at(h).Start); got != "0" {
			t.Errorf("%s Jobs are made already", got)
		}
	}
}

// A job that nobody has ever claimed can be pruned too, and CronJobs that are long gone go.
func TestPruneOfUnclaimed(t *testing.T) {
	c := watched(t)
	exec(t, c, `INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before, gone_at) SELECT $1, u, 'shop/a', $2, $2, clock_timestamp() - d * interval '1 day'
		FROM (VALUES ('old', 31), ('new', 29), ('known', 31)) x(u, d)`, job, start)
	exec(t, c, `INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason)
		SELECT $1, u, $2::timestamptz + h * interval '1 hour', $2::timestamptz + h * interval '1 hour', 1, 'missed', 'controller' FROM (VALUES ('u1', 1), ('known', 5)) x(u, h)`, job, start)
	if came, err := admin.Prune(t.Context(), c, job, at(3).Start); err != nil || !came.Equal(at(3).Start) {
		t.Fatal(came, err)
	}
	if got := value(t, c, "SELECT string_agg(cron_job_uid, ' ' ORDER BY cron_job_uid) FROM onceguard.gaps"); got != "known" {
		t.Error(got)
	}
	if got := value(t, c, "SELECT string_agg(cron_job_uid, ' ' ORDER BY cron_job_uid) FROM onceguard.schedules"); got != "known new u1" {
		t.Error(got)
	}
	if got := ask(t, c, at(2), ""); got != "skip closed" {
		t.Error(got)
	}
	if _, err := admin.Prune(t.Context(), c, "shop/nobody", time.Now()); !errors.Is(err, admin.ErrNotFound) {
		t.Error(err)
	}
}
