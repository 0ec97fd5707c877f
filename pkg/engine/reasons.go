package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// longestEvidence is how much of what was seen is kept, in bytes.
const longestEvidence = 1024

// seen is what was found out about one Job.
type seen struct {
	ended, complete bool
	endedAt         time.Time
	reason          disposition.Reason
	evidence        string
	at              time.Time // when it was looked at
}

// cause reports whether a reason says by itself why a Job never ran, even if something else
// ended it in the end.
func cause(r disposition.Reason) bool {
	return slices.Contains([]disposition.Reason{disposition.Admission, disposition.Quota, disposition.Image, disposition.Unschedulable}, r)
}

// judgeJob says what keeps a Job from running, or why it ended. earlier is what was seen of
// it before: Events are forgotten after an hour, and pods of a Job that ended are deleted.
func judgeJob(j *batchv1.Job, pods []corev1.Pod, events []corev1.Event, earlier seen) seen {
	out := seen{reason: disposition.Starting}
	if r, evidence := obstacle(pods, events); r != "" {
		out.reason, out.evidence = r, evidence
	} else if held(j, batchv1.JobSuspended) {
		out.evidence = "it is suspended (spec.suspend)"
	}
	if cause(earlier.reason) && !cause(out.reason) && len(pods) == 0 {
		out.reason, out.evidence = earlier.reason, earlier.evidence
	}
	switch {
	case held(j, batchv1.JobComplete):
		out = seen{ended: true, complete: true, endedAt: condition(j, batchv1.JobComplete).LastTransitionTime.UTC(), reason: disposition.JobFailed, evidence: "it is complete"}
	case held(j, batchv1.JobFailed):
		c := condition(j, batchv1.JobFailed)
		out.ended, out.endedAt = true, c.LastTransitionTime.UTC()
		why := ""
		if out.evidence != "" {
			why = "; " + out.evidence
		}
		ending := fmt.Sprintf("%s: %s", c.Reason, c.Message)
		switch {
		case cause(out.reason):
			out.evidence += "; it ended by " + ending
		case c.Reason == batchv1.JobReasonDeadlineExceeded:
			out.reason, out.evidence = disposition.DeadlineExceeded, ending+why
		default:
			out.reason, out.evidence = disposition.JobFailed, ending+why
		}
	}
	if out.evidence = strings.TrimPrefix(out.evidence, "Job "+j.Name+": "); out.evidence != "" {
		out.evidence = shorten("Job " + j.Name + ": " + out.evidence)
	}
	return out
}

func condition(j *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if j.Status.Conditions[i].Type == kind {
			return &j.Status.Conditions[i]
		}
	}
	return nil
}

func held(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	c := condition(j, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// obstacle finds what stands in a Job's way; empty for nothing that is known.
func obstacle(pods []corev1.Pod, events []corev1.Event) (disposition.Reason, string) {
	if len(pods) == 0 {
		r, text, _ := refusal(events)
		if r == "" && text != "" {
			return disposition.Starting, text
		}
		return r, text
	}
	newest := slices.MaxFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	r, text := podObstacle(&newest)
	if text == "" {
		return r, text
	}
	return r, "pod " + newest.Name + ": " + text
}

// badImage are the reasons of a container that waits for its image.
var badImage = []string{
	"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed",
}

func podObstacle(p *corev1.Pod) (disposition.Reason, string) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return disposition.Unschedulable, c.Reason + ": " + c.Message
		}
	}
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	waits := func(s corev1.ContainerStatus) string {
		return strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message), ": ")
	}
	for _, s := range all {
		if w := s.State.Waiting; w != nil && slices.Contains(badImage, w.Reason) {
			return disposition.Image, waits(s)
		}
	}
	for _, s := range all { // what the guard, or the wrapper in its name, said last
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 && strings.HasPrefix(t.Message, contract.TerminationPrefix) {
				return disposition.Starting, fmt.Sprintf("container %s exited %d: %s", s.Name, t.ExitCode, strings.TrimPrefix(t.Message, contract.TerminationPrefix))
			}
		}
	}
	for _, s := range all {
		// What a container of a pod waits for by default says nothing.
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
			return disposition.Starting, waits(s)
		}
	}
	for _, s := range p.Status.InitContainerStatuses {
		if s.Name == contract.ContainerGuard && s.State.Running != nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			return disposition.Waiting, "its guard runs and has not claimed the window: it waits for the ledger or for its turn, see the log of container " + s.Name
		}
	}
	if p.Status.Phase == corev1.PodPending || p.Status.Phase == "" {
		return disposition.Starting, "ContainerCreating"
	}
	return disposition.Starting, strings.TrimSuffix(string(p.Status.Phase)+": "+p.Status.Reason, ": ")
}

// failedCreate is the reason of Events about a Job, or a pod, that could not be made, and
// failures selects them.
const failedCreate, failures = "FailedCreate", "reason=FailedCreate"

// refusal finds in the Events of a Job or a CronJob the newest creation that failed, and
// when that was. A failure that is no refusal, like a time-out, has a text and no reason.
func refusal(events []corev1.Event) (disposition.Reason, string, time.Time) {
	var newest *corev1.Event
	for i := range events {
		if e := &events[i]; e.Reason == failedCreate && (newest == nil || happened(e).After(happened(newest))) {
			newest = e
		}
	}
	if newest == nil {
		return "", "", time.Time{}
	}
	return refused(newest.Message), newest.Message, happened(newest)
}

// happened is when an Event was last seen.
func happened(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	for _, other := range []time.Time{e.EventTime.Time, e.CreationTimestamp.Time} {
		if at.IsZero() {
			at = other
		}
	}
	return at.UTC()
}

// refused tells a refusal from its text: Kubernetes gives an Event nothing else.
func refused(message string) disposition.Reason {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(message, w) })
	}
	switch {
	case has("exceeded quota", "failed quota", "insufficient quota"):
		return disposition.Quota
	case has("admission webhook", "denied the request", "denied request", "failed calling webhook", "ValidatingAdmissionPolicy", "is forbidden", "is invalid"):
		return disposition.Admission
	}
	return ""
}

// shorten keeps the beginning of a text, without line breaks.
func shorten(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "")
	if len(text) <= longestEvidence {
		return text
	}
	return strings.ToValidUTF8(text[:longestEvidence-3], "") + "..."
}
