// Package zombies_test freezes real processes beyond their lease, lets others take
// over, and thaws them: each window has exactly one effect all the same.
package zombies_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

func TestMain(m *testing.M) {
	if !asProcess() {
		postgres.Main(m)
	}
}

// lease of a zombie; nobody may take over before the database says that it has ended.
const lease = time.Second

// scenario is one way to be a zombie.
type scenario struct {
	way       way
	stop      point
	insistent bool // the worker has switched the limit on idling off
	finished  bool // the heir commits before the zombie wakes up, else after it has tried
}

func (s scenario) String() string {
	word := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	return fmt.Sprintf("%s frozen when %s, %s, heir %s", s.way, s.stop,
		word(s.insistent, "insistent", "limited"), word(s.finished, "finished", "working"))
}

// survives: the transaction has its row locked and cannot be ended for idling, so that
// nobody can take over, and it commits when it wakes up.
func (s scenario) survives() bool { return s.stop == completed && s.insistent }

// wants says what the zombie may hear at its commit.
func (s scenario) wants(result string) bool {
	switch {
	case s.survives():
		return result == fine
	case s.way == byInteractive && s.stop == begun && result == "ledger_unavailable":
		return true // the server ended the session before COMMIT, on a busy machine even before it was told not to
	case s.way == byEndpoint && s.stop == completed: // the server ended the session; then it was resolved
		return slices.Contains([]string{"fence_lost", "other_request"}, result)
	case s.way != byDriver && s.finished:
		return result == "other_request"
	case s.way != byDriver:
		return result == "fence_lost"
	case s.stop != claimed && !s.insistent && result == idle:
		return true
	case s.finished:
		return result == "OG002"
	}
	return result == "OG001"
}

func scenarios() (all []scenario) {
	for _, way := range []way{byDriver, byEndpoint, byInteractive} {
		for _, stop := range []point{claimed, begun, completed} {
			for _, insistent := range []bool{false, true} {
				for _, finished := range []bool{false, true} {
					// Before begin there is nothing to be insistent about; an interactive transaction
					// sends complete and COMMIT in one go.
					if (stop != claimed || !insistent) && (stop != completed || way != byInteractive) {
						all = append(all, scenario{way, stop, insistent, finished})
					}
				}
			}
		}
	}
	return all
}

// A process is stopped beyond its lease, at every point of its attempt; another takes
// over when the database says so; the first wakes up and goes on as if nothing had
// happened. Its heartbeat is lost, its commit refused, and there is one effect.
func TestProveZombiesHaveNoEffect(t *testing.T) {
	w := newWorld(t)
	all := scenarios()
	rounds := prove.Times(1, 20)
	var processes, takeovers atomic.Int64
	t.Run("all", func(t *testing.T) {
		for i, s := range all {
			t.Run(s.String(), func(t *testing.T) {
				t.Parallel()
				for n := range rounds {
					result, beat, taken := w.run(t, s, i*rounds+n)
					processes.Add(1)
					if !s.wants(result) {
						t.Errorf("the zombie's commit: %s", result)
					}
					if want := map[bool]string{false: string(claim.BeatLost), true: string(claim.BeatOK)}[s.survives()]; beat != want {
						t.Errorf("the zombie's heartbeat: %s", beat)
					}
					if taken == s.survives() {
						t.Errorf("taken over: %v", taken)
					}
					if taken {
						takeovers.Add(1)
					}
				}
			})
		}
	})
	w.oneEffectEach(t, int(processes.Load()))
	prove.Report(t, "a zombie has no effect", "%d processes stopped beyond their lease at %d points, %d takeovers", processes.Load(), len(all), takeovers.Load())
}

// Only the guard is frozen; its worker, another process with a driver of its own, is
// alive and well, and would commit.
func TestProveZombiesFrozenHeartbeats(t *testing.T) {
	w := newWorld(t)
	rounds := prove.Times(3, 40)
	for n := range rounds {
		a := rig.Attempt("zombies/heartbeats", n)
		p := w.start(t, job{Attempt: a, Way: byOthers, Stop: claimed, Name: fmt.Sprintf("guard-%d", n)})
		p.expect(t, "at "+string(claimed))
		c := rig.Session(t, w.url)
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := rig.BeginInsistent(t.Context(), tx, a); err != nil { // it works, it does not idle
			t.Fatal(err)
		}
		rig.Exec(t, c, rig.EffectSQL, rig.Args(a)...)
		p.freeze(t)
		heir := rig.Again(a.Window)
		if verdict := w.claim(t, w.ledger, heir); verdict.Reason != claim.Takeover {
			t.Fatalf("%+v", verdict)
		}
		_, err = c.Exec(t.Context(), rig.CompleteSQL, rig.Args(a)...)
		if code(err) != "OG001" {
			t.Errorf("the worker's commit: %v", err)
		}
		rig.Exec(t, c, "ROLLBACK")
		if got := commitByDriver(t.Context(), c, heir); got != fine {
			t.Errorf("the heir's commit: %s", got)
		}
		p.thaw(t)
		p.expect(t, "commit "+fine) // it had nothing to commit
		p.expect(t, "beat "+string(claim.BeatLost))
		_ = c.Close(t.Context())
	}
	w.oneEffectEach(t, rounds)
	prove.Report(t, "a worker whose guard froze has no effect", "%d guards stopped, their workers alive", rounds)
}

// Without the fence the same zombies are seen to have a second effect.
func TestProveZombiesWithoutFenceAreSeen(t *testing.T) {
	seen := 0
	for _, s := range []scenario{{way: byDriver, stop: begun, insistent: true, finished: true}, {way: byEndpoint, stop: begun, finished: true}} {
		w := newWorld(t)
		rig.BreakFence(t, w.owner)
		result, _, taken := w.run(t, s, 0)
		if n := rig.Value[int](t, w.owner, "SELECT count(*) FROM effect"); result != fine || !taken || n != 2 {
			t.Errorf("%s: %s, %d effects; the proof would not notice the loss of the fence", s, result, n)
			continue
		}
		seen++
	}
	prove.Report(t, "zombies without the fence are seen", "%d of 2 made a second effect", seen)
}

// world is a ledger with its business.
type world struct {
	url    string
	owner  *pgx.Conn
	ledger *ledger.Ledger
}

func newWorld(t *testing.T) *world {
	t.Helper()
	url := rig.Database(t)
	return &world{url: url, owner: rig.Session(t, url), ledger: rig.Ledger(t, url)}
}

// run plays one scenario at the nth window.
func (w *world) run(t *testing.T, s scenario, n int) (result, beat string, taken bool) {
	t.Helper()
	name := fmt.Sprintf("zombie-%d", n)
	c, l := rig.Session(t, w.url), rig.Ledger(t, w.url)
	defer func() { _ = c.Close(t.Context()); l.Close(t.Context()) }()
	gate := w.gate(s, n)
	if gate != 0 { // before the process may come to it
		rig.Exec(t, c, "SELECT pg_advisory_lock($1)", gate)
	}
	p := w.start(t, job{
		Attempt: rig.Attempt(fmt.Sprintf("zombies/%d", n%3), n), Way: s.way, Stop: s.stop, Insistent: s.insistent, Name: name, Gate: gate,
	})
	p.expect(t, "at "+string(s.stop))
	if p.job.Gate != 0 {
		rig.Until(t, "the statement waits", func() bool {
			return rig.Value[bool](t, c, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted)", p.job.Gate)
		})
	}
	p.freeze(t)
	if p.job.Gate != 0 && s.stop == completed {
		w.pass(t, c, p.job)
	}
	heir := rig.Again(p.job.Attempt.Window)
	if s.survives() {
		w.committing(t, c, l, heir)
	} else {
		taken = w.claim(t, l, heir).Reason == claim.Takeover
	}
	commit := func() {
		if got := commitByDriver(t.Context(), c, heir); taken && got != fine {
			t.Errorf("the heir's commit: %s", got)
		}
	}
	if s.finished && taken {
		commit()
	}
	if p.job.Gate != 0 && s.stop == begun {
		rig.Exec(t, c, "SELECT pg_advisory_unlock($1)", p.job.Gate)
	}
	p.thaw(t)
	result = p.after(t, "commit ")
	beat = p.after(t, "beat ")
	if !s.finished && taken {
		commit()
	}
	if s.survives() {
		if got, err := l.Claim(t.Context(), claim.Request{Attempt: heir, Lease: lease}); err != nil || got.Reason != claim.AlreadyCompleted {
			t.Errorf("the heir: %+v, %v", got, err)
		}
	}
	return result, beat, taken
}

// gate is the advisory lock by which a transaction of the endpoint is held.
func (w *world) gate(s scenario, n int) int64 {
	if s.way == byEndpoint && s.stop != claimed {
		return int64(n) + 1
	}
	return 0
}

// pass opens the gate for the server and waits until it has run complete() and waits
// for a COMMIT; the process is frozen and does not hear of it.
func (w *world) pass(t *testing.T, c *pgx.Conn, j job) {
	t.Helper()
	rig.Exec(t, c, "SELECT pg_advisory_unlock($1)", j.Gate)
	if !j.Insistent {
		return // its session is about to be ended for idling
	}
	rig.Until(t, "the transaction has completed", func() bool {
		return rig.Value[bool](t, c, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND state = 'idle in transaction')", j.Name)
	})
}

// committing demands that a claim never gets a window whose row is locked, though its
// lease has ended.
func (w *world) committing(t *testing.T, c *pgx.Conn, l *ledger.Ledger, heir claim.Attempt) {
	t.Helper()
	rig.Until(t, "the lease has ended", func() bool {
		return rig.Value[bool](t, c, "SELECT expires_at < clock_timestamp() FROM onceguard.job_lease WHERE job_name = $1 AND window_start = $2", heir.Window.JobName, heir.Window.Start)
	})
	for range 3 {
		if got, err := l.Claim(t.Context(), claim.Request{Attempt: heir, Lease: lease}); err != nil || got.Reason != claim.Committing {
			t.Errorf("the heir: %+v, %v", got, err)
		}
	}
}

// claim asks until the window is given, or was completed.
func (w *world) claim(t *testing.T, l *ledger.Ledger, a claim.Attempt) (got claim.Answer) {
	t.Helper()
	rig.Until(t, "a takeover", func() bool {
		var err error
		if got, err = l.Claim(t.Context(), claim.Request{Attempt: a, Lease: time.Hour}); err != nil {
			t.Fatal(err)
		}
		return got.Verdict != claim.Wait
	})
	return got
}

// oneEffectEach demands that each of n windows is completed and has one effect, of the
// attempt that completed it.
func (w *world) oneEffectEach(t *testing.T, n int) {
	t.Helper()
	good := rig.Value[int](t, w.owner, `SELECT count(*) FROM onceguard.job_execution e WHERE status = 'completed'
		AND (SELECT count(*) FROM effect f WHERE f.job_name = e.job_name AND f.window_start = e.window_start AND f.execution_id = e.execution_id) = 1`)
	effects := rig.Value[int](t, w.owner, "SELECT count(*) FROM effect")
	if good != n || effects != n {
		t.Errorf("%d windows: %d are completed with one effect of theirs, and there are %d effects", n, good, effects)
	}
}
