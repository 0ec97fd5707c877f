package claim_test

import (
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

// soon is after everything that the tests record.
var soon = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// The rows of the truth table in Decide's comment, and the order among them.
func TestDecide(t *testing.T) {
	const skip, wait, replace = contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace
	answer := func(v claim.Verdict, r claim.Reason) claim.Decision { return claim.Decision{Verdict: v, Reason: r} }
	closes := func(v claim.Verdict, r claim.Reason, s claim.Status) claim.Decision {
		return claim.Decision{Verdict: v, Reason: r, Close: s}
	}
	older := claim.Others{Older: true, Unasked: true}
	for _, c := range []struct {
		name  string
		terms claim.Terms
		seen  claim.Seen
		want  claim.Decision
	}{
		{"nobody ever", claim.Terms{}, claim.Seen{}, answer(claim.Run, claim.First)},
		{"no row, but closed", claim.Terms{}, claim.Seen{Closed: true}, answer(claim.Skip, claim.Closed)},
		{"failed and closed", claim.Terms{}, claim.Seen{Closed: true, Status: claim.Failed}, answer(claim.Skip, claim.Closed)},
		{"done", claim.Terms{}, claim.Seen{Status: claim.Completed}, answer(claim.Skip, claim.AlreadyCompleted)},
		{"done by the one who asks", claim.Terms{}, claim.Seen{Status: claim.Completed, Used: true, Leased: true}, answer(claim.Skip, claim.AlreadyCompleted)},
		{"our own claim", claim.Terms{}, claim.Seen{Status: claim.Running, Current: true, Leased: true, Alive: true}, answer(claim.Run, claim.Adopted)},
		{"our own, lease ended", claim.Terms{}, claim.Seen{Status: claim.Running, Current: true, Leased: true}, answer(claim.Run, claim.Adopted)},
		{"our own, being taken over", claim.Terms{}, claim.Seen{Status: claim.Running, Current: true, Alive: true}, answer(claim.Wait, claim.FenceLost)},
		{"lost to a live holder", claim.Terms{}, claim.Seen{Status: claim.Running, Used: true, Alive: true}, answer(claim.Wait, claim.FenceLost)},
		{"lost to a dead holder", claim.Terms{}, claim.Seen{Status: claim.Running, Used: true}, answer(claim.Wait, claim.FenceLost)},
		{"released by us", claim.Terms{}, claim.Seen{Status: claim.Failed, Used: true}, answer(claim.Wait, claim.FenceLost)},
		{"busy", claim.Terms{}, claim.Seen{Status: claim.Running, Alive: true}, answer(claim.Wait, claim.BusyHeld)},
		{"dead", claim.Terms{}, claim.Seen{Status: claim.Running}, answer(claim.Run, claim.Takeover)},
		{"dead, committing", claim.Terms{}, claim.Seen{Status: claim.Running, Locked: true}, answer(claim.Wait, claim.Committing)},
		{"failed", claim.Terms{}, claim.Seen{Status: claim.Failed}, answer(claim.Run, claim.Retry)},
		{"failed, row locked", claim.Terms{}, claim.Seen{Status: claim.Failed, Locked: true}, answer(claim.Wait, claim.Committing)},

		{"another payload, done", claim.Terms{}, claim.Seen{Status: claim.Completed, Conflict: true}, answer(claim.Refuse, claim.PayloadConflict)},
		{"another payload, our own", claim.Terms{}, claim.Seen{Status: claim.Running, Conflict: true, Current: true, Leased: true}, answer(claim.Refuse, claim.PayloadConflict)},

		{"held", claim.Terms{ReopenBefore: soon}, claim.Seen{Status: claim.Held}, answer(claim.Refuse, claim.IsHeld)},
		{"skipped", claim.Terms{}, claim.Seen{Status: claim.Skipped, Stored: claim.Late}, answer(claim.Skip, claim.Late)},
		{"skipped, reopened", claim.Terms{ReopenBefore: soon}, claim.Seen{Status: claim.Skipped, Stored: claim.Late, Reopens: true}, answer(claim.Run, claim.Reopened)},
		{"skipped after the person asked", claim.Terms{ReopenBefore: soon}, claim.Seen{Status: claim.Skipped, Stored: claim.Superseded}, answer(claim.Skip, claim.Superseded)},
		{"exhausted after the person asked", claim.Terms{ReopenBefore: soon}, claim.Seen{Status: claim.Exhausted}, answer(claim.Refuse, claim.IsExhausted)},
		{"exhausted", claim.Terms{}, claim.Seen{Status: claim.Exhausted}, answer(claim.Refuse, claim.IsExhausted)},
		{"exhausted, reopened under the same terms", claim.Terms{ReopenBefore: soon, MaxAttempts: 1, HoldOnCrash: true}, claim.Seen{Status: claim.Exhausted, Failures: 1, Crashed: true, Reopens: true}, answer(claim.Run, claim.Reopened)},

		{"crashed", claim.Terms{}, claim.Seen{Status: claim.Failed, Crashed: true, Failures: 9}, answer(claim.Run, claim.Retry)},
		{"crashed, on-crash hold", claim.Terms{HoldOnCrash: true, MaxAttempts: 1}, claim.Seen{Status: claim.Failed, Crashed: true, Failures: 1}, closes(claim.Refuse, claim.IsHeld, claim.Held)},
		{"dead, on-crash hold", claim.Terms{HoldOnCrash: true}, claim.Seen{Status: claim.Running, Crashed: true}, closes(claim.Refuse, claim.IsHeld, claim.Held)},
		{"failed, on-crash hold", claim.Terms{HoldOnCrash: true}, claim.Seen{Status: claim.Failed}, answer(claim.Run, claim.Retry)},
		{"failed for the last time", claim.Terms{MaxAttempts: 2}, claim.Seen{Status: claim.Failed, Failures: 2}, closes(claim.Refuse, claim.IsExhausted, claim.Exhausted)},
		{"failed, one left", claim.Terms{MaxAttempts: 3}, claim.Seen{Status: claim.Failed, Failures: 2}, answer(claim.Run, claim.Retry)},
		{"late", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true}, closes(claim.Skip, claim.Late, claim.Skipped)},
		{"late, another was stopped for it", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true, Stopped: true}, answer(claim.Run, claim.First)},
		{"late, no worker ever started", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true, Status: claim.Failed, Unstarted: true}, closes(claim.Skip, claim.Late, claim.Skipped)},
		{"late, rerun", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true, Status: claim.Failed, Unstarted: true, Decided: true}, answer(claim.Run, claim.Retry)},
		{"late, planned", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true, Planned: true}, answer(claim.Run, claim.First)},
		{"late, no worker ever started, planned", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true, Status: claim.Failed, Unstarted: true, Planned: true}, answer(claim.Run, claim.Retry)},
		{"late, a person asks", claim.Terms{StartDeadline: time.Hour, ReopenBefore: soon}, claim.Seen{Late: true}, answer(claim.Run, claim.First)},
		{"late, but tried", claim.Terms{StartDeadline: time.Hour}, claim.Seen{Late: true, Status: claim.Failed}, answer(claim.Run, claim.Retry)},

		{"a civil time for the second time", claim.Terms{Repeats: noon, StartDeadline: time.Hour}, claim.Seen{Late: true}, closes(claim.Skip, claim.DST, claim.Skipped)},
		{"a civil time for the second time, tried", claim.Terms{Repeats: noon}, claim.Seen{Status: claim.Failed}, answer(claim.Run, claim.Retry)},
		{"a civil time for the second time, a person asks", claim.Terms{Repeats: noon, ReopenBefore: soon}, claim.Seen{}, answer(claim.Run, claim.First)},
		{"a civil time for the second time, planned", claim.Terms{Repeats: noon}, claim.Seen{Planned: true}, answer(claim.Run, claim.First)},
		{"a civil time for the second time, busy", claim.Terms{Repeats: noon}, claim.Seen{Status: claim.Running, Alive: true}, answer(claim.Wait, claim.BusyHeld)},

		{"planned and closed meanwhile", claim.Terms{}, claim.Seen{Status: claim.Skipped, Stored: claim.Cancelled, Planned: true}, answer(claim.Skip, claim.Cancelled)},
		{"serial, a later one ran, planned", claim.Terms{Serial: true}, claim.Seen{Later: true, Planned: true}, answer(claim.Run, claim.First)},
		{"serial, planned, an earlier one is open", claim.Terms{Serial: true}, claim.Seen{Later: true, Earlier: true, Planned: true}, answer(claim.Wait, claim.Order)},
		{"serial, a later one runs, planned", claim.Terms{Serial: true}, claim.Seen{Later: true, Planned: true, Others: claim.Others{Newer: true}}, answer(claim.Wait, claim.Overlap)},
		{"serial, a later one ran", claim.Terms{Serial: true}, claim.Seen{Later: true, Earlier: true}, closes(claim.Skip, claim.Superseded, claim.Skipped)},
		{"serial, a later one ran, rerun", claim.Terms{Serial: true}, claim.Seen{Later: true, Decided: true, Status: claim.Failed}, answer(claim.Run, claim.Retry)},
		{"serial, a later one ran, tried", claim.Terms{Serial: true}, claim.Seen{Later: true, Status: claim.Failed}, answer(claim.Run, claim.Retry)},
		{"serial, a later one runs, tried", claim.Terms{Serial: true}, claim.Seen{Later: true, Status: claim.Failed, Others: claim.Others{Newer: true}}, answer(claim.Wait, claim.Overlap)},
		{"serial, a later one is dead", claim.Terms{Serial: true}, claim.Seen{Later: true, Status: claim.Failed, Others: claim.Others{Dead: true}}, claim.Decision{Verdict: claim.Run, Reason: claim.Retry, Fence: true}},
		{"serial, an earlier one is open", claim.Terms{Serial: true, Overlap: skip}, claim.Seen{Earlier: true, Others: older}, answer(claim.Wait, claim.Order)},
		{"any order", claim.Terms{}, claim.Seen{Later: true, Earlier: true}, answer(claim.Run, claim.First)},

		{"overlap allow", claim.Terms{}, claim.Seen{Others: older}, answer(claim.Run, claim.First)},
		{"overlap skip", claim.Terms{Overlap: skip}, claim.Seen{Others: older}, closes(claim.Skip, claim.Overlap, claim.Skipped)},
		{"overlap skip, tried before", claim.Terms{Overlap: skip}, claim.Seen{Status: claim.Failed, Others: older}, answer(claim.Wait, claim.Overlap)},
		{"overlap skip, reopened", claim.Terms{Overlap: skip, ReopenBefore: soon}, claim.Seen{Status: claim.Skipped, Reopens: true, Others: older}, answer(claim.Wait, claim.Overlap)},
		{"overlap skip, planned", claim.Terms{Overlap: skip}, claim.Seen{Planned: true, Others: older}, answer(claim.Wait, claim.Overlap)},
		{"overlap skip, a separate run", claim.Terms{Overlap: skip}, claim.Seen{Others: claim.Others{Separate: true}}, answer(claim.Wait, claim.Overlap)},
		{"overlap wait", claim.Terms{Overlap: wait}, claim.Seen{Others: older}, answer(claim.Wait, claim.Overlap)},
		{"overlap wait, the other is dead", claim.Terms{Overlap: wait}, claim.Seen{Others: claim.Others{Dead: true}}, claim.Decision{Verdict: claim.Run, Reason: claim.First, Fence: true}},
		{"overlap wait, one dead, one alive", claim.Terms{Overlap: wait}, claim.Seen{Others: claim.Others{Dead: true, Newer: true}}, answer(claim.Wait, claim.Overlap)},
		{"overlap wait, the other is committing", claim.Terms{Overlap: wait}, claim.Seen{Others: claim.Others{Locked: true, Older: true}}, answer(claim.Wait, claim.Committing)},
		{"replace", claim.Terms{Overlap: replace}, claim.Seen{Others: older}, claim.Decision{Verdict: claim.Wait, Reason: claim.Replacing, Stop: true}},
		{"replace, asked already", claim.Terms{Overlap: replace}, claim.Seen{Others: claim.Others{Older: true}}, answer(claim.Wait, claim.Replacing)},
		{"replace, a newer one runs", claim.Terms{Overlap: replace}, claim.Seen{Others: claim.Others{Older: true, Newer: true}}, closes(claim.Skip, claim.Superseded, claim.Skipped)},
		{"replace, a newer one runs, a person asks", claim.Terms{Overlap: replace, ReopenBefore: soon}, claim.Seen{Others: claim.Others{Newer: true}}, answer(claim.Wait, claim.Overlap)},
		{"replace, a newer one runs, planned", claim.Terms{Overlap: replace}, claim.Seen{Planned: true, Others: claim.Others{Newer: true}}, answer(claim.Wait, claim.Overlap)},
		{"replaced and dead, planned", claim.Terms{Overlap: replace}, claim.Seen{Status: claim.Running, Stopping: true, Planned: true}, answer(claim.Run, claim.Takeover)},
		{"replace, a separate run", claim.Terms{Overlap: replace}, claim.Seen{Others: claim.Others{Separate: true}}, answer(claim.Wait, claim.Overlap)},
		{"replace, the older is committing", claim.Terms{Overlap: replace}, claim.Seen{Others: claim.Others{Locked: true, Older: true, Unasked: true}}, claim.Decision{Verdict: claim.Wait, Reason: claim.Committing, Stop: true}},
		{"replaced and dead, rerun", claim.Terms{Overlap: replace}, claim.Seen{Status: claim.Running, Stopping: true, Decided: true}, answer(claim.Run, claim.Takeover)},
		{"replaced and dead", claim.Terms{Overlap: replace, HoldOnCrash: true}, claim.Seen{Status: claim.Running, Stopping: true, Crashed: true}, closes(claim.Skip, claim.Superseded, claim.Skipped)},
	} {
		if got := claim.Decide(c.terms, c.seen); got != c.want {
			t.Errorf("%s: %+v; want %+v", c.name, got, c.want)
		}
	}
}

// bits gives each combination of n booleans to f.
func bits(n int, f func(bit func() bool)) {
	for i := range 1 << n {
		left := i
		f(func() bool { b := left&1 == 1; left >>= 1; return b })
	}
}

// What must never be true, over every combination of terms and things seen.
func TestDecideNever(t *testing.T) {
	statuses := []claim.Status{"", claim.Running, claim.Completed, claim.Failed, claim.Exhausted, claim.Skipped, claim.Held}
	overlaps := []contract.Overlap{contract.OverlapAllow, contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace}
	for _, status := range statuses {
		// Who asks for which window: without terms.
		bits(7, func(bit func() bool) {
			s := claim.Seen{Status: status, Stored: claim.Late, Closed: bit(), Conflict: bit(), Current: bit(), Leased: bit(), Used: bit(), Alive: bit(), Locked: bit()}
			d := claim.Decide(claim.Terms{}, s)
			closed := status == claim.Completed || status == claim.Skipped || status == claim.Exhausted || status == claim.Held
			if taken := d.Verdict == claim.Run && d.Reason != claim.Adopted; taken && (s.Locked || s.Used || closed || (status == claim.Running && (s.Alive || s.Current))) {
				t.Errorf("%+v was given the window: %s", s, d.Reason)
			}
			if d.Verdict == claim.Run && (s.Closed || s.Conflict || closed) {
				t.Errorf("%+v runs", s)
			}
		})
		// What the terms forbid, for a window that can be taken.
		for _, overlap := range overlaps {
			bits(18, func(bit func() bool) {
				s := claim.Seen{
					Status: status, Stored: claim.Late, Decided: bit(), Stopping: bit(), Crashed: bit(), Later: bit(), Earlier: bit(),
					Others: claim.Others{Locked: bit(), Older: bit(), Newer: bit(), Separate: bit(), Dead: bit()},
				}
				s.Others.Unasked = s.Others.Older && bit()
				s.Late, s.Stopped, s.Unstarted = true, bit(), bit()
				terms := claim.Terms{Overlap: overlap, Serial: bit(), HoldOnCrash: s.Crashed}
				if s.Reopens = bit(); s.Reopens {
					terms.ReopenBefore = soon
				}
				s.Planned = bit()
				if bit() {
					terms.Repeats = noon
				}
				if bit() {
					terms.StartDeadline, terms.MaxAttempts, s.Failures = time.Hour, 2, 2
				}
				d := claim.Decide(terms, s)
				o := s.Others
				alive := o.Older || o.Newer || o.Locked || o.Separate
				allowed := overlap == contract.OverlapAllow && !terms.Serial
				switch {
				case d.Verdict == claim.Run && !allowed && (alive || o.Dead != d.Fence):
					t.Errorf("%+v %+v runs beside another window: %+v", terms, s, d)
				case d.Verdict == claim.Run && terms.Serial && s.Earlier:
					t.Errorf("%+v %+v runs before an earlier window", terms, s)
				case (d.Fence || d.Stop) && (allowed || (d.Fence && alive) || (d.Stop && o.Newer)):
					t.Errorf("%+v %+v: %+v", terms, s, d)
				case d.Close != "" && (status == claim.Completed || status == claim.Held || status == claim.Exhausted || status == claim.Skipped):
					t.Errorf("%+v %+v closes again: %+v", terms, s, d)
				case d.Close != "" && (d.Reason == claim.Overlap || d.Reason == claim.Superseded && !s.Stopping) && !o.Older && !o.Newer && !s.Later:
					t.Errorf("%+v %+v is closed by nobody: %+v", terms, s, d)
				case d.Close == claim.Skipped && (s.Decided || s.Reopens || s.Planned):
					t.Errorf("%+v %+v is closed although it is wanted: %+v", terms, s, d)
				case (d.Reason == claim.DST) != (status == "" && !terms.Repeats.IsZero() && !s.Decided && !s.Reopens && !s.Planned):
					t.Errorf("%+v %+v: %+v", terms, s, d)
				case d.Close != "" && (d.Verdict == claim.Run || d.Verdict == claim.Wait):
					t.Errorf("%+v %+v closes the window and goes on: %+v", terms, s, d)
				case !terms.ReopenBefore.IsZero() && (status == claim.Exhausted || status == claim.Skipped) && (d.Verdict == claim.Skip || d.Verdict == claim.Refuse):
					t.Errorf("%+v %+v is not reopened: %+v", terms, s, d)
				}
			})
		}
	}
}
