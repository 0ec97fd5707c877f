package ledgertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// Subject is a ledger under test.
type Subject struct {
	API
	People
	Engine
	// Expire ends the lease of a window, as time would.
	Expire func(window.Window)
}

const lease = 30 * time.Second

// Run tests what every implementation promises. open gives an empty ledger.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Subject)
	}{
		{"first, adopted, busy", testBusy},
		{"a failed attempt frees the window", testRetry},
		{"a dead attempt is taken over and fenced", testTakeover},
		{"an ended lease is renewed while nobody took over", testRenewal},
		{"completed once, then skipped", testCompleted},
		{"an execution_id has a window once", testOnce},
		{"an unknown commit is resolved", testResolve},
		{"windows and jobs are apart", testApart},
		{"a window belongs to a payload", testPayload},
		{"exhausted, and reopened", testAttempts},
		{"held after a crash", testHold},
		{"too late", testLate},
		{"overlap", testOverlap},
		{"replace", testReplace},
		{"serial order", testOrder},
		{"checkpoints, and what people decide", testPeople},
		{"order closes only what never ran", testOrderKeepsTheTried},
		{"order begins when nothing earlier runs", testOrderBegins},
		{"a rerun in order", testOrderRerun},
		{"an index that is new in order", testOrderOfANewIndex},
		{"a rerun is replaced, not lost", testReplaceAndRerun},
		{"a replacement is not late", testReplaceIsNotLate},
		{"a replacement is called off", testReplaceIsCalledOff},
		{"separate runs are only waited for", testSeparate},
		{"what was closed after a person asked", testReopenBefore},
		{"late, though claimed before", testLateAfterNothing},
		{"planned windows are not closed", testPlanned},
		{"planned windows are replaced, not lost", testReplacePlanned},
		{"order waits for planned windows", testOrderOfPlans},
		{"order and the plans of an Indexed job", testOrderOfPlansWithIndexes},
		{"order passes over what never comes", testOrderPassesGaps},
		{"a gap never stops a window", testGap},
		{"a civil time that comes twice", testRepeats},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func fresh(job string) claim.Attempt {
	return claim.Attempt{Window: window.Window{JobName: job, Start: time.Date(2026, 3, 1, 2, 30, 0, 0, time.UTC)}, ExecutionID: uuid.New()}
}

func request(a claim.Attempt) claim.Request {
	return claim.Request{Attempt: a, Lease: lease, Origin: claim.Origin{Namespace: "shop", Pod: "p-" + a.ExecutionID.String()[:8]}}
}

func asks(t *testing.T, s Subject, a claim.Attempt, verdict claim.Verdict, reason claim.Reason) claim.Answer {
	t.Helper()
	got, err := s.Claim(t.Context(), request(a))
	if err != nil || got.Verdict != verdict || got.Reason != reason {
		t.Fatalf("claim: %+v, %v; want %s, %s", got, err, verdict, reason)
	}
	return got
}

func beats(t *testing.T, s Subject, a claim.Attempt, want claim.Beat) {
	t.Helper()
	if got, err := s.Heartbeat(t.Context(), a, lease); err != nil || got != want {
		t.Fatalf("heartbeat: %s, %v; want %s", got, err, want)
	}
}

func releases(t *testing.T, s Subject, a claim.Attempt, outcome, want claim.Outcome) {
	t.Helper()
	if got, err := s.Release(t.Context(), a, claim.End{Outcome: outcome}); err != nil || got != want {
		t.Fatalf("release: %q, %v; want %q", got, err, want)
	}
}

func completes(t *testing.T, s Subject, a claim.Attempt, want error) {
	t.Helper()
	if err := s.Complete(t.Context(), a, claim.Completion{RequestDigest: "d"}); !errors.Is(err, want) {
		t.Fatalf("complete: %v; want %v", err, want)
	}
}

func resolves(t *testing.T, s Subject, a claim.Attempt, id uuid.UUID, want claim.Resolution) {
	t.Helper()
	if got, err := s.Resolve(t.Context(), a, id); err != nil || got != want {
		t.Fatalf("resolve: %s, %v; want %s", got, err, want)
	}
}

func testBusy(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), fresh("shop/a")
	first := asks(t, s, a, claim.Run, claim.First)
	again := asks(t, s, a, claim.Run, claim.Adopted)
	if first.Attempt != 1 || first.Generation != 1 || again.Attempt != 1 || again.FencingToken != first.FencingToken {
		t.Fatalf("%+v, %+v", first, again)
	}
	h := asks(t, s, b, claim.Wait, claim.BusyHeld).Holder
	if h.ExecutionID != a.ExecutionID || h.Attempt != 1 || h.Pod != "shop/"+request(a).Origin.Pod || h.LeaseExpires.IsZero() || !h.CompletedAt.IsZero() {
		t.Fatalf("%+v", h)
	}
	beats(t, s, a, claim.BeatOK)
	beats(t, s, b, claim.BeatLost)
}

func testRetry(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), fresh("shop/a")
	first := asks(t, s, a, claim.Run, claim.First)
	releases(t, s, b, claim.OutcomeFailed, "")
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed) // the answer was lost
	beats(t, s, a, claim.BeatLost)
	completes(t, s, a, ledger.ErrFenced)
	second := asks(t, s, b, claim.Run, claim.Retry)
	if second.Attempt != 2 || second.FencingToken <= first.FencingToken {
		t.Fatalf("%+v after %+v", second, first)
	}
}

func testTakeover(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), fresh("shop/a")
	asks(t, s, a, claim.Run, claim.First)
	asks(t, s, b, claim.Wait, claim.BusyHeld)
	s.Expire(a.Window)
	asks(t, s, b, claim.Run, claim.Takeover)
	beats(t, s, a, claim.BeatLost)
	completes(t, s, a, ledger.ErrFenced)
	releases(t, s, a, claim.OutcomeStopped, "")
	asks(t, s, a, claim.Wait, claim.FenceLost)
	completes(t, s, b, nil)
}

func testRenewal(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), fresh("shop/a")
	asks(t, s, a, claim.Run, claim.First)
	s.Expire(a.Window)
	beats(t, s, a, claim.BeatOK)
	asks(t, s, b, claim.Wait, claim.BusyHeld)
	s.Expire(a.Window)
	asks(t, s, a, claim.Run, claim.Adopted)
	asks(t, s, b, claim.Wait, claim.BusyHeld)
	s.Expire(a.Window)
	completes(t, s, a, nil)
}

func testCompleted(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), fresh("shop/a")
	asks(t, s, a, claim.Run, claim.First)
	completes(t, s, a, nil)
	completes(t, s, a, nil) // the answer was lost
	completes(t, s, b, ledger.ErrCompleted)
	h := asks(t, s, b, claim.Skip, claim.AlreadyCompleted).Holder
	if h.ExecutionID != a.ExecutionID || h.CompletedAt.IsZero() || !h.LeaseExpires.IsZero() {
		t.Fatalf("%+v", h)
	}
	asks(t, s, a, claim.Skip, claim.AlreadyCompleted)
	beats(t, s, a, claim.BeatOK)                                   // the worker may go on after its commit
	releases(t, s, a, claim.OutcomeFailed, claim.OutcomeCompleted) // it is told the truth
	releases(t, s, a, claim.OutcomeUncommitted, claim.OutcomeCompleted)
	beats(t, s, a, claim.BeatLost)
	asks(t, s, b, claim.Skip, claim.AlreadyCompleted)
	got, err := s.Stored(t.Context(), a.Window)
	if err != nil || got.Status != claim.Completed || got.ExecutionID != a.ExecutionID || got.RequestDigest != "d" {
		t.Fatalf("%+v, %v", got, err)
	}
	for range 2 {
		if err := s.RecordSkip(t.Context(), request(b), claim.AlreadyCompleted); err != nil {
			t.Fatal(err)
		}
	}
}

func testOnce(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), fresh("shop/a")
	asks(t, s, a, claim.Run, claim.First)
	releases(t, s, a, claim.OutcomeCrashed, claim.OutcomeCrashed)
	asks(t, s, a, claim.Wait, claim.FenceLost)
	asks(t, s, b, claim.Run, claim.Retry)
	releases(t, s, b, claim.OutcomeNotStarted, claim.OutcomeNotStarted)
	asks(t, s, a, claim.Wait, claim.FenceLost)
	if _, err := s.Release(t.Context(), claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}, claim.End{Outcome: claim.OutcomeUncommitted}); err != nil {
		t.Fatal(err)
	}
}

func testResolve(t *testing.T, s Subject) {
	a := fresh("shop/a")
	asks(t, s, a, claim.Run, claim.First)
	next := a
	next.ExecutionID = uuid.New()
	resolves(t, s, a, next.ExecutionID, claim.ResolvedNotCommitted)
	resolves(t, s, a, next.ExecutionID, claim.ResolvedNotCommitted) // the answer was lost
	completes(t, s, a, ledger.ErrFenced)
	beats(t, s, a, claim.BeatLost)
	beats(t, s, next, claim.BeatOK)
	asks(t, s, a, claim.Wait, claim.FenceLost)
	asks(t, s, next, claim.Run, claim.Adopted)
	completes(t, s, next, nil)
	resolves(t, s, next, uuid.New(), claim.ResolvedCommitted)
	resolves(t, s, a, uuid.New(), claim.ResolvedLost)
	resolves(t, s, fresh("shop/none"), uuid.New(), claim.ResolvedLost)
}

func testApart(t *testing.T, s Subject) {
	for i := range 4 {
		a := fresh(fmt.Sprintf("shop/job-%d", i/2))
		a.Window.Start = a.Window.Start.Add(time.Duration(i%2) * time.Minute)
		asks(t, s, a, claim.Run, claim.First)
		completes(t, s, a, nil)
	}
}
