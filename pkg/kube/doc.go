// Package kube is the webhook program's view of the cluster: it reads the Jobs of
// guarded pods ([Jobs]), stamps CronJobs that were annotated while nobody listened
// ([Reconciler]), and turns what the guards leave in termination messages into
// Events ([Notes]).
//
// Every replica runs all of it. Nothing here needs a leader: a stamp is the same
// whoever writes it, and an Event's name is derived from what it says, so that the
// second one to write it finds it there.
package kube
