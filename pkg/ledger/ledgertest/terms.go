package ledgertest

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// soon is after everything that the tests record.
var soon = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// next is another attempt, at a window some minutes later.
func next(a claim.Attempt, minutes int) claim.Attempt {
	a.Window.Start = a.Window.Start.Add(time.Duration(minutes) * time.Minute)
	a.ExecutionID = uuid.New()
	return a
}

func under(t *testing.T, s Subject, a claim.Attempt, terms claim.Terms, verdict claim.Verdict, reason claim.Reason) claim.Answer {
	t.Helper()
	r := request(a)
	r.Terms = terms
	got, err := s.Claim(t.Context(), r)
	if err != nil || got.Verdict != verdict || got.Reason != reason {
		t.Fatalf("claim under %+v: %+v, %v; want %s, %s", terms, got, err, verdict, reason)
	}
	return got
}

func testPayload(t *testing.T, s Subject) {
	a := fresh("shop/a")
	under(t, s, a, claim.Terms{PayloadDigest: "one"}, claim.Run, claim.First)
	got := under(t, s, next(a, 0), claim.Terms{PayloadDigest: "two"}, claim.Refuse, claim.PayloadConflict)
	if got.Holder.PayloadDigest != "one" {
		t.Fatalf("%+v", got)
	}
	if err := s.Complete(t.Context(), a, claim.Completion{PayloadDigest: "two"}); !errors.Is(err, ledger.ErrPayload) {
		t.Fatal(err)
	}
	completes(t, s, a, nil)
	if got, err := s.Stored(t.Context(), a.Window); err != nil || got.PayloadDigest != "one" {
		t.Fatalf("%+v, %v", got, err)
	}
}

func testAttempts(t *testing.T, s Subject) {
	twice := claim.Terms{MaxAttempts: 2}
	a := fresh("shop/a")
	for _, o := range []claim.Outcome{claim.OutcomeFailed, claim.OutcomeStopped, claim.OutcomeNotStarted, claim.OutcomeFailed} {
		a = next(a, 0)
		if got, err := s.Claim(t.Context(), claim.Request{Attempt: a, Lease: lease, Terms: twice}); err != nil || got.Verdict != claim.Run {
			t.Fatalf("%+v, %v", got, err)
		}
		releases(t, s, a, o, o)
	}
	for range 2 {
		under(t, s, next(a, 0), twice, claim.Refuse, claim.IsExhausted)
	}
	a = next(a, 0)
	under(t, s, a, claim.Terms{ReopenBefore: soon}, claim.Run, claim.Reopened)
	completes(t, s, a, nil)
}

func testHold(t *testing.T, s Subject) {
	hold := claim.Terms{HoldOnCrash: true}
	a := fresh("shop/a")
	under(t, s, a, hold, claim.Run, claim.First)
	s.Expire(a.Window)
	under(t, s, next(a, 0), hold, claim.Refuse, claim.IsHeld)
	under(t, s, next(a, 0), claim.Terms{ReopenBefore: soon}, claim.Refuse, claim.IsHeld)
	completes(t, s, a, ledger.ErrFenced)
	if g, err := s.Rerun(a.Window); err != nil || g != 1 {
		t.Fatal(g, err)
	}
	under(t, s, next(a, 0), hold, claim.Run, claim.Retry)
}

func testLate(t *testing.T, s Subject) {
	a := fresh("shop/a")
	a.Window.Start = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	under(t, s, a, claim.Terms{StartDeadline: time.Hour}, claim.Skip, claim.Late)
	under(t, s, a, claim.Terms{}, claim.Skip, claim.Late)
	under(t, s, next(a, 0), claim.Terms{ReopenBefore: soon, StartDeadline: time.Hour}, claim.Run, claim.Reopened)
}

func testOverlap(t *testing.T, s Subject) {
	skip, wait := claim.Terms{Overlap: contract.OverlapSkip}, claim.Terms{Overlap: contract.OverlapWait}
	a, b, c := fresh("shop/a"), next(fresh("shop/a"), 1), next(fresh("shop/a"), 2)
	asks(t, s, a, claim.Run, claim.First)
	if got := under(t, s, b, skip, claim.Skip, claim.Overlap); got.Holder.Window != a.Window || got.Holder.ExecutionID != a.ExecutionID {
		t.Fatalf("%+v", got)
	}
	under(t, s, c, wait, claim.Wait, claim.Overlap)
	s.Expire(a.Window)
	under(t, s, c, wait, claim.Run, claim.First)
	completes(t, s, a, ledger.ErrFenced)
	beats(t, s, a, claim.BeatLost)
	under(t, s, next(a, 0), skip, claim.Wait, claim.Overlap) // it was tried, so it is not closed
	asks(t, s, b, claim.Skip, claim.Overlap)
}

func testReplace(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 1)
	asks(t, s, a, claim.Run, claim.First)
	under(t, s, b, replace, claim.Wait, claim.Replacing)
	beats(t, s, a, claim.BeatCancel)
	under(t, s, b, replace, claim.Wait, claim.Replacing)
	releases(t, s, a, claim.OutcomeStopped, claim.OutcomeStopped)
	under(t, s, b, replace, claim.Run, claim.First)
	asks(t, s, next(a, 0), claim.Skip, claim.Superseded)
	under(t, s, next(a, -1), replace, claim.Skip, claim.Superseded)
}

func testOrder(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 1)
	serial := claim.Terms{Serial: true, Since: a.Window.Start, Previous: a.Window.Start}
	if got := under(t, s, b, serial, claim.Wait, claim.Order); got.Holder.Window != a.Window {
		t.Fatalf("%+v", got)
	}
	asks(t, s, a, claim.Run, claim.First)
	under(t, s, b, serial, claim.Wait, claim.Order)
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
	under(t, s, b, serial, claim.Wait, claim.Order)
	if err := s.CancelWindow(a.Window); err != nil {
		t.Fatal(err)
	}
	under(t, s, b, serial, claim.Run, claim.First)
	under(t, s, next(a, -1), claim.Terms{Serial: true}, claim.Skip, claim.Superseded)
}

func testPeople(t *testing.T, s Subject) {
	a := fresh("shop/a")
	if _, err := s.Rerun(a.Window); !errors.Is(err, admin.ErrNotFound) {
		t.Fatal(err)
	}
	asks(t, s, a, claim.Run, claim.First)
	if _, err := s.Rerun(a.Window); !errors.Is(err, admin.ErrState) {
		t.Fatal(err)
	}
	if seq, err := s.Checkpoint(t.Context(), a, 0, json.RawMessage(`1`), "d"); err != nil || seq != 1 {
		t.Fatal(seq, err)
	}
	if _, err := s.Checkpoint(t.Context(), a, 0, json.RawMessage(`1`), "d"); !errors.Is(err, ledger.ErrCheckpoint) {
		t.Fatal(err)
	}
	completes(t, s, a, nil)
	releases(t, s, a, claim.OutcomeCompleted, claim.OutcomeCompleted)
	if err := s.CancelWindow(a.Window); !errors.Is(err, admin.ErrState) {
		t.Fatal(err)
	}
	if g, err := s.Rerun(a.Window); err != nil || g != 2 {
		t.Fatal(g, err)
	}
	if came, err := s.Prune("shop/a", a.Window.Start.Add(time.Hour)); err != nil || !came.Equal(a.Window.Start) {
		t.Fatalf("past a window that may be retried: %s, %v", came, err)
	}
	b := next(a, 0)
	if got := asks(t, s, b, claim.Run, claim.Retry); got.Generation != 2 {
		t.Fatalf("%+v", got)
	}
	if got, err := s.Stored(t.Context(), a.Window); err != nil || got.Checkpoint.Seq != 0 || got.Generation != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	completes(t, s, b, nil)
	releases(t, s, b, claim.OutcomeCompleted, claim.OutcomeCompleted)
	if came, err := s.Prune("shop/a", a.Window.Start.Add(time.Hour)); err != nil || !came.Equal(a.Window.Start.Add(time.Hour)) {
		t.Fatal(came, err)
	}
	asks(t, s, b, claim.Skip, claim.Closed)
	completes(t, s, b, ledger.ErrClosed)
	if _, err := s.Rerun(a.Window); !errors.Is(err, admin.ErrPruned) {
		t.Fatal(err)
	}
}
