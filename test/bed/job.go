package bed

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// ScheduledJob is a Job as the CronJob controller makes it for a window, under a
// name of its own: what a doubled, recreated or restored Job looks like.
func ScheduledJob(owner *batchv1.CronJob, window time.Time, prefix string) *batchv1.Job {
	template := owner.Spec.JobTemplate.DeepCopy()
	annotations := map[string]string{contract.AnnotationScheduledTimestamp: window.UTC().Format(time.RFC3339)}
	for k, v := range template.Annotations {
		annotations[k] = v
	}
	isController := true
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   owner.Namespace,
			Name:        JobNameFor(prefix, window),
			Labels:      template.Labels,
			Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "batch/v1", Kind: "CronJob", Name: owner.Name, UID: owner.UID, Controller: &isController,
			}},
		},
		Spec: template.Spec,
	}
}

// JobNameFor is the name that the CronJob controller gives to the Job of a window.
func JobNameFor(cronJob string, window time.Time) string {
	return fmt.Sprintf("%s-%d", cronJob, window.Unix()/60)
}

// Create creates a Job.
func (b *Bed) Create(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	return b.Client.BatchV1().Jobs(job.Namespace).Create(ctx, job, metav1.CreateOptions{})
}

// Ended says whether a Job has ended: JobComplete, JobFailed or "" while it runs.
func Ended(job *batchv1.Job) batchv1.JobConditionType {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c.Type
		}
	}
	return ""
}

// WaitJob waits until the Job has ended and says how.
func (b *Bed) WaitJob(ctx context.Context, limit time.Duration, namespace, name string) (batchv1.JobConditionType, error) {
	var end batchv1.JobConditionType
	err := Wait(ctx, limit, fmt.Sprintf("the end of Job %s/%s", namespace, name), func(ctx context.Context) (bool, error) {
		job, err := b.Client.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		end = Ended(job)
		return end != "", nil
	})
	return end, err
}

// Pods gives the pods of a Job.
func (b *Bed) Pods(ctx context.Context, namespace, job string) ([]corev1.Pod, error) {
	list, err := b.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + job})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
