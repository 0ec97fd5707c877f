package window

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Every program that reads schedules knows the zones without the machine's help.
func TestZoneDataIsLinked(t *testing.T) {
	for _, program := range []string{"webhook", "guard", "kubectl-onceguard"} {
		out, err := exec.Command("go", "list", "-deps", "github.com/onceguard/onceguard/cmd/"+program).Output()
		if err != nil {
			t.Fatal(program, err)
		}
		if !strings.Contains(string(out), "\ntime/tzdata\n") {
			t.Errorf("%s does not link time/tzdata", program)
		}
	}
}

// Each second lies in one stretch, up to the end of what is asked: Go's own bounds do not
// say so for each.
func TestStretchesCoverAllTime(t *testing.T) {
	for _, zone := range zones {
		s := parse(t, "0 2 * * *", zone)
		for lo := floor; lo < ceiling; {
			here := s.stretch(lo)
			if here.from != lo || here.to <= lo {
				t.Fatalf("%s: around %s from %s to %s", zone, time.Unix(lo, 0).UTC(), time.Unix(here.from, 0).UTC(), time.Unix(here.to, 0).UTC())
			}
			for _, at := range []int64{here.from + (here.to-here.from)/2, here.to - 1} {
				if s.stretch(at) != here {
					t.Fatalf("%s: %+v is not %+v", zone, s.stretch(at), here)
				}
			}
			lo = here.to
		}
	}
}

func TestSchedulesOfFarYearsEnd(t *testing.T) {
	s := parse(t, "0 2 * * *", "Europe/Berlin")
	for _, text := range []string{"2028-12-31T12:00:00Z", "2040-12-31T12:00:00Z", "2196-12-31T12:00:00Z"} {
		if got := s.Next(at(text)); !got.Equal(at(text).Add(13 * time.Hour)) {
			t.Errorf("after %s: %s", text, got)
		}
	}
	for _, far := range []time.Time{{}, at("1900-01-01T00:00:00Z"), at("2300-01-01T00:00:00Z"), time.Unix(1<<60, 0)} {
		if got := s.Next(far); !got.IsZero() {
			t.Errorf("after %s: %s", far, got)
		}
	}
	if got := s.Back(at("2025-06-01T00:00:00Z"), 1_000_000); !got.IsZero() {
		t.Errorf("a million windows before: %s", got)
	}
}

// What Count, Back and Next cost is the days they look at, and not the windows.
func TestLongTimesCostDays(t *testing.T) {
	for _, zone := range []string{"Etc/UTC", "Europe/Berlin", "Africa/Cairo", "Australia/Lord_Howe"} {
		s := parse(t, "* * * * *", zone)
		looks := int64(0)
		s.calendar.looks = &looks
		from, to := at("2023-05-01T00:00:00Z"), at("2025-05-01T00:00:00Z")
		want := to.Sub(from)
		if got := s.Count(from, to); got != int64(want/time.Minute) {
			t.Errorf("%s: %d windows in %s", zone, got, want)
		}
		looks = 0
		s.Count(from, to)
		if looks > 731+40 {
			t.Errorf("%s: Count looked at %d days", zone, looks)
		}
		looks = 0
		if got := s.Back(to, 10_000); !got.Equal(to.Add(-9999*time.Minute)) || looks > 20 {
			t.Errorf("%s: Back(10,000) is %s and looked at %d days", zone, got, looks)
		}
		looks = 0
		for range s.Due(from, to) {
			break
		}
		if looks > 4 {
			t.Errorf("%s: the first of two years looked at %d days", zone, looks)
		}
		// Nothing is kept for a window.
		most := testing.AllocsPerRun(2, func() {
			for range s.Due(from, from.AddDate(0, 1, 0)) {
			}
		})
		if most > 40 {
			t.Errorf("%s: %.0f allocations for a month of windows", zone, most)
		}
	}
}

func TestImpossibleDatesCostNothing(t *testing.T) {
	for _, spec := range []string{"0 0 30 2 *", "0 0 31 2,4,6,9,11 *", ", * * * *", "* , * * *", "* * , , ,", "59 23 31 2 ?"} {
		s := parse(t, spec, "Europe/Berlin")
		looks := int64(0)
		s.calendar.looks = &looks
		from, to := at("1970-01-01T00:00:00Z"), at("2199-01-01T00:00:00Z")
		if !s.Never() || !s.Next(from).IsZero() || !s.Newest(from, to).IsZero() || s.Count(from, to) != 0 || !s.Back(to, 1).IsZero() || s.Contains(from) || looks != 0 {
			t.Errorf("%q: Never %v, %d days looked at", spec, s.Never(), looks)
		}
	}
	for _, spec := range []string{"0 0 29 2 *", "0 0 30 2 1", "0 0 31 2-3 *", "@weekly", "@midnight", "0 0 29 2 ?"} {
		if parse(t, spec, "Etc/UTC").Never() {
			t.Errorf("%q: never", spec)
		}
	}
	if parse(t, "0 0 30 2 *", "").Never() {
		t.Error("what is not known is never")
	}
	rare := parse(t, "0 0 29 2 *", "Etc/UTC")
	if got := rare.Next(at("2096-03-01T00:00:00Z")); !got.IsZero() { // 2100 is no leap year
		t.Errorf("beyond the controller's five years: %s", got)
	}
}

// Each civil time once: the first of two; what the clock skips by the offset before.
func TestOnce(t *testing.T) {
	for _, c := range []struct{ zone, schedule, day, due, invented, repeats string }{
		{"Europe/Berlin", "30 2 * * *", "2025-03-30", "01:30", "01:30", ""},
		{"Europe/Berlin", "30 2 * * *", "2025-10-26", "00:30", "", "01:30"},
		{"Europe/Berlin", "30 2,3 * * *", "2025-03-30", "01:30", "", ""}, // 03:30 is a window anyway
		{"Europe/Berlin", "30 * * * *", "2025-10-26", "00:30 01:30 02:30", "", ""},
		{"Antarctica/Troll", "30 1,2 * * *", "2025-03-30", "01:30 02:30", "01:30 02:30", ""},
		{"Antarctica/Troll", "30 1,2 * * *", "2025-10-26", "00:30", "", "01:30 02:30"},
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-04", "03:00", "03:00", ""},
		{"Africa/Cairo", "0 0 * * 5", "2024-04-25", "22:00", "22:00", ""},
		{"Africa/Cairo", "0 12 * * 5", "2024-04-26", "09:00", "09:00", ""}, // the controller leaves out this noon
		{"Africa/Cairo", "30 23 * * *", "2024-10-31", "20:30", "", "21:30"},
		{"Australia/Lord_Howe", "15 2 * * *", "2025-10-04", "15:45", "15:45", ""},
		{"Australia/Lord_Howe", "45 1 * * *", "2025-04-05", "14:45", "", "15:15"},
		{"Australia/Lord_Howe", "0 0 * * *", "2025-04-06", "13:30", "13:30", ""},
		{"Pacific/Apia", "0 2 30 12 *", "2011-12-30", "12:00", "12:00", ""},
		{"Pacific/Apia", "0 2 * * *", "2011-12-30", "12:00", "", ""},
	} {
		s := parse(t, c.schedule, c.zone).With(contract.DSTOnce)
		begin := at(c.day + "T00:00:00Z")
		var due, invented, repeats []string
		for m := begin; m.Before(begin.Add(24 * time.Hour)); m = m.Add(time.Minute) {
			at := m.Format("15:04")
			if first := s.Repeats(m); !first.IsZero() {
				repeats = append(repeats, at)
			}
			if s.Invented(m) {
				invented = append(invented, at)
			}
			if s.Contains(m) && strings.Contains(" "+c.due, " "+at) {
				due = append(due, at)
			}
		}
		if got := strings.Join(due, " "); got != c.due {
			t.Errorf("%s %q %s: due %s, want %s", c.zone, c.schedule, c.day, got, c.due)
		}
		if got := strings.Join(invented, " "); got != c.invented {
			t.Errorf("%s %q %s: invented %s, want %s", c.zone, c.schedule, c.day, got, c.invented)
		}
		if got := strings.Join(repeats, " "); got != c.repeats {
			t.Errorf("%s %q %s: repeats %s, want %s", c.zone, c.schedule, c.day, got, c.repeats)
		}
	}
}

func TestNominal(t *testing.T) {
	s := parse(t, "*/5 * * * *", "Etc/UTC")
	for _, c := range []struct {
		start, want string
		early       time.Duration
	}{
		{"2025-06-01T10:05:00Z", "2025-06-01T10:05:00Z", 0},
		{"2025-06-01T10:04:59Z", "2025-06-01T10:00:00Z", 0},
		{"2025-06-01T10:04:59Z", "2025-06-01T10:05:00Z", time.Second},
		{"2025-06-01T10:09:00Z", "2025-06-01T10:05:00Z", time.Second},
	} {
		if got := s.Nominal(at(c.start), c.early); !got.Equal(at(c.want)) {
			t.Errorf("started %s, %s early: %s, want %s", c.start, c.early, got, c.want)
		}
	}
}

func FuzzSchedule(f *testing.F) {
	for _, spec := range append(specs, "@hourly", "@weekly", "@midnight", "@reboot", "@every 1ns", "TZ= x", "TZ=UTC", "CRON_TZ=Asia/Kolkata 0 9 * * *", "0 0 * * 7", ", , , , ,", "0 0 30 2 *", "*/90 * * * ?", "0 0 1 JAN-feb sun") {
		f.Add(spec, "Africa/Cairo", int64(1_714_000_000), true)
		f.Add(spec, "Australia/Lord_Howe", int64(1_743_800_000), false)
	}
	f.Fuzz(func(t *testing.T, spec, zone string, from int64, once bool) {
		s, err := ParseSchedule(spec, zone)
		if err != nil {
			return
		}
		if once {
			s = s.With(contract.DSTOnce)
		}
		lo, hi := time.Unix(from, 0), time.Unix(from, 0).Add(3*24*time.Hour)
		n, last := int64(0), time.Time{}
		for w := range s.Due(lo, hi) {
			if !w.After(lo) || w.After(hi) || !w.After(last) {
				t.Fatalf("%q %q: %s after %s", spec, zone, w, last)
			}
			if n%97 == 0 && (!s.Contains(w) || !last.IsZero() && (!s.Next(last).Equal(w) || !s.Previous(w).Equal(last))) {
				t.Fatalf("%q %q: %s and %s", spec, zone, last, w)
			}
			n, last = n+1, w
		}
		if got := s.Count(lo, hi); got != n || n > 0 && (!s.Known() || s.Never() || !s.Newest(lo, hi).Equal(last)) {
			t.Fatalf("%q %q: %d windows, counted %d", spec, zone, n, got)
		}
		if next := s.Next(lo); n == 0 && !next.IsZero() && !next.After(hi) {
			t.Fatalf("%q %q: Next is %s, but none is due", spec, zone, next)
		}
	})
}
