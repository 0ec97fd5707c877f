//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/test/bed"
)

// A CronJob that fires by itself: the controller's own Job, its own timestamp.
func TestTheControllersWindowIsCompletedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	suspend := false
	cj := w.cronJob(t, "tick", script, func(cj *batchv1.CronJob) { cj.Spec.Suspend = &suspend })
	var job batchv1.Job
	eventually(t, 90*time.Second, "a Job of the CronJob controller", func(ctx context.Context) (bool, error) {
		jobs, err := w.Client.BatchV1().Jobs(w.ns).List(ctx, metav1.ListOptions{})
		if err != nil || len(jobs.Items) == 0 {
			return false, err
		}
		job = jobs.Items[0]
		return true, nil
	})
	w.ends(t, job.Name, batchv1.JobComplete)
	var name, source, trigger string
	var start time.Time
	if err := w.ledger.DB.QueryRow(t.Context(), `SELECT job_name, window_start, source, trigger FROM onceguard.windows
		ORDER BY window_start LIMIT 1`).Scan(&name, &start, &source, &trigger); err != nil {
		t.Fatal(err)
	}
	if name != w.ns+"/"+cj.Name || source != "timestamp" || trigger != "scheduled" {
		t.Errorf("row of %s by %s (%s)", name, source, trigger)
	}
	if want := bed.JobNameFor(cj.Name, start); job.Name != want {
		t.Errorf("window %s belongs to Job %s, but %s ran", start, want, job.Name)
	}
	out, err := w.Kubectl(t.Context(), "logs", "-n", w.ns, "job/"+job.Name, "-c", "worker")
	if err != nil || out != "hello from the worker\n" {
		t.Errorf("the worker's log is %q, %v", out, err)
	}
}

// The worker knows nothing of us, or commits through the endpoint; pods are new for
// each try, or restart in place: a second Job for the window skips with 0.
func TestASecondJobForAWindowSkips(t *testing.T) {
	workers := map[string]string{"plain": script, "wget": credit, "guard-exec": creditByExec}
	policies := map[string]func(*batchv1.CronJob){"never": func(*batchv1.CronJob) {}, "onfailure": onFailure}
	for worker, command := range workers {
		for policy, edit := range policies {
			t.Run(worker+" "+policy, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				cj := w.cronJob(t, "credit", command, edit)
				window := pastWindow(2)
				first := w.job(t, cj, window, "credit")
				w.ends(t, first.Name, batchv1.JobComplete)
				units := 10
				if worker == "plain" {
					units = 0
				}
				w.booked(t, units, 1)

				again := w.job(t, cj, window, "credit-again")
				w.ends(t, again.Name, batchv1.JobComplete)
				w.booked(t, units, 1)
				w.event(t, "Job", again.Name, "WindowSkipped", "completed")
				if got := w.number(t, "SELECT duplicates_prevented FROM onceguard.windows"); got != 1 {
					t.Errorf("%d duplicates recorded, want 1", got)
				}

				next := w.job(t, cj, window.Add(time.Minute), "credit")
				w.ends(t, next.Name, batchv1.JobComplete)
				w.booked(t, 2*units, 2)
			})
		}
	}
}

func TestEightJobsForOneWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit)
	window := pastWindow(1)
	var jobs []string
	for i := range 8 {
		jobs = append(jobs, w.job(t, cj, window, fmt.Sprintf("credit-%d", i)).Name)
	}
	for _, j := range jobs {
		w.ends(t, j, batchv1.JobComplete)
	}
	w.booked(t, 10, 1)
	if got := w.outcomes(t, window); !slices.Equal(got, []string{"completed"}) {
		t.Errorf("attempts ended as %v, want one completed", got)
	}
	if got := w.number(t, "SELECT duplicates_prevented FROM onceguard.windows"); got != 7 {
		t.Errorf("%d duplicates recorded, want 7", got)
	}
}

// A Job that is deleted after it was done and made again under its own name.
func TestARecreatedJobSkips(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit)
	window := pastWindow(1)
	job := w.job(t, cj, window, "credit")
	w.ends(t, job.Name, batchv1.JobComplete)
	if _, err := w.Kubectl(t.Context(), "delete", "job", job.Name, "-n", w.ns, "--wait"); err != nil {
		t.Fatal(err)
	}
	w.job(t, cj, window, "credit")
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	w.event(t, "Job", job.Name, "WindowSkipped", "completed")
}

// The same instant written in another zone is the same window.
func TestOneInstantInTwoZonesIsOneWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit)
	window := pastWindow(1)
	w.ends(t, w.job(t, cj, window, "credit").Name, batchv1.JobComplete)
	other := bed.ScheduledJob(cj, window, "credit-kolkata")
	other.Annotations[contract.AnnotationScheduledTimestamp] = window.In(time.FixedZone("", 5*3600+1800)).Format(time.RFC3339)
	if _, err := w.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	w.ends(t, other.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// A failed attempt frees its window at once: the next one does not wait for the lease.
func TestAFailedAttemptFreesTheWindow(t *testing.T) {
	for name, edit := range map[string]func(*batchv1.CronJob){"never": func(*batchv1.CronJob) {}, "onfailure": onFailure} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			// A lease far longer than the test's patience: only a release can free it.
			cj := w.cronJob(t, "credit", `if [ "$ONCEGUARD_ATTEMPT" = 1 ]; then exit 42; fi; `+credit, edit, annotated(contract.AnnotationLease, "30m"))
			window := pastWindow(1)
			job := w.job(t, cj, window, "credit")
			w.ends(t, job.Name, batchv1.JobComplete)
			w.booked(t, 10, 1)
			if got := w.outcomes(t, window); !slices.Equal(got, []string{"failed", "completed"}) {
				t.Errorf("attempts ended as %v", got)
			}
			if got := w.number(t, "SELECT exit_code FROM onceguard.job_attempt WHERE attempt = 1"); got != 42 {
				t.Errorf("exit code %d recorded, want 42", got)
			}
		})
	}
}

// A worker that fails after its commit: the window stays done, the retry skips with 0.
func TestAFailureAfterTheCommitIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit+"; exit 3")
	job := w.job(t, cj, pastWindow(1), "credit")
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	pods, err := w.Pods(t.Context(), w.ns, job.Name)
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d pods, %v; want the failed one and the one that skipped", len(pods), err)
	}
}

// completion=transaction: exit 0 without a commit is a failure that says so.
func TestExitZeroWithoutACommitFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	backoff := int32(0)
	cj := w.cronJob(t, "forgetful", "true", annotated(contract.AnnotationCompletion, "transaction"),
		func(cj *batchv1.CronJob) { cj.Spec.JobTemplate.Spec.BackoffLimit = &backoff })
	window := pastWindow(1)
	job := w.job(t, cj, window, "forgetful")
	w.ends(t, job.Name, batchv1.JobFailed)
	w.booked(t, 0, 0)
	if got := w.outcomes(t, window); !slices.Equal(got, []string{"uncommitted"}) {
		t.Errorf("attempts ended as %v", got)
	}
	end := terminated(w.onlyPod(t, job.Name), "worker")
	if end == nil || end.ExitCode == 0 || !strings.Contains(end.Message, "without committing") {
		t.Errorf("the worker ended as %+v", end)
	}
}

// A manual Job during a live window waits, then skips; without a due window it is
// refused; separate gives it a run of its own.
func TestManualJobs(t *testing.T) {
	manual := func(t *testing.T, w *world, cj *batchv1.CronJob) string {
		t.Helper()
		if _, err := w.Kubectl(t.Context(), "create", "job", "by-hand", "-n", w.ns, "--from=cronjob/"+cj.Name); err != nil {
			t.Fatal(err)
		}
		return "by-hand"
	}
	t.Run("refused before the first window", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cj := w.cronJob(t, "yearly", script, func(cj *batchv1.CronJob) { cj.Spec.Schedule = "0 0 1 1 *" })
		job := manual(t, w, cj)
		end := w.refused(t, job)
		if !strings.Contains(end, "separate") {
			t.Errorf("the refusal names no cure: %s", end)
		}
	})
	t.Run("means the newest due window", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cj := w.cronJob(t, "credit", "sleep 8; "+credit)
		// The first window after guarding began.
		window := time.Now().UTC().Truncate(time.Minute).Add(time.Minute)
		eventually(t, 70*time.Second, "the first due window", func(context.Context) (bool, error) { return time.Now().After(window), nil })
		live := w.job(t, cj, window, "credit")
		eventually(t, time.Minute, "the scheduled run", func(context.Context) (bool, error) {
			return w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'running'") == 1, nil
		})
		job := manual(t, w, cj)
		w.ends(t, live.Name, batchv1.JobComplete)
		w.ends(t, job, batchv1.JobComplete)
		if time.Now().UTC().Truncate(time.Minute).Equal(window) {
			w.booked(t, 10, 1)
		}
		w.event(t, "Job", job, "WindowSkipped", "completed")
		w.event(t, "Job", job, "WindowSkipped", "Job "+job+" was made by hand and means window "+w.ns+"/"+cj.Name)
		w.logs(t, w.onlyPod(t, job).Name, "worker", "Job "+job+" was made by hand and means window "+w.ns+"/"+cj.Name)
	})
	t.Run("separate", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cj := w.cronJob(t, "credit", credit, annotated(contract.AnnotationManual, "separate"))
		job := manual(t, w, cj)
		w.ends(t, job, batchv1.JobComplete)
		w.booked(t, 10, 1)
		if got := w.number(t, "SELECT count(*) FROM onceguard.windows WHERE job_name LIKE '%@%' AND trigger = 'manual'"); got != 1 {
			t.Error("the run is not keyed by its Job")
		}
	})
	t.Run("refuse", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cj := w.cronJob(t, "credit", credit, annotated(contract.AnnotationManual, "refuse"))
		w.refused(t, manual(t, w, cj))
		w.booked(t, 0, 0)
	})
}

// refused demands that a Job's first pod ran, ended with 78 in every wrapped
// container, and says why; it gives that sentence.
func (w *world) refused(t *testing.T, job string) string {
	t.Helper()
	var end *corev1.ContainerStateTerminated
	eventually(t, 2*time.Minute, "the refused pod of Job "+job, func(ctx context.Context) (bool, error) {
		pods, err := w.Pods(ctx, w.ns, job)
		if err != nil || len(pods) == 0 {
			return false, err
		}
		end = terminated(pods[0], "worker")
		return end != nil, nil
	})
	if end.ExitCode != contract.ExitRefused || end.Message == "" {
		t.Fatalf("the worker ended with %d and %q, want 78 and a reason", end.ExitCode, end.Message)
	}
	w.event(t, "Job", job, "WindowRefused", "")
	return end.Message
}
