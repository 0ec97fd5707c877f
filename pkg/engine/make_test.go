package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// runs ends the Jobs of the engine that have not ended, as guards and the Job controller
// would, and gives their names.
func (r *rig) runs() (names []string) {
	r.t.Helper()
	for _, j := range r.jobs() {
		if held(&j, batchv1.JobComplete) {
			continue
		}
		at, err := time.Parse(time.RFC3339, j.Annotations[contract.AnnotationScheduledTimestamp])
		if err != nil {
			r.t.Fatal(err)
		}
		r.done("shop/sync", at.Sub(r.minute))
		r.end(&j, batchv1.JobComplete, "CompletionsReached", "")
		names = append(names, j.Name)
	}
	return names
}

// caughtUp runs everything that is planned, and gives the names of the Jobs in order; next
// is called after each.
func (r *rig) caughtUp(next func()) (names []string) {
	r.t.Helper()
	for range 100 {
		made := r.runs()
		if len(made) > 1 {
			r.t.Errorf("at once: %q", made)
		}
		names = append(names, made...)
		if next != nil {
			next()
		}
		r.clock.set(r.clock.now().Add(2 * settle))
		r.step()
		if len(made) == 0 && value[int](r, "SELECT count(*) FROM onceguard.plans") == 0 {
			return names
		}
	}
	r.t.Fatalf("never caught up; so far %q", names)
	return nil
}

func TestCatchUpRunsEachMissedWindowOnceOldestFirst(t *testing.T) {
	for name, between := range map[string]func(*rig){
		"one engine": func(*rig) {},
		"restarts": func(r *rig) {
			r.engine = r.another()
			r.byHand()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.asServer()
			c := r.cronJob("sync", -8*m, catchUp(contract.CatchUpAll))
			r.done("shop/sync", -5*m)
			r.byHand()
			r.step()
			r.cost()
			names := r.caughtUp(func() { between(r) })
			got := r.cost()
			var want []string
			for _, at := range []int{-8, -7, -6, -4, -3, -2} {
				want = append(want, window.CatchUpName("sync", r.minute.Add(time.Duration(at)*m)))
			}
			if !slices.Equal(names, want) {
				t.Errorf("Jobs:\n got %q\nwant %q", names, want)
			}
			if name == "one engine" && (got.statements > 8*6 || got.reads+got.writes > 6*6) {
				t.Errorf("six windows: %+v", got)
			}
			r.want("shop/sync", "-1..-1 late controller")
			if n := value[int](r, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed' AND attempt = 1"); n != 7 {
				t.Errorf("%d windows have run once", n)
			}
			j := r.jobs()[0]
			o := j.OwnerReferences[0]
			if o.UID != c.UID || o.Controller == nil || *o.Controller || o.BlockOwnerDeletion != nil || j.Labels["app"] != "x" || j.Labels[contract.LabelGuard] != contract.Enabled ||
				j.Annotations[contract.AnnotationConfig] == "" || *j.Spec.TTLSecondsAfterFinished != 86400 {
				t.Errorf("%+v", j)
			}
			events := strings.Join(r.events(c), "\n")
			if strings.Count(events, ReasonPlanned) != 1 || strings.Count(events, ReasonCaughtUp) != 1 && name == "one engine" {
				t.Errorf("events: %s", events)
			}
		})
	}
}

// A CronJob whose windows are missed minute by minute is told of every ten minutes.
func TestCatchUpIsToldQuietly(t *testing.T) {
	r := newRig(t)
	r.asServer()
	c := r.cronJob("sync", -3*m, catchUp(contract.CatchUpAll))
	r.byHand()
	for n := range 9 {
		r.at(time.Duration(n)*m + 30*time.Second)
		if ran := r.caughtUp(nil); len(ran) == 0 {
			t.Fatalf("nothing is caught up in minute %d", n)
		}
	}
	events := strings.Join(r.events(c), "\n")
	if strings.Count(events, ReasonPlanned) != 1 || strings.Count(events, ReasonCaughtUp) != 1 {
		t.Errorf("within ten minutes: %s", events)
	}
	r.at(11 * m)
	r.caughtUp(nil)
	events = strings.Join(r.events(c), "\n")
	if strings.Count(events, ReasonPlanned) != 2 || strings.Count(events, ReasonCaughtUp) != 2 {
		t.Errorf("afterwards: %s", events)
	}
}

// Two leaders at once, looking in turns: each window runs once, and both come to the same.
func TestTwoEnginesAtOnce(t *testing.T) {
	r := newRig(t)
	r.asServer()
	r.cronJob("sync", -8*m, catchUp(contract.CatchUpAll))
	r.byHand()
	one, wOne := r.engine, r.w
	r.w = nil
	r.engine = r.another()
	r.byHand()
	two, wTwo := r.engine, r.w
	turn := 0
	swap := func() {
		if turn++; turn%2 == 0 {
			r.engine, r.w = one, wOne
		} else {
			r.engine, r.w = two, wTwo
		}
		r.read()
		for _, c := range r.engine.cluster.cronJobs() {
			r.w.touch(c.uid)
		}
	}
	swap()
	r.step()
	swap()
	r.step()
	names := r.caughtUp(swap)
	if len(names) != 7 || !slices.IsSorted(names) {
		t.Errorf("Jobs: %q", names)
	}
	if n := value[int](r, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed' AND attempt = 1"); n != 7 {
		t.Errorf("%d windows have run once", n)
	}
	r.want("shop/sync", "-1..-1 late controller")
	wOne.book.close()
	wOne.book = nil
}

func forbidden(text string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "x", fmt.Errorf("%s", text))
}

func TestARefusedJobIsTriedAgainWithPausesAndTold(t *testing.T) {
	r := newRig(t)
	r.asServer()
	refuse, tries := true, 0
	r.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		if tries++; refuse {
			return true, nil, forbidden("exceeded quota: jobs, requested: count/jobs.batch=1, used: count/jobs.batch=3, limited: count/jobs.batch=3")
		}
		return false, nil, nil
	})
	c := r.cronJob("sync", -5*m, catchUp(contract.CatchUpAll))
	r.byHand()
	r.step()
	for i := range 120 {
		r.at(time.Duration(i+1) * 30 * time.Second)
	}
	if tries > 12 {
		t.Errorf("%d tries in an hour", tries)
	}
	note := value[string](r, "SELECT note FROM onceguard.schedules")
	if !strings.Contains(note, "cannot be made") || !strings.Contains(note, "exceeded quota: jobs") {
		t.Errorf("note: %s", note)
	}
	if made := value[int](r, "SELECT max(made) FROM onceguard.plans"); made != 1 {
		t.Errorf("counted as made %d times", made)
	}
	told := 0
	for _, e := range r.events(c) {
		if strings.HasPrefix(e, ReasonNotJudged) {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times: %q", told, r.events(c))
	}
	refuse = false
	r.at(75 * m)
	if n := len(r.jobs()); n != 1 {
		t.Errorf("%d Jobs when it is allowed again", n)
	}
	r.at(77 * m)
	if note := value[string](r, "SELECT coalesce(note, '') FROM onceguard.schedules"); note != "" {
		t.Errorf("note: %s", note)
	}
}

func TestAForeignJobOfOurName(t *testing.T) {
	r := newRig(t)
	r.asServer()
	c := r.cronJob("sync", -5*m, catchUp(contract.CatchUpAll))
	name := window.CatchUpName("sync", r.minute.Add(-5*m))
	if _, err := r.client.BatchV1().Jobs("shop").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.byHand()
	r.step()
	r.at(2 * m)
	if note := value[string](r, "SELECT note FROM onceguard.schedules"); !strings.Contains(note, "there is a Job "+name+" that Onceguard did not make for this window; delete it") {
		t.Errorf("note: %s", note)
	}
	if got := r.events(c); !slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, name) }) {
		t.Errorf("events: %q", got)
	}
	if err := r.client.BatchV1().Jobs("shop").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.at(30 * m)
	if got := r.jobs(); len(got) != 1 || got[0].Name != name {
		t.Errorf("Jobs: %v", got)
	}
}

func TestNothingIsMadeOfACronJobThatChanged(t *testing.T) {
	for name, change := range map[string]func(*batchv1.CronJob){
		"suspended": func(c *batchv1.CronJob) { yes := true; c.Spec.Suspend = &yes },
		"unguarded": func(c *batchv1.CronJob) { c.Annotations = nil },
		"recreated": func(c *batchv1.CronJob) { c.UID = "another" },
		"edited": func(c *batchv1.CronJob) {
			s, _ := guarded(c)
			s.Since = s.Since.Add(time.Hour)
			c.Spec.JobTemplate.Annotations[contract.AnnotationConfig] = strings.Replace(c.Spec.JobTemplate.Annotations[contract.AnnotationConfig], `"jobName":"shop/sync"`, `"jobName":"shop/other"`, 1)
		},
	} {
		r := newRig(t)
		r.asServer()
		c := r.cronJob("sync", -5*m, catchUp(contract.CatchUpAll))
		r.byHand()
		r.edit(c, change) // and the watch has not brought it yet
		r.step()
		r.at(10 * time.Second)
		if n := len(r.jobs()); n != 0 {
			t.Errorf("%s: %d Jobs", name, n)
		}
		if n := value[int](r, "SELECT max(made) FROM onceguard.plans"); n != 0 {
			t.Errorf("%s: counted as made", name)
		}
	}
}

// A Job that vanishes without a trace is made again, a few times.
func TestJobsThatVanish(t *testing.T) {
	r := newRig(t)
	r.asServer()
	r.cronJob("sync", -3*m, catchUp(contract.CatchUpAll))
	r.done("shop/sync", -2*m)
	r.done("shop/sync", -m)
	r.byHand()
	made := map[string]int{}
	for i := range 60 {
		for _, j := range r.jobs() {
			made[j.Name]++
			if err := r.client.BatchV1().Jobs("shop").Delete(t.Context(), j.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			r.read()
		}
		at := time.Duration(i) * m
		r.done("shop/sync", at)
		r.at(at + 30*time.Second)
	}
	name := window.CatchUpName("sync", r.minute.Add(-3*m))
	if made[name] != 3 || len(made) != 1 {
		t.Errorf("made: %v", made)
	}
	got := r.gaps("shop/sync")
	if len(got) != 1 || !strings.HasPrefix(got[0], "-3..-3 missed") || !strings.HasSuffix(got[0], "given-up") {
		t.Errorf("gaps: %q", got)
	}
}

func TestWhatAPersonPlansIsHeardSoon(t *testing.T) {
	r := newRig(t)
	r.asServer()
	c := r.cronJob("sync", 0, func(s *contract.Settings, _ *batchv1.CronJob) {
		s.Schedule = "0 0 1 1 *"
		s.Since = s.Since.AddDate(-3, 0, 0)
	})
	newYear := time.Date(r.minute.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	for y := range 4 {
		if at := newYear.AddDate(-y, 0, 0); !at.Before(r.minute.AddDate(-3, 0, 0)) {
			r.done("shop/sync", at.Sub(r.minute))
		}
	}
	r.byHand()
	r.step()
	r.at(5 * m)
	rows, err := r.owner.Query(t.Context(), "SELECT onceguard.backfill($1, ARRAY[$2::timestamptz], 'completed', 'ann', 'wrong prices')", "shop/sync", newYear)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.CollectRows(rows, pgx.RowToMap); err != nil {
		t.Fatal(err)
	}
	r.at(5*m + ask + 5*time.Second)
	r.at(5*m + ask + 10*time.Second)
	got := r.jobs()
	if len(got) != 1 || got[0].Name != window.CatchUpName("sync", newYear) || got[0].OwnerReferences[0].UID != c.UID {
		t.Errorf("Jobs: %v", got)
	}
	if s := value[string](r, "SELECT status || ' ' || reason FROM onceguard.job_execution WHERE window_start = $1", newYear); !strings.HasSuffix(s, "rerun") {
		t.Errorf("the window is not open again: %s", s)
	}
}
