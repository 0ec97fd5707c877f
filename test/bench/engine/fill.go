package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/kube"
)

// writers is how many objects are created at once.
const writers = 64

// filler makes the objects of a scene.
type filler struct {
	*scene
	clients  kube.Clients
	progress io.Writer
	uids     []types.UID // of the CronJobs
}

// forget lets go of what only the making of Jobs needs.
func (f *filler) forget() { f.uids = nil }

// each calls do for 0 to n-1, some at once, until one fails.
func (f *filler) each(ctx context.Context, what string, n int, do func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	var g sync.WaitGroup
	begin := time.Now()
	for range writers {
		g.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, i); err != nil {
					stop(fmt.Errorf("%s: %w", what, err))
				}
			}
		})
	}
	g.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fmt.Fprintf(f.progress, "made: %d %s, %.0f a second\n", n, what, float64(n)/time.Since(begin).Seconds())
	return nil
}

// cronJobs makes all of them, guarded, without an admission webhook.
func (f *filler) cronJobs(ctx context.Context) error {
	for n := range namespaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(n)}}
		if _, err := f.clients.Typed.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("the API server must be new: %w", err)
		}
	}
	f.uids = make([]types.UID, f.CronJobs)
	return f.each(ctx, "CronJobs", f.CronJobs, func(ctx context.Context, i int) error {
		config, err := f.config(i, "")
		if err != nil {
			return err
		}
		zone, starting := "Etc/UTC", int64(deadline/time.Second)
		made, err := f.clients.Typed.BatchV1().CronJobs(namespace(i)).Create(ctx, &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{
				Name: name(i), Labels: labels(), Annotations: map[string]string{contract.AnnotationGuard: contract.Enabled},
			},
			Spec: batchv1.CronJobSpec{
				Schedule: f.Schedule, TimeZone: &zone, StartingDeadlineSeconds: &starting, ConcurrencyPolicy: batchv1.ForbidConcurrent,
				JobTemplate: batchv1.JobTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: guarded(), Annotations: map[string]string{contract.AnnotationConfig: config}}, Spec: jobSpec(),
				},
			},
		}, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
		if err == nil {
			f.uids[i] = made.UID
		}
		return err
	})
}

// jobs makes those of the windows from first to before last, as the CronJob controller does.
func (f *filler) jobs(ctx context.Context, first, last int) error {
	return f.each(ctx, "Jobs", f.CronJobs*(last-first), func(ctx context.Context, k int) error {
		i, at := k%f.CronJobs, f.window(first+k/f.CronJobs)
		job, err := f.job(i, f.uids[i], at)
		if err == nil {
			_, err = f.clients.Typed.BatchV1().Jobs(job.Namespace).Create(ctx, job, metav1.CreateOptions{FieldManager: "kube-controller-manager"})
		}
		return err
	})
}

func (f *filler) job(cronJob int, uid types.UID, at time.Time) (*batchv1.Job, error) {
	config, err := f.config(cronJob, uid)
	if err != nil {
		return nil, err
	}
	yes := true
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace(cronJob), Name: fmt.Sprintf("%s-%d", name(cronJob), at.Unix()/60), Labels: guarded(),
			Annotations: map[string]string{contract.AnnotationConfig: config, contract.AnnotationScheduledTimestamp: at.Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "batch/v1", Kind: "CronJob", Name: name(cronJob), UID: uid, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: jobSpec(),
	}, nil
}

// ran records that the windows from first to before last were run.
func (f *scene) ran(ctx context.Context, first, last int) error {
	for n := first; n < last; n++ {
		if err := f.ownerDo(ctx, `INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, completed_at, created_at, updated_at)
			SELECT format('bench-%s/nightly-order-sync-%s', i % $1, lpad(i::text, 5, '0')), $3, 'completed', gen_random_uuid(), 1, i + 1, $3, $3, $3
			FROM generate_series(0, $2 - 1) i`, namespaces, f.CronJobs, f.window(n)); err != nil {
			return err
		}
	}
	return f.ownerDo(ctx, "ANALYZE onceguard.job_execution")
}

// config is what the webhook stamps.
func (f *filler) config(cronJob int, uid types.UID) (string, error) {
	text, err := json.Marshal(contract.Settings{
		Version: contract.ConfigVersion, CronJob: name(cronJob), CronJobUID: string(uid), JobName: jobName(cronJob), Ledger: ledgerName,
		Schedule: f.Schedule, TimeZone: "Etc/UTC", Since: f.since(), Containers: []string{"main"},
		Completion: contract.CompletionTransaction, Busy: contract.BusyWait, Manual: contract.ManualWindow,
		StartTimeout: contract.Duration(5 * time.Minute), Lease: contract.Duration(30 * time.Second),
		Policies: contract.Policies{Overlap: contract.OverlapWait},
	})
	return string(text), err
}

func labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "order-sync", "app.kubernetes.io/part-of": "shop", "team": "orders"}
}

func guarded() map[string]string {
	l := labels()
	l[contract.LabelGuard] = contract.Enabled
	return l
}

// jobSpec has one container, with what most have: small, for a strict comparison.
func jobSpec() batchv1.JobSpec {
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}
	requests := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi"), corev1.ResourceCPU: resource.MustParse("100m")}
	secret := func(key string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "order-sync"}, Key: key}}
	}
	return batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: guarded()},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/shop/order-sync:1.42.0", Command: []string{"/bin/order-sync", "--all"},
				Env: []corev1.EnvVar{
					{Name: "PGHOST", Value: "db.shop.svc"},
					{Name: "PGUSER", Value: "orders"},
					{Name: "PGPASSWORD", ValueFrom: secret("password")},
					{Name: "TOKEN", ValueFrom: secret("token")},
				},
				Resources: corev1.ResourceRequirements{Limits: limits, Requests: requests},
			}},
		},
	}}
}
