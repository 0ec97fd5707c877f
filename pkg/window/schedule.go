package window

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Schedule is a cron expression in a zone. The parser is the one that the CronJob
// controller uses, so both know the same instants.
type Schedule struct {
	spec  cron.Schedule
	zone  *time.Location // nil when nobody says which one
	every bool           // @every: its instants depend on when the CronJob was made
	once  bool           // contract.DSTOnce
}

// ParseSchedule reads a CronJob's schedule and timeZone. Without a time zone (and
// without the old TZ= prefix) the schedule follows the clock of whatever
// kube-controller-manager runs, which nobody else can know.
func ParseSchedule(schedule, timeZone string) (Schedule, error) {
	s := Schedule{every: strings.Contains(schedule, "@every")}
	prefixed := strings.HasPrefix(schedule, "TZ=") || strings.HasPrefix(schedule, "CRON_TZ=")
	if prefixed && timeZone != "" {
		return Schedule{}, fmt.Errorf("spec.schedule: %q has a time zone of its own beside spec.timeZone %q: take it out of the schedule", schedule, timeZone)
	}
	if prefixed {
		name, _, _ := strings.Cut(schedule[strings.Index(schedule, "=")+1:], " ")
		timeZone = name
	}
	if timeZone != "" {
		zone, err := time.LoadLocation(timeZone)
		if err != nil || timeZone == "Local" {
			return Schedule{}, fmt.Errorf("spec.timeZone: %q is not a time zone; give a name like Europe/Berlin or Etc/UTC", timeZone)
		}
		s.zone = zone
	}
	spec, err := parseCron(schedule)
	if err != nil {
		return Schedule{}, fmt.Errorf("spec.schedule: %q is not a cron schedule: %w", schedule, err)
	}
	s.spec = spec
	return s, nil
}

// parseCron shields against the parser's panics on foreign input (a lone "TZ=").
func parseCron(schedule string) (spec cron.Schedule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser gave up: %v", p)
		}
	}()
	return cron.ParseStandard(schedule)
}

// Known reports whether the schedule's instants can be computed at all.
func (s Schedule) Known() bool { return s.zone != nil && !s.every }

// Next gives the first instant after t, in UTC; zero when there is none within five
// years or the instants are not Known.
func (s Schedule) Next(t time.Time) time.Time {
	if !s.Known() {
		return time.Time{}
	}
	next := s.spec.Next(t.In(s.zone))
	if next.IsZero() {
		return time.Time{}
	}
	return next.UTC()
}

// Contains reports whether t is an instant of the schedule.
func (s Schedule) Contains(t time.Time) bool {
	return s.Next(t.Add(-time.Second)).Equal(t)
}

// Previous gives the last instant before t that is found by going forward, as the CronJob
// controller does, in UTC; zero when there is none within five years or the instants are
// not Known.
func (s Schedule) Previous(t time.Time) time.Time {
	// Newest looks at whole seconds, so what is not after t − 1 ns is before t.
	before := func(t time.Time) time.Time { return s.Newest(t.AddDate(-5, 0, 0), t.Add(-time.Nanosecond)) }
	last := before(t)
	if last.IsZero() || !s.oddlyShifted(t) {
		return last
	}
	// Where the clock is moved by half an hour, the parser steps over instants of the day
	// after that Newest finds; nobody makes Jobs for them. So go forward from well before.
	const far = 36 * time.Hour
	at := before(t.Add(-far))
	if earlier := before(at.Add(-far)); !earlier.IsZero() {
		at = earlier
	}
	last = time.Time{}
	for ; !at.IsZero() && at.Before(t); at = s.Next(at) {
		last = at
	}
	return last
}

// oddlyShifted reports whether the zone's clock was moved in the two years before t by
// other than whole hours.
func (s Schedule) oddlyShifted(t time.Time) bool {
	const month = 30 * 24 * time.Hour
	_, now := t.In(s.zone).Zone()
	for i := range 24 {
		if _, then := t.Add(-time.Duration(i+1) * month).In(s.zone).Zone(); (now-then)%3600 != 0 {
			return true
		}
	}
	return false
}

// Newest gives the newest instant that is neither before from nor after to, in UTC;
// zero when there is none. It asks for some forty instants, however dense the
// schedule and however long the span.
func (s Schedule) Newest(from, to time.Time) time.Time {
	// Next never goes back when its argument goes forward, so the newest instant can
	// be found by halving: early always has an instant not after to, late never has.
	due := func(t time.Time) bool {
		n := s.Next(t)
		return !n.IsZero() && !n.After(to)
	}
	early, late := from.Truncate(time.Second).Add(-time.Second), to.Truncate(time.Second)
	if from.After(early.Add(time.Second)) {
		early = early.Add(time.Second)
	}
	if late.Before(early) || !due(early) {
		return time.Time{}
	}
	for late.Sub(early) > time.Second {
		middle := early.Add(late.Sub(early) / 2).Truncate(time.Second)
		if due(middle) {
			early = middle
		} else {
			late = middle
		}
	}
	return s.Next(early)
}

// With gives the schedule under a rule for moved clocks; empty is contract.DSTKubernetes.
func (s Schedule) With(rule contract.DST) Schedule {
	s.once = rule == contract.DSTOnce
	return s
}
