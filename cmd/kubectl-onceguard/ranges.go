package main

import (
	"context"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/window"
)

// scheduleOfGap is the schedule that a range was due by, if its instants can be known.
func scheduleOfGap(g audit.Gap) (window.Schedule, bool) {
	s, err := window.ParseSchedule(g.Schedule, g.TimeZone)
	return s.With(g.DST), err == nil && s.Known()
}

// snapped moves the ends of a range that was cut to windows: a cut leaves instants between.
func snapped(g audit.Gap) audit.Gap {
	s, known := scheduleOfGap(g)
	if !known {
		return g
	}
	first, last := s.Next(g.FirstWindow.Add(-time.Nanosecond)), s.Newest(g.FirstWindow, g.LastWindow)
	if !last.IsZero() && !first.After(last) {
		g.FirstWindow, g.LastWindow = first, last
	}
	return g
}

// dueOf gives what is recorded of a window beside its execution: of the ranges those that it
// is a window of. A range covers instants, too, that its schedule does not have.
func dueOf(ctx context.Context, ledger *connection, job string, start time.Time) (audit.Due, error) {
	due, err := audit.DueOf(ctx, ledger, job, start)
	if err != nil {
		return due, ledger.explain(err)
	}
	due.Gaps = slices.DeleteFunc(due.Gaps, func(g audit.Gap) bool {
		s, known := scheduleOfGap(g)
		return known && !s.Contains(start)
	})
	for i := range due.Gaps {
		due.Gaps[i] = snapped(due.Gaps[i])
	}
	return due, nil
}

// maxTaken bounds the windows that are read to count the others of a range.
const maxTaken = 10_000

// unanswered counts the windows of a range that have neither run since nor are planned: those
// have another answer. A piece that was cut off a range may have none at all. Ranges that were
// recorded by a schedule that cannot be computed stay as they are.
func unanswered(ctx context.Context, ledger *connection, g audit.Gap) (audit.Gap, error) {
	s, known := scheduleOfGap(g)
	if !known || g.Taken > maxTaken {
		return g, nil
	}
	var taken []time.Time
	if g.Taken > 0 {
		var err error
		if taken, err = audit.Taken(ctx, ledger, g.JobName, g.FirstWindow, g.LastWindow, maxTaken); err != nil {
			return g, err
		}
	}
	g.Windows = s.Count(g.FirstWindow.Add(-time.Nanosecond), g.LastWindow)
	for _, at := range taken { // others were due by another CronJob
		if s.Contains(at) {
			g.Windows--
		}
	}
	return g, nil
}

// dueBy reports whether an instant is one of a schedule.
func dueBy(x audit.Schedule, at time.Time) (s window.Schedule, is bool, err error) {
	if s, err = scheduleOfCronJob(x); err != nil {
		return s, false, err
	}
	return s, s.Contains(at), nil
}
