package engine

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

func jobWith(conditions ...batchv1.JobCondition) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "sync-1", UID: "u"}, Status: batchv1.JobStatus{Conditions: conditions}}
}

func failed(reason, message string) batchv1.JobCondition {
	return batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: reason, Message: message}
}

func podWith(f func(*corev1.PodStatus)) []corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "sync-1-x"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	f(&p.Status)
	return []corev1.Pod{p}
}

func waiting(name, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func runs(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func refusedBy(message string) []corev1.Event {
	return []corev1.Event{
		{Reason: "SuccessfulCreate", Message: "Created pod: x", LastTimestamp: metav1.Unix(50, 0)},
		{Reason: "FailedCreate", Message: message, LastTimestamp: metav1.Unix(100, 0)},
		{Reason: "FailedCreate", Message: "Error creating: older", LastTimestamp: metav1.Unix(90, 0)},
	}
}

// The texts are those of Kubernetes 1.37.
func TestEvidence(t *testing.T) {
	const (
		quota  = `Error creating: pods "sync-1-x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3`
		policy = `Error creating: pods "sync-1-x" is forbidden: ValidatingAdmissionPolicy 'onceguard-pods' with binding 'onceguard-pods' denied request: a guarded pod must have its guard`
		hook   = `Error creating: Internal error occurred: failed calling webhook "pods.onceguard.dev": failed to call webhook: Post "https://onceguard-webhook.onceguard-system.svc:443/mutate/pods?timeout=10s": no endpoints available for service "onceguard-webhook"`
		denied = `Error creating: admission webhook "pods.example.com" denied the request: no`
		slow   = `Error creating: etcdserver: request timed out`
		tight  = "Job was active longer than specified deadline"
	)
	seenImage := seen{reason: disposition.Image, evidence: "Job sync-1: pod sync-1-x: container main: ErrImagePull: not found"}
	for _, c := range []struct {
		name     string
		job      *batchv1.Job
		pods     []corev1.Pod
		events   []corev1.Event
		earlier  seen
		ended    bool
		reason   disposition.Reason
		evidence string
	}{
		{"quota", jobWith(), nil, refusedBy(quota), seen{}, false, disposition.Quota, quota},
		{"policy", jobWith(), nil, refusedBy(policy), seen{}, false, disposition.Admission, policy},
		{"webhook away", jobWith(), nil, refusedBy(hook), seen{}, false, disposition.Admission, hook},
		{"another webhook", jobWith(), nil, refusedBy(denied), seen{}, false, disposition.Admission, denied},
		{"a slow API server", jobWith(), nil, refusedBy(slow), seen{}, false, disposition.Starting, slow},
		{"nothing yet", jobWith(), nil, nil, seen{}, false, disposition.Starting, ""},
		{"a queue suspends it", jobWith(batchv1.JobCondition{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}), nil, nil, seen{}, false, disposition.Starting, "it is suspended"},
		{"image", jobWith(), podWith(func(s *corev1.PodStatus) {
			s.InitContainerStatuses = []corev1.ContainerStatus{waiting(contract.ContainerGuard, "ImagePullBackOff", `Back-off pulling image "registry.example/guard:1"`)}
			s.ContainerStatuses = []corev1.ContainerStatus{waiting("main", "PodInitializing", "")}
		}), nil, seen{}, false, disposition.Image, `pod sync-1-x: container onceguard: ImagePullBackOff: Back-off pulling image "registry.example/guard:1"`},
		{"unschedulable", jobWith(), podWith(func(s *corev1.PodStatus) {
			s.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient cpu."}}
		}), nil, seen{}, false, disposition.Unschedulable, "pod sync-1-x: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."},
		{"the guard waits", jobWith(), podWith(func(s *corev1.PodStatus) {
			s.InitContainerStatuses = []corev1.ContainerStatus{runs(contract.ContainerGuard)}
			s.ContainerStatuses = []corev1.ContainerStatus{runs("main")}
		}), nil, seen{}, false, disposition.Waiting, "its guard runs and has not claimed the window"},
		{"being created", jobWith(), podWith(func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{waiting("main", "PodInitializing", "")}
		}), nil, seen{}, false, disposition.Starting, "pod sync-1-x: ContainerCreating"},
		{"a Secret is missing", jobWith(), podWith(func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{waiting("main", "CreateContainerConfigError", `secret "x" not found`)}
		}), nil, seen{}, false, disposition.Starting, `container main: CreateContainerConfigError: secret "x" not found`},
		{"deadline", jobWith(failed("DeadlineExceeded", tight)), nil, nil, seen{}, true, disposition.DeadlineExceeded, "DeadlineExceeded: " + tight},
		{"deadline of refused pods", jobWith(failed("DeadlineExceeded", tight)), nil, refusedBy(quota), seen{}, true, disposition.Quota, quota + "; it ended by DeadlineExceeded: " + tight},
		{"deadline, and its pods are gone", jobWith(failed("DeadlineExceeded", tight)), nil, nil, seenImage, true, disposition.Image, "ErrImagePull: not found; it ended by DeadlineExceeded"},
		{"failed", jobWith(failed("BackoffLimitExceeded", "Job has reached the specified backoff limit")), nil, nil, seen{}, true, disposition.JobFailed, "BackoffLimitExceeded: Job has reached"},
		{"failed with the guard's word", jobWith(failed("PodFailurePolicy", "Container main for pod shop/sync-1-x failed with exit code 78")), podWith(func(s *corev1.PodStatus) {
			s.Phase = corev1.PodFailed
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 78, Message: contract.TerminationPrefix + "no window"}}}}
		}), nil, seen{}, true, disposition.JobFailed, "container main exited 78: no window"},
		{"complete", jobWith(batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}), nil, nil, seen{}, true, disposition.JobFailed, "it is complete"},
		{"long", jobWith(), nil, refusedBy(quota + strings.Repeat("ü\n", 2000)), seen{}, false, disposition.Quota, "ü..."},
	} {
		got := judgeJob(c.job, c.pods, c.events, c.earlier)
		if got.ended != c.ended || got.reason != c.reason || !strings.Contains(got.evidence, c.evidence) {
			t.Errorf("%s: got %+v", c.name, got)
		}
		if got.evidence != "" && !strings.HasPrefix(got.evidence, "Job sync-1: ") || strings.HasPrefix(got.evidence, "Job sync-1: Job sync-1") || len(got.evidence) > longestEvidence || strings.Contains(got.evidence, "\n") {
			t.Errorf("%s: evidence %q", c.name, got.evidence)
		}
	}
}

// A Job that cannot start is late with what was seen, live; when its Events and pods have
// gone, what was seen stays. What was asked is bounded.
func TestEvidenceOfAJobThatNeverRan(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", 0)
	j := r.job(c, 0)
	const quota = `Error creating: pods "sync-1-x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3`
	when := metav1.NewTime(r.minute)
	if _, err := r.client.CoreV1().Events("shop").Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x"}, Reason: "FailedCreate", Message: quota, LastTimestamp: when,
		InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: j.Name, UID: j.UID},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.byHand()
	r.at(m + 10*time.Second)
	r.want("shop/sync", "0..0 late quota")
	if got := r.evidence("shop/sync"); got != "Job "+j.Name+": "+quota {
		t.Errorf("evidence: %s", got)
	}
	if got := r.cost(); got.reads > 4 || got.statements > 8 {
		t.Errorf("one window: %+v", got)
	}
	if err := r.client.CoreV1().Events("shop").Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.done("shop/sync", m)
	r.at(2*m + 10*time.Second)
	r.end(j, batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	r.done("shop/sync", 2*m)
	r.done("shop/sync", 3*m)
	r.at(4*m + 10*time.Second)
	r.want("shop/sync", "0..0 missed quota")
	if got := r.evidence("shop/sync"); !strings.Contains(got, "exceeded quota") || !strings.Contains(got, "DeadlineExceeded") {
		t.Errorf("evidence: %s", got)
	}
}

func TestManyJobsThatDoNotStart(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", -60*m)
	for i := range 60 {
		r.job(c, time.Duration(i-60)*m)
	}
	r.byHand()
	r.step()
	if got := r.cost(); got.reads > 3*inspections || got.looks > 2 {
		t.Errorf("60 Jobs: %+v", got)
	}
	for i := range 10 {
		r.at(time.Duration(i) * 10 * time.Second)
	}
	for _, s := range r.w.subjects {
		if len(s.seen) < 20 {
			t.Errorf("only %d were looked at", len(s.seen))
		}
	}
}
