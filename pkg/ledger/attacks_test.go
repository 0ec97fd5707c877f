package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

// Attacks that broke simpler ledgers, and the tests that hold the rule against each:
//
//	work half rolled back, the window done       TestBarrier (ROLLBACK AND CHAIN, one pipeline, savepoints)
//	two transactions of one attempt              TestBarrier (second transaction of the same attempt)
//	an unknown COMMIT read instead of fenced     TestResolveFencesARunningBackend, TestCommitting, TestResolveOfAPiece, outage_test.go
//	lease ended, but the fence is not lost       TestOverlapFencesTheDead; write skew: TestOverlapWriteSkew
//	a zombie's checkpoint, old snapshots         TestCheckpointOfAZombie
//	a takeover decided before the locks          TestHeartbeatAgainstTakeover, TestTakeoverAgainstHeartbeat, TestTakeoverJudgedBeforeItsLocks
//	a claim that waits for a commit              TestCommitting, TestClaimThatWaitsForACommit
//	prune beside a claim                         TestPruneAgainstClaim
//	a plan made beside a claim                   TestPlanAgainstClaim
//	WAL for every poll; heartbeats not HOT       TestProveRefusedClaimWritesNothing, TestProveHeartbeatsAreHOT
//	a lost answer to claim                       ledgertest (adopted), TestConcurrentClaims
//	tokens that fall after an upgrade            TestFencingTokenGrowsWithTheEpoch
//	replace: two at once                         TestReplace; serial: never closed, deadlock: TestSerial
//	nobody writes for a dead guard               TestHeldAfterACrash
//	rerun under the same idempotency key         TestRerun, package admin
//	two separate runs in one second              TestSeparateRunsAndIndexes
//	a zombie that keeps business locks           TestFrozenTransactionGivesItsLocksBack
//	claim or heartbeat in an armed transaction   TestArmedTransactionRefusesTheRest
//	other isolation levels                       TestIsolation, TestCheckpointOfAZombie
//	immediate constraints, replica role          TestBarrier, TestBarrierIsAlwaysEnabled, TestBarrierLetsHonestTransactionsPass
//	tenants: operators, SET ROLE, default rights TestTenantIsConfined, TestGrantsFollowTheLogin, package migrate
//	poolers                                      pooler_test.go
//	PREPARE TRANSACTION                          TestCommitting (prepared)
//	a row that a failover lost                   TestVanishedRowIsLost

// With the lease only read, not locked, a takeover goes on although the holder's
// heartbeat was answered ok meanwhile.
func TestTakeoverJudgedBeforeItsLocks(t *testing.T) {
	w := newWorld(t)
	mutate(t, w.owner, "claim", "FOR NO KEY UPDATE SKIP LOCKED;\n            IF NOT FOUND AND EXISTS (\n                SELECT FROM onceguard.job_lease",
		";\n            IF NOT FOUND AND EXISTS (\n                SELECT FROM onceguard.job_lease")
	age(t, w.owner, w.a)
	c := session(t, w.url)
	exec(t, c, "BEGIN")
	if b := value[string](t, c, "SELECT onceguard.heartbeat($1, $2, $3, '30s')", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String()); b != "ok" {
		t.Fatal(b)
	}
	answer := make(chan claim.Answer, 1)
	go func() {
		got, err := w.l.Claim(context.Background(), request(later(w.a, 0)))
		if err != nil {
			t.Error(err)
		}
		answer <- got
	}()
	waitFor(t, w, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%claim%')")
	exec(t, c, "COMMIT")
	if got := <-answer; got.Reason != claim.Takeover {
		t.Fatalf("%+v: TestHeartbeatAgainstTakeover would not notice a missing lock", got)
	}
}

// With the execution row waited for instead of passed over, a claim ends in a lock
// timeout, and holds up all windows of the job until then.
func TestClaimThatWaitsForACommit(t *testing.T) {
	w := newWorld(t)
	mutate(t, w.owner, "claim", "FOR NO KEY UPDATE SKIP LOCKED;\n            locked :=", "FOR NO KEY UPDATE;\n            locked :=")
	c := session(t, w.url)
	begin(t, c, w.a)
	if err := complete(t.Context(), c, w.a); err != nil {
		t.Fatal(err)
	}
	age(t, w.owner, w.a)
	_, err := session(t, w.url).Exec(t.Context(), "SELECT onceguard.claim($1, $2, $3, '30s')", w.a.Window.JobName, w.a.Window.Start, uuid.NewString())
	wantCode(t, err, "55P03")
}

// Whichever of prune and claim comes first, no window below the watermark runs.
func TestPruneAgainstClaim(t *testing.T) {
	const claimSQL = "SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, $3, '30s')"
	old := time.Date(2021, 5, 1, 0, 0, 0, 0, time.UTC)
	upto := old.Add(24 * time.Hour)
	waiting := func(t *testing.T, w *world, what string) {
		t.Helper()
		waitFor(t, w, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%"+what+"(%')")
	}
	t.Run("the claim was first", func(t *testing.T) {
		w := newWorld(t)
		c, p := session(t, w.url), session(t, w.url)
		exec(t, c, "BEGIN")
		if v := value[string](t, c, claimSQL, w.a.Window.JobName, old, uuid.NewString()); v != "run first" {
			t.Fatal(v)
		}
		came := make(chan time.Time, 1)
		go func() {
			at, err := admin.Prune(context.Background(), p, w.a.Window.JobName, upto)
			if err != nil {
				t.Error(err)
			}
			came <- at
		}()
		waiting(t, w, "prune")
		exec(t, c, "COMMIT")
		if at := <-came; !at.Equal(old) {
			t.Fatalf("prune came to %s, past a running window of %s", at, old)
		}
	})
	pruneFirst := func(t *testing.T, w *world) string {
		p := session(t, w.url)
		exec(t, p, "BEGIN")
		exec(t, p, "SELECT onceguard.prune($1, $2)", w.a.Window.JobName, upto)
		c := session(t, w.url)
		verdict := make(chan string, 1)
		go func() {
			var v string
			if err := c.QueryRow(context.Background(), claimSQL, w.a.Window.JobName, old, uuid.NewString()).Scan(&v); err != nil {
				t.Error(err)
			}
			verdict <- v
		}()
		waiting(t, w, "claim")
		exec(t, p, "COMMIT")
		return <-verdict
	}
	t.Run("prune was first", func(t *testing.T) {
		if v := pruneFirst(t, newWorld(t)); v != "skip closed" {
			t.Fatal(v)
		}
	})
	t.Run("without the second look at the watermark", func(t *testing.T) {
		w := newWorld(t)
		mutate(t, w.owner, "claim", "SELECT t.closed_before INTO closed FROM onceguard.job t WHERE t.name = base FOR NO KEY UPDATE", "PERFORM FROM onceguard.job t WHERE t.name = base FOR NO KEY UPDATE")
		if v := pruneFirst(t, w); v != "run first" {
			t.Fatalf("%s: the test would not notice it", v)
		}
	})
}

// A rerun of a completed window is another work: its generation, a part of the
// idempotency key, is new, nothing is continued, and the former completion is kept.
func TestRerun(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	if _, err := w.l.Checkpoint(ctx, w.a, 0, []byte(`1`), ""); err != nil {
		t.Fatal(err)
	}
	if err := w.l.Complete(ctx, w.a, claim.Completion{RequestDigest: "r", PayloadDigest: "p", Result: []byte(`{"n": 1}`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Rerun(ctx, w.owner, w.a.Window, "alice", "wrong rates"); err == nil {
		t.Fatal("its worker still has the lease")
	}
	if _, err := w.l.Release(ctx, w.a, claim.End{Outcome: claim.OutcomeCompleted}); err != nil {
		t.Fatal(err)
	}
	if g, err := admin.Rerun(ctx, w.owner, w.a.Window, "alice", "wrong rates"); err != nil || g != 2 {
		t.Fatal(g, err)
	}
	b := later(w.a, 0)
	got := w.asks(t, under(b, claim.Terms{MaxAttempts: 1, StartDeadline: time.Second, PayloadDigest: "q", Serial: true}), claim.Run, claim.Retry)
	if got.Generation != 2 || got.Attempt != 2 {
		t.Fatalf("%+v", got)
	}
	s, err := w.l.Stored(ctx, w.a.Window)
	if err != nil || s.Checkpoint.Seq != 0 || s.RequestDigest != "" || s.PayloadDigest != "q" {
		t.Fatalf("%+v, %v", s, err)
	}
	if kept := value[string](t, w.owner, "SELECT before ->> 'request_digest' || (before ->> 'result') FROM onceguard.job_decision"); kept != `r{"n": 1}` {
		t.Fatal(kept)
	}
	if v := value[string](t, w.owner, "SELECT who || why || what || (before ? 'result')::text FROM onceguard.decisions"); v != "alicewrong ratesrerunfalse" {
		t.Fatal(v)
	}
	if v := value[string](t, w.owner, "SELECT string_agg(generation || outcome, ' ' ORDER BY attempt) FROM onceguard.attempts"); v != "1completed 2running" {
		t.Fatal(v)
	}
	if err := w.l.Complete(ctx, b, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
}

// Separate manual runs of one second and the indexes of an Indexed Job are windows of
// their own under one job: one lock, one watermark. A separate run overlaps with the
// scheduled window, the indexes of a window do not.
func TestSeparateRunsAndIndexes(t *testing.T) {
	w := newWorld(t)
	wait := claim.Terms{Overlap: contract.OverlapWait, Serial: true}
	named := func(suffix string) claim.Request {
		a := attempt(w.a.Window.JobName + suffix)
		a.Window.Start = noon
		return under(a, wait)
	}
	got := w.asks(t, named("@u1"), claim.Wait, claim.Overlap)
	if got.Holder.Window != w.a.Window {
		t.Fatalf("%+v", got)
	}
	w.asks(t, named("#0"), claim.Run, claim.First)
	w.asks(t, named("#1"), claim.Run, claim.First)
	w.asks(t, named("#1@u1"), claim.Wait, claim.Overlap)
	if _, err := w.l.Release(t.Context(), w.a, claim.End{Outcome: claim.OutcomeFailed}); err != nil {
		t.Fatal(err)
	}
	u1 := named("@u1")
	w.asks(t, u1, claim.Run, claim.First)
	w.asks(t, named("@u2"), claim.Wait, claim.Overlap)
	if err := w.l.Complete(t.Context(), u1.Attempt, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	w.asks(t, named("@u2"), claim.Run, claim.First)
	if n := value[int](t, w.owner, "SELECT count(*) FROM onceguard.job"); n != 1 {
		t.Fatalf("%d job rows", n)
	}
	exec(t, w.owner, "UPDATE onceguard.job SET closed_before = $1", noon.Add(time.Hour))
	w.asks(t, named("#7"), claim.Skip, claim.Closed)
	w.asks(t, named("@u3"), claim.Skip, claim.Closed)
}
