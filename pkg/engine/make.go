package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
	"github.com/onceguard/onceguard/pkg/logs"
	"github.com/onceguard/onceguard/pkg/window"
)

const (
	// keep is how long a Job of ours is kept after its end, with its pods and their logs,
	// when its template does not say: nothing else deletes it.
	keep = 24 * time.Hour
	// firstRefusal and longestRefusal are between tries at a Job that is refused.
	firstRefusal   = 30 * time.Second
	longestRefusal = 10 * time.Minute
	// unsettled is how long the watch is given to bring what was found changed.
	unsettled = 10 * time.Second
)

// making is how the last try at a Job ended.
type making struct {
	refused string // why it was refused, for people; empty when it was not
	after   time.Time
	pause   time.Duration
}

// make makes the Jobs that were decided upon. The error is about the ledger.
func (w *worker) make(ctx context.Context, o *one) error {
	if len(o.decision.Make) == 0 {
		if len(o.decision.Plans) == 0 && !slices.ContainsFunc(o.plans, o.mine) {
			o.making = making{}
		}
		return nil
	}
	if w.now().Before(o.making.after) {
		return nil
	}
	live, ok, err := w.engine.template(ctx, o.c)
	if err != nil || !ok {
		w.refuse(o, err)
		return nil
	}
	for _, at := range o.decision.Make {
		job := jobFor(live, at)
		err := w.engine.clear(ctx, o, job.Name)
		if err == nil && (o.making.refused != "" || o.tried(at)) {
			_, err = w.engine.create(ctx, job, metav1.DryRunAll) // what is still refused is not counted as made
		}
		if err != nil {
			w.refuse(o, err)
			return nil
		}
		wanted, lerr := makingOf(ctx, w.book, o.c.Settings.JobName, at, string(o.uid), job.Name)
		if lerr != nil {
			return lerr
		}
		if !wanted {
			continue // cancelled meanwhile
		}
		made, err := w.engine.create(ctx, job)
		if err != nil {
			w.refuse(o, err)
			return nil
		}
		o.making = making{}
		w.engine.cluster.putJob(made)
		w.engine.Counters.Made.Add(1)
		w.log.Info("Job made for a window that is caught up", append(logs.Window(window.Window{JobName: o.c.Settings.JobName, Start: at}), zap.String("job", job.Name))...)
	}
	return nil
}

// tried reports whether a Job was made for a planned window before, or was to be.
func (o *one) tried(at time.Time) bool {
	return slices.ContainsFunc(o.plans, func(p disposition.Plan) bool { return p.WindowStart.Equal(at) && p.Made > 0 })
}

func makingOf(ctx context.Context, db gaps.DB, jobName string, at time.Time, uid, job string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return gaps.Making(ctx, db, jobName, at, uid, job)
}

// refuse backs off; nil means that the CronJob is not as it was, and is looked at again.
func (w *worker) refuse(o *one, err error) {
	if err == nil || apierrors.IsNotFound(err) {
		o.making.after = w.now().Add(unsettled)
		return
	}
	o.making.pause = min(max(2*o.making.pause, firstRefusal), longestRefusal)
	o.making.after = w.now().Add(o.making.pause)
	text := shorten("its Jobs for missed windows cannot be made: " + err.Error())
	if text != o.making.refused {
		w.log.Warn("a Job cannot be made; trying again", zap.String("cronjob", o.c.text()), zap.Duration("pause", o.making.pause), zap.Error(err))
	}
	o.making.refused = text
}

// template reads a CronJob to make Jobs from; false when it is no longer what was decided
// about: changed, suspended, or not guarded any more.
func (e *Engine) template(ctx context.Context, c *cronJob) (*batchv1.CronJob, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	e.Counters.Reads.Add(1)
	live, err := e.Clients.Typed.BatchV1().CronJobs(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil || live.UID != c.uid {
		return nil, false, err
	}
	s, ok := guarded(live)
	same := s.JobName == c.Settings.JobName && s.Ledger == c.Settings.Ledger && s.Since.Equal(c.Settings.Since)
	return live, ok && same && (live.Spec.Suspend == nil || !*live.Spec.Suspend), nil
}

// jobFor is the Job for a window of a CronJob. Its name is never one that the CronJob
// controller may want, and the controller does not take it for its own: it is not counted as
// active, nor deleted by the history limits.
func jobFor(c *batchv1.CronJob, at time.Time) *batchv1.Job {
	t := &c.Spec.JobTemplate
	no := false
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: window.CatchUpName(c.Name, at), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob", Name: c.Name, UID: c.UID, Controller: &no,
			}},
		},
		Spec: *t.Spec.DeepCopy(),
	}
	maps.Copy(j.Labels, t.Labels)
	maps.Copy(j.Annotations, t.Annotations)
	j.Labels[contract.LabelCatchUp] = contract.Enabled
	j.Annotations[contract.AnnotationScheduledTimestamp] = at.UTC().Format(time.RFC3339)
	if j.Spec.TTLSecondsAfterFinished == nil {
		seconds := int32(keep / time.Second)
		j.Spec.TTLSecondsAfterFinished = &seconds
	}
	return j
}

// create makes a Job. One of the same name that is ours is as good; any other is an error.
func (e *Engine) create(ctx context.Context, job *batchv1.Job, dryRun ...string) (*batchv1.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTime)
	defer cancel()
	e.Counters.Writes.Add(1)
	made, err := e.Clients.Typed.BatchV1().Jobs(job.Namespace).Create(ctx, job, metav1.CreateOptions{DryRun: dryRun, FieldManager: application})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	e.Counters.Reads.Add(1)
	there, err := e.Clients.Typed.BatchV1().Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, err
	case !ours(there, job):
		return nil, fmt.Errorf("there is a Job %s that Onceguard did not make for this window; delete it", job.Name)
	case there.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the Job %s of an earlier try is still being deleted", job.Name)
	}
	return there, nil
}

// ours reports whether there is what we would make: for the same window of the same CronJob.
func ours(there, job *batchv1.Job) bool {
	const stamp = contract.AnnotationScheduledTimestamp
	for _, o := range there.OwnerReferences {
		if o.Kind == "CronJob" && o.UID == job.OwnerReferences[0].UID {
			return there.Labels[contract.LabelCatchUp] == contract.Enabled && there.Annotations[stamp] == job.Annotations[stamp]
		}
	}
	return false
}

// clear deletes the Job of an earlier try that has ended: its name is needed.
func (e *Engine) clear(ctx context.Context, o *one, name string) error {
	for _, j := range e.cluster.jobsOf(o.uid) {
		if j.name != name || !j.catchUp || !o.seen[j.uid].ended {
			continue
		}
		// Live: what was seen of it may be the ledger's word.
		was, err := e.inspect(ctx, o.heard, o.c, j, seen{})
		if apierrors.IsNotFound(err) {
			e.cluster.dropJob(o.uid, j.uid)
			continue
		}
		if err != nil {
			return err
		}
		if !was.ended {
			return fmt.Errorf("the Job %s of an earlier try has not ended", name)
		}
		ctx, cancel := context.WithTimeout(ctx, requestTime)
		defer cancel()
		e.Counters.Writes.Add(1)
		uid, background := j.uid, metav1.DeletePropagationBackground
		err = e.Clients.Typed.BatchV1().Jobs(o.c.namespace).Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background,
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		e.cluster.dropJob(o.uid, j.uid)
	}
	return nil
}
