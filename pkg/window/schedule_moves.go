package window

import (
	"math"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Where the clock is moved, the parser's Next does not always find what the calendar
// says. It walks by whole hours and days of elapsed time and looks for hour 0 and minute
// 0 to begin a day or an hour afresh. So,
//
//   - where there is no midnight (Cairo, Beirut, Santiago, the Azores, …), it misses that a
//     day has ended: "0 5 * * 4" in Cairo runs on Friday, 26 April 2024, as well;
//   - where midnight happens twice (Havana, Amman, …), a jump to that day may land at the
//     second one, and leave out times after the first;
//   - where the clock is moved by half an hour (Lord Howe), it comes to the next midnight at
//     00:30, and leaves out times of that day: all of "0 0 * * *";
//   - where a day is left out (Apia, 2011-12-30), it may never return, so the calendar counts;
//   - elsewhere, so also in New York, Berlin and Troll, it agrees with the calendar.
//
// What it finds there also depends on where it starts from. The CronJob controller starts
// from status.lastScheduleTime, which is the last window that it made a Job for. So the
// instants of a schedule are by definition those that are reached by going forward, window
// by window, from one that is well before the move. That is the only choice under which each window's next
// one is the controller's. The controller may see others when it starts from
// elsewhere: from the CronJob's creation, or from now - startingDeadlineSeconds. Then it
// makes a Job that is no window of the schedule, and such a Job runs as any other.

// anchored is how long before a move the walk begins. Whatever an earlier move has brought
// about has passed by then, but for schedules that rest for months: where each move makes
// the parser leave out a window (Lord Howe), or a whole month (Asuncion until 2024, where 1
// October had no midnight), what is left out depends for ever on where one began. Where the parser finds nothing for five years, so that the controller gives up
// ("0 0 29 2 *" after a 29 February left out), the calendar counts.
const anchored = 400 * day

// walkOver gives what the parser finds around m by going forward; nil when that is what
// the calendar says.
func (s Schedule) walkOver(m move) *patch {
	moves := []move{m}
	for first := m; first.before.from > max(floor, m.at-anchored); {
		first = s.moveAt(first.before.from)
		moves = append(moves, first)
	}
	newest := int64(math.MinInt64) // the newest instant that the walk has reached
	var seen []int64               // and those of the last step over a move
	for _, m := range slices.Backward(moves) {
		if newest >= m.at || m.harmless() {
			continue
		}
		from := newest
		if at, ok := s.byCalendar(m.reach() - 1); ok {
			from = max(from, at)
		}
		if from == math.MinInt64 {
			continue
		}
		newest, seen = s.walk(from, m.at)
	}
	if newest < m.reach() {
		return nil
	}
	i, _ := slices.BinarySearch(seen, m.reach())
	return &patch{lo: m.reach(), hi: newest, at: seen[i:]}
}

// walk goes forward by the parser from one instant to the first that is not before to and
// that the calendar has, too. It gives it, with all on the way.
func (s Schedule) walk(from, to int64) (newest int64, seen []int64) {
	const bound = 4 * 24 * 60 // more minutes than a move moves anything
	if s.leaps(from, to+6*366*day) {
		return math.MinInt64, nil
	}
	t := time.Unix(from, 0).In(s.zone)
	for range bound {
		if t = s.spec.Next(t); t.IsZero() {
			break
		}
		at := t.Unix()
		seen = append(seen, at)
		if at >= to && s.calendar.matches(at+s.stretch(at).offset) {
			return at, seen
		}
	}
	return math.MinInt64, nil // nothing within the parser's five years
}

// leaps reports whether the zone crosses the date line from lo to hi and leaves out a day,
// as Pacific/Apia did on 30 December 2011. From before it, the parser's Next may never return: a day
// after the 29th it is at the 29th.
func (s Schedule) leaps(lo, hi int64) bool {
	for here := s.stretch(lo); here.to < min(hi, ceiling); {
		next := s.stretch(here.to)
		if next.offset-here.offset > 12*hour {
			return true
		}
		here = next
	}
	return false
}

// harmless reports whether the parser steps over the move as the calendar says: whole
// hours, which neither begin nor end nor contain a midnight.
func (m move) harmless() bool {
	a, b := m.at+m.before.offset, m.at+m.after.offset
	first, s := split(min(a, b))
	last, _ := split(max(a, b))
	return m.shift()%hour == 0 && first == last && s > 0
}

// byCalendar gives the newest instant not after at that the calendar has, within the
// parser's five years.
func (s Schedule) byCalendar(at int64) (int64, bool) {
	for end := max(floor, at-5*366*day); at >= end; {
		here := s.stretch(at)
		if found, n := s.calendar.back(max(end, here.from)+here.offset, at+here.offset, 1); n == 1 {
			return found - here.offset, true
		}
		at = here.from - 1
	}
	return 0, false
}

// ruled reports whether contract.DSTOnce changes anything. RFC 5545 §3.3.5 is the source
// of the rule; it speaks of times of day, which only a schedule that names hours has.
func (s Schedule) ruled() bool { return s.once && !s.calendar.everyHour() }

// onceAround gives the instants around m under contract.DSTOnce. Civil times that the clock
// skips are read with the offset before; those that it shows again are left out.
func (s Schedule) onceAround(m move) *patch {
	p := &patch{lo: m.at, hi: m.at + m.size() - 1}
	collect := func(offset int64) {
		for at, ok := s.calendar.next(p.lo+offset, p.hi+offset); ok; at, ok = s.calendar.next(at+1, p.hi+offset) {
			p.at = append(p.at, at-offset)
		}
	}
	collect(m.after.offset)
	if m.shift() > 0 {
		collect(m.before.offset)
		slices.Sort(p.at)
		p.at = slices.Compact(p.at)
	} else {
		p.at = slices.DeleteFunc(p.at, func(at int64) bool { return at+m.shift() >= m.before.from })
	}
	return p
}

// Repeats gives the first occurrence of the civil time that t repeats under
// contract.DSTOnce; zero when it repeats none, or t is no time of the schedule.
func (s Schedule) Repeats(t time.Time) time.Time {
	at := t.Unix()
	if !s.Known() || !s.ruled() || t.Nanosecond() != 0 || at < floor || at >= ceiling {
		return time.Time{}
	}
	here := s.stretch(at)
	if here.from == floor || !s.calendar.matches(at+here.offset) {
		return time.Time{}
	}
	m := s.moveAt(here.from)
	first := at + m.shift()
	if first >= m.at || first < m.before.from {
		return time.Time{}
	}
	return time.Unix(first, 0).UTC()
}

// Invented reports whether t is an instant only by contract.DSTOnce: no Job of the CronJob
// controller comes for it.
func (s Schedule) Invented(t time.Time) bool {
	return s.Known() && s.ruled() && s.Contains(t) && !s.With(contract.DSTKubernetes).Contains(t)
}
