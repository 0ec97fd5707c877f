//go:build e2e

package e2e

import (
	"net"
	"net/url"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

func podSpec(cj *batchv1.CronJob) *corev1.PodSpec { return &cj.Spec.JobTemplate.Spec.Template.Spec }

// An init container and two workers are one attempt: the window is done when the last
// of them has ended well.
func TestSeveralContainersAreOneAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		second string
		end    batchv1.JobConditionType
		want   int
	}{
		"all end well": {"exit 0", batchv1.JobComplete, 1},
		"one fails":    {"exit 5", batchv1.JobFailed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cj := w.cronJob(t, "several", `echo "$ONCEGUARD_EXECUTION_ID"`, func(cj *batchv1.CronJob) {
				zero := int32(0)
				cj.Spec.JobTemplate.Spec.BackoffLimit = &zero
				s := podSpec(cj)
				s.InitContainers = []corev1.Container{{Name: "prepare", Image: cluster.WorkerImage, Command: []string{"sh", "-c", `echo "$ONCEGUARD_EXECUTION_ID"`}}}
				s.Containers = append(s.Containers, corev1.Container{Name: "second", Image: cluster.WorkerImage, Command: []string{"sh", "-c", `echo "$ONCEGUARD_EXECUTION_ID"; ` + c.second}})
			})
			window := pastWindow(1)
			job := w.job(t, cj, window, "several")
			w.ends(t, job.Name, c.end)
			w.booked(t, 0, c.want)
			if got := w.outcomes(t, window); len(got) != 1 {
				t.Errorf("attempts ended as %v, want one attempt", got)
			}
			pod := w.onlyPod(t, job.Name)
			var ids []string
			for _, container := range []string{"prepare", "worker", "second"} {
				out, err := w.Kubectl(t.Context(), "logs", "-n", w.ns, pod.Name, "-c", container)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, strings.TrimSpace(out))
			}
			if ids[0] == "" || ids[0] != ids[1] || ids[1] != ids[2] {
				t.Errorf("execution ids %q, want one", ids)
			}
		})
	}
}

// A failing init container ends the attempt at once.
func TestAFailingInitContainerFreesTheWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit, annotated(contract.AnnotationLease, "30m"), func(cj *batchv1.CronJob) {
		podSpec(cj).InitContainers = []corev1.Container{{Name: "prepare", Image: cluster.WorkerImage, Command: []string{"sh", "-c", `[ "$ONCEGUARD_ATTEMPT" -gt 1 ]`}}}
	})
	w.ends(t, w.job(t, cj, pastWindow(1), "credit").Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// A worker with a liveness probe is not probed before its verdict: a duplicate that
// waits longer than the probe allows is not killed.
func TestALivenessProbeDoesNotKillAWaitingPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	probed := func(cj *batchv1.CronJob) {
		podSpec(cj).Containers[0].LivenessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/alive"}}},
			PeriodSeconds: 1, FailureThreshold: 3, InitialDelaySeconds: 1, TimeoutSeconds: 5,
		}
		grace := int64(1)
		podSpec(cj).TerminationGracePeriodSeconds = &grace
	}
	cj := w.cronJob(t, "credit", "touch /tmp/alive; "+busy, probed)
	window := pastWindow(1)
	first := w.job(t, cj, window, "credit")
	pod := w.running(t, first.Name)
	second := w.job(t, cj, window, "credit-second")
	twin := w.onlyPod(t, second.Name)
	if got := twin.Spec.InitContainers; len(got) != 2 || got[1].Name != contract.ContainerClaim {
		t.Fatalf("init containers %v, want the guard and the claim", got)
	}
	w.logs(t, twin.Name, contract.ContainerClaim, pod.Name)
	// Several probe periods pass while it waits; the first worker's own probe counts them.
	w.exec(t, pod.Name, "worker", "i=0; while [ $i -lt 12 ]; do sleep 1; i=$((i+1)); done; touch /tmp/go")
	w.ends(t, first.Name, batchv1.JobComplete)
	w.ends(t, second.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	for _, s := range w.onlyPod(t, second.Name).Status.ContainerStatuses {
		if s.RestartCount != 0 {
			t.Errorf("container %s was restarted %d times", s.Name, s.RestartCount)
		}
	}
}

// The ledger is reached only through the user's own native sidecar.
func TestALedgerBehindTheUsersProxy(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	if err := w.ledger.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(w.ledger.GuardURL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = "127.0.0.1:5432"
	if err := w.Secret(t.Context(), w.ns, contract.LedgerSecretPrefix+contract.DefaultLedger, contract.LedgerKey, u.String()); err != nil {
		t.Fatal(err)
	}
	cj := w.cronJob(t, "credit", credit, func(cj *batchv1.CronJob) {
		always := corev1.ContainerRestartPolicyAlways
		podSpec(cj).InitContainers = []corev1.Container{{
			Name: "proxy", Image: cluster.WorkerImage, RestartPolicy: &always,
			Command: []string{"nc", "-ll", "-p", "5432", "-e", "nc", host, port}, // -ll: for each connection
		}}
	})
	job := w.job(t, cj, pastWindow(1), "credit")
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	pod := w.onlyPod(t, job.Name)
	if names := pod.Spec.InitContainers; names[0].Name != "proxy" || names[0].Command[0] != "nc" || names[1].Name != contract.ContainerGuard {
		t.Errorf("the proxy is not first and untouched: %v", names)
	}
}

// A namespace that enforces the restricted standard and a quota takes guarded pods.
func TestARestrictedNamespaceWithAQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Kubectl(t.Context(), "label", "namespace", w.ns, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		t.Fatal(err)
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		corev1.ResourceRequestsCPU: resource.MustParse("1"), corev1.ResourceRequestsMemory: resource.MustParse("512Mi"),
		corev1.ResourceLimitsCPU: resource.MustParse("2"), corev1.ResourceLimitsMemory: resource.MustParse("1Gi"),
	}}}
	if _, err := w.Client.CoreV1().ResourceQuotas(w.ns).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cj := w.cronJob(t, "credit", credit, func(cj *batchv1.CronJob) {
		yes, no, user := true, false, int64(1000)
		c := &podSpec(cj).Containers[0]
		c.SecurityContext = &corev1.SecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		c.Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
		}
	})
	w.ends(t, w.job(t, cj, pastWindow(1), "credit").Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// A worker's lifecycle hooks belong to its run: a duplicate, which does not run, does
// not run them either.
func TestHooksOfADuplicateDoNotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", "sleep 2; "+credit, func(cj *batchv1.CronJob) {
		podSpec(cj).Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"sh", "-c", "echo the hook ran >/proc/1/fd/1"},
		}}}
	})
	window := pastWindow(1)
	for i, want := range []bool{true, false} {
		job := w.job(t, cj, window, "credit"+strings.Repeat("-again", i))
		w.ends(t, job.Name, batchv1.JobComplete)
		out, err := w.Kubectl(t.Context(), "logs", "-n", w.ns, "job/"+job.Name, "-c", "worker")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out, "the hook ran") != want {
			t.Errorf("run %d: the hook ran: %v, want %v\n%s", i+1, !want, want, out)
		}
	}
	w.booked(t, 10, 1)
}
