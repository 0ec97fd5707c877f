package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/window"
)

// needsOwner says which login is needed where another one is not enough.
func needsOwner(err error) error {
	if errors.Is(err, audit.ErrForbidden) || errors.Is(err, admin.ErrForbidden) {
		return fmt.Errorf("%w; rerun, cancel, release, backfill and prune need the URL of the ledger's owner: give it by --ledger-url-file", err)
	}
	return err
}

// refused says why a decision is not possible, and what to do.
func (p *program) refused(ctx context.Context, ledger *connection, d decision, job audit.Job, w window.Window, err error) error {
	switch {
	case errors.Is(err, admin.ErrPruned):
		return fmt.Errorf("window %s of %s is closed: the history before %s was pruned, and no window of it ever runs again; what is to be done must be done by hand",
			instant(&w.Start), w.JobName, instant(job.ClosedBefore))
	case errors.Is(err, admin.ErrState), errors.Is(err, admin.ErrNotFound):
	default:
		return needsOwner(fmt.Errorf("%s: %w", ledger.name, err))
	}
	now, told := audit.Tell(ctx, ledger, w.JobName, w.Start)
	if errors.Is(told, audit.ErrNotFound) {
		return p.notFound(job, w.Start, now)
	}
	if told != nil {
		return fmt.Errorf("%s: %w", ledger.name, err)
	}
	if why := inTheWay(d.what, now.Window); why != "" {
		return errors.New(why)
	}
	return fmt.Errorf("%w: ask again in a moment", err)
}

// inTheWay says what keeps a window from being run again or cancelled; empty when
// nothing does, as far as the record shows.
func inTheWay(what string, x audit.Window) string {
	name := fmt.Sprintf("window %s of %s", instant(&x.WindowStart), x.JobName)
	switch {
	case what == release && x.State != audit.Held:
		return fmt.Sprintf("%s is %s, and only a held window can be released: %s", name, x.State, instead(x))
	case what == cancel && x.State == audit.Done:
		return fmt.Sprintf("%s is done since %s and cannot be cancelled: undo its work by the means of the business, or let it be done once more by kubectl onceguard rerun",
			name, instant(x.CompletedAt))
	case what == cancel && x.State == audit.Skipped:
		return fmt.Sprintf("%s is skipped already (%s), closed by %s: there is nothing to do", name, text(x.Reason), text(x.ClosedBy))
	case x.State == audit.Running:
		return fmt.Sprintf("%s is running: %s holds it until at least %s; %s", name, holder(x), instant(x.LeaseExpiresAt), endIt(x))
	case x.State == audit.LeaseEnded:
		return fmt.Sprintf("%s is being committed or taken over just now (its lease ended at %s): ask again in a moment", name, instant(x.LeaseExpiresAt))
	case x.State == audit.Done:
		return fmt.Sprintf("%s is done since %s, but its worker is still there: %s; %s", name, instant(x.CompletedAt), holder(x), endIt(x))
	}
	return ""
}

// instead says what opens a window that is not held.
func instead(x audit.Window) string {
	switch x.State {
	case audit.Running, audit.LeaseEnded, audit.Failed:
		return "it is open, and its next pod runs it; kubectl onceguard explain says which"
	case audit.Done:
		return "kubectl onceguard rerun does its work once more"
	case audit.Exhausted, audit.Skipped, audit.Held, audit.Planned:
	}
	return "kubectl onceguard rerun opens it"
}

func holder(x audit.Window) string {
	if x.Pod == nil {
		return fmt.Sprintf("attempt %d on %s", x.Attempts, text(x.Node))
	}
	return fmt.Sprintf("attempt %d in pod %s on node %s", x.Attempts, place(x.Namespace, x.Pod), text(x.Node))
}

func endIt(x audit.Window) string {
	if x.Pod == nil || x.Namespace == nil {
		return "stop it, or wait until it has ended, then ask again"
	}
	return fmt.Sprintf("stop it (kubectl -n %s delete pod %s) or wait until it has ended, then ask again", printable(*x.Namespace), printable(*x.Pod))
}

// notFound says what is known of a window that has no row.
func (p *program) notFound(job audit.Job, start time.Time, s audit.Story) error {
	err := fmt.Errorf("window %s of %s was never claimed", instant(&start), job.JobName)
	switch {
	case job.ClosedBefore != nil && start.Before(*job.ClosedBefore):
		err = fmt.Errorf("%w or its history was pruned: it is closed, as are all before %s", err, instant(job.ClosedBefore))
	case job.LatestWindow != nil:
		err = fmt.Errorf("%w; the latest window in the record is %s", err, instant(job.LatestWindow))
	}
	if n := len(s.Skips); n > 0 {
		err = fmt.Errorf("%w; pods that skipped it: %d, the last at %s (%s)", err, n, instant(&s.Skips[n-1].SkippedAt), s.Skips[n-1].Reason)
	}
	if n := len(s.Decisions); n > 0 {
		err = fmt.Errorf("%w; decided about it: %s", err, decisionText(s.Decisions[n-1]))
	}
	return fmt.Errorf("%w; kubectl onceguard explain %s %s says what else is known", err, printable(job.JobName), instant(&start))
}
