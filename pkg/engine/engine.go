package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/onceguard/onceguard/pkg/kube"
)

// leaseTerms are how long the Lease lasts without a word, how long the leader tries to renew
// it, and how often everybody tries.
type leaseTerms struct{ lasts, renew, retry time.Duration }

// patient terms: whoever stops gives the Lease back, and after a crash another engine leads
// within a minute. Nothing is lost meanwhile.
var patient = leaseTerms{time.Minute, 40 * time.Second, 10 * time.Second}

// Engine gives windows their answers. Set the fields, then call Run once.
type Engine struct {
	Clients kube.Clients
	Ledgers Ledgers
	// Namespaces are those that are looked at; empty: all. Excluded are left alone.
	Namespaces, Excluded []string
	// Namespace and Lease name the Lease by which one engine is chosen, Identity is this one's
	// name in it. Without a Lease this engine leads at once.
	Namespace, Lease, Identity string
	// Now is the only clock that windows are judged by.
	Now func() time.Time
	Log *zap.Logger

	Counters Counters

	terms   *leaseTerms      // nil: patient
	theirs  func() time.Time // the ledger's clock; nil: it is asked
	cluster *cluster
	state   atomic.Int32
	blind   sync.Once

	mu      sync.Mutex
	workers map[string]*worker
	start   func(*worker) // set while the engine leads and its copy of the cluster is whole
}

// How the engine stands.
const (
	begun int32 = iota
	standsBy
	reads
	leads
)

// Ready is nil when the engine does its part: it leads and its copy of the cluster is whole,
// or another one leads.
func (e *Engine) Ready() error {
	switch e.state.Load() {
	case leads, standsBy:
		return nil
	case reads:
		return fmt.Errorf("CronJobs and Jobs are being read, those of %s are lacking", strings.Join(e.lacking(), ", "))
	}
	return errors.New("not begun")
}

// lacking gives the namespaces that have not been read yet.
func (e *Engine) lacking() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cluster == nil {
		return nil
	}
	return e.cluster.lacking()
}

// Run works until ctx ends: it waits for the Lease, leads, and gives the Lease back when all
// has stopped. When the Lease is lost it waits for it again. The error is about the
// configuration.
func (e *Engine) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if e.Lease == "" {
			e.lead(ctx)
			continue
		}
		if err := e.term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term waits for the Lease and leads while it is held.
func (e *Engine) term(ctx context.Context) error {
	terms := patient
	if e.terms != nil {
		terms = *e.terms
	}
	// The elector goes on until everything has stopped, so that nobody else begins before.
	election, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	leading := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Lease}, Client: e.Clients.Typed.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		LeaseDuration: terms.lasts, RenewDeadline: terms.renew, RetryPeriod: terms.retry, ReleaseOnCancel: true, Name: e.Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { leading <- held },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("lease %s/%s: %w", e.Namespace, e.Lease, err)
	}
	e.state.Store(standsBy)
	done := make(chan struct{})
	go func() { defer close(done); elector.Run(election) }()
	select {
	case <-ctx.Done():
	case <-done:
	case held := <-leading:
		e.Log.Info("leading", zap.String("lease", e.Namespace+"/"+e.Lease), zap.String("as", e.Identity))
		work, stop := context.WithCancel(ctx)
		lost := context.AfterFunc(held, stop) //nolint:contextcheck // held is the Lease's, work is ours
		e.lead(work)
		lost()
		stop()
		e.Log.Info("not leading any more")
	}
	e.state.Store(standsBy)
	release()
	<-done
	return nil
}

// lead does the work until ctx ends and all of it has stopped.
func (e *Engine) lead(ctx context.Context) {
	e.state.Store(reads)
	var running sync.WaitGroup
	e.mu.Lock()
	e.workers, e.start = map[string]*worker{}, nil
	e.mu.Unlock()
	c := newCluster(e.Namespaces, e.Excluded, e.Now, e.cronJobChanged, e.jobChanged)
	e.mu.Lock()
	e.cluster = c
	e.mu.Unlock()
	// What is in one namespace does not wait for another, which may be forbidden for ever.
	begin := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.start = func(w *worker) { running.Go(func() { w.run(ctx) }) }
		for _, w := range e.workers {
			e.start(w)
		}
	}
	c.watch(ctx, e.Clients, e.Log, begin, func() {
		e.state.Store(leads)
		e.Log.Info("CronJobs and Jobs are read", zap.Int("cronjobs", len(c.cronJobs())))
	})
	// No watch, so nobody starts another worker.
	e.mu.Lock()
	e.start = nil
	e.mu.Unlock()
	running.Wait()
}

// ledgerTime is a ledger's clock.
func (e *Engine) ledgerTime(ctx context.Context, b *book) (time.Time, error) {
	if e.theirs != nil {
		return e.theirs(), nil
	}
	return ledgerClock(ctx, b)
}

// Wake has everybody look at the clock again: for tests that move it.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.workers {
		w.poke()
	}
}

// worker gives the worker of a ledger, a new one if need be.
func (e *Engine) worker(ledger string) *worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.workers[ledger]
	if w == nil {
		w = newWorker(e, ledger)
		e.workers[ledger] = w
		if e.start != nil {
			e.start(w)
		}
	}
	return w
}

func (e *Engine) cronJobChanged(now, before *cronJob, small bool) {
	if before != nil && (now == nil || now.Settings.Ledger != before.Settings.Ledger) {
		e.worker(before.Settings.Ledger).leave(before)
	}
	switch {
	case now == nil:
	case small:
		e.worker(now.Settings.Ledger).stir(now.uid, "")
	default:
		e.worker(now.Settings.Ledger).touch(now.uid)
	}
}

func (e *Engine) jobChanged(owner, job types.UID) {
	if c := e.cluster.cronJob(owner); c != nil {
		e.worker(c.Settings.Ledger).stir(owner, job)
	}
}

// wait returns after d, when poked, or when ctx ends.
func (e *Engine) wait(ctx context.Context, d time.Duration, poked <-chan struct{}) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-poked:
	}
}
