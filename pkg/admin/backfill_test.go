package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/window"
)

// watched is a ledger with a CronJob that the engine has judged for ten hours.
func watched(t *testing.T) *pgx.Conn {
	t.Helper()
	c, _ := ledger(t)
	exec(t, c, `INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before) VALUES ($1, 'u1', 'shop/a', $2, $3)`, job, start, at(10).Start)
	return c
}

// making is what the engine does before it makes a Job for a planned window.
func making(t *testing.T, c *pgx.Conn, hour int) (wanted bool) {
	t.Helper()
	if err := c.QueryRow(t.Context(), "SELECT onceguard.engine_making($1, $2, 'u1', 'a-r1')", job, at(hour).Start).Scan(&wanted); err != nil {
		t.Fatal(err)
	}
	return wanted
}

func value(t *testing.T, c *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	var s *string
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return ""
	}
	return *s
}

// complete runs the window to its end.
func complete(t *testing.T, c *pgx.Conn, w window.Window) {
	t.Helper()
	if got := ask(t, c, w, ""); !strings.HasPrefix(got, "run") {
		t.Fatal(got)
	}
	for _, f := range []string{"begin", "complete"} {
		if f == "begin" {
			exec(t, c, "BEGIN")
		}
		exec(t, c, "SELECT onceguard."+f+"($1, $2, (SELECT execution_id FROM onceguard.job_execution WHERE job_name = $1 AND window_start = $2))", w.JobName, w.Start)
	}
	exec(t, c, "COMMIT")
	exec(t, c, "SELECT onceguard.release($1, $2, (SELECT execution_id FROM onceguard.job_execution WHERE job_name = $1 AND window_start = $2), 'completed')", w.JobName, w.Start)
}

// states brings the windows of the hours from 0 on into all states: none, skipped, failed,
// exhausted, held, a dead worker's, running, completed.
func states(t *testing.T, c *pgx.Conn) {
	t.Helper()
	for i, s := range []string{"skipped", "failed", "exhausted", "held", "running", "running", "completed"} {
		w := at(i + 1)
		if s == "completed" {
			complete(t, c, w)
			continue
		}
		ask(t, c, w, "")
		if s != "running" {
			release(t, c, w, "failed")
			exec(t, c, "UPDATE onceguard.job_execution SET status = $2, reason = CASE $2 WHEN 'failed' THEN NULL WHEN 'skipped' THEN 'late' ELSE $2 END WHERE window_start = $1", w.Start, s)
		}
	}
	exec(t, c, "UPDATE onceguard.job_lease SET expires_at = '2020-01-01' WHERE window_start = $1", at(5).Start)
}

func hours(from, to int) (all []time.Time) {
	for h := from; h <= to; h++ {
		all = append(all, at(h).Start)
	}
	return all
}

// Which windows are run again is said by reprocess, and nothing changes before their turn.
func TestBackfill(t *testing.T) {
	for reprocess, want := range map[admin.Reprocess]struct {
		counts          admin.Backfilled
		planned, opened string
	}{
		admin.ReprocessNone:      {admin.Backfilled{Planned: 2, Done: 1, Running: 1, Kept: 4}, "0, 1", "skipped"},
		admin.ReprocessFailed:    {admin.Backfilled{Planned: 6, Done: 1, Running: 1}, "0, 1, 2, 3, 4, 5", "skipped, failed, exhausted, held, running"},
		admin.ReprocessCompleted: {admin.Backfilled{Planned: 7, Running: 1}, "0, 1, 2, 3, 4, 5, 7", "skipped, failed, exhausted, held, running, completed"},
	} {
		c := watched(t)
		states(t, c)
		before := value(t, c, "SELECT string_agg(e::text, E'\n' ORDER BY e.window_start) FROM onceguard.job_execution e")
		for range 3 { // asked again it is the same
			got, err := admin.Backfill(t.Context(), c, job, hours(0, 7), reprocess, "ann", "bad input")
			if err != nil || got != want.counts {
				t.Fatalf("%s: %+v, %v", reprocess, got, err)
			}
		}
		if after := value(t, c, "SELECT string_agg(e::text, E'\n' ORDER BY e.window_start) FROM onceguard.job_execution e"); after != before {
			t.Errorf("%s has changed executions before their turn: %s", reprocess, after)
		}
		const planned = "SELECT string_agg((extract(epoch FROM window_start - $1)::int / 3600)::text, ', ' ORDER BY window_start) FROM onceguard.plans WHERE planned_by = 'ann' AND why = 'bad input' AND cron_job_uid = 'u1'"
		if got := value(t, c, planned, start); got != want.planned {
			t.Errorf("%s: %s", reprocess, got)
		}
		if got := value(t, c, "SELECT string_agg(concat_ws(' ', what, reprocess, windows, last_window - window_start), ', ') FROM onceguard.decisions"); got != fmt.Sprintf("backfill %s %d 07:00:00", reprocess, want.counts.Planned) {
			t.Errorf("%s: %s", reprocess, got)
		}
		for h := range 8 {
			wanted := making(t, c, h)
			if got := strings.Contains(want.planned, fmt.Sprint(h)); got != wanted {
				t.Errorf("%s: is a Job made for hour %d: %v", reprocess, h, wanted)
			}
			if wanted {
				complete(t, c, at(h))
			}
		}
		// A window is opened once, and what it was is kept.
		if got := value(t, c, "SELECT string_agg(before ->> 'status', ', ' ORDER BY window_start) FROM onceguard.decisions WHERE what = 'rerun' AND who = 'ann'"); got != want.opened {
			t.Errorf("%s: %s", reprocess, got)
		}
		if g := value(t, c, "SELECT generation::text FROM onceguard.windows WHERE window_start = $1", at(7).Start); (g == "2") != (reprocess == admin.ReprocessCompleted) {
			t.Errorf("%s: generation %s", reprocess, g)
		}
		// Resumed, it finds its own work done; for another reason it is another backfill.
		want.counts.Done, want.counts.Planned = want.counts.Done+want.counts.Planned, 0
		if got, err := admin.Backfill(t.Context(), c, job, hours(0, 7), reprocess, "ann", "bad input"); err != nil || got != want.counts {
			t.Errorf("%s: %+v, %v", reprocess, got, err)
		}
		if reprocess == admin.ReprocessCompleted {
			want.counts.Done, want.counts.Planned = 0, 7
		}
		if got, err := admin.Backfill(t.Context(), c, job, hours(0, 7), reprocess, "ann", "bad input once more"); err != nil || got != want.counts {
			t.Errorf("%s: %+v, %v", reprocess, got, err)
		}
	}
}

// An Indexed Job runs a window again when one of its indexes is to, and opens only that.
func TestBackfillOfIndexes(t *testing.T) {
	c := watched(t)
	complete(t, c, window.Window{JobName: job + "#0", Start: at(0).Start})
	ask(t, c, window.Window{JobName: job + "#1", Start: at(0).Start}, "")
	release(t, c, window.Window{JobName: job + "#1", Start: at(0).Start}, "failed")
	ask(t, c, window.Window{JobName: job + "@u", Start: at(1).Start}, "") // a separate run is another matter
	if got, err := admin.Backfill(t.Context(), c, job, hours(0, 1), admin.ReprocessNone, "ann", "why"); err != nil || got != (admin.Backfilled{Planned: 1, Kept: 1}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := admin.Backfill(t.Context(), c, job, hours(0, 1), admin.ReprocessFailed, "ann", "why"); err != nil || got != (admin.Backfilled{Planned: 2}) {
		t.Errorf("%+v, %v", got, err)
	}
	if !making(t, c, 0) {
		t.Fatal("no Job is made")
	}
	if got := value(t, c, "SELECT string_agg(job_name || ' ' || status, ', ' ORDER BY job_name) FROM onceguard.job_execution WHERE window_start = $1", start); got != "shop/a#0 completed, shop/a#1 failed" {
		t.Error(got)
	}
	if got := value(t, c, "SELECT string_agg(job_name, ', ') FROM onceguard.decisions WHERE what = 'rerun'"); got != "shop/a#1" {
		t.Error(got)
	}
}

// What is taken back is as it was, and has its answer.
func TestCancelBackfill(t *testing.T) {
	ctx := t.Context()
	c := watched(t)
	states(t, c)
	// Hours 8 and 9 have a gap; 0 was planned by the engine.
	exec(t, c, `INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason) VALUES ($1, 'u1', $2, $3, 2, 'missed', 'controller')`, job, at(8).Start, at(9).Start)
	exec(t, c, `INSERT INTO onceguard.job_plan (job_name, window_start, cron_job_uid, reason) VALUES ($1, $2, 'u1', 'controller')`, job, start)
	kinds := func() string {
		t.Helper()
		all, err := admin.Answers(ctx, c, job, hours(0, 10))
		if err != nil {
			t.Fatal(err)
		}
		s := ""
		for _, a := range all {
			s += " " + string(a.Kind) + ":" + a.Status
			if a.Planned {
				s += "+"
			}
		}
		return s[1:]
	}
	before := kinds()
	if b, err := admin.Backfill(ctx, c, job, hours(0, 9), admin.ReprocessCompleted, "ann", "why"); err != nil || b.Planned != 9 {
		t.Fatal(b, err)
	}
	if got := kinds(); got != "plan:+ execution:skipped+ execution:failed+ execution:exhausted+ execution:held+ execution:lease ended+ execution:running execution:done+ plan:+ plan:+ none:" {
		t.Error(got)
	}
	// Of hour 1 the Job waits, hour 7 is being run, of hour 8 the Job has not claimed.
	for _, h := range []int{1, 7, 8} {
		if !making(t, c, h) {
			t.Fatal(h)
		}
	}
	if got := ask(t, c, at(7), ""); got != "run retry" {
		t.Fatal(got)
	}
	n, err := admin.CancelBackfill(ctx, c, job, start, at(9).Start, "bob", "enough")
	if err != nil || n != 8 {
		t.Fatal(n, err)
	}
	want := "execution:skipped execution:skipped execution:failed execution:exhausted execution:held execution:lease ended execution:running execution:running+ execution:skipped gap:missed none:"
	if got := kinds(); got != want {
		t.Errorf("%s\n%s", before, got)
	}
	for _, h := range []int{0, 1, 8} {
		if got := ask(t, c, at(h), ""); got != "skip cancelled" {
			t.Error(h, got)
		}
	}
	if got := value(t, c, "SELECT string_agg(concat_ws(' ', what, who, windows), ', ' ORDER BY id) FROM onceguard.job_decision WHERE who = 'bob'"); got != "cancel bob, cancel-backfill bob 8" {
		t.Error(got)
	}
	if n, err := admin.CancelBackfill(ctx, c, job, start, at(6).Start, "bob", "enough"); err != nil || n != 0 {
		t.Error(n, err)
	}
}

func TestRelease(t *testing.T) {
	c := watched(t)
	states(t, c)
	if err := admin.Release(t.Context(), c, at(4), "ann", "checked"); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, c, at(4), ", hold_on_crash => true, max_attempts => 1"); got != "run retry" {
		t.Error(got)
	}
	for h, want := range map[int]error{0: admin.ErrNotFound, 1: admin.ErrState, 2: admin.ErrState, 4: admin.ErrState, 7: admin.ErrState} {
		if err := admin.Release(t.Context(), c, at(h), "ann", "checked"); !errors.Is(err, want) {
			t.Error(h, err)
		}
	}
	if got := value(t, c, "SELECT string_agg(what || ' ' || (before ->> 'status'), ', ') FROM onceguard.decisions"); got != "release held" {
		t.Error(got)
	}
}

func TestBackfillArguments(t *testing.T) {
	ctx := t.Context()
	c := watched(t)
	complete(t, c, at(0))
	exec(t, c, "UPDATE onceguard.job SET closed_before = $1", at(2).Start)
	for _, x := range []struct {
		job       string
		windows   []time.Time
		reprocess admin.Reprocess
		who       string
		kind      error
		text      string
	}{
		{job, hours(0, 4), "none", "ann", admin.ErrPruned, "2 windows, the last of them"},
		{job, []time.Time{time.Now().Add(time.Hour)}, "none", "ann", admin.ErrInvalid, "in the future"},
		{job, nil, "none", "ann", admin.ErrInvalid, "1 to 10000"},
		{job, make([]time.Time, 10_001), "none", "ann", admin.ErrInvalid, "1 to 10000"},
		{job, hours(3, 3), "all", "ann", admin.ErrInvalid, `reprocess "all"`},
		{job, hours(3, 3), "none", "", admin.ErrInvalid, "who and why"},
		{job + "#1", hours(3, 3), "none", "ann", admin.ErrInvalid, "without #index"},
		{"shop/nobody", hours(3, 3), "none", "ann", admin.ErrState, "no CronJob"},
	} {
		if _, err := admin.Backfill(ctx, c, x.job, x.windows, x.reprocess, x.who, "why"); !errors.Is(err, x.kind) || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v", x.text, err)
		}
	}
	if _, err := admin.CancelBackfill(ctx, c, job, at(3).Start, at(2).Start, "ann", "why"); !errors.Is(err, admin.ErrInvalid) {
		t.Error(err)
	}
	if _, err := admin.Answers(ctx, c, job, nil); !errors.Is(err, admin.ErrInvalid) {
		t.Error(err)
	}
	if got := value(t, c, "SELECT count(*)::text FROM onceguard.plans"); got != "0" {
		t.Error(got)
	}
}

// Pruning takes gaps with it, cuts a range that reaches over the watermark, and stops before
// what is to run.
func TestPruneOfGapsAndPlans(t *testing.T) {
	c := watched(t)
	complete(t, c, at(0))
	exec(t, c, `INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason)
		SELECT $1, u, $2::timestamptz + h * interval '1 hour', $2::timestamptz + (h + 3) * interval '1 hour', 4, 'missed', 'controller' FROM unnest('{u1,u2}'::text[]) u, unnest('{1,5,9}'::int[]) h`, job, start)
	exec(t, c, `INSERT INTO onceguard.job_plan (job_name, window_start) SELECT $1, $2::timestamptz + h * interval '1 hour' FROM unnest('{0,6,7}'::int[]) h`, job, start) // the first says nothing any more
	if p, err := admin.Prospects(t.Context(), c, job, at(8).Start); err != nil || p.Windows != 1 || *p.Stop != at(6) {
		t.Error(p, err)
	}
	if came, err := admin.Prune(t.Context(), c, job, at(8).Start); err != nil || !came.Equal(at(6).Start) {
		t.Fatal(came, err)
	}
	if got := value(t, c, `SELECT string_agg(concat_ws(' ', cron_job_uid, first_window - $1, last_window - $1, windows), ', ' ORDER BY cron_job_uid, first_window) FROM onceguard.gaps`, start); got !=
		"u1 06:00:00 08:00:00 3, u1 09:00:00 12:00:00 4, u2 06:00:00 08:00:00 3, u2 09:00:00 12:00:00 4" {
		t.Error(got)
	}
	if got := value(t, c, "SELECT count(*)::text FROM onceguard.plans"); got != "2" {
		t.Error(got)
	}
	all, err := admin.Answers(t.Context(), c, job, hours(5, 6))
	if err != nil || all[0].Kind != admin.ByPruning || all[1].Kind != admin.ByPlan {
		t.Error(all, err)
	}
}

// The most windows of one call, and what it costs while claims go on: none waits for it.
func TestBackfillOfMany(t *testing.T) {
	ctx := t.Context()
	c, url := ledger(t)
	exec(t, c, `INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before) VALUES ($1, 'u1', 'shop/a', $2, $2)`, job, start)
	var all []time.Time
	for m := range admin.MostWindows {
		all = append(all, start.Add(time.Duration(m)*time.Minute))
	}
	fill(t, c, 100, job) // some of them are completed
	exec(t, c, "BEGIN")
	b, err := admin.Backfill(ctx, c, job, all, admin.ReprocessNone, "ann", "why")
	if err != nil || b.Planned != admin.MostWindows-100 || b.Done != 100 {
		t.Fatal(b, err)
	}
	if got := ask(t, connect(t, url), at(-1), ""); got != "run first" {
		t.Error(got)
	}
	exec(t, c, "COMMIT")
	if got := value(t, c, "SELECT string_agg(concat_ws(' ', what, windows), ', ') FROM onceguard.decisions"); got != fmt.Sprint("backfill ", b.Planned) {
		t.Error(got)
	}
	if n, err := admin.CancelBackfill(ctx, c, job, all[0], all[len(all)-1], "ann", "enough"); err != nil || n != b.Planned {
		t.Error(n, err)
	}
}
