package drivers_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/test/postgres"
)

const (
	nothing = "0 units, 0 bookings, "
	booked  = "10 units, 1 bookings, completed"
)

// Under the guard a window is done once: the second run is not even started.
func TestOnceUnderTheGuard(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.guarded(w, w.credit...).exits(0)
		s.is(booked)
		if said := s.guarded(w, w.credit...).exits(0); !strings.Contains(said, "was completed by attempt 1") {
			t.Error(said)
		}
		s.is(booked)
	})
}

// The worker itself finds the window done, and that is a success.
func TestDoneAlready(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		execution := s.claim()
		s.start(w, w.credit, s.url, execution).exits(0)
		s.is(booked)
		if said := s.start(w, w.credit, s.url, execution).exits(0); !strings.Contains(said, "OG002") {
			t.Error(said)
		}
		s.is(booked)
	})
}

func TestTakenOverBeforeItBegins(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		execution := s.claim()
		s.expire()
		s.claim()
		if said := s.start(w, w.credit, s.url, execution).exits(75); !strings.Contains(said, "OG001") {
			t.Error(said)
		}
		s.is(nothing + "running")
	})
}

// Between begin and complete too: the new holder is the only one who can complete.
func TestTakenOverWhileItWorks(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		execution := s.claim()
		s.exec("BEGIN", "SELECT FROM balance FOR UPDATE")
		p := s.start(w, w.credit, s.url, execution)
		s.waits("transactionid")
		s.expire()
		next := s.claim()
		s.exec("ROLLBACK")
		if said := p.exits(75); !strings.Contains(said, "OG001") {
			t.Error(said)
		}
		s.is(nothing + "running")
		s.start(w, w.credit, s.url, next).exits(0)
		s.is(booked)
	})
}

// A worker that dies between begin and COMMIT leaves nothing; the next attempt does all.
func TestKilledInItsTransaction(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.exec("BEGIN", "SELECT FROM balance FOR UPDATE")
		p, kill := s.killable(w, w.credit...)
		s.waits("transactionid")
		kill()
		p.exits(137)
		s.exec("ROLLBACK")
		s.alone()
		s.is(nothing + "failed")
		s.guarded(w, w.credit...).exits(0)
		s.is(booked)
	})
}

// A serialization failure is tried again as a whole, but not for ever.
func TestSerializationFailure(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.exec("CREATE SEQUENCE failures", "GRANT USAGE ON failures TO PUBLIC", `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('failures') <= TG_ARGV[0]::int THEN RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$`,
			"CREATE TRIGGER fail AFTER INSERT ON booking EXECUTE FUNCTION fail(100)")
		execution := s.claim()
		s.start(w, w.credit, s.url, execution).exits(75)
		s.is(nothing + "running")
		s.exec("DROP TRIGGER fail ON booking", "SELECT setval('failures', 1)", "CREATE TRIGGER fail AFTER INSERT ON booking EXECUTE FUNCTION fail(2)")
		s.start(w, w.credit, s.url, execution).exits(0)
		s.is(booked)
	})
}

// The connection breaks while COMMIT is under way, and the commit is made.
func TestAnswerToCommitLost(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.lateTrigger()
		execution := s.claim()
		way := startProxy(t, s.url)
		s.exec("SELECT pg_advisory_lock(1)")
		p := s.start(w, w.credit, way.url, execution)
		s.waits("advisory")
		release := way.hold()
		defer release()
		way.cut()
		s.exec("SELECT pg_advisory_unlock(1)")
		s.alone()
		release()
		want := 75
		if w.asks {
			want = 0
		}
		p.exits(want)
		s.is(booked)
		// Run again, as the guard would: it changes nothing.
		s.start(w, w.credit, s.url, execution).exits(0)
		s.is(booked)
	})
}

// The session is ended during COMMIT: nothing is committed, and nobody says it was.
func TestSessionEndedDuringCommit(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.lateTrigger()
		execution := s.claim()
		s.exec("SELECT pg_advisory_lock(1)")
		p := s.start(w, w.credit, s.url, execution)
		if _, err := s.watcher.Exec(t.Context(), "SELECT pg_terminate_backend($1)", s.waits("advisory")); err != nil {
			t.Fatal(err)
		}
		p.exits(75)
		s.exec("SELECT pg_advisory_unlock(1)")
		s.is(nothing + "running")
	})
}

// A mistake in the SQL is no reason to try again.
func TestMistake(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.exec("DROP TABLE booking")
		if said := s.start(w, w.credit, s.url, s.claim()).exits(1); !strings.Contains(said, "42P01") && !strings.Contains(said, "booking") {
			t.Error(said)
		}
		if units := s.value("SELECT units::text FROM balance"); units != "0" {
			t.Error(units)
		}
	})
}

func TestThroughAPooler(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		s.start(w, w.credit, postgres.Pooler(t, s.url), s.claim()).exits(0)
		s.is(booked)
	})
}

// An error of complete that is swallowed in a savepoint cannot commit; without the
// barrier it would.
func TestSwallowedError(t *testing.T) {
	each(t, func(t *testing.T, w worker) {
		s := newShop(t)
		execution := s.claim()
		p := s.start(w, w.swallow, s.url, execution)
		<-p.done
		if code, said := p.cmd.ProcessState.ExitCode(), p.said(); code == 0 || !strings.Contains(said, "its window") {
			t.Errorf("exit %d: %s", code, said)
		}
		s.is(nothing + "running")

		s.exec("ALTER TABLE onceguard.armed DISABLE TRIGGER barrier")
		s.start(w, w.swallow, s.url, execution).exits(0)
		s.is("10 units, 0 bookings, running")
	})
}

// In autocommit begin is a transaction of its own, and is refused at once.
func TestBeginWithoutATransaction(t *testing.T) {
	s := newShop(t)
	_, err := connect(t, s.url).Exec(t.Context(), "SELECT onceguard.begin($1, $2::text::timestamptz, $3)", job, window, s.claim())
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "OG006" {
		t.Error(err)
	}
}
