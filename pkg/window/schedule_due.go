package window

import (
	"iter"
	"time"
)

// Due gives the instants after after and not after upto, in order, as they are asked for.
func (s Schedule) Due(after, upto time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for w := s.Next(after); !w.IsZero() && !w.After(upto); w = s.Next(w) {
			if !yield(w) {
				return
			}
		}
	}
}

// Count gives how many instants Due gives.
func (s Schedule) Count(after, upto time.Time) int64 {
	n := int64(0)
	for range s.Due(after, upto) {
		n++
	}
	return n
}

// Back gives the n-th newest instant not after upto, the newest for 1; zero when there
// are fewer.
func (s Schedule) Back(upto time.Time, n int) time.Time {
	at := upto.Add(time.Nanosecond)
	for range n {
		if at = s.Previous(at); at.IsZero() {
			return at
		}
	}
	return at
}

// Repeats gives the first occurrence of the civil time that t repeats under
// contract.DSTOnce; zero when it repeats none.
func (s Schedule) Repeats(_ time.Time) time.Time { return time.Time{} }

// Invented reports whether t is an instant that only contract.DSTOnce knows: Kubernetes
// makes no Job for it.
func (s Schedule) Invented(_ time.Time) bool { return false }

// Never reports whether the schedule is Known and names no date that exists.
func (s Schedule) Never() bool {
	return s.Known() && s.Next(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero()
}

// Nominal gives the window that a process means that was started at start: the newest
// instant that is not after start + early; zero when there is none.
func (s Schedule) Nominal(start time.Time, early time.Duration) time.Time {
	return s.Back(start.Add(early), 1)
}
