package window

import (
	"math/bits"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	minute = int64(60)
	hour   = 60 * minute
	day    = 24 * hour
)

// calendar is the five fields of a schedule as sets of bits, asked about civil time:
// seconds since 1970-01-01T00:00 on a clock that nobody moves. It knows no zones.
type calendar struct {
	minutes, hours, dates, months, weekdays uint64
	either                                  bool // a date or a weekday is enough

	looks *int64 // counts the days looked at, for tests; nil otherwise
}

func calendarOf(spec *cron.SpecSchedule) calendar {
	const star, minutes, hours = 1 << 63, 1<<60 - 1, 1<<24 - 1
	return calendar{
		minutes: spec.Minute & minutes, hours: spec.Hour & hours,
		dates: spec.Dom &^ star, months: spec.Month &^ star, weekdays: spec.Dow &^ star,
		either: spec.Dom&star == 0 && spec.Dow&star == 0,
	}
}

// everyHour reports whether the schedule names no hours.
func (c calendar) everyHour() bool { return c.hours == 1<<24-1 }

// never reports whether no date that exists is named. 29 February exists.
func (c calendar) never() bool {
	if c.minutes == 0 || c.hours == 0 || c.months == 0 {
		return true
	}
	if c.either && c.weekdays != 0 {
		return false
	}
	for month, last := range []int{1: 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31} {
		if c.months&(1<<month) != 0 && c.dates&(1<<(last+1)-1) != 0 {
			return !c.either && c.weekdays == 0
		}
	}
	return true
}

// split gives the day of a civil time, counted from 1970-01-01, and the second in it.
func split(civil int64) (date, second int64) {
	date = civil / day
	if civil%day < 0 {
		date--
	}
	return date, civil - date*day
}

// on reports whether the schedule has times on a day. If its month is not one of the
// schedule's, before and after are the nearest days of other months.
func (c calendar) on(date int64) (on bool, before, after int64) {
	if c.looks != nil {
		*c.looks++
	}
	t := time.Unix(date*day, 0).UTC()
	y, m, d := t.Date()
	if c.months&(1<<m) == 0 {
		return false, date - int64(d), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC).Unix() / day
	}
	byDate, byWeekday := c.dates&(1<<d) != 0, c.weekdays&(1<<t.Weekday()) != 0
	return byDate && byWeekday || c.either && (byDate || byWeekday), date - 1, date + 1
}

// matches reports whether a civil time is one of the schedule.
func (c calendar) matches(civil int64) bool {
	date, s := split(civil)
	if s%minute != 0 || c.hours&(1<<(s/hour)) == 0 || c.minutes&(1<<(s%hour/minute)) == 0 {
		return false
	}
	on, _, _ := c.on(date)
	return on
}

// next gives the first time of the schedule from lo to hi, both included.
func (c calendar) next(lo, hi int64) (int64, bool) {
	if lo > hi || c.never() {
		return 0, false
	}
	date, s := split(lo)
	s = (s + minute - 1) / minute // the minutes of the day from here on
	for date*day <= hi {
		on, _, after := c.on(date)
		if on {
			if found, ok := c.from(s); ok {
				at := date*day + found*minute
				return at, at <= hi
			}
		}
		date, s = after, 0
	}
	return 0, false
}

// from gives the first minute of a day, not before m, that has the hour and the minute.
func (c calendar) from(m int64) (int64, bool) {
	h := m / 60
	if h < 24 && c.hours&(1<<h) != 0 {
		if rest := c.minutes >> (m % 60); rest != 0 {
			return m + int64(bits.TrailingZeros64(rest)), true
		}
	}
	rest := c.hours >> (h + 1) << (h + 1)
	if rest == 0 {
		return 0, false
	}
	return int64(bits.TrailingZeros64(rest))*60 + int64(bits.TrailingZeros64(c.minutes)), true
}

// upto gives how many times a day with times has in its seconds from 0 to s.
func (c calendar) upto(s int64) int64 {
	if s < 0 {
		return 0
	}
	h, m := s/hour, s%hour/minute
	n := int64(bits.OnesCount64(c.hours&(1<<h-1)) * bits.OnesCount64(c.minutes))
	if c.hours&(1<<h) != 0 {
		n += int64(bits.OnesCount64(c.minutes & (1<<(m+1) - 1)))
	}
	return n
}

// count gives how many times there are from lo to hi, both included, by looking at days.
func (c calendar) count(lo, hi int64) int64 {
	if lo > hi || c.never() {
		return 0
	}
	n := int64(0)
	first, begin := split(lo)
	last, end := split(hi)
	for date := first; date <= last; {
		on, _, after := c.on(date)
		if on {
			switch date {
			case last:
				n += c.upto(end)
			default:
				n += c.upto(day - 1)
			}
			if date == first {
				n -= c.upto(begin - 1)
			}
		}
		date = after
	}
	return n
}

// back gives the n-th last time (the last for 1) from lo to hi, both included; else how
// many there are.
func (c calendar) back(lo, hi, n int64) (at, found int64) {
	if lo > hi || c.never() {
		return 0, 0
	}
	date, s := split(hi)
	for date*day+day > lo {
		on, before, _ := c.on(date)
		if on {
			if here := c.upto(s); found+here >= n {
				at = date*day + c.nth(here-(n-found))*minute
				if at >= lo {
					return at, n
				}
				return 0, found + here - c.upto(lo-date*day-1)
			} else if date*day >= lo {
				found += here
			} else {
				return 0, found + here - c.upto(lo-date*day-1)
			}
		}
		date, s = before, day-1
	}
	return 0, found
}

// nth gives the minute of the i-th time of a day, counted from 0.
func (c calendar) nth(i int64) int64 {
	each := int64(bits.OnesCount64(c.minutes))
	return bit(c.hours, i/each)*60 + bit(c.minutes, i%each)
}

// bit gives the place of the i-th bit that is set.
func bit(set uint64, i int64) int64 {
	for ; i > 0; i-- {
		set &= set - 1
	}
	return int64(bits.TrailingZeros64(set))
}
