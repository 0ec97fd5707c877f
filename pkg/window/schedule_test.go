package window

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

func TestNextFollowsTheControllerThroughClockChanges(t *testing.T) {
	for _, c := range []struct{ schedule, zone, from, want string }{
		{"30 2 * * *", "America/New_York", "2025-03-09T00:00:00Z", "2025-03-10T06:30:00Z"}, // 02:30 does not exist
		{"30 1 * * *", "America/New_York", "2025-11-02T00:00:00Z", "2025-11-02T05:30:00Z"},
		{"30 1 * * *", "America/New_York", "2025-11-02T05:30:00Z", "2025-11-02T06:30:00Z"}, // happens twice
		{"45 1 * * *", "Australia/Lord_Howe", "2025-04-05T14:45:00Z", "2025-04-05T15:15:00Z"},
		{"@hourly", "Asia/Kolkata", "2025-01-01T10:07:31Z", "2025-01-01T10:30:00Z"},
		{"0 0 29 2 *", "Etc/UTC", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"TZ=Europe/Rome 0 9 * * *", "", "2025-01-01T00:00:00Z", "2025-01-01T08:00:00Z"},
	} {
		s, err := ParseSchedule(c.schedule, c.zone)
		if err != nil {
			t.Fatal(c.schedule, err)
		}
		if got := s.Next(at(c.from)); !got.Equal(at(c.want)) {
			t.Errorf("%s in %s after %s: got %s, want %s", c.schedule, c.zone, c.from, got, c.want)
		}
	}
}

func TestPreviousIsTheInstantBefore(t *testing.T) {
	for _, c := range []struct{ schedule, zone, from, want string }{
		{"*/5 * * * *", "Etc/UTC", "2025-06-01T10:05:00Z", "2025-06-01T10:00:00Z"},
		{"*/5 * * * *", "Etc/UTC", "2025-06-01T10:05:01Z", "2025-06-01T10:05:00Z"},
		{"30 2 * * *", "America/New_York", "2025-03-10T06:30:00Z", "2025-03-08T07:30:00Z"}, // 02:30 of the 9th does not exist
		{"30 1 * * *", "America/New_York", "2025-11-02T06:30:00Z", "2025-11-02T05:30:00Z"}, // happens twice
		{"0 0 29 2 *", "Etc/UTC", "2028-02-29T00:00:00Z", "2024-02-29T00:00:00Z"},
	} {
		s, err := ParseSchedule(c.schedule, c.zone)
		if err != nil {
			t.Fatal(c.schedule, err)
		}
		if got := s.Previous(at(c.from)); !got.Equal(at(c.want)) {
			t.Errorf("%s in %s before %s: got %s, want %s", c.schedule, c.zone, c.from, got, c.want)
		}
	}
}

func TestInstantsThatCannotBeKnown(t *testing.T) {
	for _, c := range []struct{ schedule, zone string }{
		{"0 2 * * *", ""}, {"@every 48h", "Etc/UTC"}, {"0 0 30 2 *", "Etc/UTC"}, {"CRON_TZ=UTC @every 1m", ""},
	} {
		s, err := ParseSchedule(c.schedule, c.zone)
		if err != nil {
			t.Fatal(c.schedule, err)
		}
		if next := s.Next(at("2025-01-01T00:00:00Z")); !next.IsZero() {
			t.Errorf("%q %q: Next gave %s", c.schedule, c.zone, next)
		}
		if n := s.Newest(at("1990-01-01T00:00:00Z"), at("2025-01-01T00:00:00Z")); !n.IsZero() {
			t.Errorf("%q %q: Newest gave %s", c.schedule, c.zone, n)
		}
		if p := s.Previous(at("2025-01-01T00:00:00Z")); !p.IsZero() {
			t.Errorf("%q %q: Previous gave %s", c.schedule, c.zone, p)
		}
	}
}

func TestBadSchedulesAreErrors(t *testing.T) {
	for _, c := range []struct{ schedule, zone string }{
		{"@reboot", ""},
		{"0 0 * * 7", ""},
		{"* * * * *", "Mars/Olympus"},
		{"* * * * *", "Local"},
		{"* * * * *", "../../etc/passwd"},
		{"CRON_TZ=Europe/Rome 0 9 * * *", "Europe/Rome"},
		{"TZ=", ""},
		{"TZ=UTC", ""},
		{"", ""},
	} {
		if _, err := ParseSchedule(c.schedule, c.zone); err == nil {
			t.Errorf("%q %q: no error", c.schedule, c.zone)
		}
	}
}

func TestNewestIsTheLastOfAllInstants(t *testing.T) {
	specs := []string{"* * * * *", "*/5 * * * *", "0 * * * *", "30 1 * * *", "30 2 * * *", "0 */3 * * *", "@daily", "30 6-16/4 * * 1-5", "0 0 1 */11 *", "* * * 1-10 *", "0 0 13 * 5"}
	zones := []string{"Etc/UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Cairo", "Asia/Kolkata"}
	rapid.Check(t, func(t *rapid.T) {
		s, err := ParseSchedule(rapid.SampledFrom(specs).Draw(t, "schedule"), rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		to := time.Unix(rapid.Int64Range(1_500_000_000, 1_900_000_000).Draw(t, "to"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		from := to.Add(-time.Duration(rapid.Int64Range(0, int64(40*24*time.Hour)).Draw(t, "span")))
		var want time.Time
		start := from.Add(-time.Nanosecond)
		for n := s.Next(start); !n.IsZero() && !n.After(to); n = s.Next(n) {
			want = n
		}
		if got := s.Newest(from, to); !got.Equal(want) {
			t.Fatalf("from %s to %s: got %s, want %s", from.UTC(), to.UTC(), got, want)
		}
		// Going back and forth by one ends where it began.
		if got := s.Next(s.Previous(to)); !want.IsZero() && (got.Before(to) || !s.Previous(to).Before(to)) {
			t.Fatalf("before %s: got %s, after which comes %s", to.UTC(), s.Previous(to), got)
		}
	})
}

func TestNewestOverManyYearsIsFast(t *testing.T) {
	s, err := ParseSchedule("* * * 1-10 *", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Newest(at("1990-01-01T00:00:00Z"), at("2025-12-20T00:00:00Z")), at("2025-10-31T22:59:00Z"); !got.Equal(want) {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestAZoneIsReadOnceAndAWrongOneEachTime(t *testing.T) {
	for range 2 {
		a, err := ParseSchedule("0 3 * * *", "Europe/Berlin")
		if err != nil || a.Zone().String() != "Europe/Berlin" {
			t.Fatal(a.Zone(), err)
		}
		b, err := ParseSchedule("TZ=Europe/Berlin 0 3 * * *", "")
		if err != nil || b.Zone() != a.Zone() {
			t.Errorf("read twice: %v", err)
		}
		for _, wrong := range []string{"Europe/Nowhere", "../etc/passwd", "Local"} {
			if _, err := ParseSchedule("0 3 * * *", wrong); err == nil {
				t.Errorf("%q is accepted", wrong)
			}
		}
	}
	for i := range 2 * mostZones { // the same zone, in as many spellings as anybody likes
		_, _ = ParseSchedule("0 3 * * *", "Europe"+strings.Repeat("/", i%200+1)+strings.Repeat("./", i/200)+"Berlin")
	}
	if n := len(zonesRead.known); n > mostZones {
		t.Errorf("%d zones are remembered", n)
	}
}
