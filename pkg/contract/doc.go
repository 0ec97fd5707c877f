// Package contract holds every name that two Onceguard programs must agree on:
// annotations, labels, paths inside the pod, environment names, exit codes, and
// the settings that the webhook writes and the guard reads. It computes only.
//
// The settings travel in two steps. The webhook validates the annotations of a
// CronJob into [Settings] and stamps them on the Job template ([AnnotationConfig]);
// a Job is judged by what it carries, so that editing the CronJob never changes the
// identity of a run in progress. When a pod of that Job is created, the webhook
// derives the window and hands the guard a [GuardConfig].
package contract
