package histories_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

func TestMain(m *testing.M) { postgres.Main(m) }

const (
	clients  = 16
	windows  = 4   // fought for at a time
	lifetime = 160 // operations after which a window makes room for the next
	// judgement bounds the search for an order of one window, which takes milliseconds.
	judgement = 5 * time.Minute
)

// Sixteen clients and their workers fight for four windows at a time, over connections
// that break, sessions that are terminated, statements that time out and transactions
// that stand still. Whatever they were answered must have an order in which one window,
// doing one thing after the other, gives the same answers; and each completed window
// has one effect, of the attempt that completed it.
func TestProveHistoriesAreLinearizable(t *testing.T) {
	r := newRun(t, rig.Database(t))
	histories := r.record(t, int64(prove.Times(7_000, 110_000)))
	// Each of what must have happened happens dozens of times; should one not, it goes on.
	for more := 0; more < 10 && len(r.missing()) > 0; more++ {
		histories = append(histories, r.record(t, 2_000)...)
	}
	for _, h := range histories {
		r.finish(t, h)
	}
	for _, h := range histories {
		judge(t, h)
	}
	r.effects(t)
	if none := r.missing(); len(none) > 0 {
		t.Errorf("no %s: the proof saw less than it says", strings.Join(none, ", no "))
	}
	prove.Report(t, "histories are linearizable", "%d operations of %d clients at %d windows, %d unknown outcomes, %d takeovers, %d stale transactions refused, %d pieces, %d sessions terminated, %s",
		r.tally.operations.Load(), clients, len(histories), r.tally.unknown.Load(), r.tally.takeovers.Load(), r.tally.fenced.Load(), r.tally.pieces.Load(), r.terminated.Load(), r.proxy.said())
}

// missing names what has not happened yet and must.
func (r *run) missing() (none []string) {
	counts := map[string]*atomic.Int64{
		"takeovers": &r.tally.takeovers, "stale transactions": &r.tally.fenced, "pieces": &r.tally.pieces,
		"unknown outcomes": &r.tally.unknown, "terminated sessions": &r.terminated,
	}
	maps.Copy(counts, r.proxy.faults)
	for name, n := range counts {
		if n.Load() == 0 {
			none = append(none, name)
		}
	}
	return none
}

// The same recording with the fence taken out of the functions is rejected.
func TestProveHistoriesWithoutFenceAreRejected(t *testing.T) {
	url := rig.Database(t)
	rig.BreakFence(t, rig.Session(t, url))
	r := newRun(t, url)
	rejected, seen := 0, 0
	// Nearly each recording of eight lifetimes has some: 80 of them without any are no accident.
	for seen < 640*lifetime && rejected == 0 {
		for _, h := range r.record(t, 8*lifetime) {
			seen += len(h.ops)
			if porcupine.CheckOperationsTimeout(model, h.ops, judgement) == porcupine.Illegal {
				rejected++
			}
		}
	}
	if rejected == 0 {
		t.Errorf("%d operations without the fence look right: the proof would not notice its loss", seen)
	}
	prove.Report(t, "histories without the fence are rejected", "%d windows within %d operations", rejected, seen)
}

// run is one recording.
type run struct {
	url, through string // direct, and by way of the proxy
	proxy        *proxy
	tally        tally
	terminated   atomic.Int64
	seed         uint64
	since        time.Time
	next         atomic.Int64 // number of the next window
}

func newRun(t *testing.T, direct string) *run {
	t.Helper()
	seed := prove.Seed(t)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProxy(u.Host, 0.012, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	u.Host = p.address()
	return &run{url: direct, through: u.String(), proxy: p, seed: seed, since: time.Now()}
}

func (r *run) history() *history {
	n := r.next.Add(1)
	return &history{ids: map[uuid.UUID]int{}, window: window.Window{JobName: fmt.Sprintf("histories/%d", n%2), Start: rig.Noon.Add(time.Duration(n) * time.Minute)}}
}

// record lets the clients loose until they have done enough.
func (r *run) record(t *testing.T, operations int64) (all []*history) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	var mu sync.Mutex
	current := make([]*history, windows)
	for i := range current {
		current[i] = r.history()
		all = append(all, current[i])
	}
	pick := func(i int) *history {
		mu.Lock()
		defer mu.Unlock()
		return current[i]
	}
	retire := func(i int, h *history) {
		mu.Lock()
		defer mu.Unlock()
		if current[i] == h {
			current[i] = r.history()
			all = append(all, current[i])
		}
	}
	until := r.tally.operations.Load() + operations
	running := func() bool { return r.tally.operations.Load() < until && ctx.Err() == nil }
	var g sync.WaitGroup
	for k := range clients {
		c := r.client(t, k)
		g.Go(func() {
			for running() {
				i := c.rnd.IntN(windows)
				if c.stay > 0 {
					i = c.at
					c.stay--
				}
				c.at = i
				if h := pick(i); c.step(ctx, h) >= lifetime {
					retire(i, h)
				}
			}
			if c.sql != nil {
				_ = c.sql.Close(context.Background())
			}
		})
	}
	g.Go(func() { r.terminate(ctx, t, running) })
	g.Wait()
	if ctx.Err() != nil {
		t.Fatalf("only %d operations were done in time", r.tally.operations.Load())
	}
	return all
}

// client is the kth: every other one has a short statement_timeout.
func (r *run) client(t *testing.T, k int) *client {
	t.Helper()
	through := r.through + "&application_name=prey"
	if k%2 == 0 {
		through += "&statement_timeout=60"
	}
	return &client{
		number: k, rnd: rand.New(rand.NewPCG(r.seed, uint64(k))), url: through, ledger: rig.Ledger(t, through),
		direct: rig.Session(t, r.url), since: r.since, tally: &r.tally, mine: map[*history]*belief{},
	}
}

// terminate ends sessions of the clients on the server, one after the other.
func (r *run) terminate(ctx context.Context, t *testing.T, running func() bool) {
	t.Helper()
	c := rig.Session(t, r.url)
	rnd := rand.New(rand.NewPCG(r.seed, 1<<32))
	for running() {
		time.Sleep(time.Duration(20+rnd.IntN(150)) * time.Millisecond)
		rows, _ := c.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'prey' ORDER BY pid")
		var pids []int
		for rows.Next() {
			var pid int
			if rows.Scan(&pid) == nil {
				pids = append(pids, pid)
			}
		}
		if len(pids) == 0 {
			continue
		}
		var ended bool
		if c.QueryRow(ctx, "SELECT pg_terminate_backend($1)", pids[rnd.IntN(len(pids))]).Scan(&ended) == nil && ended {
			r.terminated.Add(1)
		}
	}
}

// finish brings a window to its completion, on connections that hold, and records that
// too: whatever happened before, somebody can.
func (r *run) finish(t *testing.T, h *history) {
	t.Helper()
	c := &client{number: clients, url: r.url, ledger: rig.Ledger(t, r.url), direct: rig.Session(t, r.url), since: r.since, tally: &r.tally, rnd: rand.New(rand.NewPCG(r.seed, 0))}
	a := rig.Again(h.window)
	do := func(q question, ask func() (reply, error)) reply {
		t.Helper()
		call := int64(time.Since(r.since))
		got, err := ask()
		if err != nil {
			t.Fatalf("%s of %s: %v", q.verb, h.window, err)
		}
		h.add(porcupine.Operation{ClientId: c.number, Input: q, Output: got, Call: call, Return: int64(time.Since(r.since))})
		return got
	}
	id := h.number(a.ExecutionID)
	rig.Until(t, h.window.String()+" is completed", func() bool {
		_, expire := question{verb: doExpire}, func() (reply, error) {
			_, err := c.direct.Exec(t.Context(), `UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 hour'
				WHERE job_name = $1 AND window_start = $2 AND execution_id <> $3`, rig.Args(a)...)
			return reply{word: done}, err
		}
		if do(question{verb: doRead}, func() (reply, error) {
			s, err := c.ledger.Stored(t.Context(), h.window)
			return reply{word: string(s.Status), id: h.number(s.ExecutionID), attempt: s.Attempt, seq: s.Checkpoint.Seq}, err
		}).word == string(claim.Completed) {
			return true
		}
		do(question{verb: doExpire}, expire)
		if do(question{verb: doClaim, id: id}, func() (reply, error) { return c.claim(t.Context(), a) }).attempt > 0 {
			do(question{verb: doComplete, id: id}, func() (reply, error) {
				var at time.Duration
				return c.business(t.Context(), a, &at, 0, false, rig.CompleteSQL, rig.Args(a))
			})
		}
		return false
	})
	c.ledger.Close(t.Context())
	_ = c.direct.Close(t.Context())
	if c.sql != nil {
		_ = c.sql.Close(t.Context())
	}
}

// judge asks porcupine.
func judge(t *testing.T, h *history) {
	t.Helper()
	verdict, info := porcupine.CheckOperationsVerbose(model, h.ops, judgement)
	if verdict == porcupine.Ok {
		return
	}
	best := 0
	for _, p := range info.PartialLinearizationsOperations() {
		for _, l := range p {
			best = max(best, len(l))
		}
	}
	ops := slices.Clone(h.ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "%12d %20d  client %2d  %s\n", o.Call, o.Return, o.ClientId, describe(o.Input.(question), o.Output.(reply)))
	}
	t.Errorf("%s is %s: at most %d of %d operations fit\n%s", h.window, verdict, best, len(ops), b.String())
}

// effects compares the business with the ledger.
func (r *run) effects(t *testing.T) {
	t.Helper()
	c := rig.Session(t, r.url)
	for what, query := range map[string]string{
		"windows that are not completed": "SELECT count(*) FROM onceguard.job_execution WHERE status <> 'completed'",
		"completed windows without exactly one effect of the completing attempt": `SELECT count(*) FROM onceguard.job_execution e
			WHERE (SELECT count(*) FROM effect f WHERE f.job_name = e.job_name AND f.window_start = e.window_start AND f.piece = 0 AND f.execution_id = e.execution_id) <> 1
			   OR (SELECT count(*) FROM effect f WHERE f.job_name = e.job_name AND f.window_start = e.window_start AND f.piece = 0) <> 1`,
		"pieces committed twice": "SELECT count(*) FROM (SELECT FROM effect WHERE piece > 0 GROUP BY job_name, window_start, piece HAVING count(*) > 1) x",
		"armed rows left":        "SELECT count(*) FROM onceguard.armed",
	} {
		if n := rig.Value[int](t, c, query); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

func (p *proxy) said() string {
	var s []string
	for name, n := range p.faults {
		s = append(s, fmt.Sprintf("%d %s", n.Load(), name))
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}
