package ledger_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/test/prove"
)

// wal is how many bytes of WAL something writes: the least of some tries, because
// autovacuum and the checkpointer may still write a record of their own.
func wal(t *testing.T, owner *pgx.Conn, tries int, do func()) int64 {
	t.Helper()
	least := int64(1 << 40)
	for range tries {
		before := value[string](t, owner, "SELECT pg_current_wal_insert_lsn()::text")
		do()
		least = min(least, value[int64](t, owner, "SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::bigint", before))
		if least == 0 {
			break
		}
	}
	return least
}

// An answer that changes nothing writes nothing: no WAL, no transaction id.
func TestProveRefusedClaimWritesNothing(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	fresh := func(job string) claim.Attempt { return attempt("shop/" + job) }
	runs := func(job string, terms claim.Terms) claim.Attempt {
		a := fresh(job)
		w.asks(t, under(a, terms), claim.Run, claim.First)
		return a
	}
	ends := func(a claim.Attempt, o claim.Outcome) claim.Attempt {
		if _, err := w.l.Release(ctx, a, claim.End{Outcome: o}); err != nil {
			t.Fatal(err)
		}
		return claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}
	}
	again := func(a claim.Attempt) claim.Attempt { return claim.Attempt{Window: a.Window, ExecutionID: uuid.New()} }
	const skip, wait, replace = contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace

	done := runs("done", claim.Terms{PayloadDigest: "one"})
	if err := w.l.Complete(ctx, done, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	closed := runs("closed", claim.Terms{})
	exec(t, w.owner, "UPDATE onceguard.job SET closed_before = $1 WHERE name = 'shop/closed'", noon.Add(time.Hour))
	lost := w.a
	w.takeover(t)
	held := ends(runs("held", claim.Terms{}), claim.OutcomeCrashed)
	w.asks(t, under(held, claim.Terms{HoldOnCrash: true}), claim.Refuse, claim.IsHeld)
	exhausted := ends(runs("exhausted", claim.Terms{}), claim.OutcomeFailed)
	w.asks(t, under(exhausted, claim.Terms{MaxAttempts: 1}), claim.Refuse, claim.IsExhausted)
	late := fresh("late")
	late.Window.Start = noon.AddDate(-10, 0, 0)
	lateTerms := claim.Terms{StartDeadline: time.Minute}
	w.asks(t, under(late, lateTerms), claim.Skip, claim.Late)
	lane := runs("lane", claim.Terms{})
	overlapped := later(lane, time.Hour)
	w.asks(t, under(overlapped, claim.Terms{Overlap: skip}), claim.Skip, claim.Overlap)
	tried := ends(runs("tried", claim.Terms{}), claim.OutcomeFailed)
	w.asks(t, under(later(tried, time.Hour), claim.Terms{}), claim.Run, claim.First)
	superseded := later(lane, -time.Hour)
	w.asks(t, under(superseded, claim.Terms{Overlap: replace}), claim.Skip, claim.Superseded)
	cancelled := fresh("cancelled")
	if err := admin.Cancel(ctx, w.owner, cancelled.Window, "alice", "holiday"); err != nil {
		t.Fatal(err)
	}
	repeat := claim.Terms{Repeats: noon.Add(-time.Hour)}
	repeated := fresh("repeated")
	w.asks(t, under(repeated, repeat), claim.Skip, claim.DST)
	engine := people{ctx, w.owner}
	planned, gaps := fresh("planned"), fresh("gaps")
	if err := engine.Plan(planned.Window); err != nil {
		t.Fatal(err)
	}
	for minutes, status := range []disposition.Status{disposition.Late, disposition.Missed} {
		at := later(gaps, time.Duration(minutes)*time.Minute).Window.Start
		if err := engine.Judge(gaps.Window.JobName, "one", at, at, status); err != nil {
			t.Fatal(err)
		}
	}
	replacing := later(runs("replaced", claim.Terms{}), time.Hour)
	w.asks(t, under(replacing, claim.Terms{Overlap: replace}), claim.Wait, claim.Replacing)

	cases := []struct {
		attempt claim.Attempt
		terms   claim.Terms
		verdict claim.Verdict
		reason  claim.Reason
	}{
		{again(closed), claim.Terms{}, claim.Skip, claim.Closed},
		{again(done), claim.Terms{PayloadDigest: "two"}, claim.Refuse, claim.PayloadConflict},
		{again(done), claim.Terms{}, claim.Skip, claim.AlreadyCompleted},
		{lost, claim.Terms{}, claim.Wait, claim.FenceLost},
		{again(held), claim.Terms{HoldOnCrash: true}, claim.Refuse, claim.IsHeld},
		{again(exhausted), claim.Terms{MaxAttempts: 1}, claim.Refuse, claim.IsExhausted},
		{again(late), lateTerms, claim.Skip, claim.Late},
		{again(overlapped), claim.Terms{Overlap: skip}, claim.Skip, claim.Overlap},
		{again(superseded), claim.Terms{Overlap: replace}, claim.Skip, claim.Superseded},
		{again(cancelled), claim.Terms{}, claim.Skip, claim.Cancelled},
		{again(w.a), claim.Terms{}, claim.Wait, claim.BusyHeld},
		{later(lane, 2*time.Hour), claim.Terms{Overlap: wait}, claim.Wait, claim.Overlap},
		{again(tried), claim.Terms{Overlap: skip}, claim.Wait, claim.Overlap},
		{again(replacing), claim.Terms{Overlap: replace}, claim.Wait, claim.Replacing},
		{later(lane, 3*time.Hour), claim.Terms{Serial: true}, claim.Wait, claim.Order},
		{fresh("unknown"), claim.Terms{Serial: true, Previous: noon.Add(-time.Hour)}, claim.Wait, claim.Order},
		{again(repeated), repeat, claim.Skip, claim.DST},
		{later(planned, time.Hour), claim.Terms{Serial: true}, claim.Wait, claim.Order},
		{later(gaps, 2*time.Minute), claim.Terms{Serial: true, Previous: noon.Add(time.Minute)}, claim.Wait, claim.Order},
	}
	for _, c := range cases {
		bytes := wal(t, w.owner, 20, func() {
			for range 10 {
				w.asks(t, under(c.attempt, c.terms), c.verdict, c.reason)
			}
		})
		if bytes != 0 {
			t.Errorf("%s, %s: 10 claims wrote %d bytes of WAL", c.verdict, c.reason, bytes)
		}
	}

	n := 0
	won := wal(t, w.owner, 10, func() {
		n++
		w.asks(t, request(later(fresh("won"), time.Duration(n)*time.Minute)), claim.Run, claim.First)
	})
	completed := wal(t, w.owner, 10, func() {
		n++
		a := later(fresh("won"), time.Duration(n)*time.Minute)
		w.asks(t, request(a), claim.Run, claim.First)
		if err := w.l.Complete(ctx, a, claim.Completion{}); err != nil {
			t.Fatal(err)
		}
	})
	prove.Report(t, "a claim that changes nothing writes nothing", "0 bytes of WAL for each of %d answers; a won claim writes %d bytes, its completion %d", len(cases), won, completed-won)
}

// Every heartbeat stays on its page while no old snapshot is held; with one held none is
// lost.
func TestProveHeartbeatsAreHOT(t *testing.T) {
	w := newWorld(t)
	beats := prove.Times(1000, 20_000)
	updates := func() (all, hot int) {
		t.Helper()
		w.l.Close(t.Context()) // its session reports the counters
		exec(t, w.owner, "SELECT pg_stat_force_next_flush()")
		if err := w.owner.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'onceguard.job_lease'::regclass").Scan(&all, &hot); err != nil {
			t.Fatal(err)
		}
		return all, hot
	}
	beat := func() {
		t.Helper()
		for range beats {
			if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatOK {
				t.Fatal(b, err)
			}
		}
		w.l.Close(t.Context())
	}
	seen := func(n int) (all, hot int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if all, hot = updates(); all >= n {
				return all, hot
			}
			if time.Now().After(end) {
				t.Fatalf("%d of %d updates were counted", all, n)
			}
		}
	}
	beat()
	free, hot := seen(beats)
	if free != hot {
		t.Errorf("%d of %d heartbeats were not HOT", free-hot, free)
	}
	if pages := value[int](t, w.owner, "SELECT pg_relation_size('onceguard.job_lease') / 8192"); pages > 2 {
		t.Errorf("%d pages for one lease", pages)
	}
	// A long transaction elsewhere in the database, a dump for instance.
	old := session(t, w.url)
	exec(t, old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	exec(t, old, "SELECT 1")
	beat()
	held, heldHot := seen(free + beats)
	exec(t, old, "COMMIT")
	// complete stays on its page too: nothing that it changes is indexed.
	if err := w.l.Complete(t.Context(), w.a, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	w.l.Close(t.Context())
	waitFor(t, w, "SELECT n_tup_upd >= 1 AND n_tup_upd = n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_execution'")
	prove.Report(t, "heartbeats leave nothing behind", "%d of %d HOT; with an old snapshot held %d of %d, and none lost",
		hot, free, heldHot-hot, held-free)
}
