package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// base is a job's name without index and separate run.
func base(job string) string {
	if at := strings.IndexAny(job, "#@"); at >= 0 {
		return job[:at]
	}
	return job
}

// scheduleOf is the schedule that a window's CronJob had, if its instants can be known.
func scheduleOf(x audit.Window) (window.Schedule, bool) {
	if x.Schedule == nil {
		return window.Schedule{}, false
	}
	zone := ""
	if x.TimeZone != nil {
		zone = *x.TimeZone
	}
	s, err := window.ParseSchedule(*x.Schedule, zone)
	return s, err == nil && s.Known()
}

func scheduleText(x audit.Window) string {
	s := text(x.Schedule)
	if x.TimeZone != nil && *x.TimeZone != "" {
		s += " " + printable(*x.TimeZone)
	}
	if x.DST != nil && *x.DST == string(contract.DSTOnce) {
		s += ", dst=once"
	}
	return s
}

// nextRun says which pod runs a window that was opened, and how to make one: what
// window.Derive takes for this window.
func nextRun(x audit.Window, old was, now time.Time) string {
	source := ""
	if x.Source != nil {
		source = *x.Source
	}
	retry := ""
	if x.Job != nil && old.Status != "completed" && old.Status != "skipped" {
		retry = fmt.Sprintf("The next retry of Job %s runs it, if there is one left. Else make", place(x.Namespace, x.Job))
	} else {
		retry = "No pod is started by this: make"
	}
	at := instant(&x.WindowStart)
	switch {
	case strings.Contains(x.JobName, "@"):
		return "It is a separate run: only a retry of its own Job runs it. To do the work once more make another Job, which is a run of its own."
	case source == string(contract.SourceDeclared) && x.Namespace == nil:
		return fmt.Sprintf("Run it with guard run --job %s --window-start %s, as before.", x.JobName, at)
	case source == string(contract.SourceDeclared):
		return fmt.Sprintf("%s a Job like %s, with the annotation %s: %q on its pod template.", retry, place(x.Namespace, x.Job), contract.AnnotationWindowStart, at)
	case source == "" && x.Schedule == nil:
		return fmt.Sprintf("The next pod, or guard run, that means the window %s runs it.", at)
	}
	namespace, cronJob := cronJobOf(x)
	create := fmt.Sprintf("kubectl -n %s create job %s --from=cronjob/%s", namespace, newJobName(x, cronJob), cronJob)
	if strings.Contains(x.JobName, "#") {
		retry = "Its other indexes skip if they are done. " + retry
	}
	s, known := scheduleOf(x)
	next := s.Next(x.WindowStart)
	if known && !next.IsZero() && now.Before(next) && !now.Before(x.WindowStart) {
		return fmt.Sprintf("%s one now. Until %s this is the newest due window, which a manual Job means (unless %s says otherwise):\n  %s",
			retry, instant(&next), contract.AnnotationManual, create)
	}
	return fmt.Sprintf("%s one that says its window, as the CronJob controller does:\n  %s --dry-run=client -o yaml |\n"+
		"    kubectl annotate --local -f - -o yaml %s- %s=%s |\n    kubectl -n %s create -f -",
		retry, create, contract.AnnotationInstantiate, contract.AnnotationScheduledTimestamp, at, namespace)
}

// scheduled is the name of a Job that the CronJob controller made.
var scheduled = regexp.MustCompile(`^(.+)-[1-9][0-9]{0,8}$`)

// cronJobOf gives the CronJob that made a window's Job, as well as the record knows it: a
// job-name of its own, and a manual Job's name, do not say it.
func cronJobOf(x audit.Window) (namespace, name string) {
	local := base(x.JobName)
	local = local[strings.IndexByte(local, ':')+1:]
	namespace, name, _ = strings.Cut(local, "/")
	if x.Namespace != nil {
		namespace = *x.Namespace
	}
	if x.Job != nil && x.Source != nil && (*x.Source == string(contract.SourceTimestamp) || *x.Source == string(contract.SourceName)) {
		if parts := scheduled.FindStringSubmatch(*x.Job); parts != nil {
			name = parts[1]
		}
	}
	return printable(namespace), printable(name)
}

// maxJobName is the longest name of a Job, in characters.
const maxJobName = 63

// newJobName ends in the window's minutes, as a Job that says its window must, and is
// none that the CronJob controller may want.
func newJobName(x audit.Window, cronJob string) string {
	end := fmt.Sprintf("-g%d-%d", x.Generation, x.WindowStart.Unix()/60)
	return strings.TrimRight(cronJob[:min(len(cronJob), maxJobName-len(end))], "-.") + end
}
