package engine

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
)

const (
	// batch is how many CronJobs are looked at by one statement.
	batch = 200
	// settle is how long changes are gathered before they are looked at.
	settle = time.Second
	// sign is how often each CronJob is written, changed or not: how far it is judged, and
	// that somebody looks.
	sign = time.Hour
	// abandoned is after how long without a sign nobody looks at a CronJob any more. Another
	// cluster's engine may, so that it is not here says nothing: what it has planned is dropped
	// then, so that is not for a night that it is down.
	abandoned = 7 * 24 * time.Hour
	// trusted is how long the ledger must have been there before its signs are believed to be
	// missing: after an outage all of them are old.
	trusted = 3 * sign
	// firstPause and longestPause are between tries at a ledger that cannot be reached.
	firstPause   = time.Second
	longestPause = time.Minute
	// ask is how often each ledger is asked what people have planned meanwhile.
	ask = 30 * time.Second
	// noticeable is how far apart clocks are told to be.
	noticeable = 10 * time.Second
	// callTime bounds each statement.
	callTime = 30 * time.Second
)

// subject is a CronJob as the worker of its ledger knows it. Only the worker touches it,
// but for the fields that are said to be the heap's.
type subject struct {
	uid types.UID
	// recorded is what the ledger has; State is as last written, CronJobUID is empty while
	// there is no row.
	recorded gaps.Schedule
	written  time.Time
	gaps     []disposition.Gap // those recorded from recorded.State.JudgedBefore on
	state    disposition.State // may be ahead of what is recorded
	seen     map[types.UID]seen
	refused  refusals
	making   making
	told     told
	pause    time.Duration // it could not be looked at: it is looked at alone, after so long

	// The heap's, under worker.mu.
	due      time.Time
	place    int // in the heap; -1 while it is looked at
	touched  bool
	restless bool // news of its Jobs matter: something is late or planned
	news     map[types.UID]bool
	left     *cronJob // as it was when it went; nil while it is there
	leftAt   time.Time
}

// worker looks after the CronJobs of one ledger.
type worker struct {
	engine *Engine
	name   string
	log    *zap.Logger
	wake   chan struct{}

	mu       sync.Mutex
	subjects map[types.UID]*subject
	heap     byDue

	// Only the loop's.
	book     *book
	rows     map[rowKey]gaps.Schedule // of CronJobs that have not been looked at yet
	loaded   time.Time
	asked    time.Time
	lack     string    // what was last told about the ledger
	compared time.Time // when the clocks were
	steady   time.Time // since when the ledger has answered
	most     int       // how many CronJobs are looked at at once: fewer while that takes too long

	ahead atomic.Int64 // how far the engine's clock is ahead of the ledger's
}

type rowKey struct {
	jobName string
	uid     types.UID
}

func newWorker(e *Engine, name string) *worker {
	return &worker{
		engine: e, name: name, log: e.Log.With(zap.String("ledger", name)), wake: make(chan struct{}, 1), most: batch,
		subjects: map[types.UID]*subject{},
	}
}

// now is the clock that windows are judged by: the engine's, but never ahead of the ledger's,
// for guards go by that, and a window that is judged too early is judged wrong.
func (w *worker) now() time.Time { return w.engine.Now().Add(-time.Duration(w.ahead.Load())) }

// touch has a CronJob looked at soon; one that nobody has heard of, too.
func (w *worker) touch(uid types.UID) {
	at := w.now().Add(settle)
	w.mu.Lock()
	s := w.subjects[uid]
	if s == nil {
		s = &subject{uid: uid, due: at}
		w.subjects[uid] = s
		heap.Push(&w.heap, s)
	} else {
		w.hasten(s, at)
	}
	w.mu.Unlock()
	w.poke()
}

// leave is touch for a CronJob that has gone, or has another ledger.
func (w *worker) leave(c *cronJob) {
	w.touch(c.uid)
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.subjects[c.uid]; s != nil {
		s.left, s.leftAt = c, w.now()
	}
}

// stir is touch for news that only matter while something is late or planned.
func (w *worker) stir(uid, job types.UID) {
	w.mu.Lock()
	s := w.subjects[uid]
	awake := s != nil && (s.restless || s.place < 0) // nobody knows yet what the look will say
	if awake {
		if job != "" {
			if s.news == nil {
				s.news = map[types.UID]bool{}
			}
			s.news[job] = true
		}
		w.hasten(s, w.now().Add(settle))
	}
	w.mu.Unlock()
	if awake {
		w.poke()
	}
}

func (w *worker) hasten(s *subject, at time.Time) {
	switch {
	case s.place < 0:
		s.touched = true
	case at.Before(s.due):
		s.due = at
		heap.Fix(&w.heap, s.place)
	}
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take gives the CronJobs that are due, at most a batch, and else when the next one is.
func (w *worker) take(now time.Time) (due []*subject, next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for alone := false; len(w.heap) > 0 && len(due) < w.most && !alone && !w.heap[0].due.After(now); {
		if alone = w.heap[0].pause > 0; alone && len(due) > 0 {
			break
		}
		s := heap.Pop(&w.heap).(*subject)
		s.touched = false
		due = append(due, s)
	}
	if len(w.heap) > 0 {
		next = w.heap[0].due
	}
	return due, next
}

// put gives a CronJob back to the heap.
func (w *worker) put(s *subject, next time.Time, restless bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subjects[s.uid] != s {
		return
	}
	if soon := w.now().Add(settle); s.touched && next.After(soon) {
		next = soon
	}
	s.due, s.restless = next, restless
	heap.Push(&w.heap, s)
}

// forget drops a CronJob; a touch that came meanwhile makes it a new one.
func (w *worker) forget(s *subject) {
	w.mu.Lock()
	again := s.touched
	delete(w.subjects, s.uid)
	w.mu.Unlock()
	if again && w.engine.cluster.cronJob(s.uid) != nil {
		w.touch(s.uid)
	}
}

// run looks after the CronJobs until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer func() {
		if w.book != nil {
			w.book.close()
		}
	}()
	pause := firstPause
	for ctx.Err() == nil {
		var next time.Time
		err := w.open(ctx)
		if err == nil {
			var due []*subject
			if due, next = w.take(w.now()); len(due) > 0 {
				err, next = w.look(ctx, due), time.Time{}
				w.measure(len(due), err)
				if err == nil {
					w.well()
					pause = firstPause
					continue
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.complain(err)
			w.steady = time.Time{}
			if w.book != nil && !errors.Is(err, gaps.ErrBusy) {
				w.book.close()
				w.book = nil // the schema is checked again
			}
			w.engine.wait(ctx, pause/2+rand.N(pause/2+1), nil) // #nosec G404 -- jitter
			pause = min(2*pause, longestPause)
		default:
			w.well()
			until := w.asked.Add(ask)
			if !next.IsZero() {
				until = earliest(until, next)
			}
			w.engine.wait(ctx, until.Sub(w.now()), w.wake)
		}
	}
}

// measure makes the batches smaller while the ledger does not answer, so that a slow one gets
// on, and one CronJob that cannot be looked at is found.
func (w *worker) measure(n int, err error) {
	if err != nil {
		w.most = max(1, n/2)
		return
	}
	w.most = min(batch, 2*w.most)
}

// open connects to the ledger and reads what it remembers; again after each sign, to find
// what nobody looks at any more.
func (w *worker) open(ctx context.Context) error {
	if w.book == nil {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		b, err := w.engine.Ledgers.open(ctx, w.name, func() { w.engine.Counters.Statements.Add(1) }, w.log)
		if err != nil {
			return err
		}
		w.book = b
	}
	if err := w.compare(ctx); err != nil {
		return err
	}
	now := w.now()
	if w.steady.IsZero() {
		w.steady = now
	}
	if !w.loaded.IsZero() && now.Sub(w.loaded) < sign {
		return w.hear(ctx, now)
	}
	rows, err := load(ctx, w.book)
	if err != nil {
		return err
	}
	w.rows = map[rowKey]gaps.Schedule{}
	w.mu.Lock()
	subjects := make(map[types.UID]*subject, len(w.subjects))
	for uid, s := range w.subjects {
		subjects[uid] = s
	}
	w.mu.Unlock()
	for _, r := range rows {
		uid := types.UID(r.CronJobUID)
		switch s := subjects[uid]; {
		case s == nil:
			if r.Gone.IsZero() && now.Sub(r.LookedAt) > abandoned && now.Sub(w.steady) >= trusted {
				if err := w.bury(ctx, r); err != nil {
					return err
				}
			}
		case s.recorded.CronJobUID == "":
			w.rows[rowKey{r.JobName, uid}] = r
		}
	}
	w.loaded = now
	return w.hear(ctx, now)
}

// compare finds out, now and then, how far the engine's clock is ahead of the ledger's.
func (w *worker) compare(ctx context.Context) error {
	before := w.engine.Now()
	if before.Sub(w.compared) < ask && !before.Before(w.compared) {
		return nil
	}
	theirs, err := w.engine.ledgerTime(ctx, w.book)
	if err != nil {
		return err
	}
	w.compared = before
	ahead, was := max(0, before.Sub(theirs)), time.Duration(w.ahead.Load())
	if ahead > noticeable && was <= noticeable {
		w.log.Warn("the engine's clock is ahead of the ledger's, which it goes by: correct one of them", zap.Duration("ahead", ahead))
	}
	w.ahead.Store(int64(ahead))
	return nil
}

// hear has the CronJobs looked at for which a person has planned windows.
func (w *worker) hear(ctx context.Context, now time.Time) error {
	if now.Sub(w.asked) < ask {
		return nil
	}
	all, err := wanted(ctx, w.book)
	if err != nil {
		return err
	}
	w.asked = now
	if len(all) == 0 {
		return nil
	}
	byJob := map[string][]*cronJob{}
	for _, c := range w.engine.cluster.cronJobs() {
		if c.Settings.Ledger == w.name {
			byJob[c.Settings.JobName] = append(byJob[c.Settings.JobName], c)
		}
	}
	for _, a := range all {
		for _, c := range byJob[a.JobName] {
			if a.CronJobUID == "" || a.CronJobUID == string(c.uid) {
				w.touch(c.uid)
			}
		}
	}
	return nil
}

// complain logs what keeps a ledger from being used, once until it changes.
func (w *worker) complain(err error) {
	if text := err.Error(); text != w.lack {
		w.lack = text
		w.log.Warn("the ledger cannot be used; its windows are not judged meanwhile, those of others are", zap.Error(err))
	}
}

// well logs that a ledger can be used again.
func (w *worker) well() {
	if w.lack != "" {
		w.log.Info("the ledger is there again")
		w.lack = ""
	}
}

// byDue is the heap of CronJobs by the time of their next look.
type byDue []*subject

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push and Pop are for package heap.
func (h *byDue) Push(x any) {
	s := x.(*subject)
	s.place = len(*h)
	*h = append(*h, s)
}

// Pop is for package heap.
func (h *byDue) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.place = -1
	return s
}
