package inject

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// shortestDeadline: the CronJob controller looks every ten seconds at worst, and a
// shorter startingDeadlineSeconds loses windows.
const shortestDeadline = 10

// advice lists what is legal but will surprise: each is one sentence for kubectl.
func advice(c *batchv1.CronJob, s contract.Settings) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	job, pod := &c.Spec.JobTemplate.Spec, &c.Spec.JobTemplate.Spec.Template.Spec

	switch sched, err := window.ParseSchedule(s.Schedule, s.TimeZone); {
	case err != nil:
		say("%v; manual Jobs will be refused", err)
	case strings.Contains(s.Schedule, "@every"):
		say("spec.schedule: the instants of @every cannot be computed; manual Jobs will be refused unless %s=separate", contract.AnnotationManual)
	case !sched.Known():
		say("spec.timeZone is not set: a window's end is unknown and manual Jobs will be refused unless %s=separate; set it, for example to Etc/UTC", contract.AnnotationManual)
	case s.TimeZone == "":
		say("spec.schedule: a time zone inside the schedule is no longer supported by Kubernetes; move it to spec.timeZone")
	}
	switch d := c.Spec.StartingDeadlineSeconds; {
	case d == nil:
		say("spec.startingDeadlineSeconds is not set: after an outage a window may start however late; set it, for example to 200")
	case *d < shortestDeadline:
		say("spec.startingDeadlineSeconds: %d is below 10, so windows may be missed", *d)
	}
	if job.ActiveDeadlineSeconds == nil && pod.ActiveDeadlineSeconds == nil {
		say("spec.jobTemplate.spec.activeDeadlineSeconds is not set: a Job whose pod cannot be created or never ends stays for ever (under Forbid it stops the CronJob)")
	}
	if pod.RestartPolicy == corev1.RestartPolicyOnFailure {
		if job.BackoffLimit != nil && *job.BackoffLimit <= 1 {
			say("spec.jobTemplate.spec.backoffLimit: under restartPolicy OnFailure Kubernetes counts a restart of the guard too, so %d lets one fail the Job; use 2 or more", *job.BackoffLimit)
		}
	} else if !heedsExitCodes(job.PodFailurePolicy) {
		say("spec.jobTemplate.spec.podFailurePolicy: recommended rules are onExitCodes In [%d] FailJob (a retry makes no sense) and In [%d] Ignore (try later, costs no backoff), both without containerName",
			contract.ExitRefused, contract.ExitRetry)
	}
	for _, container := range pod.Containers {
		if !slices.Contains(s.Containers, container.Name) {
			say("container %q is not wrapped: it runs even when the window is skipped, and the pod ends only when it does", container.Name)
		}
	}
	return out
}

// heedsExitCodes reports whether a policy gives both of our exit codes their meaning.
func heedsExitCodes(policy *batchv1.PodFailurePolicy) bool {
	if policy == nil {
		return false
	}
	first := func(code int32) batchv1.PodFailurePolicyAction {
		for _, rule := range policy.Rules {
			if on := rule.OnExitCodes; on != nil && on.ContainerName == nil &&
				slices.Contains(on.Values, code) == (on.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return rule.Action
			}
		}
		return ""
	}
	return first(contract.ExitRefused) == batchv1.PodFailurePolicyActionFailJob && first(contract.ExitRetry) == batchv1.PodFailurePolicyActionIgnore
}
