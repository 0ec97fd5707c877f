//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
)

// Schedule and zone are edited while the CronJobs are suspended: what the former schedule had
// has its answer from then on, and nothing of it is caught up; the new one begins with the
// edit, and invents no past.
func TestTheScheduleIsEdited(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	calm(t, time.Now())
	schedule, zone := w.cronJob(t, "schedule", credit, caught(contract.CatchUpAll)), w.cronJob(t, "zone", credit, caught(contract.CatchUpAll))
	before := map[string]contract.Settings{"schedule": settingsOf(t, schedule), "zone": settingsOf(t, zone)}
	eventually(t, 3*time.Minute, "the engine knows them", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_schedule") == 2, nil
	})
	second := minute(t, before["zone"].Since, 2)
	w.patch(t, "schedule", `{"spec":{"schedule":"*/1 0-23 * * *"}}`)
	w.patch(t, "zone", `{"spec":{"timeZone":"Asia/Kolkata"}}`)
	for name, s := range before {
		for _, a := range w.answered(t, time.Minute, s.JobName, due(t, s, second)) {
			if is(a) != "skipped suspended" {
				t.Errorf("%s, window %s before the edit: %s", name, a.Window, is(a))
			}
		}
		if now := w.settings(t, name); !now.Since.After(second) {
			t.Errorf("%s counts from %s, want after the edit", name, now.Since)
		}
	}
	third := minute(t, time.Now(), 1)
	for name := range before {
		w.patch(t, name, resuming)
		if a := w.answered(t, 2*time.Minute, w.ns+"/"+name, []time.Time{third}); is(a[0]) != "done" {
			t.Errorf("%s, window %s after the edit: %s", name, third, is(a[0]))
		}
		w.patch(t, name, suspending)
	}
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE window_start <= $1", second); n != 0 {
		t.Errorf("%d windows of the former schedule ran", n)
	}
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_gap WHERE first_window < $1", before["zone"].Since); n != 0 {
		t.Errorf("%d gaps before guarding began", n)
	}
	w.accounted(t, "schedule", "zone")
	w.noFlood(t, schedule)
	w.noFlood(t, zone)
}

// A CronJob is deleted, and made again under its name and under another one with the same
// job name; then the first goes. Whatever Jobs come, a window runs once, and what nobody was
// there for is nobody's window.
func TestACronJobIsReplaced(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	jobName := w.ns + "/credit"
	calm(t, time.Now())
	old := w.cronJob(t, "credit", credit, live)
	s := settingsOf(t, old)
	first := minute(t, s.Since, 1)
	w.answered(t, time.Minute, jobName, []time.Time{first})
	calm(t, time.Now())
	remove := func(name string) {
		t.Helper()
		if _, err := w.Kubectl(t.Context(), "delete", "cronjob", name, "-n", w.ns, "--cascade=background", "--wait"); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(uid string) {
		t.Helper()
		eventually(t, time.Minute, "the record of its end", func(context.Context) (bool, error) {
			return w.number(t, "SELECT count(*) FROM onceguard.job_schedule WHERE cron_job_uid = $1 AND gone_at IS NOT NULL", uid) == 1, nil
		})
	}
	remove("credit")
	gone(string(old.UID))
	// Nobody is there for the second window.
	second := minute(t, time.Now(), 1)
	again := w.cronJob(t, "credit", credit, live)
	renamed := w.cronJob(t, "renamed", credit, live, annotated(contract.AnnotationJobName, "credit"))
	// For one window both.
	third := minute(t, time.Now(), 1)
	if a := w.answered(t, 2*time.Minute, jobName, []time.Time{first, third}); is(a[0]) != "done" || is(a[1]) != "done" {
		t.Errorf("before and after: %s", told(a))
	}
	eventually(t, 2*time.Minute, "Jobs of both for one window", func(context.Context) (bool, error) {
		n := 0
		for _, j := range append(w.jobsOf(t, again), w.jobsOf(t, renamed)...) {
			if j.Annotations[contract.AnnotationScheduledTimestamp] == stamp(third) && j.Status.Succeeded == 1 {
				n++
			}
		}
		return n == 2, nil
	})
	calm(t, time.Now())
	remove("credit")
	gone(string(again.UID))
	fourth := minute(t, time.Now(), 1)
	if a := w.answered(t, 2*time.Minute, jobName, []time.Time{fourth}); is(a[0]) != "done" {
		t.Errorf("under the new name: %s", told(a))
	}
	w.accounted(t, "renamed")
	all, err := admin.Answers(t.Context(), w.ledger.DB, jobName, []time.Time{first, second, third, fourth})
	if err != nil {
		t.Fatal(err)
	}
	if all[1].Kind != admin.ByNone {
		t.Errorf("while there was no CronJob: %s", told(all))
	}
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_gap WHERE first_window <= $1 AND status <> 'late'", third); n != 0 {
		t.Errorf("%d gaps though each window ran", n)
	}
	w.noFlood(t, again)
	w.noFlood(t, renamed)
}
