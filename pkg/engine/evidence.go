package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/disposition"
)

const (
	// inspections bounds the Jobs of one CronJob that are asked about in one look: at most
	// three requests each.
	inspections = 10
	// fewest bounds the lists of pods that are read.
	fewest = 50
	// stale is how old what was seen of a Job may be when it has not changed since.
	stale = disposition.Grace
	// requestTime bounds each request to the API server.
	requestTime = 10 * time.Second
)

// refusals is what the Events of a CronJob said about Jobs that could not be made; it is
// remembered, as Events are kept for an hour.
type refusals struct {
	reason   disposition.Reason
	evidence string
	last     time.Time
	asked    time.Time // when the Events were read
}

// views makes what the decision is shown of a CronJob's Jobs, and asks the cluster about
// those whose window nobody is running: such as were never asked about first, newest first.
// The error is worth another look.
func (w *worker) views(ctx context.Context, o *one, v disposition.View) ([]disposition.Job, error) {
	all := slices.DeleteFunc(w.engine.cluster.jobsOf(o.uid), func(j job) bool {
		return !j.catchUp && j.window().Before(o.c.Settings.Since) // but what people have planned may be older
	})
	said := standing(v)
	var ask []job
	for _, j := range all {
		at := j.window()
		if said(at) == open && !at.After(v.Upto) && v.Now.Sub(at) >= disposition.Grace {
			if was := o.seen[j.uid]; !was.ended && (o.news[j.uid] || was.at.IsZero() || v.Now.Sub(was.at) >= stale) {
				ask = append(ask, j)
			}
		}
	}
	slices.SortFunc(ask, func(a, b job) int {
		return cmp.Or(o.seen[a.uid].at.Compare(o.seen[b.uid].at), byWindow(b, a))
	})
	gone := map[types.UID]bool{}
	for _, j := range ask[:min(len(ask), inspections)] {
		found, err := w.engine.inspect(ctx, o.heard, o.c, j, o.seen[j.uid])
		switch {
		case apierrors.IsNotFound(err):
			w.engine.cluster.dropJob(o.uid, j.uid)
			gone[j.uid] = true
		case err != nil:
			return nil, err
		default:
			found.at = v.Now
			o.saw(j.uid, found)
		}
	}
	when := map[int64]time.Time{} // windows by their minute
	for _, e := range v.Executions {
		if e.Closed {
			when[e.WindowStart.Unix()/60] = e.UpdatedAt
		}
	}
	known := map[types.UID]bool{}
	var out []disposition.Job
	for _, j := range all {
		if gone[j.uid] {
			continue
		}
		known[j.uid] = true
		see := disposition.Job{
			WindowStart: j.window(), Name: j.name, CatchUp: j.catchUp, ByHand: j.byHand, Created: time.Unix(j.created, 0).UTC(), Reason: disposition.Starting,
		}
		if was, ok := o.seen[j.uid]; ok {
			see.Ended, see.EndedAt, see.Complete, see.Reason, see.Evidence = was.ended, was.endedAt, was.complete, was.reason, was.evidence
		}
		if said(see.WindowStart) == closed {
			// Whatever it still does, its window has its answer. When it ended is remembered: under
			// Forbid windows were skipped because of it.
			see.Ended, see.Complete = true, true
			if at, ok := when[j.minutes]; ok && o.c.Forbid {
				see.EndedAt = at
				o.saw(j.uid, seen{ended: true, complete: true, endedAt: at, reason: disposition.Starting, at: v.Now})
			}
		}
		out = append(out, see)
	}
	maps.DeleteFunc(o.seen, func(uid types.UID, _ seen) bool { return !known[uid] })
	o.jobs = all
	return out, nil
}

// saw remembers what was seen of a Job.
func (s *subject) saw(uid types.UID, what seen) {
	if s.seen == nil {
		s.seen = map[types.UID]seen{}
	}
	s.seen[uid] = what
}

// forget drops what was seen of Jobs that say nothing any more: their windows are judged, and
// they had ended before those began that are not. Else it would be kept for as long as the
// Jobs are, for most of them.
func (o *one) forget() {
	judged := o.state.JudgedBefore
	for _, j := range o.jobs {
		was, ok := o.seen[j.uid]
		if ok && !j.catchUp && was.ended && was.endedAt.Before(judged) && isJudged(o.state, j.window()) {
			delete(o.seen, j.uid)
		}
	}
	if len(o.seen) == 0 {
		o.seen = nil // with the room it had
	}
}

// isJudged reports whether nothing more is expected of a window.
func isJudged(s disposition.State, window time.Time) bool {
	return window.Before(s.JudgedBefore) && !slices.ContainsFunc(s.Open, window.Equal)
}

// What the ledger says about a window.
type stand int

const (
	open    stand = iota // nobody is running it
	running              // somebody is
	closed               // it has its answer
)

// standing tells how a window stands.
func standing(v disposition.View) func(time.Time) stand {
	said := map[int64]stand{}
	for _, at := range v.State.Open {
		said[at.Unix()] = open
	}
	for _, e := range v.Executions {
		switch at := e.WindowStart.Unix(); {
		case e.Closed:
			said[at] = closed
		case e.Alive:
			said[at] = running
		default:
			said[at] = open
		}
	}
	for _, p := range v.Plans {
		if _, known := said[p.WindowStart.Unix()]; !known {
			said[p.WindowStart.Unix()] = open
		}
	}
	return func(at time.Time) stand {
		if s, known := said[at.Unix()]; known {
			return s
		}
		if at.Before(v.State.JudgedBefore) {
			return closed
		}
		return open
	}
}

// inspect asks the API server about a Job, its pods and its Events.
func (e *Engine) inspect(ctx context.Context, heard *bulletin, c *cronJob, j job, earlier seen) (seen, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*requestTime)
	defer cancel()
	e.Counters.Reads.Add(1)
	live, err := e.Clients.Typed.BatchV1().Jobs(c.namespace).Get(ctx, j.name, metav1.GetOptions{})
	if err != nil {
		return seen{}, err
	}
	if live.UID != j.uid {
		return seen{}, apierrors.NewNotFound(batchv1.Resource("jobs"), j.name)
	}
	if held(live, batchv1.JobComplete) {
		return judgeJob(live, nil, nil, earlier), nil
	}
	e.Counters.Reads.Add(1)
	pods, err := e.Clients.Typed.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: batchv1.ControllerUidLabel + "=" + string(j.uid), Limit: fewest,
	})
	if err != nil {
		return seen{}, err
	}
	var events []corev1.Event
	if len(pods.Items) == 0 {
		if events, err = heard.about(ctx, c.namespace, j.uid); err != nil {
			return seen{}, err
		}
	}
	return judgeJob(live, pods.Items, events, earlier), nil
}

// refusals reads from a CronJob's Events why no Job was made for a window that is due
// without one, and gives when that was last said.
func (w *worker) refusals(ctx context.Context, o *one, v disposition.View) (disposition.Reason, string, time.Time, error) {
	if !v.CronJob.Suspended && v.Now.Sub(o.refused.asked) >= stale && lacking(v) {
		ctx, cancel := context.WithTimeout(ctx, requestTime)
		defer cancel()
		events, err := o.heard.about(ctx, o.c.namespace, o.uid)
		if err != nil {
			return "", "", time.Time{}, err
		}
		o.refused.asked = v.Now
		if r, text, at := refusal(events); r != "" && at.After(o.refused.last) {
			o.refused.reason, o.refused.evidence, o.refused.last = r, shorten("CronJob "+o.c.name+": "+text), at
		}
	}
	return o.refused.reason, o.refused.evidence, o.refused.last, nil
}

// lacking reports whether a window has been due for long enough that has neither an
// execution nor a Job.
func lacking(v disposition.View) bool {
	sched, err := v.CronJob.Schedule()
	if err != nil || !sched.Known() {
		return false
	}
	has := make(map[int64]bool, len(v.Executions)+len(v.Jobs))
	for _, e := range v.Executions {
		has[e.WindowStart.Unix()] = true
	}
	for _, j := range v.Jobs {
		has[j.WindowStart.Unix()] = true
	}
	for at := range sched.Due(v.State.JudgedBefore.Add(-time.Second), earliest(v.Upto, v.Now.Add(-disposition.Grace))) {
		if !has[at.Unix()] {
			return true
		}
	}
	return false
}
