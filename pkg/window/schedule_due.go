package window

import (
	"iter"
	"time"
)

// All that follows is about one set of instants, so the answers agree: between 1970 and
// 2200, in whole seconds, and none while the schedule is not Known.

// Due gives the instants after after and not after upto, in order and in UTC. They are
// computed as they are asked for.
func (s Schedule) Due(after, upto time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for p := range s.between(after, upto) {
			for at, ok := s.next(p, p.lo); ok; at, ok = s.next(p, at+1) {
				if !yield(time.Unix(at, 0).UTC()) {
					return
				}
			}
		}
	}
}

// Count gives how many instants Due gives. What it costs grows with the days, not with
// the instants.
func (s Schedule) Count(after, upto time.Time) int64 {
	n := int64(0)
	for p := range s.between(after, upto) {
		n += s.count(p)
	}
	return n
}

// Next gives the first instant after t, in UTC; zero when there is none until the end of
// the fifth year after that of t, where the controller, too, stops looking.
func (s Schedule) Next(t time.Time) time.Time {
	if !s.Known() {
		return time.Time{}
	}
	for w := range s.Due(t, time.Date(t.In(s.zone).Year()+6, 1, 1, 0, 0, -1, 0, s.zone)) {
		return w
	}
	return time.Time{}
}

// Contains reports whether t is an instant of the schedule.
func (s Schedule) Contains(t time.Time) bool { return !s.Newest(t, t).IsZero() }

// Previous gives the last instant before t, in UTC; zero when there is none within five
// years.
func (s Schedule) Previous(t time.Time) time.Time {
	return s.Newest(t.AddDate(-5, 0, 0), t.Add(-time.Nanosecond))
}

// Newest gives the newest instant that is neither before from nor after to, in UTC;
// zero when there is none.
func (s Schedule) Newest(from, to time.Time) time.Time {
	return s.newest(from.Add(-time.Nanosecond), to, 1)
}

// Back gives the n-th newest instant not after upto, in UTC, the newest for 1; zero when
// there are fewer.
func (s Schedule) Back(upto time.Time, n int) time.Time {
	return s.newest(earliest.Add(-time.Second), upto, int64(n))
}

// newest gives the n-th newest instant after after and not after upto.
func (s Schedule) newest(after, upto time.Time, n int64) time.Time {
	lo, hi, ok := s.seconds(after, upto)
	if !ok || n < 1 {
		return time.Time{}
	}
	for p := range s.piecesBack(lo, hi) {
		at, found := s.back(p, n)
		if found == n {
			return time.Unix(at, 0).UTC()
		}
		n -= found
	}
	return time.Time{}
}

// seconds gives the whole seconds after after and not after upto that may be instants,
// the first and the last; false for none.
func (s Schedule) seconds(after, upto time.Time) (lo, hi int64, ok bool) {
	if !s.Known() || s.calendar.never() {
		return 0, 0, false
	}
	lo, hi = max(after.Unix()+1, floor), min(upto.Unix(), ceiling-1)
	return lo, hi, lo <= hi
}

// between gives the pieces after after, upto upto.
func (s Schedule) between(after, upto time.Time) iter.Seq[piece] {
	lo, hi, ok := s.seconds(after, upto)
	if !ok {
		return func(func(piece) bool) {}
	}
	return s.pieces(lo, hi)
}

// Nominal gives the window that a process means that was started at start: the newest
// instant that is not after start + early, in UTC; zero when there is none. What starts a
// process may be that early by another clock.
func (s Schedule) Nominal(start time.Time, early time.Duration) time.Time {
	return s.Back(start.Add(early), 1)
}
