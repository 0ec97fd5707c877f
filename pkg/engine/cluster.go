package engine

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/kube"
)

// page is how many objects are listed at once: a list of everything is never in memory.
const page = 500

var jobsResource = batchv1.SchemeGroupVersion.WithResource("jobs")

// cluster is the watched copy of what the engine needs all the time.
type cluster struct{ parts []*part }

// part is one namespace, or all of them.
type part struct {
	namespace string
	cronJobs  cronJobs
	jobs      jobs
	synced    atomic.Int32 // how many of the two lists have come
}

// newCluster makes an empty copy of the namespaces; none means all.
func newCluster(namespaces, excluded []string, now func() time.Time, cronJobChanged func(now, before *cronJob, small bool), jobChanged func(owner, job types.UID)) *cluster {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	c := &cluster{}
	for _, n := range namespaces {
		c.parts = append(c.parts, &part{
			namespace: n,
			cronJobs:  cronJobs{excluded: excluded, now: now, changed: cronJobChanged, byUID: map[types.UID]*cronJob{}},
			jobs:      jobs{changed: jobChanged, byOwner: map[types.UID][]job{}},
		})
	}
	return c
}

// whole reports whether all that is in a namespace is known.
func (c *cluster) whole(namespace string) bool {
	for _, p := range c.parts {
		if p.namespace == metav1.NamespaceAll || p.namespace == namespace {
			return p.synced.Load() >= 2
		}
	}
	return false
}

// lacking gives the namespaces that have not been read yet.
func (c *cluster) lacking() (names []string) {
	for _, p := range c.parts {
		if p.synced.Load() < 2 {
			names = append(names, cmp.Or(p.namespace, "all namespaces"))
		}
	}
	return names
}

func (c *cluster) cronJob(uid types.UID) *cronJob {
	for _, p := range c.parts {
		if found := p.cronJobs.get(uid); found != nil {
			return found
		}
	}
	return nil
}

func (c *cluster) cronJobs() []*cronJob {
	var out []*cronJob
	for _, p := range c.parts {
		out = append(out, p.cronJobs.all()...)
	}
	return out
}

// jobsOf gives the Jobs of a CronJob in the order of their windows.
func (c *cluster) jobsOf(uid types.UID) []job {
	for _, p := range c.parts {
		if found := p.jobs.of(uid); len(found) > 0 {
			return found
		}
	}
	return nil
}

// dropJob forgets a Job that the API server does not know any more.
func (c *cluster) dropJob(owner, uid types.UID) {
	for _, p := range c.parts {
		p.jobs.drop(owner, uid)
	}
}

// putJob takes a Job that was just made: what is decided before the watch brings it must
// know of it.
func (c *cluster) putJob(made *batchv1.Job) {
	owner, j, ok := readJob(made)
	if !ok {
		return
	}
	for _, p := range c.parts {
		if p.namespace == metav1.NamespaceAll || p.namespace == made.Namespace {
			p.jobs.put(owner, j)
		}
	}
}

// watch keeps the copy fresh until ctx ends. begin is called once a part is whole, synced once
// all are.
func (c *cluster) watch(ctx context.Context, clients kube.Clients, log *zap.Logger, begin, synced func()) {
	var running sync.WaitGroup
	var first, last sync.Once
	for _, p := range c.parts {
		whole := func() {
			if p.synced.Add(1) == 2 {
				first.Do(begin)
			}
			if len(c.lacking()) == 0 {
				last.Do(synced)
			}
		}
		cronJobs := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := clients.Typed.BatchV1().CronJobs(p.namespace).List(ctx, paged(o))
				if err != nil {
					return nil, err
				}
				for i := range list.Items {
					if bare, err := bareCronJob(&list.Items[i]); err == nil {
						list.Items[i] = *bare.(*batchv1.CronJob)
					}
				}
				return list, nil
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return clients.Typed.BatchV1().CronJobs(p.namespace).Watch(ctx, o)
			},
		}
		labelled := func(o metav1.ListOptions) metav1.ListOptions { o.LabelSelector = contract.LabelGuard; return o }
		live := clients.Metadata.Resource(jobsResource).Namespace(p.namespace)
		jobs := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := live.List(ctx, labelled(paged(o)))
				if err != nil {
					return nil, err
				}
				for i := range list.Items {
					if bare, err := bareJob(&list.Items[i]); err == nil {
						list.Items[i] = *bare.(*metav1.PartialObjectMetadata)
					}
				}
				return list, nil
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return live.Watch(ctx, labelled(o))
			},
		}
		running.Go(func() {
			follow(ctx, cache.ToListWatcherWithWatchListSemantics(cronJobs, clients.Typed), &batchv1.CronJob{},
				&filled{store: &p.cronJobs, bare: bareCronJob, whole: whole})
		})
		running.Go(func() {
			follow(ctx, cache.ToListWatcherWithWatchListSemantics(jobs, clients.Metadata), &metav1.PartialObjectMetadata{},
				&filled{store: &p.jobs, bare: bareJob, whole: whole})
		})
	}
	log.Debug("watching", zap.Int("namespaces", len(c.parts)))
	running.Wait()
}

// paged makes a list come in pages: from the API server's copy of version "0" it comes whole.
func paged(o metav1.ListOptions) metav1.ListOptions {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	return o
}

func follow(ctx context.Context, source cache.ListerWatcher, example any, into *filled) {
	r := cache.NewReflectorWithOptions(source, example, into, cache.ReflectorOptions{Name: "onceguard-engine"})
	r.WatchListPageSize = page
	r.RunWithContext(ctx)
}

// filled is a store that tells when its first list has come.
type filled struct {
	store cache.ReflectorStore
	bare  cache.TransformFunc
	whole func()
	once  sync.Once
}

// Transformer makes objects small before a streamed list is collected.
func (f *filled) Transformer() cache.TransformFunc { return f.bare }

// Add, Update, Delete, Replace and Resync pass on.
func (f *filled) Add(o any) error { return f.store.Add(o) }

// Update passes on.
func (f *filled) Update(o any) error { return f.store.Update(o) }

// Delete passes on.
func (f *filled) Delete(o any) error { return f.store.Delete(o) }

// Replace passes on, and the first one makes the store whole.
func (f *filled) Replace(list []any, version string) error {
	err := f.store.Replace(list, version)
	if err == nil {
		f.once.Do(f.whole)
	}
	return err
}

// Resync passes on.
func (f *filled) Resync() error { return f.store.Resync() }
