package inject

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
	case sched.Never():
		say("spec.schedule: %q names no date that exists, so it never fires and manual Jobs will be refused", s.Schedule)
	case s.TimeZone == "":
		say("spec.schedule: a time zone inside the schedule is no longer supported by Kubernetes; move it to spec.timeZone")
	}
	switch d := c.Spec.StartingDeadlineSeconds; {
	case d == nil && (s.Order == contract.OrderSerial || s.CatchUp != ""): // however late, it is wanted
	case d == nil:
		say("spec.startingDeadlineSeconds is not set: after an outage a window may start however late; set it, for example to 200")
	case *d < shortestDeadline && s.CatchUp == "":
		say("spec.startingDeadlineSeconds: %d is below 10, so windows may be missed, and without %s nothing runs them later", *d, contract.AnnotationCatchUp)
	case *d < shortestDeadline:
		say("spec.startingDeadlineSeconds: %d is below 10, so windows may be missed that Kubernetes could have started in time", *d)
	}
	if job.ActiveDeadlineSeconds == nil && pod.ActiveDeadlineSeconds == nil {
		say("spec.jobTemplate.spec.activeDeadlineSeconds is not set: a Job whose pod cannot be created or never ends stays for ever (under Forbid it stops the CronJob)")
	}
	if pod.RestartPolicy == corev1.RestartPolicyOnFailure {
		if job.BackoffLimit != nil && *job.BackoffLimit <= 1 {
			say("spec.jobTemplate.spec.backoffLimit: under restartPolicy OnFailure Kubernetes counts a restart of the guard too, so %d lets one fail the Job; use 2 or more", *job.BackoffLimit)
		}
	} else {
		give := batchv1.PodFailurePolicyActionFailJob
		if job.BackoffLimitPerIndex != nil { // the other indexes are windows of their own
			give = batchv1.PodFailurePolicyActionFailIndex
		}
		if !heedsExitCodes(job.PodFailurePolicy, give) {
			say("spec.jobTemplate.spec.podFailurePolicy: recommended rules are onExitCodes In [%d] %s (a retry makes no sense) and In [%d] Ignore (try later, costs no backoff), both without containerName",
				contract.ExitRefused, give, contract.ExitRetry)
		}
	}
	for _, container := range pod.Containers {
		if !slices.Contains(s.Containers, container.Name) {
			say("container %q is not wrapped: it runs even when the window is skipped, and the pod ends only when it does", container.Name)
		}
	}
	return append(out, policyAdvice(c, s)...)
}

// policyAdvice lists policies that do not do together what their names say.
func policyAdvice(c *batchv1.CronJob, s contract.Settings) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	job := &c.Spec.JobTemplate.Spec
	retries := 6 // Kubernetes' default
	for _, limit := range []*int32{job.BackoffLimit, job.BackoffLimitPerIndex} {
		if limit != nil {
			retries = int(*limit)
		}
	}
	serial := s.Order == contract.OrderSerial
	sched, err := window.ParseSchedule(s.Schedule, s.TimeZone)
	known := err == nil && sched.Known()
	concurrency := c.Spec.ConcurrencyPolicy
	_, chosen := c.Annotations[contract.AnnotationOverlap]

	switch {
	case serial && s.CatchUp == "" && concurrency == batchv1.ForbidConcurrent:
		say("spec.concurrencyPolicy: under Forbid Kubernetes makes no Job for a window that comes due while another runs, and with %s=serial the later ones go on without it once it is recorded as missed; use Allow, they take turns", contract.AnnotationOrder)
	case serial && s.CatchUp == "" && concurrency == batchv1.ReplaceConcurrent:
		say("spec.concurrencyPolicy: under Replace Kubernetes deletes the Job of a window that is not done, and with %s=serial all later ones then wait for it; use Allow, they take turns", contract.AnnotationOrder)
	case s.CatchUp != "" && concurrency == batchv1.ReplaceConcurrent:
		say("spec.concurrencyPolicy: under Replace Kubernetes deletes the Job of a window that is not done when the next is due, and by %s=%s the deleted one may run again later; use Allow, where a missed window waits for its turn", contract.AnnotationCatchUp, s.CatchUp)
	case s.CatchUp != "" && (s.Overlap == contract.OverlapSkip || s.Overlap == contract.OverlapReplace):
		say("%s=%s: a window that comes due while a missed one is caught up closes one of the two without running, and that is not caught up; use wait", contract.AnnotationOverlap, s.Overlap)
	case chosen && concurrency == batchv1.ForbidConcurrent && s.Overlap == contract.OverlapSkip:
		say("spec.concurrencyPolicy: under Forbid the next window gets its Job when the one before has ended, but its pod may still be ending, and by %s=skip the window is then closed without running; leave the annotation out, it waits",
			contract.AnnotationOverlap)
	case chosen && concurrency == batchv1.ForbidConcurrent && s.Overlap != contract.OverlapWait:
		say("spec.concurrencyPolicy: under Forbid Kubernetes makes no Job for a window that comes due while another runs, so %s=%s concerns only other CronJobs of the same job name and manual Jobs; use Allow to have Onceguard decide", contract.AnnotationOverlap, s.Overlap)
	case chosen && concurrency == batchv1.ReplaceConcurrent && s.Overlap != contract.OverlapReplace:
		say("spec.concurrencyPolicy: under Replace Kubernetes deletes the running Job whatever %s=%s says; use Allow to have Onceguard decide", contract.AnnotationOverlap, s.Overlap)
	case serial && s.CatchUp != contract.CatchUpAll && known:
		say("%s=serial: the later windows go on without one that no Job came for, once it is recorded as missed or skipped; with %s=all it runs in its turn", contract.AnnotationOrder, contract.AnnotationCatchUp)
	}
	if s.CatchUp != "" && s.StartDeadline > 0 {
		say("%s: a window whose Job comes later than %s is closed as late, and that is not caught up; %s bounds how old a missed window may be", contract.AnnotationStartDeadline, time.Duration(s.StartDeadline), contract.AnnotationCatchUpAge)
	}
	if s.CatchUpParallel > 1 && (serial || s.Overlap != contract.OverlapAllow) {
		say("%s=%d: the Jobs wait for each other all the same, since windows of this job do not overlap; set %s=allow and no order, or leave it out", contract.AnnotationCatchUpParallel, s.CatchUpParallel, contract.AnnotationOverlap)
	}
	if serial && chosen && s.Overlap != contract.OverlapWait {
		say("%s=serial lets a window wait for the earlier ones in any case, so %s=%s concerns only manual runs of their own", contract.AnnotationOrder, contract.AnnotationOverlap, s.Overlap)
	}
	if serial && job.SuccessPolicy != nil {
		say("spec.jobTemplate.spec.successPolicy: a Job that succeeds early ends the indexes that are not done, and with %s=serial their later windows wait for them; leave it out", contract.AnnotationOrder)
	}
	if serial && !known {
		say("%s=serial: the instants of this schedule cannot be computed, so a window that Kubernetes made no Job for is not waited for; set spec.timeZone and a schedule of five fields", contract.AnnotationOrder)
	}
	switch {
	case serial && (s.MaxAttempts == 0 || s.MaxAttempts > retries):
		say("%s=serial: a window whose Job gives up is closed only when the windows engine sees that, and all later ones wait until then; "+
			"with %s of at most spec.jobTemplate.spec.backoffLimit (%d) it closes itself", contract.AnnotationOrder, contract.AnnotationMaxAttempts, retries)
	case s.MaxAttempts > retries+1:
		say("%s=%d is more than the %d pods that spec.jobTemplate.spec.backoffLimit allows: the Job gives up first, and the window stays open for another one", contract.AnnotationMaxAttempts, s.MaxAttempts, retries+1)
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil && s.StartDeadline > 0 && time.Duration(*d)*time.Second > time.Duration(s.StartDeadline) {
		say("spec.startingDeadlineSeconds: Kubernetes starts Jobs up to %ds late, and by %s=%s those after %s are closed as late without running",
			*d, contract.AnnotationStartDeadline, time.Duration(s.StartDeadline), time.Duration(s.StartDeadline))
	}
	if s.OnCrash == contract.OnCrashHold && s.Completion == contract.CompletionTransaction {
		say("%s=hold: with %s=transaction a crash leaves nothing half done in the ledger's database, so a retry is safe unless the worker calls other systems", contract.AnnotationOnCrash, contract.AnnotationCompletion)
	}
	return out
}

// heedsExitCodes reports whether a policy gives both of our exit codes their meaning, that
// of a refusal being refused.
func heedsExitCodes(policy *batchv1.PodFailurePolicy, refused batchv1.PodFailurePolicyAction) bool {
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
	return first(contract.ExitRefused) == refused && first(contract.ExitRetry) == batchv1.PodFailurePolicyActionIgnore
}
