package ledger_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/prove"
)

// stressed are the jobs of the stress test with the terms of their claims.
var stressed = map[string]claim.Terms{
	"stress/allow":   {},
	"stress/skip":    {Overlap: contract.OverlapSkip},
	"stress/wait":    {Overlap: contract.OverlapWait},
	"stress/replace": {Overlap: contract.OverlapReplace},
	"stress/serial":  {Overlap: contract.OverlapWait, Serial: true, Since: noon.AddDate(-2, 0, 0)},
}

// violations are what must never be in the record; each counts.
var violations = map[string]string{
	"windows with two effects": "SELECT count(*) FROM (SELECT FROM effect GROUP BY job_name, window_start HAVING count(*) > 1) x",
	"effects of another attempt than the completing one": `SELECT count(*) FROM effect f LEFT JOIN onceguard.job_execution e
		ON e.job_name = f.job_name AND e.window_start = f.window_start AND e.status = 'completed' AND e.execution_id = f.execution_id
		WHERE e.job_name IS NULL AND f.window_start >= (SELECT closed_before FROM onceguard.job WHERE name = f.job_name)`,
	"completed windows without effect": `SELECT count(*) FROM onceguard.job_execution e LEFT JOIN effect f USING (job_name, window_start)
		WHERE e.status = 'completed' AND f.id IS NULL`,
	// From its claim to its completion no other window of the job may have been so.
	"pairs of completed windows that ran at once": `SELECT count(*) FROM held a JOIN held b ON b.job_name = a.job_name AND b.window_start > a.window_start
		AND b.started_at < a.completed_at AND a.started_at < b.completed_at WHERE a.job_name <> 'stress/allow'`,
	"serial windows that ran before an earlier one": `SELECT count(*) FROM held a JOIN held b ON b.job_name = a.job_name
		AND b.window_start > a.window_start AND b.started_at < a.started_at WHERE a.job_name = 'stress/serial'`,
	"windows that ran below the watermark": `SELECT count(*) FROM onceguard.job_execution e JOIN onceguard.job j ON j.name = e.job_name AND e.window_start < j.closed_before`,
	"armed rows left":                      "SELECT count(*) FROM onceguard.armed",
}

// stress lets guards with leases of 60 ms fight for the same windows of jobs of each
// policy. Every third of them stands still beyond its lease in the middle of its business
// transaction, some let their attempt fail, some lose the answer to COMMIT, and old
// windows are pruned meanwhile. It gives what of violations there is.
type stress struct {
	url     string
	windows int
	over    map[string][]atomic.Bool // windows that are closed, by job

	takeovers, fenced, commits, cancels, waits atomic.Int64
}

func newStress(t *testing.T, windows int) (*stress, *pgx.Conn) {
	t.Helper()
	s := &stress{url: database(t), windows: windows, over: map[string][]atomic.Bool{}}
	for job := range stressed {
		s.over[job] = make([]atomic.Bool, windows)
	}
	owner := session(t, s.url)
	exec(t, owner, "CREATE TABLE effect (id bigserial, job_name text, window_start timestamptz, execution_id uuid)")
	exec(t, owner, `CREATE VIEW held AS SELECT e.job_name, e.window_start, a.started_at, e.completed_at FROM onceguard.job_execution e
		JOIN onceguard.job_attempt a USING (job_name, window_start, execution_id) WHERE e.status = 'completed'`)
	return s, owner
}

func (s *stress) run(t *testing.T, guards int, seed uint64) {
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	var g sync.WaitGroup
	for k := range guards {
		l, c := open(t, s.url), session(t, s.url)
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(k)))
			for ctx.Err() == nil {
				a, ok := s.next(rnd)
				if !ok {
					break
				}
				var err error
				if c, err = s.guard(ctx, l, c, a, k%3 == 0, rnd); err != nil {
					t.Errorf("%s: %v", a.Window, err)
					return
				}
			}
			_ = c.Close(context.Background())
		})
	}
	g.Wait()
	if ctx.Err() != nil {
		t.Error("not all windows were closed in time")
	}
}

// next chooses among the oldest windows of a job that are not closed.
func (s *stress) next(rnd *rand.Rand) (claim.Attempt, bool) {
	for job, over := range s.over { // in random order
		var open []int
		for n := 0; n < s.windows && len(open) < 3; n++ {
			if !over[n].Load() {
				open = append(open, n)
			}
		}
		if len(open) > 0 {
			n := open[rnd.IntN(len(open))]
			return claim.Attempt{Window: window.Window{JobName: job, Start: noon.AddDate(-1, 0, 0).Add(time.Duration(n) * time.Minute)}, ExecutionID: uuid.New()}, true
		}
	}
	return claim.Attempt{}, false
}

// guard is one try at a window.
func (s *stress) guard(ctx context.Context, l *ledger.Ledger, c *pgx.Conn, a claim.Attempt, slow bool, rnd *rand.Rand) (*pgx.Conn, error) {
	r := under(a, stressed[a.Window.JobName])
	r.Lease = 60 * time.Millisecond
	n := int(a.Window.Start.Sub(noon.AddDate(-1, 0, 0)) / time.Minute)
	if r.Terms.Serial && n > 0 {
		r.Terms.Previous = a.Window.Start.Add(-time.Minute)
	}
	got, err := l.Claim(ctx, r)
	switch {
	case err != nil:
		return c, err
	case got.Verdict == claim.Skip:
		s.over[a.Window.JobName][n].Store(true)
		return c, nil
	case got.Verdict == claim.Wait:
		s.waits.Add(1)
		time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
		return c, nil
	case got.Reason == claim.Takeover:
		s.takeovers.Add(1)
	}
	time.Sleep(time.Duration(rnd.IntN(8)) * time.Millisecond) // work, which a newer window may ask to stop
	if slow {                                                 // so that somebody can ask it to stop
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
	}
	if b, err := l.Heartbeat(ctx, a, r.Lease); err != nil || b == claim.BeatCancel || rnd.IntN(6) == 0 {
		if b == claim.BeatCancel {
			s.cancels.Add(1)
		}
		if err == nil {
			_, err = l.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed})
		}
		return c, err
	}
	if c.IsClosed() { // the server ended a transaction that idled too long
		if c, err = pgx.Connect(ctx, s.url); err != nil {
			return c, err
		}
	}
	err = business(ctx, c, a, slow, rnd)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "OG001" || pg.Code == "OG002" || pg.Code == "OG004") {
		s.fenced.Add(1)
	} else if ok && pg.Code != "25P03" {
		return c, err
	} else if err == nil {
		s.commits.Add(1)
	}
	if rnd.IntN(4) == 0 {
		if _, err := l.Resolve(ctx, a, uuid.New()); err != nil {
			return c, err
		}
	}
	return c, nil
}

// prune moves the watermark of each job behind the windows, until done.
func (s *stress) prune(t *testing.T, done <-chan struct{}) {
	owner := session(t, s.url)
	for {
		for job, over := range s.over {
			n := 0
			for n < s.windows && over[n].Load() {
				n++
			}
			_, err := admin.Prune(t.Context(), owner, job, noon.AddDate(-1, 0, 0).Add(time.Duration(n-5)*time.Minute))
			if err != nil && !errors.Is(err, admin.ErrNotFound) && !errors.Is(err, admin.ErrBusy) {
				t.Error(err)
			}
		}
		select {
		case <-done:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func found(t *testing.T, owner *pgx.Conn) (all int) {
	t.Helper()
	for what, query := range violations {
		if n := value[int](t, owner, query); n != 0 {
			t.Logf("%d %s", n, what)
			all += n
		}
	}
	return all
}

func TestProveStress(t *testing.T) {
	windows := prove.Times(30, 600)
	total, rounds := map[string]int64{}, 0
	blind := func() bool {
		return total["commits"] == 0 || total["takeovers"] == 0 || total["stale commits refused"] == 0 || total["replaced"] == 0
	}
	// One round has dozens of each, but sometimes only one or two that were replaced.
	for ; rounds < 30 && !t.Failed() && (rounds == 0 || blind()); rounds++ {
		s, owner := newStress(t, windows)
		done := make(chan struct{})
		var g sync.WaitGroup
		g.Go(func() { s.prune(t, done) })
		s.run(t, 10, prove.Seed(t)+uint64(rounds))
		close(done)
		g.Wait()
		if n := found(t, owner); n != 0 {
			t.Errorf("%d violations", n)
		}
		for what, n := range map[string]*atomic.Int64{
			"commits": &s.commits, "takeovers": &s.takeovers, "stale commits refused": &s.fenced, "replaced": &s.cancels, "waits": &s.waits,
		} {
			total[what] += n.Load()
		}
	}
	if blind() {
		t.Errorf("not all of it has happened in %d rounds, the test proves nothing: %v", rounds, total)
	}
	prove.Report(t, "zombies, retries and overlap policies: one effect a window, none beside another",
		"%d windows of %d jobs, %v", rounds*windows*len(stressed), len(stressed), total)
}

// The same without a rule: the violations must be seen.
func TestStressNoticesOverlap(t *testing.T) {
	for name, rule := range map[string][3]string{
		"overlap is not judged": {"judge_terms", "IF judge_terms.overlap = 'allow' AND NOT in_order THEN", "IF true THEN"},
		"the dead keep the id":  {"claim", "IF fence THEN", "IF false THEN"},
	} {
		t.Run(name, func(t *testing.T) {
			for round := range 100 { // it is seen in the first, nearly always
				s, owner := newStress(t, 10)
				mutate(t, owner, rule[0], rule[1], rule[2])
				s.run(t, 8, prove.Seed(t)+uint64(round))
				if found(t, owner) > 0 {
					return
				}
			}
			t.Error("not noticed")
		})
	}
}

// business is one transaction; a slow one is busy beyond its lease.
func business(ctx context.Context, c *pgx.Conn, a claim.Attempt, slow bool, rnd *rand.Rand) error {
	args := []any{a.Window.JobName, a.Window.Start, a.ExecutionID.String()}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, "SELECT onceguard.begin($1, $2, $3)", args...); err != nil {
		return err
	}
	if slow && rnd.IntN(2) == 0 {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.07)"); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, "INSERT INTO effect (job_name, window_start, execution_id) VALUES ($1, $2, $3)", args...); err != nil {
		return err
	}
	if slow && rnd.IntN(2) == 0 {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.07)"); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, completeSQL, args...); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
