//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a worker prints and how it ends is the same with and without the guard.
func TestAProcessIsTheSameWithAndWithoutTheGuard(t *testing.T) {
	commands := map[string][]string{
		"exit 0":            {"sh", "-c", "exit 0"},
		"exit 1":            {"sh", "-c", "exit 1"},
		"exit 42":           {"sh", "-c", "exit 42"},
		"exit 126":          {"sh", "-c", "exit 126"},
		"exit 127":          {"sh", "-c", "no-such-command"},
		"a killed child":    {"sh", "-c", `sh -c 'kill -9 $$$$'; exit $?`},
		"a stopped child":   {"sh", "-c", `sh -c 'kill -15 $$$$'; exit $?`},
		"arguments":         {"sh", "-c", `for a in "$@"; do echo "[$a]"; done`, "sh", "a b", `"quoted"`, "it's", "new\nline", "$(NAME)", "$$(NAME)", "$(UNKNOWN)", "", "*", `back\slash`},
		"no standard input": {"sh", "-c", "cat; echo end of input"},
		"working directory": {"sh", "-c", "pwd; id -u; umask"},
		"zombies":           {"sh", "-c", `i=0; while [ $i -lt 50 ]; do (sleep 0.1 &) ; i=$((i+1)); done; sleep 1; n=0; for s in /proc/[0-9]*/stat; do case "$(cat $s 2>/dev/null)" in *") Z "*) n=$((n+1));; esac; done; echo $n zombies`},
	}
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			zero := int32(0)
			edit := func(cj *batchv1.CronJob) {
				cj.Spec.JobTemplate.Spec.BackoffLimit = &zero
				c := &cj.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
				c.Command, c.WorkingDir = command, "/tmp"
				c.Env = []corev1.EnvVar{{Name: "NAME", Value: "value of NAME"}}
			}
			plain := unguarded(w.ns, "plain", "")
			edit(plain)
			plain, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), plain, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			guarded := w.cronJob(t, "guarded", "", edit)
			wantCode, wantOut := w.ran(t, w.job(t, plain, pastWindow(1), "plain").Name)
			gotCode, gotOut := w.ran(t, w.job(t, guarded, pastWindow(1), "guarded").Name)
			if gotCode != wantCode || gotOut != wantOut {
				t.Errorf("with the guard: %d and %q; without: %d and %q", gotCode, gotOut, wantCode, wantOut)
			}
		})
	}
}

// ran waits for a Job's end and gives its worker's exit code and output.
func (w *world) ran(t *testing.T, job string) (code int32, out string) {
	t.Helper()
	if _, err := w.WaitJob(t.Context(), 3*time.Minute, w.ns, job); err != nil {
		t.Fatal(err)
	}
	pod := w.onlyPod(t, job)
	end := terminated(pod, "worker")
	if end == nil {
		t.Fatalf("the worker of %s did not end", pod.Name)
	}
	out, err := w.Kubectl(t.Context(), "logs", "-n", w.ns, pod.Name, "-c", "worker")
	if err != nil {
		t.Fatal(err)
	}
	return end.ExitCode, out
}

// A deleted pod's worker gets SIGTERM and its grace period, as without the guard.
func TestAWorkerHandlesSIGTERM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "polite", `trap 'echo cleaned up; exit 7' TERM; echo working; while true; do sleep 0.2; done`)
	deadline := int64(20) // long enough to start on a busy machine
	cj.Spec.JobTemplate.Spec.ActiveDeadlineSeconds = &deadline
	job := w.job(t, cj, pastWindow(1), "polite")
	pod := w.running(t, job.Name)
	// The log is followed, since the pod goes with its Job's deadline.
	out, err := w.Kubectl(t.Context(), "logs", "-n", w.ns, pod.Name, "-c", "worker", "-f")
	if err != nil || out != "working\ncleaned up\n" {
		t.Errorf("the worker's log is %q, %v", out, err)
	}
	w.ends(t, job.Name, batchv1.JobFailed)
	if got := w.number(t, "SELECT count(*) FROM onceguard.windows"); got != 1 {
		t.Errorf("%d windows were touched, want 1", got)
	}
	if got := w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE outcome = 'stopped'"); got != 1 {
		t.Error("the attempt was not recorded as stopped")
	}
}

// A worker that a deadline ended, and that exits 0 politely, did not complete its window.
func TestADeadlineIsNoCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "polite", `trap 'exit 0' TERM; echo working; [ "$ONCEGUARD_ATTEMPT" -gt 1 ] || while true; do sleep 0.2; done`)
	deadline := int64(20)
	cj.Spec.JobTemplate.Spec.ActiveDeadlineSeconds = &deadline
	window := pastWindow(1)
	job := w.job(t, cj, window, "polite")
	w.running(t, job.Name)
	w.ends(t, job.Name, batchv1.JobFailed)
	eventually(t, time.Minute, "the end of the attempt", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE outcome = 'stopped'") == 1, nil
	})
	w.booked(t, 0, 0)
	deadline = 300 // this one is to end by itself, on a busy machine too
	w.ends(t, w.job(t, cj, window, "polite-again").Name, batchv1.JobComplete)
	w.booked(t, 0, 1)
}
