//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/migrate"
)

// shared is one job name for several CronJobs.
func shared(cj *batchv1.CronJob) { cj.Annotations[contract.AnnotationJobName] = "shared" }

// oneTry lets a Job fail with its first pod.
func oneTry(cj *batchv1.CronJob) {
	zero := int32(0)
	cj.Spec.JobTemplate.Spec.BackoffLimit = &zero
}

// stands demands status and reason of a window.
func (w *world) stands(t *testing.T, window time.Time, want string) {
	t.Helper()
	var got string
	if err := w.ledger.DB.QueryRow(t.Context(), "SELECT concat_ws('/', status, nullif(reason, status)) FROM onceguard.job_execution WHERE window_start = $1", window).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("window %s is %s, want %s", window, got, want)
	}
}

// firstWindow is the first that began after cj was guarded.
func firstWindow(t *testing.T, cj *batchv1.CronJob) time.Time {
	t.Helper()
	s, err := contract.DecodeSettings(cj.Spec.JobTemplate.Annotations[contract.AnnotationConfig])
	if err != nil {
		t.Fatal(err)
	}
	return s.Since.Add(time.Minute - time.Nanosecond).Truncate(time.Minute)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Three CronJobs share a job name. While a window of the first runs, one of the second is
// skipped, as it wishes, and one of the third waits.
func TestOverlapSkipsOrWaitsAcrossCronJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second, third := pastWindow(3), pastWindow(2), pastWindow(1)
	running := w.job(t, w.cronJob(t, "first", busy, shared), first, "first")
	pod := w.running(t, running.Name)

	waits := w.job(t, w.cronJob(t, "third", credit, shared, annotated(contract.AnnotationOverlap, "wait")), third, "third")
	skips := w.job(t, w.cronJob(t, "second", credit, shared, annotated(contract.AnnotationOverlap, "skip")), second, "second")
	w.ends(t, skips.Name, batchv1.JobComplete)
	w.event(t, "Job", skips.Name, "WindowSkipped", stamp(first))
	w.stands(t, second, "skipped/overlap")
	w.says(t, waits.Name, "waits until another one of the job", stamp(first), pod.Name)
	w.booked(t, 0, 0)

	w.exec(t, pod.Name, "worker", "touch /tmp/go")
	w.ends(t, running.Name, batchv1.JobComplete)
	w.ends(t, waits.Name, batchv1.JobComplete)
	w.booked(t, 20, 2)
}

// Under Forbid Kubernetes makes the next Job as soon as the one before is gone, also while
// its pod still ends. That window waits, and runs.
func TestForbidWaitsForAPodThatStillEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forbid := func(cj *batchv1.CronJob) {
		cj.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent
		grace := int64(120)
		podSpec(cj).TerminationGracePeriodSeconds = &grace
	}
	older, newer := pastWindow(2), pastWindow(1)
	cj := w.cronJob(t, "forbid", `test "$ONCEGUARD_WINDOW_START" = `+stamp(newer)+` && { `+credit+`; exit; }
trap 'until test -e /tmp/go; do sleep 0.2; done; exit 1' TERM; echo working; while true; do sleep 0.2; done`, forbid)
	old := w.job(t, cj, older, "forbid")
	pod := w.running(t, old.Name)
	if _, err := w.Kubectl(t.Context(), "delete", "job", old.Name, "-n", w.ns, "--wait=false"); err != nil {
		t.Fatal(err)
	}
	next := w.job(t, cj, newer, "forbid")
	w.says(t, next.Name, "waits until another one of the job", stamp(older), pod.Name)
	w.booked(t, 0, 0)
	w.exec(t, pod.Name, "worker", "touch /tmp/go")
	w.ends(t, next.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	w.stands(t, newer, "completed")
}

// A newer window replaces an older one of another CronJob: the older worker is gone
// before the newer one starts, and its window is closed.
func TestOverlapReplaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older, newer := pastWindow(2), pastWindow(1)
	old := w.job(t, w.cronJob(t, "old", `trap 'echo stopping; sleep 2; echo gone at $(cat /proc/uptime); exit 0' TERM; echo working; while true; do sleep 0.2; done`, shared), older, "old")
	oldPod := w.running(t, old.Name)
	replacing := w.job(t, w.cronJob(t, "new", `echo begun at $(cat /proc/uptime); `+credit, shared, annotated(contract.AnnotationOverlap, "replace")), newer, "new")
	w.ends(t, replacing.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)

	// The node's clock is theirs too.
	at := func(log, word string) float64 {
		t.Helper()
		_, rest, ok := strings.Cut(log, word+" at ")
		if !ok {
			t.Fatalf("the log does not say %q: %s", word, log)
		}
		seconds, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	gone := at(w.logs(t, oldPod.Name, "worker", "gone at"), "gone")
	if begun := at(w.logs(t, w.onlyPod(t, replacing.Name).Name, "worker", "begun at"), "begun"); begun < gone {
		t.Errorf("the new worker began at %v, the old one was there until %v", begun, gone)
	}
	// What it did is not whole, though it exited 0: its next pod learns that it is closed.
	w.stands(t, older, "skipped/superseded")
	if got := w.outcomes(t, older); !slices.Equal(got, []string{"stopped"}) {
		t.Errorf("the old attempts ended as %v", got)
	}
	w.ends(t, old.Name, batchv1.JobComplete)
	w.event(t, "Job", old.Name, "WindowSkipped", "newer")
}

// In order: a window whose predecessor was never started waits for it.
func TestSerialOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "queue", credit, annotated(contract.AnnotationOrder, "serial"), annotated(contract.AnnotationMaxAttempts, "3"))
	earlier := firstWindow(t, cj) // those before are nobody's business
	later := earlier.Add(time.Minute)
	waits := w.job(t, cj, later, "queue")
	w.says(t, waits.Name, "waits for its turn", stamp(earlier), "kubectl onceguard cancel "+w.ns+"/queue "+stamp(earlier))
	w.booked(t, 0, 0)
	w.ends(t, w.job(t, cj, earlier, "queue").Name, batchv1.JobComplete)
	w.ends(t, waits.Name, batchv1.JobComplete)
	w.booked(t, 20, 2)
	if got := w.number(t, `SELECT count(*) FROM onceguard.job_attempt a, onceguard.job_execution e WHERE a.window_start = $1 AND e.window_start = $2 AND a.started_at > e.completed_at`, later, earlier); got != 1 {
		t.Error("the later window did not begin after the earlier one was done")
	}
}

// A window that comes too late does not run, and says so.
func TestStartDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit, annotated(contract.AnnotationStartDeadline, "5m"))
	late := pastWindow(30)
	job := w.job(t, cj, late, "credit")
	w.ends(t, job.Name, batchv1.JobComplete)
	w.event(t, "Job", job.Name, "WindowSkipped", "start-deadline")
	w.stands(t, late, "skipped/late")
	w.ends(t, w.job(t, cj, pastWindow(1), "credit").Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// A person may run what came too late: a manual Job means that window, and opens it again.
func TestAManualJobReopensALateWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit, annotated(contract.AnnotationStartDeadline, "1s"))
	window := firstWindow(t, cj)
	eventually(t, 70*time.Second, "the end of its start deadline", func(context.Context) (bool, error) { return time.Now().After(window.Add(2 * time.Second)), nil })
	w.ends(t, w.job(t, cj, window, "credit").Name, batchv1.JobComplete)
	w.stands(t, window, "skipped/late")
	w.booked(t, 0, 0)
	if _, err := w.Kubectl(t.Context(), "create", "job", "by-hand", "-n", w.ns, "--from=cronjob/"+cj.Name); err != nil {
		t.Fatal(err)
	}
	w.ends(t, "by-hand", batchv1.JobComplete)
	w.booked(t, 10, 1)
	if time.Now().UTC().Truncate(time.Minute).Equal(window) { // else it meant the next one
		w.stands(t, window, "completed")
	}
}

// A window belongs to its payload: with another one it is refused, and the termination
// message has both digests; with the same it is a duplicate.
func TestPayloadConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	window := pastWindow(1)
	acme := annotated(contract.AnnotationPayload, `{"tenant":"acme"}`)
	w.ends(t, w.job(t, w.cronJob(t, "acme", credit, shared, acme), window, "acme").Name, batchv1.JobComplete)
	w.booked(t, 10, 1)

	other := w.job(t, w.cronJob(t, "other", credit, shared, oneTry, annotated(contract.AnnotationPayload, `{"tenant":"other"}`)), window, "other")
	message := w.refused(t, other.Name)
	for _, text := range []string{`{"tenant":"acme"}`, `{"tenant":"other"}`} {
		if digest := contract.PayloadDigest(text); !strings.Contains(message, digest) {
			t.Errorf("the refusal does not say %s: %s", digest, message)
		}
	}
	w.ends(t, other.Name, batchv1.JobFailed)
	again := w.job(t, w.cronJob(t, "again", credit, shared, acme), window, "again")
	w.ends(t, again.Name, batchv1.JobComplete)
	w.event(t, "Job", again.Name, "WindowSkipped", "completed")
	w.booked(t, 10, 1)
}

// After so many failures the window is closed, and only a person opens it again.
func TestMaxAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	window := pastWindow(1)
	cj := w.cronJob(t, "tired", "exit 3", oneTry, annotated(contract.AnnotationMaxAttempts, "2"))
	for i := range 2 {
		w.ends(t, w.job(t, cj, window, fmt.Sprintf("tired-%d", i)).Name, batchv1.JobFailed)
	}
	third := w.job(t, cj, window, "tired-3")
	if message := w.refused(t, third.Name); !strings.Contains(message, "exhausted") || !strings.Contains(message, "kubectl onceguard rerun "+w.ns+"/tired "+stamp(window)) {
		t.Errorf("the refusal says %q", message)
	}
	w.stands(t, window, "exhausted")
	if got := w.outcomes(t, window); !slices.Equal(got, []string{"failed", "failed"}) {
		t.Errorf("attempts ended as %v", got)
	}
}

// A worker that crashes, wrapper and all, may have done half of its work.
func TestACrashIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	window := pastWindow(1)
	cj := w.cronJob(t, "risky", "kill -9 $PPID; sleep 60", oneTry, annotated(contract.AnnotationOnCrash, "hold"), func(cj *batchv1.CronJob) {
		share := true // else the wrapper is process 1, which nobody inside can kill
		podSpec(cj).ShareProcessNamespace = &share
	})
	w.ends(t, w.job(t, cj, window, "risky").Name, batchv1.JobFailed)
	if got := w.outcomes(t, window); !slices.Equal(got, []string{"crashed"}) {
		t.Fatalf("attempts ended as %v", got)
	}
	again := w.job(t, cj, window, "risky-again")
	message := w.refused(t, again.Name)
	for _, word := range []string{"is held", "attempt 1", "kubectl onceguard rerun", "kubectl onceguard cancel"} {
		if !strings.Contains(message, word) {
			t.Errorf("the refusal does not say %q: %s", word, message)
		}
	}
	w.stands(t, window, "held")
}

// Each index of an Indexed Job is a window of its own; a Job that is made again skips
// them all. The right to the job is the right to its indexes.
func TestAnIndexedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.ledger.Exec(t.Context(), "DELETE FROM onceguard.job_grant"); err != nil {
		t.Fatal(err)
	}
	if err := migrate.GrantJob(t.Context(), w.ledger.OwnerURL, w.ledger.GuardRole, w.ns+"/pieces"); err != nil {
		t.Fatal(err)
	}
	cj := w.cronJob(t, "pieces", `test "$JOB_COMPLETION_INDEX" = "${ONCEGUARD_JOB_NAME##*#}" && `+credit, func(cj *batchv1.CronJob) {
		mode, three := batchv1.IndexedCompletion, int32(3)
		s := &cj.Spec.JobTemplate.Spec
		s.CompletionMode, s.Completions, s.Parallelism = &mode, &three, &three
	})
	window := pastWindow(1)
	job := w.job(t, cj, window, "pieces")
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 30, 3)
	for i := range 3 {
		if got := w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE job_name = $1", fmt.Sprintf("%s/pieces#%d", w.ns, i)); got != 1 {
			t.Errorf("%d rows of index %d", got, i)
		}
	}
	if _, err := w.Kubectl(t.Context(), "delete", "job", job.Name, "-n", w.ns, "--wait"); err != nil {
		t.Fatal(err)
	}
	w.job(t, cj, window, "pieces")
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 30, 3)
	if got := w.number(t, "SELECT sum(duplicates_prevented) FROM onceguard.windows"); got != 3 {
		t.Errorf("%d duplicates recorded, want 3", got)
	}
}

// A manual run of its own is a window of its own, and keeps to overlap like any other.
func TestASeparateManualRunOverlaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", `case "$ONCEGUARD_TRIGGER" in manual) touch /tmp/go;; esac; `+busy,
		annotated(contract.AnnotationManual, "separate"), annotated(contract.AnnotationOverlap, "wait"))
	window := pastWindow(1)
	scheduled := w.job(t, cj, window, "credit")
	pod := w.running(t, scheduled.Name)
	if _, err := w.Kubectl(t.Context(), "create", "job", "by-hand", "-n", w.ns, "--from=cronjob/"+cj.Name); err != nil {
		t.Fatal(err)
	}
	w.says(t, "by-hand", "waits until another one of the job", stamp(window), pod.Name)
	w.exec(t, pod.Name, "worker", "touch /tmp/go")
	w.ends(t, scheduled.Name, batchv1.JobComplete)
	w.ends(t, "by-hand", batchv1.JobComplete)
	w.booked(t, 20, 2)
}
