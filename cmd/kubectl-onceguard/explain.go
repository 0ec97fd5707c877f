package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/audit"
)

func (p *program) explainCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "explain JOB WINDOW",
		Short: "Say what became of one window, why, and what to do about it",
		Long: `Say what became of one window, also of one that nobody has run: whether it was due at all,
whether its Job came, what kept it from running, what is planned, with what was seen of it;
then each attempt, decision and skip as show has them, and what to do next.

It asks only the record, so a login that may read it (grant --audit) is enough.

JOB is NAME (in the namespace), NAMESPACE/NAME or the full name of the record.
WINDOW is its start as in 2026-11-30T13:18:00Z or 2026-11-30T21:18:00+08:00, or latest: the
newest that is due.`,
		Example: `  kubectl onceguard explain shop/order-sync 2026-11-30T13:00:00Z
  kubectl onceguard explain order-sync latest -n shop -o json`,
		Args: exactly("JOB", "WINDOW"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			start, err := parseWindow(args[1])
			if err != nil {
				return err
			}
			return p.explainWindow(c.Context(), args[0], start, output)
		},
	}
	p.outputFlag(c, &output)
	return c
}

func (p *program) explainWindow(ctx context.Context, job string, start *time.Time, output string) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ledger, namespace, err := p.ledgerOf(ctx, job)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	f, err := p.gather(ctx, ledger, namespace, job, start)
	if err != nil {
		return err
	}
	e := explainWindow(f)
	if output == outputJSON {
		return p.printJSON(e)
	}
	return p.explanationTable(e)
}

// gather reads all that the record has of one window.
func (p *program) gather(ctx context.Context, ledger *connection, namespace, job string, start *time.Time) (f facts, err error) {
	if f.now, err = clock(ctx, ledger); err != nil {
		return f, err
	}
	found, err := p.jobToExplain(ctx, ledger, namespace, job, start)
	if err != nil {
		return f, err
	}
	f.job, f.closedBefore = found.JobName, found.ClosedBefore
	if f.schedules, err = schedulesOf(ctx, ledger, base(f.job)); err != nil {
		return f, err
	}
	if start == nil {
		if start = newestDue(f, found.LatestWindow); start == nil {
			return f, fmt.Errorf("job %s has no window that is due, in %s", f.job, ledger.name)
		}
	}
	f.start = start.UTC()
	told := f.job
	if base(f.job) == f.job {
		if f.indexes, err = audit.Lanes(ctx, ledger, f.job, f.start); err != nil {
			return f, ledger.explain(err)
		}
		if i := slices.IndexFunc(f.indexes, func(x audit.Lane) bool { return x.State != "" }); i >= 0 {
			told = f.indexes[i].JobName
		}
		if told == f.job {
			f.indexes = nil
		}
	}
	f.story, err = audit.Tell(ctx, ledger, told, f.start)
	if f.claimed = err == nil; err != nil && !errors.Is(err, audit.ErrNotFound) {
		return f, ledger.explain(err)
	}
	if f.due, err = dueOf(ctx, ledger, base(f.job), f.start); err != nil {
		return f, err
	}
	if f.claimed && !f.partly() && f.due.Plan != nil && !f.story.Window.Planned {
		f.due.Plan = nil
	}
	return f, nil
}

// jobToExplain gives the job that is meant: of an Indexed Job, whose indexes have names of
// their own, the job as a whole, unless an index is named.
func (p *program) jobToExplain(ctx context.Context, ledger *connection, namespace, job string, start *time.Time) (audit.Job, error) {
	found, err := p.findJob(ctx, ledger, namespace, job, start)
	switch {
	case err == nil && (base(job) != job || strings.Contains(found.JobName, "@")):
		return found, nil
	case err == nil:
		found.JobName = base(found.JobName)
	case base(job) != job:
		return found, err
	}
	jobs, failed := audit.Jobs(ctx, ledger, namespace, job, maxJobs)
	if failed != nil {
		return found, ledger.explain(failed)
	}
	jobs = slices.DeleteFunc(jobs, func(j audit.Job) bool { return strings.Contains(j.JobName, "@") })
	if err != nil {
		var name string
		if name, failed = scheduledJob(ctx, ledger, namespace, job); failed != nil {
			names := make([]string, 0, len(jobs))
			for _, j := range jobs {
				names = append(names, base(j.JobName))
			}
			slices.Sort(names)
			if names = slices.Compact(names); len(names) != 1 {
				return found, err
			}
			name = names[0]
		}
		found = audit.Job{JobName: name}
	}
	for _, j := range jobs {
		if base(j.JobName) != found.JobName {
			continue
		}
		found.ClosedBefore = j.ClosedBefore // is that of the whole job
		if j.LatestWindow != nil && (found.LatestWindow == nil || j.LatestWindow.After(*found.LatestWindow)) {
			found.LatestWindow = j.LatestWindow
		}
	}
	return found, nil
}

// newestDue is the newest window that is due by a schedule, else the latest of the record.
func newestDue(f facts, recorded *time.Time) (newest *time.Time) {
	newest = recorded
	for _, x := range f.schedules {
		s, err := scheduleOfCronJob(x)
		if err != nil || x.GoneAt != nil {
			continue
		}
		if at := s.Newest(x.Since, f.now); !at.IsZero() && (newest == nil || at.After(*newest)) {
			newest = &at
		}
	}
	return newest
}

// scheduledJob gives the full name of a job that may never have claimed a window: one whose
// CronJob the engine knows.
func scheduledJob(ctx context.Context, ledger *connection, namespace, job string) (string, error) {
	known, err := audit.Schedules(ctx, ledger, namespace, job, maxSchedules)
	if err != nil {
		return "", ledger.explain(err)
	}
	full := job
	if namespace != "" {
		full = namespace + "/" + job
	}
	var names []string
	for _, x := range known {
		names = append(names, x.JobName)
	}
	slices.Sort(names)
	switch names = slices.Compact(names); {
	case slices.Contains(names, full):
		return full, nil
	case len(names) == 0:
		return "", noJob(full, ledger)
	case len(names) > 1:
		return "", fmt.Errorf("%s may be one of %s: give the full name", full, strings.Join(names, ", "))
	}
	return names[0], nil
}

func (p *program) explanationTable(e explanation) error {
	var b strings.Builder
	row := func(head, prose string) {
		if prose != "" {
			b.WriteString(folded(fmt.Sprintf("%-10s", head), prose))
		}
	}
	answer := e.Answer
	if e.Reason != "" && e.Reason != e.Answer {
		answer += " (" + e.Reason + ")"
	}
	row("Job", e.JobName)
	row("Window", instant(&e.WindowStart))
	row("Answer", answer)
	row("Means", e.Means)
	for i, text := range e.Evidence {
		head := ""
		if i == 0 {
			head = "Evidence"
		}
		b.WriteString(folded(fmt.Sprintf("%-10s- ", head), text))
	}
	row("To do", e.ToDo)
	if e.Command != "" { // in one line, to be copied
		fmt.Fprintf(&b, "%10s%s\n", "", e.Command)
	}
	if _, err := fmt.Fprint(p.stdout, b.String()); err != nil {
		return err
	}
	if e.Story == nil {
		return nil
	}
	return p.storyTables(*e.Story)
}
