package ledgertest

import (
	"time"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/window"
)

// Somebody is who decides, for the fake and in the suite.
const Somebody = "somebody"

// People are the decisions of package admin about a ledger under test.
type People interface {
	Rerun(window.Window) (generation int, err error)
	CancelWindow(window.Window) error
	Prune(jobName string, upto time.Time) (time.Time, error)
}

var _ People = (*Fake)(nil)

// Rerun is admin.Rerun.
func (f *Fake) Rerun(w window.Window) (generation int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.rows[key(w)]
	switch {
	case f.isClosed(w):
		return 0, admin.ErrPruned
	case e == nil:
		return 0, admin.ErrNotFound
	case f.works(e):
		return 0, admin.ErrState
	}
	if e.Status == claim.Completed {
		if last := &e.attempts[e.Attempt-1]; last.Outcome == "" {
			last.Outcome = claim.OutcomeCompleted
		}
		e.Generation++
		e.Completion, e.CompletedAt, e.Checkpoint = claim.Completion{}, time.Time{}, claim.Checkpoint{}
	}
	e.PayloadDigest = ""
	f.end(e, claim.Failed, "rerun", "")
	e.decided = e.Attempt
	return e.Generation, nil
}

// CancelWindow is admin.Cancel.
func (f *Fake) CancelWindow(w window.Window) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.rows[key(w)]
	switch {
	case f.isClosed(w):
		return admin.ErrPruned
	case e == nil:
		e = f.insert(w)
	case f.works(e), e.Status == claim.Completed, e.Status == claim.Skipped:
		return admin.ErrState
	}
	f.end(e, claim.Skipped, claim.Cancelled, Somebody)
	for _, o := range f.rows {
		if o.window.JobName == w.JobName && o.lease != nil && o.lease.asker.Equal(w.Start) {
			o.lease.cancel, o.lease.by, o.lease.asker = false, "", time.Time{}
		}
	}
	return nil
}

// Prune is admin.Prune.
func (f *Fake) Prune(jobName string, upto time.Time) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := !f.closed[jobName].IsZero()
	for _, e := range f.rows {
		if base(e.window.JobName) != jobName {
			continue
		}
		known = true
		open := e.Status == claim.Running || e.Status == claim.Failed || e.Status == claim.Held || f.works(e)
		if open && e.window.Start.Before(upto) {
			upto = e.window.Start
		}
	}
	for c := range f.away {
		known = known || c.jobName == jobName
	}
	for k, p := range f.plans {
		switch {
		case p.JobName != jobName:
			continue
		case f.isClosed(p.Window), f.shut(p):
			delete(f.plans, k)
		case p.Start.Before(upto):
			upto = p.Start
		}
		known = true
	}
	if !known {
		return time.Time{}, admin.ErrNotFound
	}
	if f.closed == nil {
		f.closed = map[string]time.Time{}
	}
	if f.closed[jobName].Before(upto) {
		f.closed[jobName] = upto
	}
	for k, e := range f.rows {
		if f.isClosed(e.window) {
			delete(f.rows, k)
		}
	}
	return f.closed[jobName], nil
}

// works reports whether a worker may still run.
func (f *Fake) works(e *execution) bool {
	return e.lease != nil && !e.lease.expires.Before(f.now())
}
