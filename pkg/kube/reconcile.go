package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/onceguard/onceguard/pkg/inject"
)

const (
	// resync looks at every CronJob again, for what failed too often.
	resync = 10 * time.Minute
	// attempts bounds the tries at one object. They last for most of the time until the
	// resync: just after an installation no webhook can be reached for a while, and each
	// CronJob that was annotated before would stay without its guard as long.
	attempts     = 22
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
	requestTime  = 10 * time.Second
)

// Reconciler gives CronJobs what the webhook would have given them, had it been
// asked: those annotated before the installation or while it was away, and those
// un-annotated in that time. Its values that are bad become Events, since nobody saw
// a warning.
type Reconciler struct {
	Client   kubernetes.Interface
	Cluster  string   // prefix of job names
	Excluded []string // namespaces that Onceguard leaves alone
	Now      func() time.Time
	Log      *zap.Logger

	told map[string][]string // bad values by CronJob, until they are mended; only the loop touches it
}

// Run reconciles until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client, resync, informers.WithTransform(dropManagedFields))
	cronJobs := factory.Batch().V1().CronJobs()
	queue := workqueue.NewTypedRateLimitingQueue(pauses[string]())
	enqueue := func(o any) {
		if key, err := cache.MetaNamespaceKeyFunc(o); err == nil {
			queue.Add(key)
		}
	}
	informer := cronJobs.Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			enqueue(o)
		},
	}); err != nil {
		return fmt.Errorf("watching CronJobs: %w", err)
	}
	factory.StartWithContext(ctx)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	drain(ctx, queue, func(ctx context.Context, key string) error {
		o, ok, err := informer.GetStore().GetByKey(key)
		if err != nil || !ok {
			delete(r.told, key)
			return err
		}
		cronJob, ok := o.(*batchv1.CronJob)
		if !ok {
			return nil
		}
		return r.Reconcile(ctx, cronJob)
	}, r.Log)
	factory.Shutdown()
	return nil
}

// Reconcile writes the stamp of one CronJob when it is missing, stale or no longer
// wanted. The error is worth another try.
func (r *Reconciler) Reconcile(ctx context.Context, c *batchv1.CronJob) error {
	if c.DeletionTimestamp != nil || slices.Contains(r.Excluded, c.Namespace) {
		return nil
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	stamp, err := inject.PatchCronJob(inject.CronJob{Object: raw, OldObject: raw, Namespace: c.Namespace, Cluster: r.Cluster, Now: r.Now()})
	if err != nil {
		return err
	}
	if err := r.tell(ctx, c, stamp.Left); err != nil {
		return err
	}
	if len(stamp.Ops) == 0 {
		return nil
	}
	// Only if nobody changed it since it was read.
	patch, err := json.Marshal(append([]inject.Op{{Op: "test", Path: "/metadata/resourceVersion", Value: c.ResourceVersion}}, stamp.Ops...))
	if err != nil {
		return err
	}
	_, err = r.Client.BatchV1().CronJobs(c.Namespace).Patch(ctx, c.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.Log.Info("CronJob reconciled", zap.String("namespace", c.Namespace), zap.String("cronjob", c.Name),
			zap.Int("changes", len(stamp.Ops)), zap.Strings("warnings", stamp.Warnings))
	}
	return err
}

// tell writes an Event about each value that is left as it was, once until it is
// mended.
func (r *Reconciler) tell(ctx context.Context, c *batchv1.CronJob, left []string) error {
	key := c.Namespace + "/" + c.Name
	before, now := r.told[key], []string(nil)
	for _, sentence := range left {
		news := string(c.UID) + sentence
		if !slices.Contains(before, news) {
			about := corev1.ObjectReference{APIVersion: "batch/v1", Kind: "CronJob", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
			if err := Event(ctx, r.Client, r.Log, about, ReasonBadAnnotation, corev1.EventTypeWarning, sentence, news, r.Now()); err != nil {
				return err
			}
		}
		now = append(now, news)
	}
	if r.told == nil {
		r.told = map[string][]string{}
	}
	if r.told[key] = now; len(now) == 0 {
		delete(r.told, key)
	}
	return nil
}

// pauses between the tries at one object.
func pauses[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstPause, longestPause)
}

// drain hands out the queue's items until it is shut down, and gives each a few
// tries.
func drain[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], do func(context.Context, T) error, log *zap.Logger) {
	for {
		item, closed := queue.Get()
		if closed {
			return
		}
		one, cancel := context.WithTimeout(ctx, requestTime)
		err := do(one, item)
		cancel()
		switch {
		case err == nil:
			queue.Forget(item)
		case queue.NumRequeues(item) < attempts && ctx.Err() == nil:
			queue.AddRateLimited(item)
		case ctx.Err() == nil:
			log.Warn("given up for now", zap.Any("item", item), zap.Error(err))
			queue.Forget(item)
		}
		queue.Done(item)
	}
}
