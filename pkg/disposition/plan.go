package disposition

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// plan decides about the windows that are planned: which are dropped, and for which a Job is
// made now.
func (d *decider) plan() {
	var ready []Plan
	running := 0
	for _, j := range d.Jobs {
		if j.CatchUp && !j.Ended {
			running++
		}
	}
	over := -d.limit()
	for _, p := range d.Plans {
		if d.ours(p) && p.By == "" {
			over++
		}
	}
	mine := 0
	serial, behind := d.settings.Order == contract.OrderSerial, false // behind a plan that newer windows wait for
	for _, p := range d.Plans {
		if p.WindowStart.After(d.Now) || d.executions[p.WindowStart.Unix()].Closed {
			continue
		}
		if !d.ours(p) {
			if behind = behind || serial; behind {
				d.look(d.Now.Add(poll)) // nobody tells when it is closed
			}
			continue
		}
		mine++
		due, inFlight := d.makable(p)
		if inFlight {
			running++
		}
		if !due {
			behind = behind || serial
			continue
		}
		g, drop := d.dropped(p, over > 0)
		if !drop {
			if !behind {
				ready = append(ready, p)
			}
			continue
		}
		if g.Rule == GivenUp && !d.isJudged(p.WindowStart) {
			behind = behind || serial
			continue // it would be planned again
		}
		g.First, g.Last, g.Windows = p.WindowStart, p.WindowStart, 1
		d.unplans = append(d.unplans, g)
		over--
	}
	if d.CronJob.Suspended && mine > 0 && d.note == "" {
		d.note = fmt.Sprintf("it is suspended: no Job is made for its planned windows (%d) until the resume", mine)
	}
	if d.CronJob.Suspended || !d.known {
		return
	}
	if len(d.plans) > 0 {
		d.look(d.Now) // they are recorded first
	}
	room := max(0, max(1, d.settings.CatchUpParallel)-running)
	if serial && room == 0 && len(ready) > 0 && !d.awaits(ready[0].WindowStart) {
		room = 1 // the newer ones that run wait for it
	}
	for _, p := range ready[:min(len(ready), room)] {
		d.makes = append(d.makes, p.WindowStart)
		if d.isJudged(p.WindowStart) {
			d.open(p.WindowStart)
		}
		d.look(d.Now.Add(Grace))
	}
}

// awaits reports whether the window w waits for the Job of an older one that is caught up.
func (d *decider) awaits(w time.Time) bool {
	return slices.ContainsFunc(d.Jobs, func(j Job) bool { return j.CatchUp && !j.Ended && j.WindowStart.Before(w) })
}

// isJudged reports whether a window is not judged again at the next look.
func (d *decider) isJudged(w time.Time) bool { return w.Before(d.state.JudgedBefore) }

// ours reports whether the Job of a plan is to be made from this CronJob.
func (d *decider) ours(p Plan) bool {
	return p.CronJobUID == "" || p.CronJobUID == d.settings.CronJobUID
}

// makable reports whether nothing is under way for a planned window, and whether its Job was
// made so recently that it may not be seen yet.
func (d *decider) makable(p Plan) (due, inFlight bool) {
	since, seen := p.MadeAt, false
	for _, j := range d.jobs[p.WindowStart.Unix()] {
		if !j.Ended {
			return false, false
		}
		if j.CatchUp {
			since = latest(since, endOf(j))
			seen = seen || j.Created.After(p.MadeAt.Add(-Grace))
		}
	}
	if e, ran := d.executions[p.WindowStart.Unix()]; ran && (e.Closed || e.Alive || triedBy(p, e)) {
		if e.Alive {
			d.look(d.Now.Add(poll))
		}
		return false, false
	}
	if p.Made == 0 {
		return true, false
	}
	wait := Grace
	if p.Made > 1 && p.Made < MakeLimit {
		wait = patience
	}
	if at := since.Add(wait); d.Now.Before(at) {
		d.look(at)
		return false, !seen && d.Now.Before(p.MadeAt.Add(Grace))
	}
	return true, false
}

// triedBy reports whether the Job of a plan has left its trace in the window's execution.
func triedBy(p Plan, e Execution) bool {
	return p.Made > 0 && !e.Foreign && !e.UpdatedAt.Before(p.MadeAt)
}

// dropped reports whether nothing is made for a planned window any more, and with which
// answer. What a person has planned is dropped only when it cannot be done.
func (d *decider) dropped(p Plan, tooMany bool) (Gap, bool) {
	w, s := p.WindowStart, d.settings
	g := Gap{Status: Missed, Reason: p.Reason}
	if jobs := d.jobs[w.Unix()]; len(jobs) > 0 {
		reason, evidence := said(telling(jobs))
		g.Evidence = evidence
		if p.Made > 0 || p.Reason == "" {
			g.Reason = reason
		}
	}
	g.Reason = cmp.Or(g.Reason, JobGone)
	engines := p.By == ""
	switch {
	case w.Before(d.ClosedBefore), engines && w.Before(s.Since), engines && d.known && !d.schedule.Contains(w):
		g.Rule = Outside
	case p.Made >= MakeLimit:
		g.Rule = GivenUp
	case d.nameless(w):
		g.Rule = Nameless
	case !engines:
		return g, false
	case s.CatchUp == "":
		return g, p.Reason != ClockMoved
	case !d.known:
		return g, false
	case s.CatchUp == contract.CatchUpLatest && w.Before(d.newest):
		return superseded(g), true
	case w.Before(d.old):
		g.Rule = TooOld
	case tooMany && (d.isJudged(w) || w.Before(d.few)):
		g.Rule = TooMany
	default:
		return g, false
	}
	return g, true
}

// nameless reports whether the CronJob's name leaves no room for the Job's.
func (d *decider) nameless(w time.Time) bool {
	return len(window.CatchUpName(d.settings.CronJob, w)) > mostNameSize
}

// open adds a window before JudgedBefore to those that are looked at by themselves.
func (d *decider) open(w time.Time) {
	at, found := slices.BinarySearchFunc(d.state.Open, w, time.Time.Compare)
	if !found {
		d.state.Open = slices.Insert(d.state.Open, at, w)
	}
	d.state.Open = d.state.Open[max(0, len(d.state.Open)-mostOpen):]
}
