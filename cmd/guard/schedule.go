package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

const (
	// defaultEarly is how far before its window a start may be that still means it: a timer
	// fires by a clock that is being corrected, and the guard looks at it a moment later.
	defaultEarly = 5 * time.Second
	// punctual is how late a start may be before it is worth a word: cron looks once a
	// minute, and systemd's timers have that accuracy.
	punctual = time.Minute
)

// timetable is what the flags say about the schedule that starts the command.
type timetable struct {
	schedule, timeZone, dst string
	early                   time.Duration
}

func (t *timetable) flags(f *flag.FlagSet) {
	f.StringVar(&t.schedule, "schedule", "", "the `fields` of the crontab line, in quotes: the window is the newest instant of them when the command starts")
	f.StringVar(&t.timeZone, "time-zone", "", "the `zone` in which cron or the timer reads them, like Europe/Berlin")
	f.StringVar(&t.dst, "dst", string(contract.DSTKubernetes), "when clocks are moved: kubernetes, 01:30 may be twice and 02:30 not at all; or once, each civil time once")
	f.DurationVar(&t.early, "early", defaultEarly, "a start that is at most so `long` before an instant means it")
}

// set derives the window of a command that was started at started.
func (t *timetable) set(f *flag.FlagSet, c *contract.GuardConfig, started time.Time) error {
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if t.schedule == "" {
		for _, name := range []string{"schedule", "time-zone", "dst", "early"} {
			if given[name] {
				return fmt.Errorf("--%s needs the fields of the crontab line: --schedule '*/5 * * * *'", name)
			}
		}
		return nil
	}
	for _, name := range []string{"window-start", "window-end", "window-previous"} {
		if given[name] {
			return fmt.Errorf("--%s is given beside --schedule, which says it too: take one of them out", name)
		}
	}
	sched, err := t.parse()
	if err != nil {
		return err
	}
	at := sched.Nominal(started, t.early)
	if at.IsZero() {
		return fmt.Errorf("--schedule: no instant of %q in %s was due by %s: start the command when one is", t.schedule, t.timeZone, started.UTC().Format(time.RFC3339))
	}
	c.WindowStart, c.Previous, c.WindowEnd = at, sched.Previous(at), sched.Next(at)
	for _, between := range []time.Duration{at.Sub(c.Previous), c.WindowEnd.Sub(at)} {
		if !c.Previous.IsZero() && !c.WindowEnd.IsZero() && t.early >= between {
			return fmt.Errorf("--early is %s, and the windows of --schedule %q are %s apart: a start on time would mean the next one; give a shorter one", t.early, t.schedule, between)
		}
	}
	if dst := contract.DST(t.dst); dst == contract.DSTOnce {
		c.DST = dst
	}
	c.Source, c.Schedule, c.TimeZone = contract.SourceSchedule, t.schedule, t.timeZone
	return nil
}

func (t *timetable) parse() (window.Schedule, error) {
	switch {
	case strings.HasPrefix(t.schedule, "TZ=") || strings.HasPrefix(t.schedule, "CRON_TZ="):
		return window.Schedule{}, fmt.Errorf("--schedule: %q has a time zone in it: take it out and give it as --time-zone", t.schedule)
	case strings.Contains(t.schedule, "@every"):
		return window.Schedule{}, errors.New("--schedule: the instants of @every depend on when counting began; give five fields, like '*/5 * * * *'")
	case t.timeZone == "":
		return window.Schedule{}, errors.New("--time-zone is missing: cron and systemd timers read their fields in the zone of the machine, and another one means other windows. " +
			"Give its name: timedatectl show -p Timezone --value, or readlink /etc/localtime, prints it")
	}
	if _, err := time.LoadLocation(t.timeZone); err != nil || t.timeZone == "Local" {
		return window.Schedule{}, fmt.Errorf("--time-zone: %q is not a time zone; give a name like Europe/Berlin or Etc/UTC", t.timeZone)
	}
	dst := contract.DST(t.dst)
	if dst != contract.DSTKubernetes && dst != contract.DSTOnce {
		return window.Schedule{}, fmt.Errorf("--dst is %q; it must be kubernetes or once", t.dst)
	}
	if t.early < 0 {
		return window.Schedule{}, fmt.Errorf("--early is %s; it must not be negative", t.early)
	}
	sched, err := window.ParseSchedule(t.schedule, t.timeZone)
	switch {
	case err != nil:
		return window.Schedule{}, fmt.Errorf("--schedule: %q is not understood: %w; give the five fields of a CronJob, in which Sunday is 0, or @hourly, @daily and so on", t.schedule, cmp.Or(errors.Unwrap(err), err))
	case sched.Never():
		return window.Schedule{}, fmt.Errorf("--schedule: %q names no date that exists", t.schedule)
	}
	return sched.With(dst), nil
}

// unpunctual says how far a start was from the window that it means, when that is worth a word.
func unpunctual(c contract.GuardConfig, started time.Time) string {
	late := started.Sub(c.WindowStart)
	switch {
	case c.Source != contract.SourceSchedule:
	case late < 0:
		return fmt.Sprintf("; started %s before it", (-late).Round(time.Millisecond))
	case late > punctual:
		return fmt.Sprintf("; started %s after it", late.Round(time.Second))
	}
	return ""
}
