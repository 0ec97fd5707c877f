package engine

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/onceguard/onceguard/pkg/contract"
)

func (r *rig) reschedule(c *batchv1.CronJob, schedule string, since time.Duration) {
	r.t.Helper()
	r.edit(c, func(c *batchv1.CronJob) {
		s, _ := guarded(c)
		s.Schedule, s.Since = schedule, r.minute.Add(since)
		stamp(r.t, c, s)
	})
}

// An edit that another engine has recorded, or this one without hearing of it, is read again;
// other CronJobs of the ledger go on.
func TestAnEditThatWasRecordedMeanwhile(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -8*m)
	r.cronJob("other", -8*m)
	r.byHand()
	r.step()
	e, w := r.engine, r.w
	r.clock.set(r.minute.Add(5 * m))
	r.reschedule(c, "*/5 * * * *", 5*m)
	r.w, r.engine = nil, r.another()
	r.byHand()
	r.step()
	r.engine, r.w = e, w
	r.read()
	r.at(8 * m) // fails the test when the ledger is given up
	r.want("shop/other", "-8..6 missed controller", "7..7 late controller")
	if behind := r.minute.Add(8 * m).Sub(value[time.Time](r, "SELECT judged_before FROM onceguard.schedules WHERE job_name = 'shop/sync'")); behind > 3*m {
		t.Errorf("judged %s behind", behind)
	}
}

// One CronJob that the ledger does not accept waits; others go on.
func TestOneThatTheLedgerRefuses(t *testing.T) {
	r := newRig(t)
	r.cronJob("good", -8*m)
	bad := r.cronJob("bad", -8*m)
	r.byHand()
	c := *r.engine.cluster.cronJob(bad.UID)
	c.Settings.JobName = "shop/bad#1"
	r.engine.cluster.parts[0].cronJobs.byUID[bad.UID] = &c
	r.step()
	r.want("shop/good", "-8..-2 missed controller", "-1..-1 late controller")
	if n := r.log.FilterMessageSnippet("does not accept").Len(); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// What no webhook has stamped so is not looked at: somebody would have other people's windows
// judged, and closed.
func TestJobNamesOfOtherNamespaces(t *testing.T) {
	for name, want := range map[string]bool{
		"shop/sync": true, "berlin:shop/sync": true, "shop/": false, "": false, "other/sync": false, "berlin:other/sync": false,
		"other/x:shop/sync": false, "shop/sync#1": false, "shop/sync@x": false, "shop/" + strings.Repeat("x", longestJobName): false,
	} {
		if got := owns("shop", name); got != want {
			t.Errorf("%.40q: %v", name, got)
		}
	}
	r := newRig(t)
	r.cronJob("sync", -8*m, func(s *contract.Settings, _ *batchv1.CronJob) { s.JobName = "other/sync" })
	r.byHand()
	if n := len(r.engine.cluster.cronJobs()); n != 0 {
		t.Errorf("%d CronJobs are looked at", n)
	}
}

// The batch shrinks while the ledger does not answer, and who fails alone stays alone.
func TestBatchesShrink(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		r.cronJob(name, -m)
	}
	r.byHand()
	w := r.w
	r.clock.set(r.minute.Add(m))
	w.measure(4, ErrUnregistered)
	due, _ := w.take(w.now())
	if len(due) != 2 {
		t.Fatalf("%d at once", len(due))
	}
	due[0].pause = time.Second
	for _, s := range due {
		w.put(s, r.minute, true)
	}
	w.measure(2, nil)
	w.measure(4, nil)
	for range 2 {
		all, _ := w.take(w.now())
		if len(all) != 1 && len(all) != 3 || len(all) == 3 && (all[0].pause+all[1].pause+all[2].pause) != 0 {
			t.Errorf("%d CronJobs with one that is to be alone", len(all))
		}
	}
}

// The engine goes by the ledger's clock when its own is ahead: what is due only by its own is
// not called missed.
func TestAClockThatIsAhead(t *testing.T) {
	r := newRig(t)
	r.cronJob("sync", -5*m)
	r.byHand()
	r.engine.theirs = func() time.Time { return r.clock.now().Add(-10 * m) }
	r.at(10 * m)
	r.want("shop/sync", "-5..-2 missed controller", "-1..-1 late controller")
	if n := r.log.FilterMessageSnippet("clock is ahead").Len(); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// The watch has seen a suspension while the ledger was away.
func TestSuspendedWhileTheLedgerIsAway(t *testing.T) {
	r := newRig(t)
	r.asServer()
	c := r.cronJob("sync", -2*m, catchUp(contract.CatchUpAll))
	for i := range 3 {
		r.done("shop/sync", time.Duration(i-2)*m)
	}
	r.byHand()
	r.at(30 * time.Second)
	yes, no := true, false
	r.clock.set(r.minute.Add(40 * time.Second))
	r.edit(c, func(c *batchv1.CronJob) { c.Spec.Suspend = &yes })
	r.read()
	r.clock.set(r.minute.Add(50*m + 30*time.Second))
	r.edit(c, func(c *batchv1.CronJob) { c.Spec.Suspend = &no })
	r.read()
	r.at(60 * m)
	if got := r.gaps("shop/sync"); len(got) == 0 || got[0] != "1..50 skipped suspended suspended" {
		t.Errorf("%q", got)
	}
}

// A Job that is refused is not counted as made by each engine that begins.
func TestRefusalsOverRestarts(t *testing.T) {
	r := newRig(t)
	r.asServer()
	r.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, forbidden("exceeded quota")
	})
	r.cronJob("sync", -40*m, catchUp(contract.CatchUpAll), func(s *contract.Settings, _ *batchv1.CronJob) { s.Schedule = "*/30 * * * *" })
	r.byHand()
	for i := range 5 {
		r.engine = r.another()
		r.byHand()
		r.at(time.Duration(i*20+10) * m)
	}
	if made := value[int](r, "SELECT coalesce(max(made), -1) FROM onceguard.plans"); made != 1 {
		t.Errorf("made %d times", made)
	}
}

// A CronJob that was made again while no engine was there: its windows until then are
// answered, once it is sure that nobody looks at the former one.
func TestAFormerCronJobIsEnded(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -5*m)
	r.byHand()
	r.step()
	if err := r.client.BatchV1().CronJobs("shop").Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.cronJob("sync", 30*m+time.Second)
	r.engine = r.another()
	// Postgres has a clock of its own, and by that the last look was just now.
	r.clock.set(r.minute.Add(abandoned + 30*m))
	r.byHand()
	if err := r.w.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := func() string {
		return value[string](r, "SELECT coalesce(string_agg(g, ', '), '') FROM (SELECT (extract(epoch FROM last_window - $2)::int / 60)::text AS g FROM onceguard.gaps WHERE cron_job_uid = $1 ORDER BY first_window DESC LIMIT 1) x", string(c.UID), r.minute)
	}
	if got := gone(); got != "-1" {
		t.Errorf("at first: %s", got)
	}
	r.clock.set(r.clock.now().Add(trusted + m))
	if err := r.w.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := gone(); got != "30" {
		t.Errorf("its last window that has an answer is at %s", got)
	}
}

// The CronJobs of one namespace do not wait for those of another.
func TestOneForbiddenNamespace(t *testing.T) {
	r := newRig(t)
	r.cronJob("sync", -8*m)
	r.client.PrependReactor("list", "cronjobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == "gone" {
			return true, nil, forbidden("no such namespace")
		}
		return false, nil, nil
	})
	r.engine.Namespaces = []string{"gone", "shop"}
	r.live()
	start(t, r.engine)
	eventually(t, "the other namespace is looked at", func() bool { return r.engine.Counters.Looks.Load() > 0 })
	if err := r.engine.Ready(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("Ready says %v", err)
	}
}

// An engine that begins knows what the one before it found out, and does not tell it again.
func TestWhatWasRecordedIsKnownAfterARestart(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", 0)
	r.job(c, 0, func(j *batchv1.Job) { j.CreationTimestamp = metav1.NewTime(r.minute) })
	r.byHand()
	r.at(m)
	event(r, c, "FailedCreate", `Error creating job: jobs.batch "x" is forbidden: exceeded quota: q`, 70*time.Second)
	r.at(3*m + 30*time.Second)
	before := r.gaps("shop/sync")
	if len(before) < 2 || !strings.Contains(strings.Join(before, " "), "missed quota") {
		t.Fatalf("%q", before)
	}
	events := r.events(c)
	list, err := r.client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items { // the controller's are kept for an hour
		if e.Reason == failedCreate {
			if err := r.client.CoreV1().Events("shop").Delete(t.Context(), e.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.engine = r.another()
	r.byHand()
	r.at(3*m + 40*time.Second)
	if got := strings.Join(r.gaps("shop/sync"), ", "); got != strings.Join(before, ", ") {
		t.Errorf("after the restart %s, before it %q", got, before)
	}
	if got := r.events(c); len(got) > len(events) {
		t.Errorf("told again: %q", got)
	}
}
