package window

import (
	"strconv"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// CatchUpName is the name of the Job that is made for the window start of a CronJob that
// no Job came for: "<cronjob>-r<minutes since 1970>". The CronJob controller never wants
// it: a foreign Job under one of the controller's own names would stop the CronJob.
func CatchUpName(cronJob string, start time.Time) string {
	return cronJob + "-r" + strconv.FormatInt(start.Unix()/60, 10)
}

// catchUpMinutes reads the minutes off a name of that form.
func catchUpMinutes(name, cronJob string) (int64, bool) {
	part, ok := strings.CutPrefix(name, cronJob+"-r")
	if !ok {
		return 0, false
	}
	return minutesOf(part)
}

// catchUp is the window of a Job that carries the label of those that Onceguard makes. What
// such a Job may do is more than what others may, so everything about it has to agree: by
// the label alone anybody's Job could mean any window.
func catchUp(job Job, s contract.Settings, sched Schedule, schedErr error) (Derived, error) {
	const label, stamp = contract.LabelCatchUp, contract.AnnotationScheduledTimestamp
	cure := "remove the label (kubectl onceguard backfill plans windows to be run later; kubectl create job --from=cronjob/" + s.CronJob + " runs the newest one)"
	if job.CatchUp != contract.Enabled {
		return refuse("the label %s of Job %s has the value %q; it stands only on Jobs that Onceguard makes, with the value %q: %s",
			label, job.Name, job.CatchUp, contract.Enabled, cure)
	}
	minutes, ok := catchUpMinutes(job.Name, s.CronJob)
	if !ok {
		return refuse("Job %s carries the label %s, but its name is not of the form %s-r<minutes since 1970>, so Onceguard did not make it: %s; if the CronJob's template carries it, remove it there",
			job.Name, label, s.CronJob, cure)
	}
	text, ok := job.Annotations[stamp]
	if !ok {
		return refuse("Job %s carries the label %s but no annotation %s, so Onceguard did not make it: %s", job.Name, label, stamp, cure)
	}
	at, err := instant(text)
	switch {
	case err != nil:
		return refuse("annotation %s of Job %s: %q is no instant: %v", stamp, job.Name, text, err)
	case at.Unix() != minutes*60:
		return refuse("the name of catch-up Job %s means %s, but its annotation %s says %s, so Onceguard did not make it: %s",
			job.Name, time.Unix(minutes*60, 0).UTC().Format(time.RFC3339), stamp, text, cure)
	case job.CronJob != "" && job.CronJob != s.CronJob:
		return refuse("catch-up Job %s belongs to CronJob %s, but it was prepared for CronJob %s, so Onceguard did not make it: %s", job.Name, job.CronJob, s.CronJob, cure)
	case job.CronJobUID != "" && s.CronJobUID != "" && job.CronJobUID != s.CronJobUID:
		return refuse("catch-up Job %s belongs to CronJob %s with UID %s, but it was prepared for the one with UID %s, so Onceguard did not make it: %s",
			job.Name, s.CronJob, job.CronJobUID, s.CronJobUID, cure)
	case schedErr != nil:
		return refuse("no window can be caught up by Job %s: %v", job.Name, schedErr)
	case !sched.Known():
		return refuse("no window can be caught up by Job %s, since those of schedule %q cannot be computed: %s", job.Name, s.Schedule, unknownWhy(sched))
	case !sched.Repeats(at).IsZero():
		return refuse("the name of catch-up Job %s means %s, which repeats the civil time of %s and by %s=%s is no window of its own: %s",
			job.Name, at.Format(time.RFC3339), sched.Repeats(at).Format(time.RFC3339), contract.AnnotationDST, contract.DSTOnce, cure)
	case !sched.Contains(at):
		return refuse("the name of catch-up Job %s means %s, which is no instant of schedule %q in %s: %s",
			job.Name, at.Format(time.RFC3339), s.Schedule, sched.zone, cure)
	}
	return Derived{
		Window: Window{JobName: s.JobName, Start: at}, Previous: sched.Previous(at), End: sched.Next(at),
		Source: contract.SourceTimestamp, Trigger: contract.TriggerCatchUp,
	}, nil
}
