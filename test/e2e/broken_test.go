//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/test/bed"
	"github.com/onceguard/onceguard/test/postgres"
)

// running waits until the window's attempt n runs its worker.
func (w *world) running(t *testing.T, job string) corev1.Pod {
	t.Helper()
	pod := w.onlyPod(t, job)
	eventually(t, 2*time.Minute, "the running worker of "+pod.Name, func(ctx context.Context) (bool, error) {
		p, err := w.Client.CoreV1().Pods(w.ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pod = *p
		out, err := w.Kubectl(ctx, "logs", "-n", w.ns, pod.Name, "-c", "worker")
		return strings.Contains(out, "working"), err
	})
	return pod
}

// busy is a worker that says so, works until /tmp/go exists, and books its units.
const busy = `echo working; i=0; while [ ! -e /tmp/go ] && [ $i -lt 600 ]; do sleep 0.2; i=$((i+1)); done; ` + credit

func (w *world) exec(t *testing.T, pod, container, command string) string {
	t.Helper()
	out, err := w.Kubectl(t.Context(), "exec", "-n", w.ns, pod, "-c", container, "--", "sh", "-c", command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A worker killed between its statement and the commit leaves nothing behind.
func TestAWorkerKilledBeforeTheCommitLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := strings.Replace(credit, `]}'`, `,{"sql":"select pg_sleep(120)"}]}'`, 1)
	if slow == credit {
		t.Fatal("the script was not changed")
	}
	// Kubernetes makes one $ of two.
	cj := w.cronJob(t, "credit", `if [ "$ONCEGUARD_ATTEMPT" = 1 ]; then echo $$$$ >/tmp/pid; `+slow+`; fi; `+credit, annotated(contract.AnnotationLease, "30m"))
	window := pastWindow(1)
	job := w.job(t, cj, window, "credit")
	eventually(t, time.Minute, "the statement before the commit", func(ctx context.Context) (bool, error) {
		return w.ledger.Runs(ctx, "pg_sleep(120)")
	})
	pod := w.onlyPod(t, job.Name)
	// The connection of exec may end with the container.
	_, _ = w.Kubectl(t.Context(), "exec", "-n", w.ns, pod.Name, "-c", "worker", "--", "sh", "-c", "kill -9 $(cat /tmp/pid)")
	eventually(t, time.Minute, "the end of the first attempt", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE outcome IS NOT NULL") == 1, nil
	})
	w.booked(t, 0, 0)
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// A deleted pod frees its window when its worker has really ended; the replacement runs.
func TestADeletedPodIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", `if [ "$ONCEGUARD_ATTEMPT" -gt 1 ]; then touch /tmp/go; fi; trap 'exit 9' TERM; `+busy, annotated(contract.AnnotationLease, "30m"))
	window := pastWindow(1)
	job := w.job(t, cj, window, "credit")
	pod := w.running(t, job.Name)
	if err := w.Client.CoreV1().Pods(w.ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	if got := w.outcomes(t, window); len(got) != 2 || got[0] != "stopped" || got[1] != "completed" {
		t.Errorf("attempts ended as %v, want stopped and completed", got)
	}
}

// killGuard kills the guard from a worker that shares its process namespace.
const killGuard = `for p in /proc/[0-9]*; do if [ "$(tr '\0' ' ' <$p/cmdline)" = "/guard sidecar " ]; then kill -9 ${p#/proc/}; fi; done`

// The guard's process is killed while the worker runs. Never: the worker goes on, the
// guard comes back to its own attempt. OnFailure: the same while backoffLimit allows a
// restart; with backoffLimit 0 Kubernetes fails the Job and the attempt is on record.
func TestAKilledGuard(t *testing.T) {
	shared := func(cj *batchv1.CronJob) {
		share := true // so that the worker, which is root here, can kill the guard
		cj.Spec.JobTemplate.Spec.Template.Spec.ShareProcessNamespace = &share
	}
	kill := func(t *testing.T, w *world, pod string) {
		t.Helper()
		w.exec(t, pod, "worker", killGuard)
		eventually(t, time.Minute, "the guard's restart", func(ctx context.Context) (bool, error) {
			p, err := w.Client.CoreV1().Pods(w.ns).Get(ctx, pod, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, s := range p.Status.InitContainerStatuses {
				if s.Name == contract.ContainerGuard {
					return s.RestartCount == 1 && s.State.Running != nil, nil
				}
			}
			return false, nil
		})
	}
	for name, edit := range map[string]func(*batchv1.CronJob){"never": func(*batchv1.CronJob) {}, "onfailure": onFailure} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cj := w.cronJob(t, "credit", busy, shared, edit)
			window := pastWindow(1)
			job := w.job(t, cj, window, "credit")
			pod := w.running(t, job.Name)
			kill(t, w, pod.Name)
			w.exec(t, pod.Name, "worker", "touch /tmp/go")
			w.ends(t, job.Name, batchv1.JobComplete)
			w.booked(t, 10, 1)
			if got := w.outcomes(t, window); !slices.Equal(got, []string{"completed"}) {
				t.Errorf("attempts ended as %v, want the one that went on", got)
			}
		})
	}
	t.Run("onfailure without backoff", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cj := w.cronJob(t, "credit", busy, shared, onFailure, func(cj *batchv1.CronJob) {
			zero := int32(0)
			cj.Spec.JobTemplate.Spec.BackoffLimit = &zero
		})
		window := pastWindow(1)
		job := w.job(t, cj, window, "credit")
		pod := w.running(t, job.Name)
		w.exec(t, pod.Name, "worker", killGuard)
		w.ends(t, job.Name, batchv1.JobFailed)
		w.booked(t, 0, 0)
		next := w.job(t, cj, window, "credit-next")
		pod = w.running(t, next.Name)
		w.exec(t, pod.Name, "worker", "touch /tmp/go")
		w.ends(t, next.Name, batchv1.JobComplete)
		w.booked(t, 10, 1)
		if got := w.outcomes(t, window); len(got) != 2 || got[0] == "" || got[1] != "completed" {
			t.Errorf("attempts ended as %v, want a recorded end and completed", got)
		}
	})
}

// A worker whose image does not exist gives the window back.
func TestAMissingImageGivesTheWindowBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	window := pastWindow(1)
	broken := w.cronJob(t, "broken", credit, annotated(contract.AnnotationStartTimeout, "10s"), annotated(contract.AnnotationJobName, "credit"),
		func(cj *batchv1.CronJob) {
			c := &cj.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
			c.Image, c.ImagePullPolicy = "localhost/no-such-image:1", corev1.PullNever
		})
	w.job(t, broken, window, "broken")
	eventually(t, time.Minute, "the release", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE outcome = 'not-started'") == 1, nil
	})
	good := w.cronJob(t, "good", credit, annotated(contract.AnnotationJobName, "credit"))
	w.ends(t, w.job(t, good, window, "good").Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// Two pods of one Job at once (the Job controller does that): one runs, the other
// waits and then skips.
func TestTwoPodsOfOneJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", busy)
	window := pastWindow(1)
	job := w.job(t, cj, window, "credit")
	first := w.running(t, job.Name)
	twin := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "twin", Labels: map[string]string{contract.LabelGuard: contract.Enabled}, OwnerReferences: first.OwnerReferences},
		Spec:       job.Spec.Template.Spec,
	}
	// Without the Job's selector labels, so that the controller leaves it alone; the
	// owner reference is what tells the window.
	no := false
	twin.OwnerReferences[0].BlockOwnerDeletion = &no
	if _, err := w.Client.CoreV1().Pods(w.ns).Create(t.Context(), twin, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.logs(t, "twin", "worker", first.Name)
	w.exec(t, first.Name, "worker", "touch /tmp/go")
	eventually(t, time.Minute, "the end of the twin", func(ctx context.Context) (bool, error) {
		p, err := w.Client.CoreV1().Pods(w.ns).Get(ctx, "twin", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		end := terminated(*p, "worker")
		return end != nil && end.ExitCode == 0, nil
	})
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// Postgres is stopped while the worker runs, for less than the lease: nothing happens.
// For longer: the worker is stopped with 75 and the window is retried.
func TestPostgresStopsDuringARun(t *testing.T) {
	for name, c := range map[string]struct {
		lease string
		want  []string
	}{
		"shorter than the lease": {"10m", []string{"completed"}},
		"longer than the lease":  {"6s", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := ownServer(t)
			w := worldOn(t, own)
			cj := w.cronJob(t, "credit", `if [ "$ONCEGUARD_ATTEMPT" -gt 1 ]; then touch /tmp/go; fi; trap 'exit 9' TERM; `+busy, annotated(contract.AnnotationLease, c.lease))
			window := pastWindow(1)
			job := w.job(t, cj, window, "credit")
			pod := w.running(t, job.Name)
			if err := own.Kill(t.Context(), postgres.Immediate); err != nil {
				t.Fatal(err)
			}
			if c.want == nil {
				eventually(t, time.Minute, "the stopped worker", func(ctx context.Context) (bool, error) {
					p, err := w.Client.CoreV1().Pods(w.ns).Get(ctx, pod.Name, metav1.GetOptions{})
					if err != nil {
						return false, err
					}
					end := terminated(*p, "worker")
					return end != nil && end.ExitCode == contract.ExitRetry, nil
				})
			}
			if err := own.Restart(t.Context(), postgres.Fast); err != nil {
				t.Fatal(err)
			}
			if c.want != nil {
				w.exec(t, pod.Name, "worker", "touch /tmp/go")
			}
			w.ends(t, job.Name, batchv1.JobComplete)
			w.booked(t, 10, 1)
			if got := w.outcomes(t, window); c.want != nil && !slices.Equal(got, c.want) || c.want == nil && len(got) != 2 {
				t.Errorf("attempts ended as %v", got)
			}
		})
	}
}

// While the webhook is down guarded pods wait and then run; unguarded Jobs never
// notice; guarded CronJobs can be suspended and deleted.
func TestTheWebhookIsDown(t *testing.T) {
	w := newWorld(t)
	// Resuming it fires nothing by itself.
	yearly := func(cj *batchv1.CronJob) { cj.Spec.Schedule = "0 0 1 1 *" }
	cj := w.cronJob(t, "credit", credit, yearly)
	doomed := w.cronJob(t, "doomed", credit)
	scale(t, 0)
	restored := false
	restore := func() {
		if !restored {
			restored = true
			scale(t, 2)
		}
	}
	defer restore()

	guarded := w.job(t, cj, pastWindow(1), "credit")
	w.event(t, "Job", guarded.Name, "FailedCreate", "onceguard")

	plain := unguarded(w.ns, "plain", script)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "plain"}, Spec: plain.Spec.JobTemplate.Spec}
	if _, err := w.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	w.ends(t, "plain", batchv1.JobComplete)

	for _, args := range [][]string{
		{"patch", "cronjob", cj.Name, "-n", w.ns, "-p", `{"spec":{"suspend":false}}`},
		{"patch", "cronjob", cj.Name, "-n", w.ns, "-p", `{"spec":{"suspend":true}}`},
		{"label", "cronjob", cj.Name, "-n", w.ns, "team=billing"},
		{"delete", "cronjob", doomed.Name, "-n", w.ns, "--cascade=foreground", "--wait", "--timeout=30s"},
	} {
		if _, err := w.Kubectl(t.Context(), args...); err != nil {
			t.Errorf("while the webhook is down: %v", err)
		}
	}
	w.booked(t, 0, 0)
	restore()
	w.ends(t, guarded.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// scale sets the webhook's replicas and waits until that is so.
func scale(t *testing.T, replicas int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	patch := `{"spec":{"replicas":` + strconv.Itoa(int(replicas)) + `}}`
	if _, err := cluster.Kubectl(ctx, "patch", "deployment", "onceguard-webhook", "-n", bed.Namespace, "-p", patch); err != nil {
		t.Fatal(err)
	}
	err := bed.Wait(ctx, 2*time.Minute, "the webhook's replicas", func(ctx context.Context) (bool, error) {
		d, err := cluster.Client.AppsV1().Deployments(bed.Namespace).Get(ctx, "onceguard-webhook", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pods, err := cluster.Client.CoreV1().Pods(bed.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=webhook"})
		return err == nil && d.Status.ReadyReplicas == replicas && len(pods.Items) == int(replicas), err
	})
	if err != nil {
		t.Fatal(err)
	}
}
