package window

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // zones are known wherever schedules are, also in images and on machines without zone data

	"github.com/robfig/cron/v3"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Schedule is a cron expression in a zone. The parser is the one that the CronJob
// controller uses, so both know the same instants.
type Schedule struct {
	spec     cron.Schedule
	calendar calendar       // the fields of spec
	zone     *time.Location // nil when nobody says which one
	every    bool           // @every: its instants depend on when the CronJob was made
	once     bool           // contract.DSTOnce
	regions  *regions
}

// ParseSchedule reads a CronJob's schedule and timeZone. Without a time zone (and
// without the old TZ= prefix) the schedule follows the clock of whatever
// kube-controller-manager runs, which nobody else can know.
func ParseSchedule(schedule, timeZone string) (Schedule, error) {
	var s Schedule
	prefixed := strings.HasPrefix(schedule, "TZ=") || strings.HasPrefix(schedule, "CRON_TZ=")
	if prefixed && timeZone != "" {
		return Schedule{}, fmt.Errorf("spec.schedule: %q has a time zone of its own beside spec.timeZone %q: take it out of the schedule", schedule, timeZone)
	}
	if prefixed {
		name, _, _ := strings.Cut(schedule[strings.Index(schedule, "=")+1:], " ")
		timeZone = name
	}
	if timeZone != "" {
		zone, err := loadZone(timeZone)
		if err != nil || timeZone == "Local" {
			return Schedule{}, fmt.Errorf("spec.timeZone: %q is not a time zone; give a name like Europe/Berlin or Etc/UTC", timeZone)
		}
		s.zone = zone
	}
	spec, err := parseCron(schedule)
	if err != nil {
		return Schedule{}, fmt.Errorf("spec.schedule: %q is not a cron schedule: %w", schedule, err)
	}
	s.spec, s.regions = spec, &regions{known: map[bool][]region{}}
	if fields, ok := spec.(*cron.SpecSchedule); ok {
		s.calendar = calendarOf(fields)
	} else {
		s.every = true
	}
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

// With gives the schedule under a rule for moved clocks; empty is contract.DSTKubernetes.
func (s Schedule) With(rule contract.DST) Schedule {
	s.once = rule == contract.DSTOnce
	return s
}

// Known reports whether the schedule's instants can be computed at all.
func (s Schedule) Known() bool { return s.zone != nil && !s.every }

// Never reports whether the schedule is Known and names no date that exists, like
// 30 February.
func (s Schedule) Never() bool { return s.Known() && s.calendar.never() }
