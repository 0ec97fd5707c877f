package window

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/test/prove"
)

// Where the controller does not do what the calendar says: + it makes a Job, - it makes none.
var controllers = map[string]string{
	"America/Sao_Paulo 2018 0 5 * * 6":              "+11-04T07:00", // a Sunday
	"Africa/Cairo 2024 0 5 * * 4":                   "+04-26T02:00", // a Friday
	"Africa/Cairo 2024 0 12 13 * 5":                 "-04-26T09:00", // the Friday without midnight
	"Australia/Lord_Howe 2025 0 0 * * *":            "-04-06T13:30 -10-05T13:00",
	"Australia/Lord_Howe 2025 30 1 * * *":           "+10-04T15:30", // 02:30 by the clock
	"Australia/Lord_Howe 2025 45 1 * * *":           "+10-04T15:45", // 02:45
	"Australia/Lord_Howe 2025 0 */3 * * *":          "-04-05T16:30 -10-04T16:00",
	"Australia/Lord_Howe 2025 20 0-22/2 * 3-11 0,1": "-04-05T15:50",
}

// The tables are made by testdata/windows.py, which shares nothing with this code.
func TestGoldenWindows(t *testing.T) {
	table, err := os.ReadFile("testdata/windows.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	if len(lines) < 200 {
		t.Fatalf("%d lines", len(lines))
	}
	met := 0
	for _, line := range lines {
		c := strings.Split(line, "\t")
		zone, rule, spec, want, digest, near := c[0], c[2], c[3], c[4], c[5], c[6]
		begin := at(c[1] + "-01-01T00:00:00Z")
		end := begin.AddDate(1, 0, 0).Add(-time.Second)
		s := parse(t, spec, zone)
		if rule == "once" {
			s = s.With(contract.DSTOnce)
		}
		var got []int64
		for w := range s.Due(begin.Add(-time.Second), end) {
			got = append(got, w.Unix())
		}
		if n := s.Count(begin.Add(-time.Second), end); n != int64(len(got)) {
			t.Errorf("%s: counted %d, listed %d", line, n, len(got))
		}
		key := fmt.Sprintf("%s %s %s", zone, c[1], spec)
		// Under the default rule the controller's own ways come on top.
		odd := controllers[key]
		if rule == "once" && !s.calendar.everyHour() {
			odd = ""
		}
		for _, o := range strings.Fields(odd) {
			met++
			w := at(c[1] + "-" + o[1:] + ":00Z").Unix()
			i, found := slices.BinarySearch(got, w)
			switch {
			case o[0] == '+' && found:
				got = slices.Delete(got, i, i+1)
			case o[0] == '-' && !found:
				got = slices.Insert(got, i, w)
			default:
				t.Errorf("%s: not %s", key, o)
			}
		}
		hash := sha256.New()
		for _, w := range got {
			fmt.Fprintln(hash, w)
		}
		if strconv.Itoa(len(got)) != want || fmt.Sprintf("%x", hash.Sum(nil)) != digest {
			var have []string
			for _, w := range got {
				have = append(have, time.Unix(w, 0).UTC().Format("01-02T15:04"))
			}
			var diff []string
			listed := strings.Fields(near)
			for _, w := range listed {
				if !slices.Contains(have, w) {
					diff = append(diff, "-"+w)
				}
			}
			for i, w := range have {
				if len(listed) > 0 && !slices.Contains(listed, w) && nearMove(s, got[i]) {
					diff = append(diff, "+"+w)
				}
			}
			t.Errorf("%s %s: %d windows, want %s; %v", key, rule, len(got), want, diff)
		}
	}
	if met != 10 {
		t.Errorf("%d of the controller's own ways were met, want all 10", met)
	}
}

func nearMove(s Schedule, at int64) bool {
	here := s.stretch(at)
	return at <= here.from+30*hour || at >= here.to-30*hour
}

// brute finds instants by looking at each minute of the clock on the wall. It shares no
// code with the parser or with Due.
func brute(spec string, zone *time.Location, lo, hi time.Time, once bool) []time.Time {
	fields := strings.Fields(spec)
	in := func(f, lo, n int) bool {
		for part := range strings.SplitSeq(fields[f], ",") {
			part, step, _ := strings.Cut(part, "/")
			first, last, ranged := strings.Cut(part, "-")
			a, _ := strconv.Atoi(first)
			b, _ := strconv.Atoi(last)
			by, _ := strconv.Atoi(step)
			if !ranged {
				b = a
			}
			if first == "*" {
				a, b = lo, 100
			}
			if a <= n && n <= b && (by == 0 || (n-a)%by == 0) {
				return true
			}
		}
		return false
	}
	// What robfig/cron takes for a star: a step over 1 makes it a list.
	star := func(f int) bool { return fields[f] == "*" || fields[f] == "*/1" }
	match := func(wall time.Time) bool {
		date, weekday := in(2, 1, wall.Day()), in(4, 0, int(wall.Weekday()))
		return in(0, 0, wall.Minute()) && in(1, 0, wall.Hour()) && in(3, 1, int(wall.Month())) &&
			(date && weekday || !star(2) && !star(4) && (date || weekday))
	}
	wall := func(t time.Time) time.Time {
		_, offset := t.In(zone).Zone()
		return t.UTC().Add(time.Duration(offset) * time.Second)
	}
	once = once && !slices.Contains([]string{"*", "*/1", "0-23"}, fields[1])
	shown := map[time.Time]bool{}
	var found []time.Time
	for t := lo.Add(-26 * time.Hour).Truncate(time.Minute); !t.After(hi); t = t.Add(time.Minute) {
		now := wall(t)
		if match(now) && !(once && shown[now]) {
			found = append(found, t)
		}
		shown[now] = true
		for w, late := wall(t.Add(-time.Minute)).Add(time.Minute), time.Duration(0); once && w.Before(now); w, late = w.Add(time.Minute), late+time.Minute {
			if match(w) {
				found = append(found, t.Add(late))
			}
		}
	}
	slices.SortFunc(found, time.Time.Compare)
	found = slices.Compact(found)
	return slices.DeleteFunc(found, func(t time.Time) bool { return !t.After(lo) || t.After(hi) })
}

// Windows seen one by one equal windows seen in any split of the interval, and equal those
// that are found by looking at each minute.
func TestProveWindowsAreTheSameInAnySplit(t *testing.T) {
	r := rand.New(rand.NewPCG(prove.Seed(t), 2))
	var windows, splits, bruted int
	trials := prove.Times(100, 8000)
	for range trials {
		zone := zones[r.IntN(len(zones))]
		spec := random(r)
		if r.IntN(3) == 0 {
			spec = specs[r.IntN(len(specs))]
		}
		once := r.IntN(2) == 0
		s := parse(t, spec, zone)
		if once {
			s = s.With(contract.DSTOnce)
		}
		// Around a move, if there is one.
		mid := s.stretch(at("1975-01-01T00:00:00Z").Unix() + r.Int64N(60*365*day)).to
		if mid >= ceiling {
			mid = at("2025-01-01T00:00:00Z").Unix() + r.Int64N(365*day)
		}
		lo := time.Unix(mid-r.Int64N(4*day), r.Int64N(1e9))
		hi := time.Unix(mid+r.Int64N(6*day), r.Int64N(1e9))
		all := slices.Collect(s.Due(lo, hi))
		windows += len(all)
		where := fmt.Sprintf("%s %q once=%v, %s to %s", zone, spec, once, lo.UTC(), hi.UTC())
		if !slices.IsSortedFunc(all, time.Time.Compare) || len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Fatalf("%s: not in order", where)
		}
		// Mostly another schedule, which remembers other things.
		other := s
		fresh := func() Schedule {
			if r.IntN(8) == 0 {
				other = parse(t, spec, zone)
				other.once = once
			}
			return other
		}
		var split []time.Time
		var counted int64
		for a := lo; a.Before(hi); {
			b := a.Add(time.Duration(1 + r.Int64N(int64(12*time.Hour))))
			if len(all) > 0 && r.IntN(2) == 0 {
				b = all[r.IntN(len(all))] // cut at a window
			}
			if !b.After(a) || b.After(hi) {
				b = hi
			}
			split = slices.AppendSeq(split, fresh().Due(a, b))
			counted += fresh().Count(a, b)
			a = b
			splits++
		}
		if !slices.Equal(all, split) || counted != int64(len(all)) || s.Count(lo, hi) != counted {
			t.Fatalf("%s: %v at once, %v in pieces, counted %d", where, all, split, counted)
		}
		var single []time.Time
		for w := fresh().Next(lo); !w.IsZero() && !w.After(hi); w = s.Next(w) {
			single = append(single, w)
		}
		if !slices.Equal(all, single) {
			t.Fatalf("%s: %v at once, %v one by one", where, all, single)
		}
		for i, w := range all {
			f := s
			if i%100 == 0 {
				f = fresh()
			}
			if !f.Contains(w) || f.Contains(w.Add(time.Nanosecond)) || !f.Back(hi, len(all)-i).Equal(w) {
				t.Fatalf("%s: %s is due, but Contains %v, Back(%d) %s", where, w, f.Contains(w), len(all)-i, f.Back(hi, len(all)-i))
			}
			if i > 0 && (!f.Previous(w).Equal(all[i-1]) || f.Contains(w.Add(-time.Minute)) != all[i-1].Equal(w.Add(-time.Minute))) {
				t.Fatalf("%s: before %s comes %s", where, w, f.Previous(w))
			}
			if first := s.Repeats(w); !first.IsZero() {
				t.Fatalf("%s: %s is due and repeats %s", where, w, first)
			}
		}
		for w := time.Unix(mid-3*hour, 0).Truncate(time.Minute); once && w.Unix() < mid+25*hour; w = w.Add(time.Minute) {
			first := s.Repeats(w)
			if !first.IsZero() && (s.Contains(w) || !s.Contains(first) || !first.Before(w) || first.In(s.zone).Format("02 15:04") != w.In(s.zone).Format("02 15:04")) {
				t.Fatalf("%s: %s repeats %s", where, w, first)
			}
			if s.Invented(w) && (!s.Contains(w) || s.With(contract.DSTKubernetes).Contains(w)) {
				t.Fatalf("%s: %s is not invented", where, w)
			}
		}
		if (once && !s.calendar.everyHour()) || s.plain(lo.Unix()-anchored, hi.Unix()) {
			bruted++
			if want := brute(spec, s.zone, lo, hi, once); !slices.EqualFunc(all, want, time.Time.Equal) {
				t.Fatalf("%s: got %v, minute by minute %v", where, all, want)
			}
		}
	}
	prove.Report(t, "windows are the same one by one and in any split, and those on the wall", "%d intervals around moved clocks, %d windows, %d splits, %d against each minute", trials, windows, splits, bruted)
}

// plain reports whether the parser finds what the calendar says from lo to hi.
func (s Schedule) plain(lo, hi int64) bool {
	for here := s.stretch(lo); here.to <= hi+2*day && here.to < ceiling; here = s.stretch(here.to) {
		if !s.moveAt(here.to).harmless() {
			return false
		}
	}
	return true
}
