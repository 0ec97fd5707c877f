package window

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Skew is how far two clocks of one cluster may reasonably be apart.
const Skew = time.Minute

// Job is what a Kubernetes Job says about itself. Everything is fixed when the Job
// is created, so each of its pods means the same window.
type Job struct {
	Namespace   string
	Name        string
	UID         string
	Created     time.Time
	Annotations map[string]string
	// CronJob and CronJobUID name the owner of kind CronJob, controlling or not; empty
	// when there is none.
	CronJob    string
	CronJobUID string
	// CatchUp is the value of contract.LabelCatchUp; empty without it.
	CatchUp string
	// WindowStart is the value of contract.AnnotationWindowStart on the pod; it counts
	// only for a Job without CronJob.
	WindowStart string
	// Index is the value of contract.AnnotationIndex on the pod; empty when it has none.
	Index string
}

// Derived is the window that a Job means, and how that was found out.
type Derived struct {
	Window Window
	// Previous and End are the nominal instants before and after Window.Start; zero when
	// unknown.
	Previous time.Time
	End      time.Time
	// Repeats is the window whose civil time the Job's repeats under contract.DSTOnce; zero
	// for all others.
	Repeats time.Time
	Source  contract.Source
	Trigger contract.Trigger
}

// Refusal says why a Job means no window, and the cure. It is permanent: asking
// again about the same Job gives the same answer.
type Refusal string

// Error gives the sentence.
func (r Refusal) Error() string { return string(r) }

func refuse(format string, args ...any) (Derived, error) {
	return Derived{}, Refusal(fmt.Sprintf(format, args...))
}

// Derive finds the window that job means under the settings s it carries. The error
// is always a [Refusal]. The rules, first match first:
//
//	the Job                                                window                            source
//	no CronJob known, pod says window-start                that instant                      declared
//	no CronJob known otherwise                             refused
//	instantiate=manual, whatever the name and label        by the manual policy              manual, separate
//	labelled catch-up, and all else agrees (see catchUp)   that instant, to catch up         timestamp
//	labelled so, but anything does not agree              refused
//	scheduled-timestamp, agrees with the name's minutes    that instant                      timestamp
//	scheduled-timestamp, does not agree                    refused
//	named <cronjob>-<minutes>, an instant of the schedule  that instant                      name
//	named so, not in the schedule or in the future         refused
//	anything else                                          by the manual policy              manual, separate
//
// The manual policy counts from the Job's creation, never from now, so that each
// retry means the same window. A scheduled-timestamp in the future is believed: the
// controller's word decides which window a Job is, this program's clock does not,
// and refusing would lose the window, as its controller makes no second Job.
//
// Under contract.DSTOnce the controller's Job for a civil time's second occurrence is told
// the first one, which it repeats, and does not run. A manual Job made after the second
// means the first, since a repeat is no instant of the schedule.
//
// Each index of an Indexed Job is a window of its own: "#<index>" follows the name.
func Derive(job Job, s contract.Settings, now time.Time) (Derived, error) {
	d, err := derive(job, s, now)
	if err != nil {
		return Derived{}, err
	}
	index, err := indexOf(job, s)
	if err != nil {
		return Derived{}, err
	}
	d.Window.JobName = s.JobName + index + strings.TrimPrefix(d.Window.JobName, s.JobName)
	return d, nil
}

// indexOf is what a pod's index adds to the job's name.
func indexOf(job Job, s contract.Settings) (string, error) {
	n, err := strconv.ParseUint(job.Index, 10, 31)
	switch {
	case !s.Indexed && job.Index == "":
		return "", nil
	case !s.Indexed:
		// Without its index each pod would mean the same window, and all but one would skip.
		return "", Refusal(fmt.Sprintf("the pod says that it is index %q of an Indexed Job (annotation %s), but Job %s was prepared as NonIndexed: "+
			"remove the annotation from the template, or set completionMode in the CronJob and let it make the Job", job.Index, contract.AnnotationIndex, job.Name))
	case job.Index == "":
		return "", Refusal(fmt.Sprintf("Job %s is Indexed, but the pod has no annotation %s, by which Kubernetes says which index it is; "+
			"pods of an Indexed Job are made by the Job controller only", job.Name, contract.AnnotationIndex))
	case err != nil || job.Index != strconv.FormatUint(n, 10):
		return "", Refusal(fmt.Sprintf("annotation %s of the pod: %q is no index; Kubernetes writes a whole number from 0", contract.AnnotationIndex, job.Index))
	}
	return "#" + job.Index, nil
}

func derive(job Job, s contract.Settings, now time.Time) (Derived, error) {
	if s.CronJob == "" {
		return declared(job, s)
	}
	sched, schedErr := ParseSchedule(s.Schedule, s.TimeZone)
	sched = sched.With(s.DST)
	found := func(at time.Time, source contract.Source) (Derived, error) {
		return Derived{
			Window: Window{JobName: s.JobName, Start: at.UTC()}, Previous: sched.Previous(at), End: sched.Next(at),
			Repeats: sched.Repeats(at), Source: source, Trigger: contract.TriggerScheduled,
		}, nil
	}
	if job.Annotations[contract.AnnotationInstantiate] == "manual" {
		return manual(job, s, sched, schedErr)
	}
	if job.CatchUp != "" {
		return catchUp(job, s, sched, schedErr)
	}
	if text, ok := job.Annotations[contract.AnnotationScheduledTimestamp]; ok {
		at, err := instant(text)
		if err != nil {
			return refuse("annotation %s of Job %s: %q is no instant: %v", contract.AnnotationScheduledTimestamp, job.Name, text, err)
		}
		if _, ok := catchUpMinutes(job.Name, s.CronJob); ok {
			return refuse("Job %s has the name of a catch-up Job and says in its annotation %s which window it means, but it lacks the label %s, so Onceguard did not make it: "+
				"to run a window again use kubectl onceguard rerun or backfill; to run the newest one use kubectl create job --from=cronjob/%s",
				job.Name, contract.AnnotationScheduledTimestamp, contract.LabelCatchUp, s.CronJob)
		}
		if minutes, ok := suffix(job.Name); !ok || minutes != at.Unix()/60 {
			return refuse("the name of Job %s ends in %q, but its annotation %s says %s, which is minute %d: "+
				"the two must agree; name a copy of a Job with the same minutes at the end, or create a new one with kubectl create job --from=cronjob/%s",
				job.Name, lastPart(job.Name), contract.AnnotationScheduledTimestamp, text, at.Unix()/60, s.CronJob)
		}
		return found(at, contract.SourceTimestamp)
	}
	if name, ok := strings.CutSuffix(job.Name, "-"+lastPart(job.Name)); ok && name == s.CronJob {
		if minutes, ok := suffix(job.Name); ok {
			at := time.Unix(minutes*60, 0).UTC()
			switch {
			case schedErr != nil:
				return refuse("Job %s has no annotation %s, and its name cannot be checked: %v", job.Name, contract.AnnotationScheduledTimestamp, schedErr)
			case !sched.Known():
				return refuse("Job %s has no annotation %s, and its name cannot be checked against schedule %q: %s",
					job.Name, contract.AnnotationScheduledTimestamp, s.Schedule, unknownWhy(sched))
			case at.After(now.Add(Skew)):
				return refuse("the name of Job %s means %s, which is in the future", job.Name, at.Format(time.RFC3339))
			case !sched.Contains(at) && sched.Repeats(at).IsZero():
				return refuse("the name of Job %s means %s, which is no instant of schedule %q in %s",
					job.Name, at.Format(time.RFC3339), s.Schedule, sched.zone)
			}
			return found(at, contract.SourceName)
		}
	}
	return manual(job, s, sched, schedErr)
}

// manual applies the manual policy.
func manual(job Job, s contract.Settings, sched Schedule, schedErr error) (Derived, error) {
	const separate = contract.AnnotationManual + "=separate"
	switch s.Manual {
	case contract.ManualRefuse:
		return refuse("Job %s was made by hand, and CronJob %s refuses that (%s=refuse); a window is run again by kubectl onceguard rerun or backfill", job.Name, s.CronJob, contract.AnnotationManual)
	case contract.ManualSeparate:
		if job.UID == "" {
			return refuse("Job %s has no UID to name its separate run by", job.Name)
		}
		return Derived{
			Window: Window{JobName: s.JobName + "@" + job.UID, Start: job.Created.UTC().Truncate(time.Second)},
			Source: contract.SourceSeparate, Trigger: contract.TriggerManual,
		}, nil
	case contract.ManualWindow: // the newest due one
	}
	if schedErr != nil {
		return refuse("Job %s was made by hand and no window can be found for it: %v", job.Name, schedErr)
	}
	if !sched.Known() {
		return refuse("Job %s was made by hand and means the newest due window, which cannot be computed from schedule %q: %s, or set %s on CronJob %s for runs of their own",
			job.Name, s.Schedule, unknownWhy(sched), separate, s.CronJob)
	}
	at := sched.Newest(s.Since, job.Created)
	if at.IsZero() {
		return refuse("Job %s was made by hand and means the newest due window, but none of schedule %q (%s) was due between %s, when guarding began or the schedule was last changed, and %s; "+
			"wait for the first, or set %s on CronJob %s for runs of their own",
			job.Name, s.Schedule, sched.zone, s.Since.UTC().Format(time.RFC3339), job.Created.UTC().Format(time.RFC3339), separate, s.CronJob)
	}
	return Derived{
		Window: Window{JobName: s.JobName, Start: at}, Previous: sched.Previous(at), End: sched.Next(at),
		Source: contract.SourceManual, Trigger: contract.TriggerManual,
	}, nil
}

// declared is the window of a Job that no CronJob stands behind.
func declared(job Job, s contract.Settings) (Derived, error) {
	switch {
	case job.CronJob != "":
		return refuse("Job %s of CronJob %s carries the label %s but no %s, so it was not prepared by Onceguard: "+
			"annotate the CronJob with %s=%s instead of labelling its template, or, if the Job lost what the template has, create it with kubectl create job --from=cronjob/%s",
			job.Name, job.CronJob, contract.LabelGuard, contract.AnnotationConfig, contract.AnnotationGuard, contract.Enabled, job.CronJob)
	case job.WindowStart == "":
		return refuse("Job %s belongs to no CronJob and does not say which window it means: "+
			"set the annotation %s (an instant like 2026-11-30T13:00:00Z) on its pod template", job.Name, contract.AnnotationWindowStart)
	}
	at, err := instant(job.WindowStart)
	if err != nil {
		return refuse("annotation %s of the pod: %q is no instant: %v", contract.AnnotationWindowStart, job.WindowStart, err)
	}
	return Derived{
		Window: Window{JobName: s.JobName, Start: at},
		Source: contract.SourceDeclared, Trigger: contract.TriggerScheduled,
	}, nil
}

func unknownWhy(s Schedule) string {
	if s.every {
		return "the instants of @every depend on when the CronJob was made; use a schedule of five fields"
	}
	return "it has no time zone; set spec.timeZone, for example to Etc/UTC"
}

// A window is a moment that a schedule of our time may mean.
var (
	earliest = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// instant reads an RFC 3339 instant in whole seconds; the zone it is written in does
// not matter.
func instant(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("give it like 2026-11-30T13:00:00Z or 2026-11-30T14:00:00+01:00")
	case at.Nanosecond() != 0:
		return time.Time{}, fmt.Errorf("fractions of a second are not accepted")
	case at.Before(earliest) || !at.Before(latest):
		return time.Time{}, fmt.Errorf("the year must be from 1970 to 2199")
	}
	return at.UTC(), nil
}

// suffix gives the minutes since 1970 that end the name of a CronJob's Job.
func suffix(name string) (int64, bool) { return minutesOf(lastPart(name)) }

// minutesOf reads minutes since 1970 as Kubernetes writes them.
func minutesOf(part string) (int64, bool) {
	if len(part) == 0 || len(part) > 9 || part[0] == '0' {
		return 0, false
	}
	n, err := strconv.ParseUint(part, 10, 32)
	return int64(n), err == nil
}

// lastPart is what follows the last '-' of name; empty without one.
func lastPart(name string) string {
	if at := strings.LastIndexByte(name, '-'); at >= 0 {
		return name[at+1:]
	}
	return ""
}
