package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseInstant(t *testing.T) {
	for _, c := range []struct {
		text, zone string
		last       bool
		want, note string
	}{
		{"2026-11-01T00:00:00Z", "Asia/Shanghai", false, "2026-11-01T00:00:00Z", ""},
		{"2026-11-01T00:00:00+08:00", "Etc/UTC", false, "2026-10-31T16:00:00Z", ""},
		{"2026-11-01T00:00Z", "Etc/UTC", false, "2026-11-01T00:00:00Z", ""},
		{"2026-11-01 00:00", "Asia/Shanghai", false, "2026-10-31T16:00:00Z", ""},
		{"2026-11-01T00:00:30", "Asia/Kolkata", false, "2026-10-31T18:30:30Z", ""},
		// New York put its clocks forward on 2025-03-09, and back on 2025-11-02.
		{"2025-03-09 01:59", "America/New_York", false, "2025-03-09T06:59:00Z", ""},
		{"2025-03-09 02:30", "America/New_York", false, "2025-03-09T07:30:00Z", "2025-03-09 02:30:00 does not occur in America/New_York, where the clocks are put forward: it is taken as 03:30:00 -04:00, which is 2025-03-09T07:30:00Z"},
		{"2025-03-09 03:00", "America/New_York", false, "2025-03-09T07:00:00Z", ""},
		{"2025-11-02 00:59", "America/New_York", false, "2025-11-02T04:59:00Z", ""},
		{"2025-11-02 01:30", "America/New_York", false, "2025-11-02T05:30:00Z", "occurs twice in America/New_York, where the clocks are put back: the first is taken, which is 2025-11-02T05:30:00Z"},
		{"2025-11-02 01:30", "America/New_York", true, "2025-11-02T06:30:00Z", "the second is taken, which is 2025-11-02T06:30:00Z"},
		{"2025-11-02 02:00", "America/New_York", true, "2025-11-02T07:00:00Z", ""},
		// Lord Howe by half an hour: forward on 2025-10-05 at 02:00, back on 2025-04-06 at 02:00.
		{"2025-10-05 02:15", "Australia/Lord_Howe", false, "2025-10-04T15:45:00Z", "taken as 02:45:00 +11:00"},
		{"2025-04-06 01:45", "Australia/Lord_Howe", true, "2025-04-05T15:15:00Z", "occurs twice"},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, note, err := parseInstant(c.text, zone, c.last)
		if got := at.Format(time.RFC3339); err != nil || got != c.want {
			t.Errorf("%s in %s: %s, %v; want %s", c.text, c.zone, got, err, c.want)
		}
		if !strings.Contains(note, c.note) || (c.note == "") != (note == "") {
			t.Errorf("%s in %s: note %q, want %q", c.text, c.zone, note, c.note)
		}
	}
	for _, text := range []string{"", "latest", "yesterday", "2026-11-01", "12:00", "2026-02-30 00:00", "2026-11-01 00:00 Europe/Berlin"} {
		if at, _, err := parseInstant(text, time.UTC, false); err == nil {
			t.Errorf("%q is taken as %s", text, at)
		}
	}
}

// Each minute of two years reads as the instant that it is the civil time of.
func TestCivilTimesAreThoseOfTheirInstants(t *testing.T) {
	for _, name := range []string{"America/New_York", "Europe/Lisbon", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Cairo", "Asia/Kolkata"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2026; at = at.Add(7 * time.Minute) {
			text := at.In(zone).Format("2006-01-02 15:04")
			first, _, err1 := parseInstant(text, zone, false)
			last, _, err2 := parseInstant(text, zone, true)
			if err1 != nil || err2 != nil || !(first.Equal(at) || last.Equal(at)) || last.Before(first) {
				t.Fatalf("%s, which is %s in %s, is read as %s and %s (%v, %v)", at, text, name, first, last, err1, err2)
			}
		}
	}
}
