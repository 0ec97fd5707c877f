package engine

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
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
	// cluster's engine may, so that it is not here says nothing.
	abandoned = 3 * sign
	// firstPause and longestPause are between tries at a ledger that cannot be reached.
	firstPause   = time.Second
	longestPause = time.Minute
	// ask is how often each ledger is asked what people have planned meanwhile.
	ask = 30 * time.Second
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

	// The heap's, under worker.mu.
	due      time.Time
	place    int // in the heap; -1 while it is looked at
	touched  bool
	restless bool // news of its Jobs matter: something is late or planned
	news     map[types.UID]bool
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
	book   *book
	rows   map[rowKey]gaps.Schedule // of CronJobs that have not been looked at yet
	loaded time.Time
	asked  time.Time
	lack   string // what was last told about the ledger
}

type rowKey struct {
	jobName string
	uid     types.UID
}

func newWorker(e *Engine, name string) *worker {
	return &worker{
		engine: e, name: name, log: e.Log.With(zap.String("ledger", name)), wake: make(chan struct{}, 1),
		subjects: map[types.UID]*subject{},
	}
}

// touch has a CronJob looked at soon; one that nobody has heard of, too.
func (w *worker) touch(uid types.UID) {
	at := w.engine.Now().Add(settle)
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

// stir is touch for news that only matter while something is late or planned.
func (w *worker) stir(uid, job types.UID) {
	w.mu.Lock()
	s := w.subjects[uid]
	awake := s != nil && s.restless
	if awake {
		if job != "" {
			if s.news == nil {
				s.news = map[types.UID]bool{}
			}
			s.news[job] = true
		}
		w.hasten(s, w.engine.Now().Add(settle))
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
	for len(w.heap) > 0 && len(due) < batch && !w.heap[0].due.After(now) {
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
	if soon := w.engine.Now().Add(settle); s.touched && next.After(soon) {
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
			if due, next = w.take(w.engine.Now()); len(due) > 0 {
				err, next = w.look(ctx, due), time.Time{}
				if err == nil {
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
			if w.book != nil && !errors.Is(err, gaps.ErrBusy) {
				w.book.close()
				w.book = nil // the schema is checked again
			}
			w.engine.wait(ctx, pause/2+rand.N(pause/2+1), nil) // #nosec G404 -- jitter
			pause = min(2*pause, longestPause)
		default:
			until := w.asked.Add(ask)
			if !next.IsZero() {
				until = earliest(until, next)
			}
			w.engine.wait(ctx, until.Sub(w.engine.Now()), w.wake)
		}
	}
}

// open connects to the ledger and reads what it remembers; again after each sign, to find
// what nobody looks at any more.
func (w *worker) open(ctx context.Context) error {
	now := w.engine.Now()
	if w.book == nil {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		b, err := w.engine.Ledgers.open(ctx, w.name, func() { w.engine.Counters.Statements.Add(1) }, w.log)
		if err != nil {
			return err
		}
		w.book = b
	}
	if !w.loaded.IsZero() && now.Sub(w.loaded) < sign {
		return w.hear(ctx, now)
	}
	rows, err := load(ctx, w.book)
	if err != nil {
		return err
	}
	if w.lack != "" {
		w.log.Info("the ledger is there again")
		w.lack = ""
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
			if r.Gone.IsZero() && now.Sub(r.LookedAt) > abandoned {
				if err := gone(ctx, w.book, uid); err != nil {
					return err
				}
				w.log.Info("a CronJob that nobody looks at any more is recorded as gone", zap.String("cronjob", r.CronJob), zap.String("uid", r.CronJobUID))
			}
		case s.recorded.CronJobUID == "":
			w.rows[rowKey{r.JobName, uid}] = r
		}
	}
	w.loaded = now
	return w.hear(ctx, now)
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
	for _, a := range all {
		for _, c := range w.engine.cluster.cronJobs() {
			if c.Settings.Ledger == w.name && c.Settings.JobName == a.JobName && (a.CronJobUID == "" || a.CronJobUID == string(c.uid)) {
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
