package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Reasons of the Events on Jobs and CronJobs.
const (
	ReasonSkipped    = "WindowSkipped"    // the window is done, or another has it: the pod ended with 0
	ReasonRefused    = "WindowRefused"    // nothing will run until somebody mends what the message names
	ReasonUnfinished = "WindowUnfinished" // the ledger was away or the lease was lost: it is tried again
	// ReasonBadAnnotation: a CronJob has a value that is not accepted and nobody was warned.
	ReasonBadAnnotation = "BadAnnotation"
)

// newsworthy is how long after it happened something is still told: Kubernetes keeps
// Events for an hour, and after a restart every old pod is seen again.
const newsworthy = time.Hour

// longest is what Kubernetes accepts in an Event.
const longest = 1024

// Notes tells people through Events what the guards of pods left behind: pods have
// no rights in the API, and under restartPolicy OnFailure a failed Job's pod and its
// logs go.
type Notes struct {
	Client kubernetes.Interface
	Jobs   *Jobs
	Now    func() time.Time
	Log    *zap.Logger
}

// note is one thing to tell; equal notes are told once.
type note struct {
	namespace, pod    string
	podUID            types.UID
	job               string
	jobUID            types.UID
	reason, container string
	message           string
}

// Run tells until ctx ends.
func (n *Notes) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }),
		informers.WithTransform(essence))
	queue := workqueue.NewTypedRateLimitingQueue(pauses[note]())
	told := map[types.UID][]string{} // reasons by pod; only the informer's one goroutine touches it
	look := func(o any) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		for _, found := range notesOf(pod, n.Now()) {
			if !slices.Contains(told[pod.UID], found.reason) {
				told[pod.UID] = append(told[pod.UID], found.reason)
				queue.Add(found)
			}
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, o any) { look(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			look(o)
			if pod, ok := o.(*corev1.Pod); ok {
				delete(told, pod.UID)
			}
		},
	}); err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	factory.StartWithContext(ctx)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	drain(ctx, queue, n.tell, n.Log)
	factory.Shutdown()
	return nil
}

// essence keeps of a pod what notes are made of.
func essence(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, Labels: map[string]string{contract.LabelGuard: pod.Labels[contract.LabelGuard]},
			OwnerReferences: pod.OwnerReferences,
		},
		Status: corev1.PodStatus{InitContainerStatuses: endings(pod.Status.InitContainerStatuses), ContainerStatuses: endings(pod.Status.ContainerStatuses)},
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name == contract.ContainerGuard {
			small.Spec.InitContainers = []corev1.Container{{Name: c.Name, Env: c.Env}}
		}
	}
	return small, nil
}

func endings(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, s := range all {
		if s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			out = append(out, corev1.ContainerStatus{Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState})
		}
	}
	return out
}

// notesOf finds what there is to tell about a pod, at most once per reason.
func notesOf(pod *corev1.Pod, now time.Time) []note {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "Job" {
		return nil
	}
	var out []note
	add := func(at time.Time, reason, container, message string) {
		known := slices.ContainsFunc(out, func(n note) bool { return n.reason == reason })
		if !known && now.Sub(at) < newsworthy {
			out = append(out, note{
				namespace: pod.Namespace, pod: pod.Name, podUID: pod.UID, job: owner.Name, jobUID: owner.UID,
				reason: reason, container: container, message: message,
			})
		}
	}
	if refusal := refusalOf(pod); refusal != "" {
		add(pod.CreationTimestamp.Time, ReasonRefused, "", refusal)
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, ended := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			if ended == nil {
				continue
			}
			text, ours := strings.CutPrefix(ended.Message, contract.TerminationPrefix)
			if !ours {
				continue // a worker's own words
			}
			switch ended.ExitCode {
			case 0:
				add(ended.FinishedAt.Time, ReasonSkipped, s.Name, text)
			case contract.ExitRefused:
				add(ended.FinishedAt.Time, ReasonRefused, s.Name, text)
			case contract.ExitRetry:
				add(ended.FinishedAt.Time, ReasonUnfinished, s.Name, text)
			}
		}
	}
	return out
}

// refusalOf reads the refusal that a pod was injected with.
func refusalOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.InitContainers {
		for _, e := range c.Env {
			var config contract.GuardConfig
			if e.Name == contract.EnvConfig && json.Unmarshal([]byte(strings.ReplaceAll(e.Value, "$$", "$")), &config) == nil {
				return config.Refusal
			}
		}
	}
	return ""
}

// tell writes one note as Events on the Job and its CronJob.
func (n *Notes) tell(ctx context.Context, what note) error {
	about := []corev1.ObjectReference{{APIVersion: "batch/v1", Kind: "Job", Namespace: what.namespace, Name: what.job, UID: what.jobUID}}
	if job, err := n.Jobs.Job(ctx, what.namespace, what.job, what.jobUID); err == nil {
		for _, o := range job.OwnerReferences {
			if o.Kind == "CronJob" {
				about = append(about, corev1.ObjectReference{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: what.namespace, Name: o.Name, UID: o.UID})
			}
		}
	}
	message := "pod " + what.pod
	if what.container != "" {
		message += ", container " + what.container
	}
	message += ": " + what.message
	kind := corev1.EventTypeWarning
	if what.reason == ReasonSkipped {
		kind = corev1.EventTypeNormal
	}
	for _, object := range about {
		if err := Event(ctx, n.Client, n.Log, object, what.reason, kind, message, string(what.podUID), n.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Event writes one Event. news tells it from others of that reason about the same
// object; it has the same name whoever writes it, so that two replicas write one.
func Event(ctx context.Context, client kubernetes.Interface, log *zap.Logger, about corev1.ObjectReference, reason, kind, message, news string, at time.Time) error {
	sum := sha256.Sum256([]byte(news + reason + about.Kind))
	now := metav1.NewTime(at)
	_, err := client.CoreV1().Events(about.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: about.Name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: about, Reason: reason, Message: cut(message, longest), Type: kind,
		Source: corev1.EventSource{Component: "onceguard"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		ReportingController: "onceguard.dev/webhook", ReportingInstance: "onceguard",
	}, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err): // the namespace is going
		log.Warn("Event not written", zap.String("namespace", about.Namespace), zap.String(strings.ToLower(about.Kind), about.Name), zap.Error(err))
		return nil
	}
	return err
}

// cut shortens s to n bytes without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "..."
}
