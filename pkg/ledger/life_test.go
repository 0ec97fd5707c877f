package ledger_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// One window from the first claim to the duplicate, as the guard goes through it.
func TestLifeOfAWindow(t *testing.T) {
	url := database(t)
	l := open(t, url)
	ctx := t.Context()
	if err := l.CheckSchema(ctx); err != nil {
		t.Fatal(err)
	}
	a := attempt("shop/order-sync")
	first := mustRun(t, l, a, claim.First)
	if first.Attempt != 1 || first.Generation != 1 || first.FencingToken == 0 {
		t.Fatalf("%+v", first)
	}
	if again := mustRun(t, l, a, claim.Adopted); again.FencingToken != first.FencingToken || again.Attempt != 1 {
		t.Fatalf("%+v", again)
	}
	if b, err := l.Heartbeat(ctx, a, lease); err != nil || b != claim.BeatOK {
		t.Fatal(b, err)
	}
	code := 3
	if got, err := l.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed, ExitCode: &code, Message: "bad\x00 \xff"}); err != nil || got != claim.OutcomeFailed {
		t.Fatal(got, err)
	}
	if b, err := l.Heartbeat(ctx, a, lease); err != nil || b != claim.BeatLost {
		t.Fatal(b, err)
	}

	b := attempt("shop/order-sync")
	second := mustRun(t, l, b, claim.Retry)
	if second.Attempt != 2 || second.FencingToken <= first.FencingToken {
		t.Fatalf("%+v after %+v", second, first)
	}
	if err := l.Complete(ctx, a, claim.Completion{}); !errors.Is(err, ledger.ErrFenced) {
		t.Fatal(err)
	}
	n := int64(7)
	done := claim.Completion{PayloadDigest: "p", RequestDigest: "r", Result: json.RawMessage(`{"a":1}`), Processed: &n}
	if err := l.Complete(ctx, b, done); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(ctx, b, done); err != nil {
		t.Fatal("again by the same attempt:", err)
	}
	zero := 0
	if got, err := l.Release(ctx, b, claim.End{Outcome: claim.OutcomeCompleted, ExitCode: &zero}); err != nil || got != claim.OutcomeCompleted {
		t.Fatal(got, err)
	}

	c := attempt("shop/order-sync")
	got, err := l.Claim(ctx, request(c))
	if err != nil || got.Verdict != claim.Skip || got.Reason != claim.AlreadyCompleted {
		t.Fatal(got, err)
	}
	if h := got.Holder; h.ExecutionID != b.ExecutionID || h.Attempt != 2 || h.Pod != "shop/order-sync-1-abc" || h.CompletedAt.IsZero() {
		t.Fatalf("%+v", h)
	}
	r := request(c)
	for range 2 {
		if err := l.RecordSkip(ctx, r, got.Reason); err != nil {
			t.Fatal(err)
		}
	}
	s, err := l.Stored(ctx, a.Window)
	if err != nil || s.Status != claim.Completed || s.ExecutionID != b.ExecutionID || s.RequestDigest != "r" || s.PayloadDigest != "p" ||
		*s.Processed != 7 || string(s.Result) != `{"a": 1}` || s.CompletedAt.IsZero() {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err := l.Stored(ctx, window.Window{JobName: "shop/none", Start: noon}); err != nil || s.Status != "" || s.Processed != nil {
		t.Fatalf("%+v, %v", s, err)
	}

	owner := session(t, url)
	if got := value[string](t, owner, `SELECT format('%s %s %s %s %s %s %s %s %s', state, attempts, duplicates_prevented, last_outcome, last_exit_code,
		processed, trigger, source, window_end = window_start + interval '1 hour') FROM onceguard.windows`); got != "done 2 1 completed 0 7 scheduled timestamp t" {
		t.Fatal(got)
	}
	if got := value[string](t, owner, `SELECT string_agg(format('%s %s %s %s', attempt, outcome, exit_code, message), '; ' ORDER BY attempt) FROM onceguard.attempts`); got != "1 failed 3 bad \uFFFD; 2 completed 0 " {
		t.Fatalf("%q", got)
	}
	if got := value[bool](t, owner, `SELECT latest_completed_window = $1 AND seconds_since_completed BETWEEN 0 AND 60 AND latest_state = 'done' FROM onceguard.jobs`, noon); !got {
		t.Fatal("view jobs")
	}
	if n := value[int](t, owner, "SELECT count(*) FROM onceguard.job_lease"); n != 0 {
		t.Fatal("leases left:", n)
	}
}

func TestResolve(t *testing.T) {
	url := database(t)
	l := open(t, url)
	ctx := t.Context()
	a := attempt("shop/a")
	mustRun(t, l, a, claim.First)
	fresh := uuid.New()
	for range 2 { // the second is the answer to a lost reply
		if r, err := l.Resolve(ctx, a, fresh); err != nil || r != claim.ResolvedNotCommitted {
			t.Fatal(r, err)
		}
	}
	old := a
	a.ExecutionID = fresh
	if b, err := l.Heartbeat(ctx, old, lease); err != nil || b != claim.BeatLost {
		t.Fatal(b, err)
	}
	if b, err := l.Heartbeat(ctx, a, lease); err != nil || b != claim.BeatOK {
		t.Fatal(b, err)
	}
	if got, err := l.Claim(ctx, request(old)); err != nil || got.Verdict != claim.Wait || got.Reason != claim.FenceLost {
		t.Fatal(got, err)
	}
	if err := l.Complete(ctx, a, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Resolve(ctx, a, uuid.New()); err != nil || r != claim.ResolvedCommitted {
		t.Fatal(r, err)
	}
	if r, err := l.Resolve(ctx, old, uuid.New()); err != nil || r != claim.ResolvedLost {
		t.Fatal(r, err)
	}
	if r, err := l.Resolve(ctx, attempt("shop/none"), uuid.New()); err != nil || r != claim.ResolvedLost {
		t.Fatal(r, err)
	}
}

// A dead holder's window is taken over, and its attempt is recorded lost with the end
// of its lease as its own.
func TestTakeover(t *testing.T) {
	url := database(t)
	l := open(t, url)
	owner := session(t, url)
	a, b := attempt("shop/a"), attempt("shop/a")
	mustRun(t, l, a, claim.First)
	got, err := l.Claim(t.Context(), request(b))
	if err != nil || got.Verdict != claim.Wait || got.Reason != claim.BusyHeld || got.Holder.ExecutionID != a.ExecutionID || time.Until(got.Holder.LeaseExpires) <= 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	age(t, owner, a)
	if s := value[string](t, owner, "SELECT state FROM onceguard.windows"); s != "lease ended" {
		t.Fatal(s)
	}
	mustRun(t, l, b, claim.Takeover)
	if got, err := l.Release(t.Context(), a, claim.End{Outcome: claim.OutcomeStopped, Message: "late"}); err != nil || got != "" {
		t.Fatal(got, err)
	}
	if s := value[string](t, owner, "SELECT outcome || ' ' || message || ' ' || (ended_at < clock_timestamp()) FROM onceguard.attempts WHERE attempt = 1"); s != "lost late true" {
		t.Fatal(s)
	}
}
