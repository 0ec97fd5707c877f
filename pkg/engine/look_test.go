package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

const m = time.Minute

func TestAHealthyWindowCostsOneLook(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", 0)
	r.byHand()
	r.step()
	r.cost()
	for i := range 20 {
		at := time.Duration(i) * m
		r.job(c, at)
		r.done("shop/sync", at)
		r.at(at + m + 30*time.Second)
	}
	got := r.cost()
	// Beside the looks: what people have planned is asked for every half minute at most.
	if got.looks > 21 || got.statements > 3*21 || got.judged > 0 || got.reads+got.writes > 0 {
		t.Errorf("20 windows: %+v", got)
	}
	r.want("shop/sync")
	// A sign is written each hour, changed or not; how far it is judged goes with it.
	for i := range 60 {
		r.done("shop/sync", time.Duration(20+i)*m)
	}
	r.at(80 * m)
	if got := r.cost(); got.judged != 1 {
		t.Errorf("after an hour: %+v", got)
	}
	if behind := r.minute.Add(80 * m).Sub(value[time.Time](r, "SELECT judged_before FROM onceguard.schedules")); behind > 3*m {
		t.Errorf("judged %s behind", behind)
	}
}

// The ledger knows microseconds: that what it has seen ends before a clock of nanoseconds is
// no reason to look again.
func TestAClockOfNanosecondsCostsNoSecondLook(t *testing.T) {
	r := newRig(t)
	r.cronJob("sync", -5*m)
	r.byHand()
	r.at(30*time.Second + 100)
	r.cost()
	for i := range 10 {
		r.at(time.Duration(i+1)*m + 30*time.Second + 100)
	}
	if got := r.cost(); got.looks != 10 {
		t.Errorf("ten minutes: %+v", got)
	}
}

func TestWhatNobodyRanIsMissedInOneRangeAndToldOnce(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -500*m)
	r.byHand()
	r.step()
	r.want("shop/sync", "-500..-2 missed controller", "-1..-1 late controller")
	got := r.cost()
	if got.looks != 1 || got.statements > 6 || got.judged != 1 || got.reads > 1 || got.writes > 1 {
		t.Errorf("500 windows: %+v", got)
	}
	for i := range 9 {
		r.at(time.Duration(i+1) * m)
	}
	r.want("shop/sync", "-500..7 missed controller", "8..8 late controller")
	if got := r.cost(); got.looks > 10 || got.judged > 9 || got.statements > 40 || got.reads > 9 || got.writes > 0 {
		t.Errorf("9 more windows: %+v", got)
	}
	r.at(11 * m)
	if got := r.events(c); len(got) != 2 || !strings.Contains(got[0]+got[1], "WindowsMissed: 499 windows from ") || !strings.Contains(got[0]+got[1], "WindowsMissed: 11 windows from ") {
		t.Errorf("events: %q", got)
	}
	// A Job that comes after all runs, and is the answer.
	r.done("shop/sync", -5*m)
	if n := value[int](r, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed'"); n != 1 {
		t.Errorf("%d windows have run", n)
	}
}

func TestALateJobClearsTheAlarm(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", 0, func(s *contract.Settings, _ *batchv1.CronJob) {
		s.Schedule = "@hourly"
		s.Since = s.Since.Truncate(time.Hour)
	})
	hour := r.minute.Truncate(time.Hour).Sub(r.minute)
	r.done("shop/sync", hour)
	r.byHand()
	r.at(hour + 70*time.Second + time.Hour)
	if got := r.gaps("shop/sync"); len(got) < 1 || !strings.HasSuffix(got[len(got)-1], "late controller") {
		t.Fatalf("%q", got)
	}
	r.job(c, hour+time.Hour, func(j *batchv1.Job) { j.CreationTimestamp = metav1.NewTime(r.clock.now()) })
	r.read()
	r.done("shop/sync", hour+time.Hour)
	r.at(hour + time.Hour + 20*m)
	r.want("shop/sync")
}

func TestSuspendedWindows(t *testing.T) {
	for _, c := range []struct {
		rule contract.CatchUp
		sus  contract.SuspendedWindows
		want []string
		jobs int
	}{
		{"", "", []string{"0..8 skipped suspended"}, 0},
		{contract.CatchUpAll, "", []string{"0..8 skipped suspended suspended"}, 0},
		{contract.CatchUpAll, contract.SuspendedCatchUp, nil, 1},
	} {
		r := newRig(t)
		r.asServer()
		j := r.cronJob("sync", 0, catchUp(c.rule), func(s *contract.Settings, j *batchv1.CronJob) {
			s.SuspendedWindows = c.sus
			yes := true
			j.Spec.Suspend = &yes
		})
		r.clock.set(r.minute.Add(-30 * time.Second))
		r.byHand()
		r.step()
		r.at(8*m + 30*time.Second)
		if n := len(r.jobs()); n > 0 {
			t.Errorf("%v: %d Jobs while it is suspended", c, n)
		}
		r.edit(j, func(j *batchv1.CronJob) { no := false; j.Spec.Suspend = &no })
		r.read()
		r.at(8*m + 40*time.Second)
		for i := range 3 {
			r.job(j, time.Duration(9+i)*m)
			r.done("shop/sync", time.Duration(9+i)*m)
		}
		r.read()
		r.at(12 * m)
		r.want("shop/sync", c.want...)
		if n := len(r.jobs()); n != c.jobs {
			t.Errorf("%v: %d Jobs after the resume", c, n)
		}
	}
}

func TestForbiddenByOverlap(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", 0, func(_ *contract.Settings, c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent })
	r.job(c, 0)
	a := r.claimed("shop/sync", 0)
	r.byHand()
	r.at(3*m + 10*time.Second)
	if _, err := r.guards.Heartbeat(t.Context(), a, time.Hour); err != nil {
		t.Fatal(err)
	}
	r.at(5*m + 10*time.Second)
	// The newest one comes when the Job ends: it is only late.
	r.want("shop/sync", "1..3 missed overlap", "4..4 late overlap")
	if got := r.evidence("shop/sync"); !strings.Contains(got, "concurrencyPolicy Forbid: Job sync-") {
		t.Errorf("evidence: %s", got)
	}
}

func TestGoneCronJobs(t *testing.T) {
	for name, change := range map[string]func(*rig, *batchv1.CronJob){
		"deleted": func(r *rig, c *batchv1.CronJob) {
			if err := r.client.BatchV1().CronJobs("shop").Delete(r.t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
				r.t.Fatal(err)
			}
		},
		"not guarded any more": func(r *rig, c *batchv1.CronJob) {
			r.edit(c, func(c *batchv1.CronJob) { c.Annotations = nil; c.Spec.JobTemplate.Annotations = nil })
		},
		"in another ledger": func(r *rig, c *batchv1.CronJob) {
			r.edit(c, func(c *batchv1.CronJob) {
				s, _ := guarded(c)
				s.Ledger = "other"
				stamp(r.t, c, s)
			})
		},
		"recreated": func(r *rig, c *batchv1.CronJob) {
			if err := r.client.BatchV1().CronJobs("shop").Delete(r.t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
				r.t.Fatal(err)
			}
			r.cronJob("sync", 30*m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.cronJob("sync", -5*m)
			r.byHand()
			r.step()
			r.want("shop/sync", "-5..-2 missed controller", "-1..-1 late controller")
			change(r, c)
			r.read()
			r.at(10 * time.Second)
			r.want("shop/sync", "-5..-2 missed controller", "-1..0 missed controller")
			if n := value[int](r, "SELECT count(*) FROM onceguard.schedules WHERE gone_at IS NOT NULL AND cron_job_uid = $1", string(c.UID)); n != 1 {
				t.Errorf("not recorded as gone")
			}
			// It stays so, also for an engine that begins afterwards.
			r.at(20 * m)
			r.engine = r.another()
			r.byHand()
			r.at(25 * m)
			r.want("shop/sync", "-5..-2 missed controller", "-1..0 missed controller")
		})
	}
}

func TestAnotherNameOfTheJob(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -5*m)
	r.byHand()
	r.step()
	r.edit(c, func(c *batchv1.CronJob) {
		s, _ := guarded(c)
		s.JobName, s.Since = "shop/shared", r.minute.Add(time.Second)
		stamp(t, c, s)
	})
	r.read()
	r.at(5 * m)
	r.want("shop/sync", "-5..-2 missed controller", "-1..0 missed controller")
	r.want("shop/shared", "1..3 missed controller", "4..4 late controller")
}

// Whose windows are whose: two CronJobs under one name; what either runs is run.
func TestASharedJobName(t *testing.T) {
	r := newRig(t)
	both := func(s *contract.Settings, _ *batchv1.CronJob) { s.JobName = "shop/shared" }
	r.cronJob("blue", -5*m, both)
	r.cronJob("green", -3*m, both)
	r.done("shop/shared", -4*m)
	r.byHand()
	r.step()
	r.want("shop/shared", "-5..-5 missed controller", "-3..-2 missed controller", "-3..-2 missed controller", "-1..-1 late controller", "-1..-1 late controller")
}

func TestAnEditedScheduleLeavesNoWindowOpenAndInventsNone(t *testing.T) {
	r := newRig(t)
	r.asServer()
	c := r.cronJob("sync", -5*m, catchUp(contract.CatchUpAll))
	// 12:00 is due and nobody has seen it when the schedule becomes hourly at half past.
	r.clock.set(r.minute.Add(-30 * time.Second))
	r.byHand()
	r.step()
	r.at(30 * time.Second)
	r.edit(c, func(c *batchv1.CronJob) {
		s, _ := guarded(c)
		s.Schedule, s.Since, s.CatchUp = "17 3 1 1 *", r.minute.Add(31*time.Second), ""
		stamp(t, c, s)
	})
	r.read()
	r.at(40 * time.Second)
	got := r.gaps("shop/sync")
	if len(got) == 0 || !strings.HasSuffix(got[len(got)-1], "0..0 missed controller") && !strings.Contains(got[len(got)-1], "..0 missed controller") {
		t.Errorf("the window at the edit has no answer: %q", got)
	}
	for _, g := range got {
		if strings.Contains(g, " late ") {
			t.Errorf("late for ever: %q", got)
		}
	}
	r.at(3 * time.Hour)
	if after := r.gaps("shop/sync"); !slices.Equal(got, after) {
		t.Errorf("of the new schedule none was due: %q", after)
	}
	if n := value[int](r, "SELECT count(*) FROM onceguard.plans WHERE made = 0"); n != 0 {
		t.Errorf("%d windows of the old schedule are still planned", n)
	}
}

func TestExcludedNamespace(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -5*m)
	c.Namespace, c.ResourceVersion = "kube-system", ""
	if _, err := r.client.BatchV1().CronJobs("kube-system").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.byHand()
	for _, c := range r.engine.cluster.cronJobs() {
		if c.namespace != "shop" {
			t.Errorf("%s is looked at", c.text())
		}
	}
}

// A row of a CronJob that is not here may be another cluster's: only when nobody has looked
// at it for long it is gone.
func TestARowOfAnotherCluster(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -5*m)
	r.byHand()
	r.step()
	if err := r.client.BatchV1().CronJobs("shop").Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.engine = r.another() // of another cluster, or after the CronJob was deleted
	r.byHand()
	gone := func() bool {
		return value[int](r, "SELECT count(*) FROM onceguard.schedules WHERE gone_at IS NOT NULL") == 1
	}
	r.at(2 * time.Hour)
	if gone() {
		t.Error("gone after two hours")
	}
	r.at(abandoned + 2*m)
	r.at(abandoned + sign + 2*m)
	if !gone() {
		t.Error("not gone although nobody looks at it")
	}
}

func TestAScheduleThatNobodyCanCompute(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -5*m, func(s *contract.Settings, _ *batchv1.CronJob) { s.Schedule = "@every 5m" })
	r.byHand()
	for i := range 30 {
		r.at(time.Duration(i) * m)
	}
	r.want("shop/sync")
	if note := value[string](r, "SELECT note FROM onceguard.schedules"); !strings.Contains(note, "@every 5m") {
		t.Errorf("note: %s", note)
	}
	if got := r.events(c); len(got) != 1 || !strings.HasPrefix(got[0], ReasonNotJudged+": its windows are known only from its Jobs") {
		t.Errorf("events: %q", got)
	}
	if got := r.cost(); got.judged > 1 || got.looks > 8 {
		t.Errorf("half an hour: %+v", got)
	}
}

// The engine looks at another ledger than the guards: nothing is made of it.
func TestAnotherLedgerIsNoFlood(t *testing.T) {
	r := newRig(t)
	r.asServer()
	c := r.cronJob("sync", -50*m, catchUp(contract.CatchUpAll))
	for i := range 3 {
		j := r.job(c, time.Duration(i-10)*m)
		r.clock.set(j.CreationTimestamp.Add(20 * time.Second))
		r.end(j, batchv1.JobComplete, "CompletionsReached", "")
	}
	r.clock.set(r.minute)
	r.byHand()
	r.step()
	r.at(5 * m)
	if n := value[int](r, "SELECT (SELECT count(*) FROM onceguard.plans) + (SELECT count(*) FROM onceguard.gaps)"); n != 0 || len(r.jobs()) > 0 {
		t.Errorf("%d plans and gaps, %d Jobs", n, len(r.jobs()))
	}
	if note := value[string](r, "SELECT note FROM onceguard.schedules"); !strings.Contains(note, "another ledger than the guards") {
		t.Errorf("note: %s", note)
	}
}

func event(r *rig, about *batchv1.CronJob, reason, message string, at time.Duration) {
	r.t.Helper()
	when := metav1.NewTime(r.minute.Add(at))
	if _, err := r.client.CoreV1().Events("shop").Create(r.t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", GenerateName: "e", Name: "e" + message[len(message)-4:] + when.Format("150405")}, Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: "CronJob", Name: about.Name, UID: about.UID}, FirstTimestamp: when, LastTimestamp: when, Count: 1,
	}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func TestRefusedJobsOfTheController(t *testing.T) {
	for _, c := range []struct{ message, reason string }{
		{`Error creating job: jobs.batch "sync-29934132" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1, used: count/jobs.batch=3, limited: count/jobs.batch=3`, "quota"},
		{`Error creating job: admission webhook "jobs.example.com" denied the request: no Jobs on Sundays`, "admission"},
		{`Error creating job: Internal error occurred: failed calling webhook "jobs.example.com": failed to call webhook: Post "https://x": connection refused`, "admission"},
		{`Error creating job: jobs.batch "sync-29934132" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not today`, "admission"},
		{`Error creating job: etcdserver: request timed out`, "controller"},
	} {
		r := newRig(t)
		j := r.cronJob("sync", -5*m)
		event(r, j, "FailedCreate", c.message, -2*m)
		r.byHand()
		r.step()
		want := []string{"-5..-2 missed " + c.reason, "-1..-1 late controller"}
		if c.reason == "controller" {
			want = []string{"-5..-2 missed controller", "-1..-1 late controller"}
		}
		r.want("shop/sync", want...)
		if c.reason != "controller" && !strings.HasPrefix(r.evidence("shop/sync"), "CronJob sync: "+c.message) {
			t.Errorf("evidence: %s", r.evidence("shop/sync"))
		}
		// Kubernetes forgets its Events, the record does not.
		if err := r.client.CoreV1().Events("shop").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
