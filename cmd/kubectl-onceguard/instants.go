package main

import (
	"errors"
	"fmt"
	"time"
)

// errNoInstant says that a text is no instant in any accepted form.
var errNoInstant = errors.New("must be an instant like 2026-11-01T00:00:00Z, or a time of the schedule's zone like \"2026-11-01 00:00\"")

// localLayouts are how a time without a zone is written.
var localLayouts = []string{"2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02T15:04:05"}

// parseInstant reads an instant with its zone, or a civil time of zone. A civil time that
// occurs twice is its first occurrence, or with last its second; one that does not occur is
// read with the offset before the clocks were moved, as RFC 5545 has it. The note says so;
// it is empty where nothing is to be said.
func parseInstant(s string, zone *time.Location, last bool) (at time.Time, note string, err error) {
	if start, err := parseWindow(s); err == nil && start != nil {
		return start.UTC(), "", nil
	}
	for _, layout := range localLayouts {
		civil, err := time.Parse(layout, s) // as if it were UTC
		if err != nil {
			continue
		}
		at, note := civilTime(civil, zone, last)
		return at, note, nil
	}
	return time.Time{}, "", errNoInstant
}

// civilTime gives the instant of a civil time, whose digits are those of civil.
func civilTime(civil time.Time, zone *time.Location, last bool) (at time.Time, note string) {
	// Clocks are moved at most once within two days, so these are the offsets in question.
	offset := func(t time.Time) time.Duration {
		_, seconds := t.In(zone).Zone()
		return time.Duration(seconds) * time.Second
	}
	before, after := offset(civil.Add(-24*time.Hour)), offset(civil.Add(24*time.Hour))
	first, second := civil.Add(-before), civil.Add(-after)
	text := civil.Format("2006-01-02 15:04:05")
	switch is := func(t time.Time) bool { return civil.Equal(t.Add(offset(t))) }; {
	case before == after:
		return first, ""
	case !is(first) && !is(second):
		return first, fmt.Sprintf("%s does not occur in %s, where the clocks are put forward: it is taken as %s, which is %s", text, zone, first.In(zone).Format("15:04:05 -07:00"), instant(&first))
	case is(first) && is(second):
		chosen, which := first, "first"
		if last {
			chosen, which = second, "second"
		}
		return chosen, fmt.Sprintf("%s occurs twice in %s, where the clocks are put back: the %s is taken, which is %s", text, zone, which, instant(&chosen))
	case is(first):
		return first, ""
	}
	return second, ""
}
