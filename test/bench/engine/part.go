package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/engine"
	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/test/bench/cpu"
)

// The things that a process of its own measures.
const (
	partTyped    = "a typed informer"
	partMetadata = "a metadata informer"
	partStart    = "a start of the engine"
	partDays     = "the engine for days"
	partFill     = "Jobs of one window" // measures nothing
)

const (
	calm    = 3 * time.Second // after so long without a change the engine has done its part
	longest = 20 * time.Minute
)

// answer measures what another process asked for.
func answer(ctx context.Context, question []byte, stdout io.Writer) (err error) {
	var s scene
	if err := json.Unmarshal(question, &s); err != nil {
		return err
	}
	var found any
	switch s.Part {
	case partTyped, partMetadata:
		found, err = s.informer(ctx)
	case partStart, partDays:
		found, err = s.engine(ctx)
	case partFill:
		found, err = struct{}{}, s.fill(ctx)
	default:
		err = fmt.Errorf("%s: nothing known", s.Part)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(found)
}

// informer reads all labelled Jobs into one of client-go's informers, as they come by default.
func (s *scene) informer(ctx context.Context) (memory, error) {
	clients, err := kube.Connect(s.Kubeconfig, "onceguard-bench")
	if err != nil {
		return memory{}, err
	}
	labelled := func(o *metav1.ListOptions) { o.LabelSelector = contract.LabelGuard }
	var informer cache.SharedIndexInformer
	if s.Part == partTyped {
		informer = informers.NewSharedInformerFactoryWithOptions(clients.Typed, 0, informers.WithTweakListOptions(labelled)).Batch().V1().Jobs().Informer()
	} else {
		informer = metadatainformer.NewFilteredMetadataInformer(clients.Metadata, batchv1.SchemeGroupVersion.WithResource("jobs"), metav1.NamespaceAll, 0,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, labelled).Informer()
	}
	before, begin, own := alive(), time.Now(), cpu.Own()
	ctx, stop := context.WithTimeout(ctx, longest)
	defer stop()
	done := make(chan struct{})
	go func() { defer close(done); informer.RunWithContext(ctx) }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return memory{}, errors.New("the Jobs were not read in time")
	}
	if n := len(informer.GetIndexer().ListKeys()); n != s.CronJobs*s.Jobs {
		return memory{}, fmt.Errorf("%d Jobs were read of %d", n, s.CronJobs*s.Jobs)
	}
	m := held(before, begin, own)
	runtime.KeepAlive(informer)
	stop()
	<-done
	return m, nil
}

// start is what the start of an engine took, until each CronJob was looked at.
type start struct {
	Memory memory
	Cost   cost
}

// days are what days took: a start, a while in which nothing is due, the hourly word about
// each CronJob, and windows that were run, not made, or not started.
type days struct {
	Start                          start
	Quiet, Hour, Come, Ran, Missed cost
	Stuck                          cost
	Late, Minutes                  int       // CronJobs of Stuck, and for how long
	End                            time.Time // of the engine's clock
	Gaps                           int64     // windows recorded as missed after Missed
}

// led is an engine that leads.
type led struct {
	*scene
	*engine.Engine
	sent   *requests
	offset atomic.Int64 // of its clock
	begin  time.Time
	own    time.Duration
}

func (s *scene) engine(ctx context.Context) (found any, err error) {
	clients, sent, err := counted(s.Kubeconfig)
	if err != nil {
		return nil, err
	}
	log, err := zap.Config{
		Level: zap.NewAtomicLevelAt(zap.WarnLevel), Encoding: "console", OutputPaths: []string{"stderr"},
		EncoderConfig: zap.NewDevelopmentEncoderConfig(), DisableStacktrace: true,
	}.Build()
	if err != nil {
		return nil, err
	}
	l := &led{scene: s, sent: sent}
	l.Engine = &engine.Engine{
		Clients: clients, Ledgers: engine.Ledgers(s.Ledgers), Namespace: namespace(0), Lease: "onceguard-engine", Identity: fmt.Sprint(os.Getpid()),
		Now: l.now, Log: log,
	}
	if s.Of < namespaces {
		for n := range s.Of {
			l.Namespaces = append(l.Namespaces, namespace(n))
		}
	}
	l.offset.Store(int64(time.Until(s.Now)))
	before := alive()
	l.begin, l.own = time.Now(), cpu.Own()
	none, err := l.cost(ctx)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() { stop(); err = errors.Join(err, <-done) }()
	all := int64(s.CronJobs / namespaces * s.Of)
	if err := l.settle(ctx, all); err != nil {
		return nil, err
	}
	var st start
	if st.Cost, err = l.since(ctx, none); err != nil {
		return nil, err
	}
	st.Memory = held(before, l.begin, l.own)
	if s.Part == partStart {
		return st, nil
	}
	return l.days(ctx, st)
}

// now is the engine's clock.
func (l *led) now() time.Time { return time.Now().Add(time.Duration(l.offset.Load())) }

// move sets the engine's clock.
func (l *led) move(to time.Time) {
	l.offset.Store(int64(time.Until(to)))
	l.Wake()
}

// settle waits until so many CronJobs were looked at in all, and nothing goes on.
func (l *led) settle(ctx context.Context, looks int64) error {
	ctx, stop := context.WithTimeout(ctx, longest)
	defer stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last [3]int64
	changed := time.Now()
	for {
		c := &l.Counters
		if is := [3]int64{c.Looks.Load(), c.Judged.Load(), c.Reads.Load()}; is != last {
			last, changed = is, time.Now()
		}
		if last[0] >= looks && time.Since(changed) >= calm {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d CronJobs were looked at: %w", last[0], looks, ctx.Err())
		case <-tick.C:
		}
	}
}

// cost is what all has cost so far.
func (l *led) cost(ctx context.Context) (c cost, err error) {
	c = cost{
		Requests: l.sent.read(), Looks: l.Counters.Looks.Load(), Judged: l.Counters.Judged.Load(),
		Own: cpu.Own(), Server: cpu.Tree(l.Postmaster), Took: time.Since(l.begin),
	}
	for _, pid := range l.API {
		c.API += cpu.Tree(pid)
	}
	c.Statements, err = l.statements(ctx)
	return c, err
}

// since is what was added since before.
func (l *led) since(ctx context.Context, before cost) (cost, error) {
	now, err := l.cost(ctx)
	return now.less(before), err
}
