package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/window"
)

// lookLate is how long after a window is due the engine has looked at its CronJob, at the
// latest: it waits a minute for the Job, and a standby takes over within another.
const lookLate = 5 * time.Minute

// maxSchedules bounds the CronJobs that one command reads.
const maxSchedules = 10_000

// scheduleOfCronJob is the schedule as the engine knows it. The error says why its windows
// cannot be computed.
func scheduleOfCronJob(x audit.Schedule) (window.Schedule, error) {
	s, err := window.ParseSchedule(x.Schedule, x.TimeZone)
	switch {
	case err != nil:
		return window.Schedule{}, err
	case s.Known():
		return s.With(x.DST), nil
	case strings.Contains(x.Schedule, "@every"):
		return window.Schedule{}, fmt.Errorf("the instants of %q depend on when the CronJob was made: use a schedule of five fields", x.Schedule)
	}
	return window.Schedule{}, fmt.Errorf("schedule %q has no time zone, so it follows a clock that nobody else knows: set spec.timeZone, for example to Etc/UTC", x.Schedule)
}

// notLooked says since when the engine has not looked at a CronJob though it had reason to;
// empty when it has.
func notLooked(x audit.Schedule, now time.Time) string {
	if x.GoneAt != nil || x.LookedAt == nil {
		return ""
	}
	s, err := scheduleOfCronJob(x)
	if err != nil {
		return ""
	}
	if due := s.Next(*x.LookedAt); due.IsZero() || now.Sub(due) < lookLate {
		return ""
	}
	return fmt.Sprintf("no engine has looked since %s: what is due since then is not judged, and no Job is made for what is planned (kubectl -n onceguard-system get pods)", instant(x.LookedAt))
}

// suspended says that a CronJob is suspended, so that what is planned for it stays so; empty
// when it is not.
func suspended(x audit.Schedule) string {
	if x.SuspendedSince == nil {
		return ""
	}
	return fmt.Sprintf("it is suspended since %s: no Job is made for what is planned until it is resumed", instant(x.SuspendedSince))
}

// schedulesOf gives the CronJobs of one job.
func schedulesOf(ctx context.Context, ledger *connection, job string) ([]audit.Schedule, error) {
	found, err := audit.Schedules(ctx, ledger, "", job, maxSchedules)
	if err != nil {
		return nil, ledger.explain(err)
	}
	return slices.DeleteFunc(found, func(x audit.Schedule) bool { return x.JobName != job }), nil
}

// chooseCronJob gives the one CronJob of a job that is meant: by name, else the only one
// that is there.
func chooseCronJob(all []audit.Schedule, job, name string) (audit.Schedule, error) {
	var gone []audit.Schedule
	var names []string
	var chosen []audit.Schedule
	for _, x := range all {
		if _, short, _ := strings.Cut(x.CronJob, "/"); name != "" && name != x.CronJob && name != short {
			names = append(names, x.CronJob)
			continue
		}
		if x.GoneAt != nil {
			gone = append(gone, x)
			continue
		}
		names = append(names, x.CronJob)
		chosen = append(chosen, x)
	}
	switch {
	case len(chosen) == 1:
		return chosen[0], nil
	case len(chosen) > 1:
		return audit.Schedule{}, fmt.Errorf("the windows of %s are those of several CronJobs, %s: say which by --cronjob", job, strings.Join(names, ", "))
	case len(gone) > 0:
		return audit.Schedule{}, fmt.Errorf("CronJob %s of job %s was deleted (seen %s), and no Job can be made from it: create it again first", gone[0].CronJob, job, instant(gone[0].GoneAt))
	case name != "" && len(names) > 0:
		return audit.Schedule{}, fmt.Errorf("--cronjob %q: the CronJobs of job %s are %s", name, job, strings.Join(names, ", "))
	}
	return audit.Schedule{}, fmt.Errorf("job %s: %w", job, errNoEngine)
}

// errNoEngine says that nobody has recorded the schedule.
var errNoEngine = errors.New("the windows engine has recorded no CronJob of it: is the CronJob guarded, the engine on (chart value engine.enabled), and has it this ledger (engine.ledgers)?")

// zoned is "0 * * * * Asia/Shanghai".
func zoned(schedule, zone string) string {
	if zone == "" {
		return printable(schedule)
	}
	return printable(schedule + " " + zone)
}
