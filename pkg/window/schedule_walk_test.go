package window

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onceguard/onceguard/test/prove"
)

// zones are those whose clocks are moved in unlike ways.
var zones = []string{
	"Etc/UTC", "America/New_York", "Europe/Berlin", "Europe/Lisbon", "America/Sao_Paulo", "Africa/Cairo", "Australia/Lord_Howe",
	"Antarctica/Troll", "Asia/Kolkata", "Asia/Beirut", "Asia/Amman", "America/Havana", "America/Santiago", "America/Nuuk",
	"America/Asuncion", "Atlantic/Azores", "Africa/Casablanca", "Pacific/Apia", "Asia/Tehran", "America/Caracas", "Asia/Pyongyang", "Australia/Adelaide",
}

var specs = []string{
	"0 0 * * *", "0 * * * *", "30 0 * * *", "30 1,2 * * *", "45 1 * * *", "0 5 * * 4", "0 5 * * 6", "30 0 * * 0", "30 0 * * 5", "0 0 1 * *",
	"15 23 * * *", "0 5 * 10 *", "0 0 6 4 *", "0 0 29 2 *", "0 0 1 */3 *", "0 3 13 * 5", "* * * * *", "*/15 * * * *", "*/30 */2 28-31 3,4,9-11 *", "*/20 0,23 * * 0,1",
}

// random makes a schedule of five fields. Those with few minutes and hours are more likely.
func random(r *rand.Rand) string {
	field := func(lo, hi int) string {
		a := lo + r.IntN(hi-lo+1)
		b := a + r.IntN(hi-a+1)
		return []string{"*", fmt.Sprint(a), fmt.Sprint(a), fmt.Sprintf("%d-%d", a, b), fmt.Sprintf("*/%d", 1+r.IntN(hi)), fmt.Sprintf("%d,%d", a, b), fmt.Sprintf("%d-%d/%d", a, b, 1+r.IntN(hi))}[r.IntN(7)]
	}
	seldom := func(lo, hi int) string {
		if r.IntN(3) > 0 {
			return "*"
		}
		return field(lo, hi)
	}
	return fmt.Sprintf("%s %s %s %s %s", field(0, 59), field(0, []int{3, 23}[r.IntN(2)]), seldom(1, 31), seldom(1, 12), seldom(0, 6))
}

func parse(t testing.TB, spec, zone string) Schedule {
	t.Helper()
	s, err := ParseSchedule(spec, zone)
	if err != nil {
		t.Fatal(spec, zone, err)
	}
	return s
}

// After each window comes the one that the CronJob controller makes a Job for next, which
// it finds by the parser's Next from status.lastScheduleTime.
func TestProveWindowsAreTheControllers(t *testing.T) {
	r := rand.New(rand.NewPCG(prove.Seed(t), 1))
	var steps, schedules, stray, over, resting int
	walk := func(spec, zone string, from, to time.Time, most int) {
		s := parse(t, spec, zone)
		schedules++
		for w := s.Next(from); !w.IsZero() && w.Before(to) && most > 0; most-- {
			got := s.Next(w)
			if zone == "Pacific/Apia" && w.Year() < 2012 && s.leaps(w.Unix(), w.Unix()+6*366*day) {
				w = got
				continue // there the parser's Next may not return
			}
			want := s.spec.Next(w.In(s.zone))
			if !want.IsZero() && !got.Equal(want) {
				// One that rests for months: what is left out may depend on where one began, for ever.
				if max(want.Sub(w), got.Sub(w)) > 32*24*time.Hour {
					resting++
					return
				}
				t.Fatalf("%s %q: after %s: got %s, the controller has %s", zone, spec, w.In(s.zone), got.In(s.zone), want)
			}
			steps++
			if !s.calendar.matches(got.Unix() + s.stretch(got.Unix()).offset) {
				stray++
			}
			if civil, ok := s.calendarNext(w.Unix()); ok && civil < got.Unix() {
				over++
			}
			// Far from a move there is nothing to see.
			if here := s.stretch(got.Unix()); got.Unix() > here.from+2*day {
				if later := s.Newest(got, time.Unix(here.to-day, 0)); !later.IsZero() {
					got = later
				}
			}
			w = got
		}
	}
	for _, zone := range zones {
		for _, spec := range specs {
			from := at("2005-01-01T00:00:00Z")
			if spec[0] == '*' {
				// Dense ones from one hour before a move.
				from = at("2005-01-01T00:00:00Z").AddDate(0, 0, r.IntN(20*365))
				if to := parse(t, spec, zone).stretch(from.Unix()).to; to < ceiling {
					from = time.Unix(to-hour, 0)
				}
			}
			walk(spec, zone, from, at("2027-01-01T00:00:00Z"), prove.Times(150, 2000))
		}
	}
	for range prove.Times(150, 10_000) {
		from := at("1975-01-01T00:00:00Z").AddDate(0, 0, r.IntN(60*365))
		walk(random(r), zones[r.IntN(len(zones))], from, from.AddDate(3, 0, 0), prove.Times(60, 300))
	}
	if stray == 0 || over == 0 {
		t.Errorf("%d strays, %d stepped over: nothing odd was met, so this shows nothing", stray, over)
	}
	if resting*50 > schedules {
		t.Errorf("%d of %d schedules rest for months and differ", resting, schedules)
	}
	prove.Report(t, "after each window comes the controller's next", "%d steps over moved clocks of %d schedules in %d zones; %d are none by the calendar, %d step over some; %d schedules that rest for months differ",
		steps, schedules, len(zones), stray, over, resting)
}

// calendarNext gives the next time of the calendar after after, whatever the parser does.
func (s Schedule) calendarNext(after int64) (int64, bool) {
	for lo := after + 1; lo < ceiling; {
		here := s.stretch(lo)
		if got, ok := s.calendar.next(lo+here.offset, here.to-1+here.offset); ok {
			return got - here.offset, true
		}
		lo = here.to
	}
	return 0, false
}
