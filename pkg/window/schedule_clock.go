package window

import (
	"iter"
	"math"
	"slices"
	"sync"
	"time"
)

// What is asked of schedules lies in the years of [earliest] to [latest]; in seconds.
var floor, ceiling = earliest.Unix(), latest.Unix()

// stretch is a time, from <= t < to, in which nobody moves the clock of a zone.
type stretch struct{ from, to, offset int64 }

// stretch gives the one around at.
func (s Schedule) stretch(at int64) stretch {
	offset, from, to := s.bounds(at)
	for from > floor {
		o, f, _ := s.bounds(from - 1)
		if o != offset {
			break
		}
		from = f
	}
	for to < ceiling {
		o, _, t := s.bounds(to)
		if o != offset {
			break
		}
		to = t
	}
	return stretch{from, to, offset}
}

// bounds is the same by the zone's table, which has entries, too, that move nothing.
func (s Schedule) bounds(at int64) (offset, from, to int64) {
	t := time.Unix(at, 0).In(s.zone)
	_, o := t.Zone()
	start, end := t.ZoneBounds()
	from, to = floor, ceiling
	if !start.IsZero() {
		from = max(from, start.Unix())
	}
	switch {
	case end.IsZero():
	case end.After(t):
		to = min(to, end.Unix())
	default:
		// For the last day of a leap year beyond the zone's table, Go gives an end that has
		// passed, as if the year had 365 days.
		to = min(to, time.Date(t.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
	}
	return int64(o), from, to
}

// move is a moment at which the clock is moved.
type move struct {
	at            int64
	before, after stretch
}

func (s Schedule) moveAt(at int64) move {
	return move{at: at, before: s.stretch(at - 1), after: s.stretch(at)}
}

// shift gives by how much, forward positive.
func (m move) shift() int64 { return m.after.offset - m.before.offset }

func (m move) size() int64 { return max(m.shift(), -m.shift()) }

// reach is where the times begin that the move may have an influence on: jumps to a
// midnight that happens twice may end at the second.
func (m move) reach() int64 { return max(m.at-m.size()-hour, m.before.from) }

// patch replaces what the calendar says about the instants from lo to hi, both included.
type patch struct {
	lo, hi int64
	at     []int64
}

// piece is a time, lo to hi, both included, whose instants are either listed or those
// of the calendar at one offset.
type piece struct {
	lo, hi, offset int64
	listed         bool
	at             []int64
}

// region is the time from the reach of one move to that of the next, in pieces.
type region []piece

func (r region) lo() int64 { return r[0].lo }
func (r region) hi() int64 { return r[len(r)-1].hi }

// regions are those already known, in order; a schedule and its copies share them.
type regions struct {
	sync.Mutex
	known map[bool][]region // by ruled
}

// region gives the one around at.
func (s Schedule) region(at int64) region {
	s.regions.Lock()
	defer s.regions.Unlock()
	known := s.regions.known[s.ruled()]
	i, found := slices.BinarySearchFunc(known, at, func(r region, at int64) int {
		switch {
		case r.hi() < at:
			return -1
		case r.lo() > at:
			return 1
		}
		return 0
	})
	if !found {
		known = slices.Insert(known, i, s.regionAt(at))
		s.regions.known[s.ruled()] = known
	}
	return known[i]
}

func (s Schedule) regionAt(at int64) region {
	here := s.stretch(at)
	if here.to < ceiling {
		if next := s.moveAt(here.to); at >= next.reach() {
			return s.around(next)
		}
	}
	if here.from > floor {
		return s.around(s.moveAt(here.from))
	}
	return region{{lo: floor, hi: s.end(here) - 1, offset: here.offset}}
}

// end gives where the region of a stretch ends.
func (s Schedule) end(here stretch) int64 {
	if here.to >= ceiling {
		return ceiling
	}
	return s.moveAt(here.to).reach()
}

// around gives the region that begins at the reach of m.
func (s Schedule) around(m move) region {
	var ps region
	begin, end := m.reach(), s.end(m.after)-1
	civil := func(lo, hi int64) {
		if a, b := max(lo, begin), min(hi, m.at-1, end); a <= b {
			ps = append(ps, piece{lo: a, hi: b, offset: m.before.offset})
		}
		if a, b := max(lo, m.at), min(hi, end); a <= b {
			ps = append(ps, piece{lo: a, hi: b, offset: m.after.offset})
		}
	}
	special := s.walkOver
	if s.ruled() {
		special = s.onceAround
	}
	p := special(m)
	if p == nil {
		civil(begin, end)
		return ps
	}
	civil(begin, p.lo-1)
	ps = append(ps, piece{lo: max(p.lo, begin), hi: min(p.hi, end), listed: true, at: p.at})
	civil(p.hi+1, end)
	return ps
}

// pieces gives those of the times from lo to hi, both included, in order.
func (s Schedule) pieces(lo, hi int64) iter.Seq[piece] {
	return func(yield func(piece) bool) {
		for at := lo; at <= hi; {
			for _, p := range s.region(at) {
				at = p.hi + 1
				if p.lo, p.hi = max(p.lo, lo), min(p.hi, hi); p.lo <= p.hi && !yield(p) {
					return
				}
			}
		}
	}
}

// piecesBack gives the same, the last first.
func (s Schedule) piecesBack(lo, hi int64) iter.Seq[piece] {
	return func(yield func(piece) bool) {
		for at := hi; at >= lo; {
			ps := s.region(at)
			for _, p := range slices.Backward(ps) {
				if p.lo, p.hi = max(p.lo, lo), min(p.hi, hi); p.lo <= p.hi && !yield(p) {
					return
				}
			}
			at = ps.lo() - 1
		}
	}
}

// next gives the first instant of p from lo on.
func (s Schedule) next(p piece, lo int64) (int64, bool) {
	if !p.listed {
		at, ok := s.calendar.next(lo+p.offset, p.hi+p.offset)
		return at - p.offset, ok
	}
	if i, _ := slices.BinarySearch(p.at, lo); i < len(p.at) && p.at[i] <= p.hi {
		return p.at[i], true
	}
	return 0, false
}

// back gives the n-th last instant of p; else how many p has.
func (s Schedule) back(p piece, n int64) (at, found int64) {
	if !p.listed {
		at, found = s.calendar.back(p.lo+p.offset, p.hi+p.offset, n)
		return at - p.offset, found
	}
	i, _ := slices.BinarySearch(p.at, p.lo)
	j, _ := slices.BinarySearch(p.at, p.hi+1)
	if found = int64(j - i); found >= n {
		return p.at[j-int(n)], n
	}
	return 0, found
}

// count gives how many instants p has.
func (s Schedule) count(p piece) int64 {
	if !p.listed {
		return s.calendar.count(p.lo+p.offset, p.hi+p.offset)
	}
	_, n := s.back(p, math.MaxInt64)
	return n
}
