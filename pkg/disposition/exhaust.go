package disposition

import (
	"slices"
	"strings"
	"time"
)

// openOnes finds the windows before JudgedBefore that go on being looked at: their execution
// is not closed, their Job is still there, or a Job was made for their plan.
func (d *decider) openOnes() {
	judged := d.state.JudgedBefore
	var open []time.Time
	for _, j := range d.Jobs {
		// Something newer is not to wait for it, or the schedule was edited.
		if !j.Ended && !j.WindowStart.Before(d.State.JudgedBefore) && !d.executions[j.WindowStart.Unix()].Closed {
			open = append(open, j.WindowStart)
		}
	}
	for _, e := range d.Executions {
		if !e.Closed {
			open = append(open, e.WindowStart)
		}
	}
	for _, p := range d.Plans {
		if d.ours(p) && (p.Made > 0 || len(d.jobs[p.WindowStart.Unix()]) > 0) {
			open = append(open, p.WindowStart)
		}
	}
	for _, w := range d.State.Open {
		if d.passedBefore(w) {
			open = append(open, w)
		}
	}
	open = slices.DeleteFunc(open, func(w time.Time) bool { return !w.Before(judged) || w.Before(d.ClosedBefore) })
	slices.SortFunc(open, time.Time.Compare)
	open = slices.CompactFunc(open, time.Time.Equal)
	d.state.Open = open[max(0, len(open)-mostOpen):]
}

// passedBefore looks at a window that was judged while its Job was still there, and reports
// whether the Job is still waited for. One that ended in vain is caught up, if it is one of
// the schedule.
func (d *decider) passedBefore(w time.Time) bool {
	jobs := d.jobs[w.Unix()]
	_, ran := d.executions[w.Unix()]
	_, planned := d.planned[w.Unix()]
	if ran || planned || len(jobs) == 0 || telling(jobs).CatchUp {
		return false
	}
	j := telling(jobs)
	if !j.Ended || d.Now.Before(endOf(j).Add(Grace)) {
		d.look(d.Now.Add(poll))
		return true
	}
	if !d.known || w.Before(d.settings.Since) || !w.Before(d.from) {
		return false
	}
	reason, evidence := said(j)
	if how, g := d.outcome(w, Gap{Reason: reason, Evidence: evidence}); how == wanted {
		d.plans = append(d.plans, Plan{WindowStart: w, Reason: g.Reason, CronJobUID: d.settings.CronJobUID})
	}
	return false
}

// exhaust finds the windows that have failed and that no Job tries again. What another
// CronJob's Job ran is not ours to close: its Jobs are not in this view.
func (d *decider) exhaust() {
	for _, e := range d.Executions {
		w := e.WindowStart
		jobs := d.jobs[w.Unix()]
		if e.Closed || e.Foreign || w.Before(d.ClosedBefore) || slices.ContainsFunc(jobs, func(j Job) bool { return !j.Ended }) {
			continue
		}
		if p, planned := d.planned[w.Unix()]; planned && !(d.ours(p) && triedBy(p, e)) {
			continue
		}
		if e.Alive {
			d.look(d.Now.Add(poll))
			continue
		}
		// What has no Job here, or a name that others may have too, may be another cluster's or
		// CronJob's, and its Job may be waiting before the next pod.
		wait := patience
		if len(jobs) > 0 && d.ownName() {
			wait = Grace
		}
		if at := e.UpdatedAt.Add(wait); d.Now.Before(at) {
			d.look(at)
			continue
		}
		g := Gap{First: w, Last: w, Windows: 1, Status: Missed, Reason: JobGone, Evidence: "there is no Job for it any more"}
		if len(jobs) > 0 {
			g.Reason, g.Evidence = said(telling(jobs))
		}
		d.exhausts = append(d.exhausts, g)
		d.look(d.Now.Add(poll)) // it may be locked by a COMMIT just now
	}
}

// ownName reports whether the job bears the CronJob's own name.
func (d *decider) ownName() bool {
	return strings.HasSuffix(d.settings.JobName, "/"+d.settings.CronJob)
}
