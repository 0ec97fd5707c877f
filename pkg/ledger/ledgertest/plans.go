package ledgertest

import (
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/window"
)

// Engine is what the windows engine records and a claim reads.
type Engine interface {
	// Plan says that the window is to be run later; Unplan, that it is not.
	Plan(window.Window) error
	Unplan(window.Window) error
	// Judge says that nothing has run the windows from first to last; whatever was said of
	// any of them by the same CronJob is forgotten.
	Judge(jobName, cronJobUID string, first, last time.Time, s disposition.Status) error
	// Leave says that nobody looks at a CronJob any more until it is judged again; and that it
	// is gone, with its plans left to another one. Plans are those of Planner.
	Leave(jobName, cronJobUID string, gone bool) error
}

// Planner is the CronJob whose plans Engine.Plan makes.
const Planner = "one"

var _ Engine = (*Fake)(nil)

// plan is a window that is to be run later, by Jobs of a CronJob unless that is gone.
type plan struct {
	window.Window
	orphan bool
}

type cronJob struct{ jobName, uid string }

// gap is a range of windows that a CronJob has not run.
type gap struct {
	jobName, cronJobUID string
	first, last         time.Time
	status              disposition.Status
}

// covers reports whether w, or a window of its job's other names, is in the gap.
func (g gap) covers(w window.Window) bool {
	return g.jobName == base(w.JobName) && !w.Start.Before(g.first) && !w.Start.After(g.last)
}

// Plan implements Engine.
func (f *Fake) Plan(w window.Window) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plans == nil {
		f.plans = map[string]*plan{}
	}
	if f.plans[key(w)] == nil {
		f.plans[key(w)] = &plan{Window: w}
	}
	return nil
}

// Unplan implements Engine.
func (f *Fake) Unplan(w window.Window) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.plans, key(w))
	return nil
}

// Judge implements Engine.
func (f *Fake) Judge(jobName, cronJobUID string, first, last time.Time, s disposition.Status) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var kept []gap
	for _, g := range f.gaps {
		if g.jobName != jobName || g.cronJobUID != cronJobUID || g.last.Before(first) || g.first.After(last) {
			kept = append(kept, g)
		}
	}
	f.gaps = append(kept, gap{jobName, cronJobUID, first, last, s})
	f.see(cronJob{jobName, cronJobUID}, false)
	return nil
}

// Leave implements Engine.
func (f *Fake) Leave(jobName, cronJobUID string, gone bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.see(cronJob{jobName, cronJobUID}, true)
	for _, p := range f.plans {
		p.orphan = p.orphan || gone && p.JobName == jobName && cronJobUID == Planner
	}
	return nil
}

func (f *Fake) see(c cronJob, away bool) {
	if f.away == nil {
		f.away = map[cronJob]bool{}
	}
	f.away[c] = away
}

// mayCome reports whether a gap says that its windows may still come, and somebody looks.
func (f *Fake) mayCome(g gap) bool {
	return g.status == disposition.Late && !f.away[cronJob{g.jobName, g.cronJobUID}]
}

// shut reports whether a plan says nothing any more: its window is closed, under each name by
// which the job has claimed.
func (f *Fake) shut(p *plan) bool {
	names, indexed := map[string]bool{}, false
	for _, e := range f.rows {
		if base(e.window.JobName) == p.JobName && !strings.Contains(e.window.JobName, "@") {
			names[e.window.JobName] = true
			indexed = indexed || strings.Contains(e.window.JobName, "#")
		}
	}
	names[p.JobName] = true
	for name := range names {
		e := f.rows[key(window.Window{JobName: name, Start: p.Start})]
		if e == nil && indexed && name == p.JobName {
			continue // nothing claims by it
		}
		if e == nil || e.Status == claim.Running || e.Status == claim.Failed {
			return false
		}
	}
	return true
}

// planned reports whether the window is to be run later: a plan is one for all indexes of a
// job, and none for separate runs.
func (f *Fake) planned(w window.Window) bool {
	_, ok := f.plans[key(window.Window{JobName: base(w.JobName), Start: w.Start})]
	return ok && !strings.Contains(w.JobName, "@")
}

// wanted reports whether somebody asked for a window that was tried.
func (f *Fake) wanted(e *execution) bool { return e.decided >= 0 || f.planned(e.window) }

// outstanding looks for what Terms.Serial waits for besides the windows of the record:
// those that are planned, and those that may still come. begun says that windows of this
// name are known.
func (f *Fake) outstanding(r claim.Request, begun bool, seen *claim.Seen, way map[claim.Reason]window.Window) {
	await := func(at time.Time) {
		if !seen.Earlier || at.After(way[claim.Order].Start) {
			way[claim.Order] = window.Window{JobName: r.Window.JobName, Start: at}
		}
		seen.Earlier = true
	}
	named := func(at time.Time) (w window.Window, counts bool) {
		w = window.Window{JobName: r.Window.JobName, Start: at}
		return w, at.Before(r.Window.Start) && !at.Before(r.Terms.Since) && !f.isClosed(w)
	}
	for _, p := range f.plans {
		w, counts := named(p.Start)
		if e := f.rows[key(w)]; p.JobName == base(w.JobName) && counts && !p.orphan &&
			(e == nil || e.Status != claim.Completed && e.Status != claim.Exhausted && e.Status != claim.Skipped) {
			await(w.Start)
		}
	}
	p, counts := named(r.Terms.Previous)
	if seen.Earlier || !begun || p.Start.IsZero() || !counts || f.rows[key(p)] != nil {
		return
	}
	final, comes := false, false
	for _, g := range f.gaps {
		final = final || g.covers(p) && g.status != disposition.Late
		comes = comes || g.covers(p) && f.mayCome(g)
	}
	if !final || comes {
		await(p.Start)
		return
	}
	for _, g := range f.gaps {
		if late, counts := named(g.last); g.jobName == base(late.JobName) && f.mayCome(g) &&
			counts && late.Start.Before(p.Start) && f.rows[key(late)] == nil {
			await(late.Start)
		}
	}
}
