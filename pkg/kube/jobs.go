package kube

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/onceguard/onceguard/pkg/contract"
)

var jobsResource = batchv1.SchemeGroupVersion.WithResource("jobs")

// selector chooses what Onceguard cares about: whatever carries the label, as a wrong
// value is refused, not ignored.
const selector = contract.LabelGuard

// Jobs reads the metadata of Jobs: from a watched copy of the labelled ones, and
// live on a miss, since a pod follows its Job within milliseconds.
type Jobs struct {
	live    metadata.Interface
	typed   kubernetes.Interface
	watched cache.SharedIndexInformer
}

// NewJobs makes a reader; Run keeps its copy fresh, but it works without.
func NewJobs(clients Clients) *Jobs {
	informer := metadatainformer.NewFilteredMetadataInformer(clients.Metadata, jobsResource, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) { o.LabelSelector = selector }).Informer()
	return &Jobs{live: clients.Metadata, typed: clients.Typed, watched: informer}
}

// Run watches until ctx ends.
func (j *Jobs) Run(ctx context.Context) {
	_ = j.watched.SetTransform(dropManagedFields) // fails only once it runs, and then it is set
	j.watched.RunWithContext(ctx)
}

// Job gives the metadata of the Job of that name and UID; it must not be changed.
// A Job of the same name and another UID is an error.
func (j *Jobs) Job(ctx context.Context, namespace, name string, uid types.UID) (*metav1.PartialObjectMetadata, error) {
	if found, ok, err := j.watched.GetIndexer().GetByKey(namespace + "/" + name); err == nil && ok {
		if job, ok := found.(*metav1.PartialObjectMetadata); ok && job.UID == uid {
			return job, nil
		}
	}
	job, err := j.live.Resource(jobsResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return job, same(&job.ObjectMeta, uid)
}

// Spec reads the spec of the Job of that name and UID, live: it is for the few Jobs
// whose metadata do not say everything.
func (j *Jobs) Spec(ctx context.Context, namespace, name string, uid types.UID) (*batchv1.JobSpec, error) {
	job, err := j.typed.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return &job.Spec, same(&job.ObjectMeta, uid)
}

func same(job *metav1.ObjectMeta, uid types.UID) error {
	if job.UID != uid {
		return fmt.Errorf("job %s/%s has UID %s, the pod belongs to %s: that Job is gone", job.Namespace, job.Name, job.UID, uid)
	}
	return nil
}

func dropManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}
