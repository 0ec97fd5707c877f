package window

import (
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Under dst=once a civil time is its first occurrence. Berlin, 2025-10-26: 03:00 CEST is
// 02:00 CET, so 02:30 is 00:30Z and again 01:30Z; 2025-03-30: 02:30 does not occur, and is
// read as 03:30 CEST, 01:30Z.
func TestDeriveOnce(t *testing.T) {
	berlin := func(s *contract.Settings) {
		s.Schedule, s.TimeZone, s.DST, s.Since = "30 2 * * *", "Europe/Berlin", contract.DSTOnce, at("2025-01-01T00:00:00Z")
	}
	kubernetes := func(s *contract.Settings) { s.DST = "" }
	name := func(start time.Time, r string) string {
		return strings.Replace(CatchUpName("sync", start), "-r", "-"+r, 1)
	}
	scheduled := func(text string) Job {
		return Job{Name: name(at(text), ""), Annotations: map[string]string{stamp: text}}
	}
	derive := func(job Job, change ...func(*contract.Settings)) Derived {
		t.Helper()
		d, err := Derive(job, settings(append([]func(*contract.Settings){berlin}, change...)...), at("2026-01-01T00:00:00Z"))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first, second := at("2025-10-26T00:30:00Z"), at("2025-10-26T01:30:00Z")
	if d := derive(scheduled("2025-10-26T00:30:00Z")); !d.Repeats.IsZero() || !d.End.Equal(at("2025-10-27T01:30:00Z")) {
		t.Errorf("the first: %+v", d)
	}
	if d := derive(scheduled("2025-10-26T01:30:00Z")); !d.Window.Start.Equal(second) || !d.Repeats.Equal(first) {
		t.Errorf("the second: %+v", d)
	}
	if d := derive(scheduled("2025-10-26T01:30:00Z"), kubernetes); !d.Repeats.IsZero() {
		t.Errorf("the second as Kubernetes has it: %+v", d)
	}
	if d := derive(Job{Name: name(second, "")}); !d.Repeats.Equal(first) || d.Source != contract.SourceName {
		t.Errorf("the second by its name: %+v", d)
	}
	if d := derive(Job{Name: "x", Created: second.Add(time.Minute)}); !d.Window.Start.Equal(first) || !d.Repeats.IsZero() {
		t.Errorf("a manual Job after the second means the first: %+v", d)
	}
	invented := at("2025-03-30T01:30:00Z")
	catchUp := func(start time.Time) Job {
		return Job{Name: CatchUpName("sync", start), CatchUp: contract.Enabled, Annotations: map[string]string{stamp: start.Format(time.RFC3339)}}
	}
	if d := derive(catchUp(invented)); !d.Window.Start.Equal(invented) || d.Trigger != contract.TriggerCatchUp {
		t.Errorf("what does not occur: %+v", d)
	}
	if _, err := Derive(catchUp(second), settings(berlin), at("2026-01-01T00:00:00Z")); err == nil || !strings.Contains(err.Error(), "repeats the civil time of 2025-10-26T00:30:00Z") {
		t.Errorf("a repeat caught up: %v", err)
	}
	if _, err := Derive(catchUp(invented), settings(berlin, kubernetes), at("2026-01-01T00:00:00Z")); err == nil || !strings.Contains(err.Error(), "is no instant of schedule") {
		t.Errorf("what Kubernetes does not know: %v", err)
	}
}
