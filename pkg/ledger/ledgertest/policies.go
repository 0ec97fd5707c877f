package ledgertest

import (
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// Policies together lose no window and never let two run that must not: what a person
// asked for stays, and what was stopped was stopped for something.

var (
	replace = claim.Terms{Overlap: contract.OverlapReplace}
	serial  = claim.Terms{Serial: true}
)

// Order closes only what never ran. What was tried runs again, but not beside a later one.
func testOrderKeepsTheTried(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 1)
	since := claim.Terms{Serial: true, Since: b.Window.Start}
	asks(t, s, a, claim.Run, claim.First)
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
	under(t, s, b, since, claim.Run, claim.First) // order begins after a
	a = next(a, 0)
	if got := under(t, s, a, serial, claim.Wait, claim.Overlap); got.Holder.Window != b.Window {
		t.Fatalf("%+v", got)
	}
	completes(t, s, b, nil)
	under(t, s, a, serial, claim.Run, claim.Retry)
}

// Where the beginning of order has moved, an earlier window that still runs is waited for.
func testOrderBegins(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 1)
	since := claim.Terms{Serial: true, Since: b.Window.Start}
	asks(t, s, a, claim.Run, claim.First)
	if got := under(t, s, b, since, claim.Wait, claim.Order); got.Holder.Window != a.Window {
		t.Fatalf("%+v", got)
	}
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
	under(t, s, b, since, claim.Run, claim.First)
}

// A window that a person reran waits while a later one runs; a dead one cannot block it,
// nor it the dead one.
func testOrderRerun(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 1)
	asks(t, s, a, claim.Run, claim.First)
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
	if err := s.CancelWindow(a.Window); err != nil {
		t.Fatal(err)
	}
	under(t, s, b, serial, claim.Run, claim.First)
	if _, err := s.Rerun(a.Window); err != nil {
		t.Fatal(err)
	}
	a = next(a, 0)
	under(t, s, a, serial, claim.Wait, claim.Overlap)
	s.Expire(b.Window)
	under(t, s, next(b, 0), serial, claim.Wait, claim.Order)
	under(t, s, a, serial, claim.Run, claim.Retry)
	completes(t, s, b, ledger.ErrFenced)
	under(t, s, next(b, 0), serial, claim.Wait, claim.Order)
	completes(t, s, a, nil)
	under(t, s, next(b, 0), serial, claim.Run, claim.Retry)
}

// An index that is new to the job does not wait for windows that it never had.
func testOrderOfANewIndex(t *testing.T, s Subject) {
	old, added := fresh("shop/a#0"), next(fresh("shop/a#1"), 1)
	terms := claim.Terms{Serial: true, Since: old.Window.Start, Previous: old.Window.Start}
	asks(t, s, old, claim.Run, claim.First)
	completes(t, s, old, nil)
	under(t, s, added, terms, claim.Run, claim.First)
	completes(t, s, added, nil)
	after := next(added, 2)
	terms.Previous = added.Window.Start.Add(time.Minute)
	under(t, s, after, terms, claim.Wait, claim.Order)
}

// What a person asked for may be stopped, but is not gone.
func testReplaceAndRerun(t *testing.T, s Subject) {
	for name, ends := range map[string]func(a claim.Attempt){
		"it stops": func(a claim.Attempt) {
			beats(t, s, a, claim.BeatCancel)
			releases(t, s, a, claim.OutcomeStopped, claim.OutcomeStopped)
		},
		"it dies": func(a claim.Attempt) { s.Expire(a.Window) },
	} {
		a := fresh("shop/" + name)
		asks(t, s, a, claim.Run, claim.First)
		completes(t, s, a, nil)
		releases(t, s, a, claim.OutcomeCompleted, claim.OutcomeCompleted)
		if _, err := s.Rerun(a.Window); err != nil {
			t.Fatal(err)
		}
		a, b := next(a, 0), next(a, 1)
		under(t, s, a, replace, claim.Run, claim.Retry)
		under(t, s, b, replace, claim.Wait, claim.Replacing)
		ends(a)
		under(t, s, b, replace, claim.Run, claim.First)
		a = next(a, 0)
		under(t, s, a, replace, claim.Wait, claim.Overlap)
		completes(t, s, b, nil)
		under(t, s, a, replace, claim.Run, claim.Retry)
	}
}

// A window is stopped for another one: that one is then not too late.
func testReplaceIsNotLate(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 1)
	late := claim.Terms{Overlap: contract.OverlapReplace, StartDeadline: time.Second}
	asks(t, s, a, claim.Run, claim.First)
	under(t, s, b, replace, claim.Wait, claim.Replacing)
	under(t, s, b, late, claim.Wait, claim.Replacing)
	releases(t, s, a, claim.OutcomeStopped, claim.OutcomeStopped)
	under(t, s, next(b, 1), late, claim.Skip, claim.Late)
	under(t, s, b, late, claim.Run, claim.First)
	releases(t, s, b, claim.OutcomeNotStarted, claim.OutcomeNotStarted)
	under(t, s, next(b, 0), late, claim.Run, claim.Retry)
}

// A mark to stop ends with the window that set it.
func testReplaceIsCalledOff(t *testing.T, s Subject) {
	a, b, c := fresh("shop/a"), next(fresh("shop/a"), 1), next(fresh("shop/a"), 2)
	asks(t, s, a, claim.Run, claim.First)
	under(t, s, b, replace, claim.Wait, claim.Replacing)
	beats(t, s, a, claim.BeatCancel)
	if err := s.CancelWindow(b.Window); err != nil {
		t.Fatal(err)
	}
	beats(t, s, a, claim.BeatOK)
	releases(t, s, a, claim.OutcomeStopped, claim.OutcomeStopped) // it had heard of it
	a = next(a, 0)
	asks(t, s, a, claim.Run, claim.Retry)
	under(t, s, c, replace, claim.Wait, claim.Replacing) // another one asks anew
	beats(t, s, a, claim.BeatCancel)
	releases(t, s, a, claim.OutcomeStopped, claim.OutcomeStopped)
	asks(t, s, next(a, 0), claim.Skip, claim.Superseded)
}

// A separate run and the windows of the schedule only wait for each other.
func testSeparate(t *testing.T, s Subject) {
	scheduled := fresh("shop/a")
	separate := fresh("shop/a@u")
	asks(t, s, separate, claim.Run, claim.First)
	for _, o := range []contract.Overlap{contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace} {
		if got := under(t, s, scheduled, claim.Terms{Overlap: o}, claim.Wait, claim.Overlap); got.Holder.Window != separate.Window {
			t.Fatalf("%+v", got)
		}
	}
	beats(t, s, separate, claim.BeatOK)
	completes(t, s, separate, nil)
	asks(t, s, scheduled, claim.Run, claim.First)
	other := fresh("shop/a@v")
	for _, o := range []contract.Overlap{contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace} {
		under(t, s, other, claim.Terms{Overlap: o}, claim.Wait, claim.Overlap)
	}
	beats(t, s, scheduled, claim.BeatOK)
	under(t, s, next(other, 1), serial, claim.Run, claim.First) // it stands outside of the order
}

// What was closed after a person asked stays closed.
func testReopenBefore(t *testing.T, s Subject) {
	past := claim.Terms{ReopenBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
	a := fresh("shop/a")
	if err := s.CancelWindow(a.Window); err != nil {
		t.Fatal(err)
	}
	under(t, s, a, past, claim.Skip, claim.Cancelled)
	under(t, s, a, claim.Terms{ReopenBefore: soon}, claim.Run, claim.Reopened)
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
	under(t, s, next(a, 0), past, claim.Run, claim.Retry)
}

// Attempts that never had a worker are no run: its deadline stands.
func testLateAfterNothing(t *testing.T, s Subject) {
	late := claim.Terms{StartDeadline: time.Hour}
	a := fresh("shop/a")
	asks(t, s, a, claim.Run, claim.First)
	releases(t, s, a, claim.OutcomeNotStarted, claim.OutcomeNotStarted)
	under(t, s, next(a, 0), late, claim.Skip, claim.Late)
	b := fresh("shop/b")
	asks(t, s, b, claim.Run, claim.First)
	releases(t, s, b, claim.OutcomeStopped, claim.OutcomeStopped)
	under(t, s, next(b, 0), late, claim.Run, claim.Retry)
}
