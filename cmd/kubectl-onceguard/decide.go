package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/window"
)

// decision is what a person decides about one window.
type decision struct {
	what        string // rerun, cancel or release
	job         string // as typed
	start       time.Time
	why, by     string
	dryRun      bool
	offSchedule bool
}

const (
	rerun  = "rerun"
	cancel = "cancel"
	// release of a held window
	release = "release"
)

func (p *program) rerunCommand() *cobra.Command {
	return p.decisionCommand(decision{what: rerun}, &cobra.Command{
		Use:   "rerun JOB WINDOW --reason TEXT",
		Short: "Open a window again, whatever became of it",
		Long: `Open a window again, whatever became of it: the next pod for it runs. This starts
no pod; the answer says which one runs it.

A window that is done gets a new generation, and with it another idempotency key: its
work is done a second time. Any other goes on from its checkpoint, and its failures so
far count no more. While a worker runs it is refused.

JOB is NAME (in the namespace), NAMESPACE/NAME or the full name of the record; WINDOW is
its start as in 2026-11-30T13:18:00Z. Who, why and the database's login are recorded.
Needs the URL of the ledger's owner.`,
		Example: `  kubectl onceguard rerun shop/order-sync 2026-11-30T13:00:00Z --reason 'prices were wrong, TICKET-17' --ledger-url-file owner.url
  kubectl onceguard rerun shop/order-sync 2026-11-30T13:00:00Z --reason test --dry-run --ledger-url-file owner.url`,
	})
}

func (p *program) cancelCommand() *cobra.Command {
	return p.decisionCommand(decision{what: cancel}, &cobra.Command{
		Use:   "cancel JOB WINDOW --reason TEXT",
		Short: "Close a window that shall not run",
		Long: `Close a window that shall not run: one that failed, is held or exhausted, or that
nobody has claimed yet. Refused while a worker runs, and when it is done or skipped.
Of a window that nobody has claimed the job must be in the record, and the instant one of
its schedule; an index (NAME#3) may be one that never came. --off-schedule takes any.

JOB is NAME (in the namespace), NAMESPACE/NAME or the full name of the record; WINDOW is
its start as in 2026-11-30T13:18:00Z. Who, why and the database's login are recorded.
Needs the URL of the ledger's owner.`,
		Example: `  kubectl onceguard cancel shop/order-sync 2026-11-30T13:00:00Z --reason 'done by hand, TICKET-17' --ledger-url-file owner.url`,
	})
}

func (p *program) releaseCommand() *cobra.Command {
	return p.decisionCommand(decision{what: release}, &cobra.Command{
		Use:   "release JOB WINDOW --reason TEXT",
		Short: "Let a held window be tried again",
		Long: `Let a held window be tried again: one whose attempt crashed or was lost, under
onceguard.dev/on-crash=hold. Find out first what that attempt did. The next pod for the
window goes on from its last checkpoint; this starts no pod, and the answer says which one
runs it. Any other window is refused: rerun opens those.

JOB is NAME (in the namespace), NAMESPACE/NAME or the full name of the record; WINDOW is
its start as in 2026-11-30T13:18:00Z. Who, why and the database's login are recorded.
Needs the URL of the ledger's owner.`,
		Example: `  kubectl onceguard release shop/order-sync 2026-11-30T13:00:00Z --reason 'nothing was sent, TICKET-20' --ledger-url-file owner.url`,
	})
}

func (p *program) decisionCommand(d decision, c *cobra.Command) *cobra.Command {
	c.Args = exactly("JOB", "WINDOW")
	c.RunE = func(c *cobra.Command, args []string) error {
		start, err := parseWindow(args[1])
		if err != nil {
			return err
		}
		if start == nil {
			// By the time that it is asked, another window may be the latest.
			return usagef("WINDOW latest: %s needs the instant, like 2026-11-30T13:18:00Z; kubectl onceguard show %s latest names it", d.what, args[0])
		}
		if d.why, err = line("--reason", d.why, admin.MaxWhy); err != nil {
			return err
		}
		if d.by != "" || c.Flags().Changed("by") {
			if d.by, err = line("--by", d.by, admin.MaxWho); err != nil {
				return err
			}
		}
		d.job, d.start = args[0], *start
		return p.decide(c.Context(), d)
	}
	c.Flags().StringVar(&d.why, "reason", "", "why: it is recorded with the window (required)")
	c.Flags().StringVar(&d.by, "by", "", "who decides (default: the Kubernetes user of the current context, else user@host)")
	c.Flags().BoolVar(&d.dryRun, "dry-run", false, "say what it would do, and change nothing")
	if d.what == cancel {
		c.Flags().BoolVar(&d.offSchedule, "off-schedule", false, "also a window that nobody has claimed and that the job's last known schedule does not have, and a job that the record does not know")
	}
	return c
}

// line reads a flag's one line of text.
func line(flag, value string, most int) (string, error) {
	value = strings.TrimSpace(value)
	switch n := utf8.RuneCountInString(value); {
	case value == "":
		return "", usagef("%s is missing: it is recorded with the window", flag)
	case n > most:
		return "", usagef("%s has %d characters: at most %d are recorded", flag, n, most)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return "", usagef("%s %q: must be one line of text", flag, value)
	}
	return value, nil
}

func (p *program) decide(ctx context.Context, d decision) error {
	ctx, stop := context.WithTimeout(ctx, p.timeout)
	defer stop()
	ledger, namespace, err := p.ledgerOf(ctx, d.job)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	found, err := p.findJob(ctx, ledger, namespace, d.job, &d.start)
	if errors.Is(err, errNoJob) && d.what == cancel {
		found, err = p.newName(ctx, ledger, namespace, d)
	}
	if err != nil {
		return needsOwner(err)
	}
	w := window.Window{JobName: found.JobName, Start: d.start.UTC()}
	before, err := audit.Tell(ctx, ledger, w.JobName, w.Start)
	switch claimed := !errors.Is(err, audit.ErrNotFound); {
	case claimed && err != nil:
		return needsOwner(ledger.explain(err))
	case claimed:
	case d.what != cancel:
		err := p.notFound(found, w.Start, before)
		if d.what == release {
			return fmt.Errorf("%w: only a held window can be released", err)
		}
		if found.ClosedBefore == nil || !w.Start.Before(*found.ClosedBefore) {
			err = fmt.Errorf("%w: check WINDOW; one that was never claimed needs no rerun, the first pod that means it runs, and kubectl onceguard backfill lets the windows engine make one", err)
		}
		return err
	default:
		if err := p.mayCome(ctx, ledger, found, w.Start, d.offSchedule); err != nil {
			return err
		}
	}
	if d.by == "" {
		if d.by, err = p.whoami(ctx); err != nil {
			return err
		}
	}

	// In a transaction, so that what is said is what was done, and a dry run is the same.
	tx, err := ledger.Begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", ledger.name, err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	switch d.what {
	case rerun:
		_, err = admin.Rerun(ctx, tx, w, d.by, d.why)
	case release:
		err = admin.Release(ctx, tx, w, d.by, d.why)
	default:
		err = admin.Cancel(ctx, tx, w, d.by, d.why)
	}
	if err != nil {
		_ = tx.Rollback(ctx)
		return p.refused(ctx, ledger, d, found, w, err)
	}
	after, err := audit.Tell(ctx, tx, w.JobName, w.Start)
	if err != nil {
		return needsOwner(ledger.explain(err))
	}
	if !d.dryRun {
		if err := tx.Commit(ctx); err != nil {
			return fmt.Errorf("%s: it is not known whether the %s was recorded, look with kubectl onceguard show: %w", ledger.name, d.what, err)
		}
	}
	engine, err := engineRuns(ctx, ledger, w)
	if err != nil {
		return needsOwner(err)
	}
	return p.decided(d, after, engine)
}

// engineRuns reports whether the windows engine could make a Job for a window.
func engineRuns(ctx context.Context, ledger *connection, w window.Window) (bool, error) {
	all, err := schedulesOf(ctx, ledger, base(w.JobName))
	if err != nil {
		return false, err
	}
	return !strings.Contains(w.JobName, "@") && slices.ContainsFunc(all, func(x audit.Schedule) bool {
		_, is, err := dueBy(x, w.Start)
		return x.GoneAt == nil && err == nil && is
	}), nil
}

// newName gives the full name of an index that has no window yet, or with --off-schedule of
// any job: one that a later window may wait for can be cancelled before it ever came.
func (p *program) newName(ctx context.Context, ledger *connection, namespace string, d decision) (audit.Job, error) {
	b := base(d.job)
	names, err := p.jobsToPrune(ctx, ledger, namespace, b)
	switch {
	case errors.Is(err, errNoJob) && d.offSchedule:
		full := d.job
		if namespace != "" {
			full = namespace + "/" + d.job
		}
		return audit.Job{JobName: full}, nil
	case errors.Is(err, errNoJob):
		return audit.Job{}, fmt.Errorf("%w; a job that never claimed a window is cancelled with --off-schedule", err)
	case err != nil:
		return audit.Job{}, err
	}
	found := audit.Job{JobName: names[0] + strings.TrimPrefix(d.job, b)}
	jobs, err := audit.Jobs(ctx, ledger, "", names[0], 1)
	if err != nil {
		return audit.Job{}, ledger.explain(err)
	}
	if len(jobs) > 0 {
		found.ClosedBefore = jobs[0].ClosedBefore // is that of the whole job
	}
	return found, nil
}

// maxNewest is how many windows are looked through for a schedule.
const maxNewest = 50

// mayCome refuses to close a window that nobody has claimed and that will hardly come:
// its row would say that something was cancelled, and the real window would run.
func (p *program) mayCome(ctx context.Context, ledger *connection, job audit.Job, start time.Time, offSchedule bool) error {
	if strings.Contains(job.JobName, "@") {
		return fmt.Errorf("%s is a separate run, which is no window to come, and it never claimed %s: name its job %s to cancel a window of that",
			job.JobName, instant(&start), base(job.JobName))
	}
	if offSchedule {
		return nil
	}
	newest, _, err := audit.Windows(ctx, ledger, audit.Filter{Job: base(job.JobName), Limit: maxNewest})
	if err != nil {
		return needsOwner(ledger.explain(err))
	}
	// One that a person cancelled before it came has none.
	i := slices.IndexFunc(newest, func(x audit.Window) bool { return base(x.JobName) == base(job.JobName) && x.Schedule != nil })
	if i < 0 {
		return nil
	}
	s, known := scheduleOf(newest[i])
	if !known || s.Contains(start) {
		return nil
	}
	previous, next := s.Previous(start), s.Next(start)
	return fmt.Errorf("window %s of %s was never claimed, and it is no instant of the schedule %s that its latest window had (nearest: %s and %s): "+
		"correct WINDOW, or say --off-schedule if the schedule has changed", instant(&start), job.JobName, scheduleText(newest[i]), instant(&previous), instant(&next))
}

// was is how a window stood before a decision, as the decision keeps it.
type was struct {
	Status      string     `json:"status"`
	Reason      *string    `json:"reason"`
	Attempt     int        `json:"attempt"`
	Generation  int        `json:"generation"`
	CompletedAt *time.Time `json:"completed_at"`
}

func stateBefore(d audit.Decision) (w was, text string) {
	if len(d.Before) == 0 || json.Unmarshal(d.Before, &w) != nil || w.Status == "" {
		return was{}, "never claimed"
	}
	switch w.Status {
	case "completed":
		text = "done (completed " + instant(w.CompletedAt) + ", " + plural(w.Attempt, "attempt")
		if w.Generation > 1 {
			text += fmt.Sprintf(", generation %d", w.Generation)
		}
		return w, text + ")"
	case "running": // a live one is not decided about
		return w, "left by a worker whose lease has ended"
	}
	text = w.Status
	if w.Reason != nil && *w.Reason != w.Status {
		text += " (" + *w.Reason + ")"
	}
	if w.Attempt > 0 {
		text += " after " + plural(w.Attempt, "attempt")
	}
	return w, text
}

// doneBefore is when the work of an earlier generation was done, for a window that was
// opened again since; empty when it was not.
func doneBefore(decisions []audit.Decision) string {
	for _, d := range slices.Backward(decisions) {
		if old, _ := stateBefore(d); old.Status == "completed" {
			return fmt.Sprintf("generation %d, completed %s", old.Generation, instant(old.CompletedAt))
		}
	}
	return ""
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *program) decided(d decision, after audit.Story, engine bool) error {
	x := after.Window
	last := after.Decisions[len(after.Decisions)-1]
	old, text := stateBefore(last)
	now := "is now"
	if d.dryRun {
		now = "would be"
		fmt.Fprintln(p.stdout, "Nothing is changed (--dry-run).")
	}
	fmt.Fprintf(p.stdout, "Window %s of %s was %s, and by decision of %s it %s ", instant(&x.WindowStart), x.JobName, text, printable(last.Who), now)
	switch {
	case d.what == cancel:
		fmt.Fprintln(p.stdout, "skipped (cancelled): its pods end with 0 and do nothing. A manual Job that means this window, or kubectl onceguard rerun, opens it again.")
		if done := doneBefore(after.Decisions); done != "" {
			fmt.Fprintf(p.stdout, "Its work was done before (%s): that is not undone.\n", done)
		}
		return nil
	case x.Generation != old.Generation:
		fmt.Fprintf(p.stdout, "open as generation %d, with another idempotency key: its work is done once more, and nothing of the earlier run is undone.\n", x.Generation)
	default:
		from := "from its beginning"
		if x.CheckpointSeq > 0 {
			from = fmt.Sprintf("from checkpoint %d", x.CheckpointSeq)
		}
		fmt.Fprintf(p.stdout, "open, still generation %d: the next attempt works %s.\n", x.Generation, from)
	}
	fmt.Fprintln(p.stdout, nextRun(x, old, p.now()))
	if engine && !d.dryRun {
		at := instant(&x.WindowStart)
		fmt.Fprintf(p.stdout, "Or let the windows engine make it:\n  kubectl onceguard backfill %s --from %s --to %s --reprocess failed %s\n", printable(base(x.JobName)), at, at, byOwner)
	}
	return nil
}
