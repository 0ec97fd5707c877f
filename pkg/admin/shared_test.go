package admin_test

import (
	"testing"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/window"
)

// Of several CronJobs of a job one is meant: what it is to run is taken back, and what it is
// named for becomes its.
func TestPlansOfOneCronJob(t *testing.T) {
	ctx := t.Context()
	c := watched(t)
	exec(t, c, `INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before) VALUES ($1, 'u2', 'shop/b', $2, $2)`, job, start)
	plan := func(uid string, from, to int) {
		t.Helper()
		if b, err := admin.BackfillBy(ctx, c, job, uid, hours(from, to), admin.ReprocessNone, "ann", "why"); err != nil || b.Planned != to-from+1 {
			t.Fatal(b, err)
		}
	}
	const whose = "SELECT string_agg(cron_job_uid || ' ' || cron_job, ', ' ORDER BY window_start) FROM onceguard.plans"
	plan("u1", 0, 2)
	if !making(t, c, 1) {
		t.Fatal("no Job is made")
	}
	plan("u2", 0, 1)
	if got := value(t, c, whose); got != "u2 shop/b, u1 shop/a, u1 shop/a" { // of the second a Job is made already
		t.Error(got)
	}
	if n, err := admin.CancelBackfillBy(ctx, c, job, "u1", start, at(9).Start, "bob", "enough"); err != nil || n != 2 {
		t.Error(n, err)
	}
	if got := value(t, c, whose); got != "u2 shop/b" {
		t.Error(got)
	}
	if p, err := admin.Prospects(ctx, c, job, at(9).Start); err != nil || !p.Planned || *p.Stop != (window.Window{JobName: job, Start: start}) {
		t.Errorf("%+v %v", p, err)
	}
}
