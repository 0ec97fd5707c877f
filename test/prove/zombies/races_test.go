package zombies_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// A lease has ended; its holder goes on with begin, complete or COMMIT at the very
// moment at which another claims the window. Either may win, and there is one effect.
func TestProveTakeoverAgainstComplete(t *testing.T) {
	w := newWorld(t)
	var won winners
	atOnce := prove.Times(200, 1000)
	races := 0
	// The holder wins where it has completed already (a quarter of the races), the heir where
	// the holder has not begun (another). Should a busy machine hide one of them, there are more.
	for races == 0 || races < 10*atOnce && !t.Failed() && (won.holder.Load() == 0 || won.heir.Load() == 0) {
		w.races(t, atOnce, false, &won)
		races += atOnce
	}
	w.oneEffectEach(t, races)
	if won.holder.Load() == 0 || won.heir.Load() == 0 {
		t.Errorf("the holder won %d times, the heir %d times: these were no races", won.holder.Load(), won.heir.Load())
	}
	prove.Report(t, "takeover against complete", "%d races, won by the holder %d times, by the heir %d times", races, won.holder.Load(), won.heir.Load())
}

// Without the fence the same races have windows with two effects. The heir is given the
// window first here: then each holder that has begun and not completed makes a second
// effect. One race in twenty was seen to, so that 400 in a row do not is less likely than
// 1 to 10^8.
func TestProveTakeoverWithoutFenceIsSeen(t *testing.T) {
	w := newWorld(t)
	rig.BreakFence(t, w.owner)
	twice, races := 0, 0
	for ; races < 400 && twice == 0 && !t.Failed(); races += 20 {
		w.races(t, 20, true, &winners{})
		twice = rig.Value[int](t, w.owner, "SELECT count(*) FROM (SELECT FROM effect GROUP BY job_name, window_start HAVING count(*) > 1) x")
	}
	if twice == 0 {
		t.Errorf("no second effect in %d races: the proof would not notice the loss of the fence", races)
	}
	prove.Report(t, "races without the fence are seen", "%d second effects in %d races", twice, races)
}

// winners counts who completed the windows.
type winners struct{ holder, heir atomic.Int64 }

// racer is one of the pairs that race.
type racer struct {
	w            *world
	heirFirst    bool // the holder goes on when the heir has been answered
	rnd          *rand.Rand
	holder, heir *ledger.Ledger
	first, other *pgx.Conn
}

// races lets four pairs race for windows of their own.
func (w *world) races(t *testing.T, n int, heirFirst bool, won *winners) {
	t.Helper()
	const pairs = 4
	seed := prove.Seed(t)
	already := rig.Value[int](t, w.owner, "SELECT count(*) FROM onceguard.job_execution")
	var g sync.WaitGroup
	for k := range pairs {
		r := racer{
			w: w, heirFirst: heirFirst, rnd: rand.New(rand.NewPCG(seed+uint64(already), uint64(k))), holder: rig.Ledger(t, w.url), heir: rig.Ledger(t, w.url),
			first: rig.Session(t, w.url), other: rig.Session(t, w.url),
		}
		g.Go(func() {
			for i := k; i < n && !t.Failed(); i += pairs {
				r.race(t, rig.Attempt("zombies/race", already+i), won)
			}
			r.holder.Close(context.Background())
			r.heir.Close(context.Background())
			_ = r.first.Close(context.Background())
			_ = r.other.Close(context.Background())
		})
	}
	g.Wait()
}

// race is one window. The holder is brought to a point drawn at random; then both start.
func (r *racer) race(t *testing.T, a claim.Attempt, won *winners) {
	t.Helper()
	ctx := t.Context()
	got, err := r.holder.Claim(ctx, claim.Request{Attempt: a, Lease: 20 * time.Millisecond})
	if err != nil || got.Verdict != claim.Run {
		t.Errorf("claim: %+v, %v", got, err)
		return
	}
	goOn := r.prepare(t, a)
	if _, err := r.other.Exec(ctx, `SELECT pg_sleep(extract(epoch FROM expires_at - clock_timestamp()) + 0.001)
		FROM onceguard.job_lease WHERE execution_id = $1`, a.ExecutionID.String()); err != nil {
		t.Error(err)
		return
	}
	start, answered := make(chan struct{}), make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		<-start
		if r.heirFirst {
			<-answered
		}
		if goOn() == fine {
			won.holder.Add(1)
		}
	})
	g.Go(func() {
		<-start
		if r.takeOver(t, rig.Again(a.Window), sync.OnceFunc(func() { close(answered) })) {
			won.heir.Add(1)
		}
	})
	close(start)
	g.Wait()
}

// prepare brings the holder to a point and gives what it does from there.
func (r *racer) prepare(t *testing.T, a claim.Attempt) (goOn func() string) {
	t.Helper()
	ctx := t.Context()
	stage := r.rnd.IntN(4)
	if stage == 3 {
		c := commit.New(r.holder, rig.Hold(a), zap.NewNop())
		return func() string {
			if _, err := c.Commit(ctx, request(a, 0, r.rnd.IntN(2) == 0)); err != nil {
				return err.Error()
			}
			return fine
		}
	}
	do := func(sql string, args ...any) bool {
		_, err := r.first.Exec(ctx, sql, args...)
		return err == nil
	}
	steps := []func() bool{
		func() bool {
			tx, err := r.first.Begin(ctx)
			return err == nil && rig.BeginInsistent(ctx, tx, a) == nil
		},
		func() bool { return do(rig.EffectSQL, rig.Args(a)...) },
		func() bool { return do(rig.CompleteSQL, rig.Args(a)...) },
		func() bool {
			tag, err := r.first.Exec(ctx, "COMMIT")
			return err == nil && tag.String() == "COMMIT"
		},
	}
	before := []int{0, 2, 3}[stage] // steps already done: none, up to complete, up to COMMIT
	ok := true
	run := func(from, to int) {
		for _, step := range steps[from:to] {
			ok = ok && step()
		}
	}
	run(0, before)
	return func() string {
		run(before, len(steps))
		if !ok {
			if !r.first.IsClosed() {
				_, _ = r.first.Exec(ctx, "ROLLBACK")
			}
			r.again(t)
			return idle
		}
		return fine
	}
}

// again replaces a session that was ended because its transaction idled.
func (r *racer) again(t *testing.T) {
	t.Helper()
	if !r.first.IsClosed() {
		return
	}
	c, err := pgx.Connect(t.Context(), r.w.url)
	if err != nil {
		t.Error(err)
		return
	}
	r.first = c
}

// takeOver claims until the window is given or completed, and says whether it committed.
// answered is called after the first answer.
func (r *racer) takeOver(t *testing.T, heir claim.Attempt, answered func()) bool {
	t.Helper()
	defer answered()
	for end := time.Now().Add(rig.Patience); time.Now().Before(end); {
		got, err := r.heir.Claim(t.Context(), claim.Request{Attempt: heir, Lease: time.Hour})
		answered()
		switch {
		case err != nil:
			t.Error(err)
			return false
		case got.Verdict == claim.Skip:
			return false
		case got.Verdict == claim.Run:
			return commitByDriver(t.Context(), r.other, heir) == fine
		}
	}
	t.Errorf("%s is never given", heir.Window)
	return false
}

// commitByDriver is a whole business transaction in a driver of one's own.
func commitByDriver(ctx context.Context, c *pgx.Conn, a claim.Attempt) string {
	tx, err := c.Begin(ctx)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, sql := range []string{rig.BeginSQL, rig.EffectSQL, rig.CompleteSQL} {
		if _, err := tx.Exec(ctx, sql, rig.Args(a)...); err != nil {
			return code(err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return code(err)
	}
	return fine
}
