package ledger_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
)

// A duplicate and a poll write nothing: no WAL, no transaction id.
func TestRefusedClaimWritesNothing(t *testing.T) {
	w := newWorld(t)
	done := attempt("shop/done")
	mustRun(t, w.l, done, claim.First)
	if err := w.l.Complete(t.Context(), done, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	old := w.a
	w.takeover(t)
	for name, c := range map[string]struct {
		attempt claim.Attempt
		reason  claim.Reason
	}{
		"completed":  {claim.Attempt{Window: done.Window, ExecutionID: uuid.New()}, claim.AlreadyCompleted},
		"busy":       {claim.Attempt{Window: w.a.Window, ExecutionID: uuid.New()}, claim.BusyHeld},
		"fence lost": {old, claim.FenceLost},
	} {
		t.Run(name, func(t *testing.T) {
			// Other tests of this binary use the server one after the other; autovacuum and the
			// checkpointer may still write a record, so the least of some tries counts.
			least := int64(1 << 40)
			for range 20 {
				before := value[string](t, w.owner, "SELECT pg_current_wal_insert_lsn()::text")
				for range 10 {
					if got, err := w.l.Claim(t.Context(), request(c.attempt)); err != nil || got.Reason != c.reason {
						t.Fatalf("%+v, %v", got, err)
					}
				}
				least = min(least, value[int64](t, w.owner, "SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::bigint", before))
			}
			if least != 0 {
				t.Fatalf("10 claims wrote %d bytes of WAL", least)
			}
		})
	}
}

// Every heartbeat stays on its page, while no old snapshot is held.
func TestHeartbeatsAreHOT(t *testing.T) {
	w := newWorld(t)
	const beats = 1000
	for range beats {
		if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatOK {
			t.Fatal(b, err)
		}
	}
	exec(t, w.owner, "SELECT pg_stat_force_next_flush()")
	waitFor(t, w, "SELECT n_tup_upd >= 1000 FROM pg_stat_user_tables WHERE relname = 'job_lease'")
	if got := value[int](t, w.owner, "SELECT n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_lease'"); got != 0 {
		t.Fatalf("%d of %d heartbeats were not HOT", got, beats)
	}
	if pages := value[int](t, w.owner, "SELECT pg_relation_size('onceguard.job_lease') / 8192"); pages > 2 {
		t.Fatalf("%d pages for one lease", pages)
	}
	// complete stays on its page too: nothing that it changes is indexed.
	if err := w.l.Complete(t.Context(), w.a, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	w.l.Close(t.Context()) // its session reports the counters
	waitFor(t, w, "SELECT n_tup_upd >= 1 AND n_tup_upd = n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_execution'")
}
