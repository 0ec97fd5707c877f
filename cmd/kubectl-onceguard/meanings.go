package main

import "github.com/onceguard/onceguard/pkg/disposition"

// reasonMeaning says in words why no Job ran a window.
var reasonMeaning = map[disposition.Reason]string{
	disposition.Controller:       "no Job was made for it, though nothing forbade one: the CronJob controller was late, or down",
	disposition.StartDeadline:    "no Job was made for it before startingDeadlineSeconds had passed",
	disposition.Overlap:          "an earlier Job was running, and concurrencyPolicy is Forbid",
	disposition.Suspended:        "the CronJob was suspended",
	disposition.Admission:        "its Job or its pods were refused at admission",
	disposition.Quota:            "its Job or its pods exceeded a quota",
	disposition.Image:            "an image of its pod could not be pulled",
	disposition.Unschedulable:    "no node had room for its pod",
	disposition.Starting:         "its Job is there, and nothing is wrong with it so far",
	disposition.Waiting:          "its pod is there, and the guard in it waits for the ledger or for its turn",
	disposition.DeadlineExceeded: "activeDeadlineSeconds ended its Job before it could claim the window",
	disposition.JobFailed:        "its Job failed before it could claim the window",
	disposition.JobGone:          "its Job was made, and deleted before it ran the window",
	disposition.NewerWindow:      "catch-up is latest, and a newer window took its place",
	disposition.ClockMoved:       "the clocks were moved, and under dst=once it is a window of nobody's Job",
	disposition.Cancelled:        "a person took it back before it was caught up",
}

// ruleMeaning says in words why a missed window is not caught up.
var ruleMeaning = map[disposition.Rule]string{
	disposition.TooOld:     "older than onceguard.dev/catch-up-age",
	disposition.TooMany:    "more windows were due since than onceguard.dev/catch-up-limit",
	disposition.WhileAway:  "it passed while the CronJob was suspended, and onceguard.dev/suspended-windows is skip",
	disposition.OnlyLatest: "catch-up is latest, and a newer window is due",
	disposition.GivenUp:    "Jobs were made for it several times, and none ran it",
	disposition.Nameless:   "the CronJob's name leaves no room for the name of a Job",
	disposition.Outside:    "it is no window of the CronJob's schedule any more, or older than what is answered for",
	disposition.Gone:       "its CronJob was deleted",
}

// reasonCure says what a person can do about the cause.
var reasonCure = map[disposition.Reason]string{
	disposition.Controller:       "look at the CronJob (kubectl describe cronjob) and at kube-controller-manager",
	disposition.StartDeadline:    "look at kube-controller-manager, or raise startingDeadlineSeconds",
	disposition.Overlap:          "see why the earlier Job takes longer than the period",
	disposition.Admission:        "see the CronJob's and the Job's Events for who refused it (kubectl describe)",
	disposition.Quota:            "raise the quota, or wait until it is free (kubectl describe quota)",
	disposition.Image:            "mend the image's name or its pull secret",
	disposition.Unschedulable:    "see the pod's Events for what no node has (kubectl describe pod)",
	disposition.Waiting:          "see what it waits for: kubectl logs POD -c onceguard",
	disposition.DeadlineExceeded: "see what kept the pod from starting, or raise activeDeadlineSeconds",
	disposition.JobFailed:        "see why the pods failed (kubectl describe job, kubectl logs)",
}
