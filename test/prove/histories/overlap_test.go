package histories_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// Eight clients fight for the windows of one job under a policy that lets only one of
// them run, while leases end in the middle of transactions. A window that was given out
// while another was held is a promise that the other never commits: no window commits
// that another one of its job has overtaken.
func TestProveOverlapIsFenced(t *testing.T) {
	o := newOverlap(t)
	policies := []contract.Overlap{contract.OverlapWait, contract.OverlapReplace, contract.OverlapSkip}
	jobs := prove.Times(18, 240)
	for n := range jobs {
		o.job(t, n, policies[n%len(policies)])
	}
	if n := o.overtaken(); n != 0 {
		t.Errorf("%d windows committed after another of their job was given out", n)
	}
	fenced := o.effects(t)
	if fenced == 0 {
		t.Error("no attempt was lost: the proof saw less than it says")
	}
	prove.Report(t, "overlapped windows are fenced", "%d jobs of %d windows, %d acquisitions, %d attempts lost, %d stale commits refused", jobs, windowsOfJob, len(o.runs), fenced, o.refused.Load())
}

// Without the fencing of the dead the same fight has a window that commits though it was
// overtaken.
func TestProveOverlapWithoutFenceIsSeen(t *testing.T) {
	o := newOverlap(t)
	if _, err := rig.Break(t.Context(), o.owner, "claim", "IF fence THEN", "IF false THEN"); err != nil {
		t.Fatal(err)
	}
	// A job has one or several, seldom none: 400 of them without any are no accident.
	n := 0
	for ; n < 400 && o.overtaken() == 0; n++ {
		o.job(t, n, contract.OverlapWait)
	}
	if o.overtaken() == 0 {
		t.Errorf("%d jobs without it look right: the proof would not notice", n)
	}
	prove.Report(t, "overlap without its fence is seen", "%d overtaken windows committed in %d jobs", o.overtaken(), n)
}

const windowsOfJob = 4

// overlap is a fight for the windows of many jobs, one after the other.
type overlap struct {
	url     string
	owner   *pgx.Conn
	seed    uint64
	since   time.Time
	players []*player
	refused atomic.Int64

	mu   sync.Mutex
	runs []*acquisition
}

// acquisition is a window that was given out, and the commit that followed, if one did.
type acquisition struct {
	window         window.Window
	called, given  time.Duration
	sent, answered time.Duration // of a COMMIT that succeeded
}

// player is one of the clients.
type player struct {
	*overlap
	ledger *ledger.Ledger
	sql    *pgx.Conn
	rnd    *rand.Rand
}

func newOverlap(t *testing.T) *overlap {
	t.Helper()
	url := rig.Database(t)
	o := &overlap{url: url, owner: rig.Session(t, url), seed: prove.Seed(t), since: time.Now()}
	for k := range 8 {
		o.players = append(o.players, &player{overlap: o, ledger: rig.Ledger(t, url), sql: rig.Session(t, url), rnd: rand.New(rand.NewPCG(o.seed, uint64(k)))})
	}
	return o
}

// job lets the players fight until each window of the nth job is closed.
func (o *overlap) job(t *testing.T, n int, policy contract.Overlap) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*rig.Patience)
	defer cancel()
	var closed [windowsOfJob]atomic.Bool
	over := func() bool {
		for i := range closed {
			if !closed[i].Load() {
				return false
			}
		}
		return true
	}
	var g sync.WaitGroup
	for _, p := range o.players {
		g.Go(func() {
			for !over() && ctx.Err() == nil && !t.Failed() {
				i := p.rnd.IntN(windowsOfJob)
				if closed[i].Load() {
					continue
				}
				w := window.Window{JobName: fmt.Sprintf("overlap/%d", n), Start: rig.Noon.Add(time.Duration(i) * time.Minute)}
				done, err := p.try(ctx, w, policy)
				if err != nil {
					t.Errorf("%s under %s: %v", w, policy, err)
				}
				if done {
					closed[i].Store(true)
				}
			}
		})
	}
	g.Wait()
	if ctx.Err() != nil {
		t.Fatalf("job %d under %s was not done in time", n, policy)
	}
}

// try is one attempt at a window; closed says that it needs no other.
func (p *player) try(ctx context.Context, w window.Window, policy contract.Overlap) (closed bool, err error) {
	a := rig.Again(w)
	run := &acquisition{window: w, called: time.Since(p.since)}
	got, err := p.ledger.Claim(ctx, claim.Request{Attempt: a, Lease: lease, Terms: claim.Terms{Overlap: policy}})
	if err != nil || got.Verdict != claim.Run {
		if got.Verdict == claim.Wait && p.rnd.IntN(6) == 0 { // the holder is late, or dead
			err = p.expire(ctx, got.Holder.Window)
		}
		return got.Verdict == claim.Skip, err
	}
	run.given = time.Since(p.since)
	p.mu.Lock()
	p.runs = append(p.runs, run)
	p.mu.Unlock()
	if p.rnd.IntN(8) == 0 { // it dies
		return false, p.expire(ctx, w)
	}
	beat, err := p.ledger.Heartbeat(ctx, a, lease)
	if err != nil {
		return false, err
	}
	if beat == claim.BeatCancel {
		_, err := p.ledger.Release(ctx, a, claim.End{Outcome: claim.OutcomeStopped})
		return false, err
	}
	return p.commit(ctx, a, run)
}

func (p *player) expire(ctx context.Context, w window.Window) error {
	_, err := p.sql.Exec(ctx, `UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 hour'
		WHERE job_name = $1 AND window_start = $2 AND expires_at > clock_timestamp()`, w.JobName, w.Start)
	return err
}

// commit is the business transaction, which may stand still in its middle.
func (p *player) commit(ctx context.Context, a claim.Attempt, run *acquisition) (closed bool, err error) {
	tx, err := p.sql.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for i, sql := range []string{rig.BeginSQL, rig.EffectSQL, rig.CompleteSQL} {
		if i > 0 && p.rnd.IntN(3) == 0 {
			time.Sleep(time.Duration(p.rnd.IntN(15)) * time.Millisecond)
		}
		if _, err := tx.Exec(ctx, sql, rig.Args(a)...); err != nil {
			if r, err := said(err); err != nil || r.word != fenced && r.word != completed {
				return false, fmt.Errorf("%s: %s, %w", sql, r.word, err)
			}
			p.refused.Add(1)
			return false, nil
		}
	}
	sent := time.Since(p.since)
	if err := tx.Commit(ctx); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	run.sent, run.answered = sent, time.Since(p.since)
	return true, nil
}

// overtaken counts the windows that committed although, between their claim and their
// COMMIT, another window of the job was given out.
func (o *overlap) overtaken() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.runs {
		for _, b := range o.runs {
			if a.answered > 0 && a.window.JobName == b.window.JobName && !a.window.Start.Equal(b.window.Start) && a.given < b.called && b.given < a.sent {
				n++
				break
			}
		}
	}
	return n
}

// effects compares the business with the ledger, and counts the attempts that were lost.
func (o *overlap) effects(t *testing.T) (lost int) {
	t.Helper()
	if n := rig.Value[int](t, o.owner, `SELECT count(*) FROM onceguard.job_execution e WHERE (status = 'completed') <>
		(SELECT count(*) = 1 FROM effect f WHERE f.job_name = e.job_name AND f.window_start = e.window_start)`); n != 0 {
		t.Errorf("%d windows whose effects do not fit their status", n)
	}
	return rig.Value[int](t, o.owner, `SELECT count(*) FROM onceguard.job_attempt a JOIN onceguard.job_execution e USING (job_name, window_start)
		WHERE a.outcome = 'lost' AND (a.attempt < e.attempt OR e.status IN ('failed', 'skipped'))`)
}
