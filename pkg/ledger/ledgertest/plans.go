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
}

var _ Engine = (*Fake)(nil)

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
		f.plans = map[string]window.Window{}
	}
	f.plans[key(w)] = w
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
	return nil
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
		if e := f.rows[key(w)]; p.JobName == base(w.JobName) && counts &&
			(e == nil || e.Status != claim.Completed && e.Status != claim.Exhausted && e.Status != claim.Skipped) {
			await(w.Start)
		}
	}
	p, counts := named(r.Terms.Previous)
	if seen.Earlier || !begun || p.Start.IsZero() || !counts || f.rows[key(p)] != nil {
		return
	}
	final := false
	for _, g := range f.gaps {
		final = final || g.covers(p) && g.status != disposition.Late
	}
	if !final {
		await(p.Start)
		return
	}
	for _, g := range f.gaps {
		if late, counts := named(g.last); g.jobName == base(late.JobName) && g.status == disposition.Late &&
			counts && late.Start.Before(p.Start) && f.rows[key(late)] == nil {
			await(late.Start)
		}
	}
}
