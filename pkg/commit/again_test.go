package commit

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

// A window that this very attempt has completed, and the guard does not know it: it was
// killed at COMMIT and its successor holds the attempt. Who asks again must not be told
// 200 before the guard is: it would take the exit that follows for one without a commit.
func TestACommitThatTheGuardMissedIsToldToIt(t *testing.T) {
	b := newBench(t)
	b.must(insert)
	b.holder.committed = false
	if a := b.must(insert); !a.Replayed || !b.holder.committed {
		t.Errorf("%+v, the guard was told: %v", a, b.holder.committed)
	}
	b.holder.committed = false
	_, err := b.post(`{"result":2}`)
	b.wants(err, OtherRequest)
	if !b.holder.committed {
		t.Error("the guard was not told")
	}
}

// Who asks again while the ledger cannot be reached must not be told that nothing is
// committed: the guard holds no attempt any more because its commit was made.
func TestACommitIsNotDeniedWithoutTheLedger(t *testing.T) {
	b := newBench(t)
	b.must(insert)
	b.Committer.ledger = unreadable{b.ledger}
	_, err := b.post(insert)
	b.wants(err, Unavailable)
	b.Committer.ledger = b.ledger
	if a := b.must(insert); !a.Replayed {
		t.Errorf("%+v", a)
	}
}

// unreadable is a ledger that does not say what is stored.
type unreadable struct{ *ledger.Ledger }

func (unreadable) Stored(context.Context, window.Window) (claim.Stored, error) {
	return claim.Stored{}, ledger.ErrUnavailable
}

// Another attempt has completed it: the worker gets its answer, the guard stops the worker.
func TestAWindowThatAnotherAttemptCompleted(t *testing.T) {
	b := newBench(t)
	b.must(insert)
	b.holder.id, b.holder.committed = uuid.New(), false
	if a := b.must(insert); !a.Replayed || b.holder.committed || !b.holder.fenced {
		t.Errorf("%+v, committed %v, fenced %v", a, b.holder.committed, b.holder.fenced)
	}
}

// The client gives up while COMMIT runs: the guard is told all the same.
func TestClientGoneDuringCommit(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$`)
	b.exec(`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
	c, err := pgx.Connect(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if _, err := c.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	r, err := Parse([]byte(insert))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Commit(ctx, r)
		done <- err
	}()
	for b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'advisory'`) == "0" {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if _, err := c.Exec(t.Context(), "SELECT pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !b.holder.committed || b.state() != "1 completed" {
		t.Errorf("%v, the guard was told: %v, state %s", err, b.holder.committed, b.state())
	}
}

// A restarted guard that is still asking the ledger is no reason to stop the worker.
func TestPendingIsNotFinal(t *testing.T) {
	b := newBench(t)
	b.holder.pending = true
	_, err := b.post(insert)
	b.wants(err, Unavailable)
	b.holder.pending = false
	b.must(insert)
}

// An unknown COMMIT of an attempt that is over must not answer the next attempt's request.
func TestUnknownCommitOfAnEarlierAttempt(t *testing.T) {
	b := newBench(t)
	old := claim.Attempt{Window: theWindow, ExecutionID: b.holder.id}
	b.unknown = &unknown{attempt: old, next: uuid.New()}
	if _, err := b.ledger.Release(t.Context(), old, claim.End{Outcome: claim.OutcomeFailed}); err != nil {
		t.Fatal(err)
	}
	b.holder.id = uuid.New()
	a, err := b.ledger.Claim(t.Context(), claim.Request{Attempt: claim.Attempt{Window: theWindow, ExecutionID: b.holder.id}, Lease: time.Hour})
	if err != nil || a.Verdict != claim.Run {
		t.Fatal(a, err)
	}
	b.must(insert)
	if got := b.state(); got != "1 completed" {
		t.Error(got)
	}
}

// What a worker's own deferred trigger misses at COMMIT is not the ledger's trouble.
func TestDeferredTriggerOfTheWorker(t *testing.T) {
	for _, code := range []string{"42P01", "42501", "42883", "3F000", "28000", "XX000"} {
		b := newBench(t)
		b.exec(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no such thing' USING ERRCODE = '` + code + `'; END $$`)
		b.exec(`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
		_, err := b.post(insert)
		if e := b.refusal(err, Refused); e.SQLState != code {
			t.Errorf("%s: %+v", code, e)
		}
	}
}

// SQL of the worker cannot make the commit one that is answered before it is safe.
func TestTheCommitIsDurableWhateverTheWorkerSets(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE book SET note = current_setting('synchronous_commit'); RETURN NULL; END $$`)
	b.exec(`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
	b.must(`{"statements":[{"sql":"INSERT INTO book(n) VALUES (1)"},{"sql":"SELECT set_config('synchronous_commit', 'off', true)"}]}`)
	if got := b.text(`SELECT note FROM book`); got != "on" {
		t.Errorf("at COMMIT synchronous_commit was %s", got)
	}
}

// A commit that no standby has is not replayed as a success: a failover could lose it.
func TestReplayIsDurable(t *testing.T) {
	s, err := postgres.Start(t.Context(), postgres.Options{NoSync: true})
	if err != nil {
		postgres.Unavailable(t, err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), postgres.Immediate) })
	b := benchAt(t, s.NewDatabase(t))
	b.must(insert)
	standby := func(names string) {
		s.Exec(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
		for b.text(`SHOW synchronous_standby_names`) != names {
			time.Sleep(10 * time.Millisecond)
		}
	}
	t.Cleanup(func() {
		s.Exec(t, "postgres", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	})
	standby("missing")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		r, err := Parse([]byte(insert))
		if err == nil {
			_, err = b.Commit(ctx, r)
		}
		done <- err
	}()
	for b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) == "0" {
		select {
		case err := <-done:
			t.Fatalf("answered %v before the standby had the commit", err)
		default:
			time.Sleep(10 * time.Millisecond)
		}
	}
	cancel()
	b.wants(<-done, Unavailable)
	standby("")
	if a := b.must(insert); !a.Replayed {
		t.Error("not replayed")
	}
}
