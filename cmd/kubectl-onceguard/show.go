package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/audit"
)

// latest stands for a job's newest window.
const latest = "latest"

func (p *program) showCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "show JOB WINDOW",
		Short: "Show one window: how it stands, each attempt at it, each pod that skipped it",
		Long: `Show one window: how it stands, each attempt at it, each pod that skipped it.

JOB is NAME (in the namespace), NAMESPACE/NAME (the Secret is looked for there too,
unless -n says otherwise) or the full name of the record.
WINDOW is its start as in 2026-11-30T13:18:00Z or 2026-11-30T21:18:00+08:00, or latest.`,
		Example: `  kubectl onceguard show order-sync latest -n shop
  kubectl onceguard show shop/order-sync 2026-11-30T13:18:00Z -o json`,
		Args: exactly("JOB", "WINDOW"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			start, err := parseWindow(args[1])
			if err != nil {
				return err
			}
			return p.show(c.Context(), args[0], start, output)
		},
	}
	p.outputFlag(c, &output)
	return c
}

// parseWindow gives the start of a window; nil means the latest.
func parseWindow(s string) (*time.Time, error) {
	if s == latest {
		return nil, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return &t, nil
		}
	}
	return nil, usagef("WINDOW %q: must be an instant with its zone, like 2026-11-30T13:18:00Z, or %s", s, latest)
}

func (p *program) show(ctx context.Context, job string, start *time.Time, output string) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	namespace, err := p.jobNamespace()
	if err != nil {
		return err
	}
	if strings.Contains(job, "/") {
		namespace = ""
		p.lookIn(job)
	}
	ledger, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	found, err := p.findJob(ctx, ledger, namespace, job, start)
	if err != nil {
		return err
	}
	if start == nil {
		start = found.LatestWindow
	}
	if start == nil {
		return fmt.Errorf("job %s has no window in %s", found.JobName, ledger.name)
	}
	story, err := audit.Tell(ctx, ledger, found.JobName, *start)
	if errors.Is(err, audit.ErrNotFound) {
		return p.notFound(found, *start, story.Skips)
	}
	if err != nil {
		return ledger.explain(err)
	}
	if output == outputJSON {
		return p.printJSON(story)
	}
	return p.storyTable(story)
}

// maxNamesakes bounds how many jobs of one name are looked at and listed.
const maxNamesakes = 20

// findJob gives the one job that is meant: the exact name if there is one, and of
// several (clusters, manual runs) the only one that has the window.
func (p *program) findJob(ctx context.Context, ledger *connection, namespace, job string, start *time.Time) (audit.Job, error) {
	jobs, err := audit.Jobs(ctx, ledger, namespace, job, maxNamesakes)
	if err != nil {
		return audit.Job{}, ledger.explain(err)
	}
	full := job
	if namespace != "" {
		full = namespace + "/" + job
	}
	for _, j := range jobs {
		if j.JobName == full {
			return j, nil
		}
	}
	switch len(jobs) {
	case 0:
		return audit.Job{}, fmt.Errorf("no job %s in %s: kubectl onceguard windows -A lists what there is", full, ledger.name)
	case 1:
		return jobs[0], nil
	}
	var having []audit.Job
	names := make([]string, 0, len(jobs))
	for _, j := range jobs {
		names = append(names, j.JobName)
		if start == nil {
			continue
		}
		if _, err := audit.Tell(ctx, ledger, j.JobName, *start); err == nil {
			having = append(having, j)
		} else if !errors.Is(err, audit.ErrNotFound) {
			return audit.Job{}, ledger.explain(err)
		}
	}
	if len(having) == 1 {
		return having[0], nil
	}
	if start == nil && slices.IndexFunc(jobs, func(j audit.Job) bool { return separateRunOf(j.JobName) != separateRunOf(names[0]) }) < 0 {
		newest, _, err := audit.Windows(ctx, ledger, audit.Filter{Namespace: namespace, Job: job, Limit: 1})
		if err != nil {
			return audit.Job{}, ledger.explain(err)
		}
		if len(newest) == 1 && separateRunOf(newest[0].JobName) == separateRunOf(names[0]) {
			return audit.Job{JobName: newest[0].JobName, LatestWindow: &newest[0].WindowStart}, nil
		}
	}
	return audit.Job{}, fmt.Errorf("%s may be one of %s: give the full name", full, strings.Join(names, ", "))
}

// separateRunOf gives the job of which name is a separate run ("NAME@UID"); of another
// job its name, so that only runs of one job are alike.
func separateRunOf(name string) string {
	if base, _, separate := strings.Cut(name, "@"); separate {
		return base + "@"
	}
	return name
}

func (p *program) notFound(job audit.Job, start time.Time, skips []audit.Skip) error {
	err := fmt.Errorf("window %s of %s was never claimed", instant(&start), job.JobName)
	switch {
	case job.ClosedBefore != nil && start.Before(*job.ClosedBefore):
		err = fmt.Errorf("%w or its history was pruned: it is closed, as are all before %s", err, instant(job.ClosedBefore))
	case job.LatestWindow != nil:
		err = fmt.Errorf("%w; the latest window in the record is %s", err, instant(job.LatestWindow))
	}
	if len(skips) > 0 {
		err = fmt.Errorf("%w; pods that skipped it: %d, the last at %s (%s)", err, len(skips), instant(&skips[len(skips)-1].SkippedAt), skips[len(skips)-1].Reason)
	}
	return err
}

func (p *program) storyTable(s audit.Story) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 3, ' ', 0)
	x := s.Window
	row := func(name, value string) {
		if value != none && value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("Job", x.JobName)
	row("Window", window(x))
	row("State", state(x))
	row("Completed", instant(x.CompletedAt))
	row("Took", seconds(x.DurationSeconds))
	row("Processed", number(x.Processed))
	row("Attempts", fmt.Sprint(x.Attempts))
	row("Duplicates", fmt.Sprintf("%d prevented", x.DuplicatesPrevented))
	row("Schedule", strings.TrimSpace(strings.ReplaceAll(text(x.Schedule)+" "+text(x.TimeZone), none, "")))
	row("Execution", text(x.ExecutionID))
	row("Fencing token", fmt.Sprint(x.FencingToken))
	if x.Generation > 1 {
		row("Generation", fmt.Sprint(x.Generation))
	}

	fmt.Fprint(w, "\nATTEMPT\tSTARTED (UTC)\tTOOK\tTRIGGER\tPOD\tNODE\tENDED AS\n")
	for _, a := range s.Attempts {
		fmt.Fprintln(w, strings.Join([]string{
			fmt.Sprint(a.Attempt), instant(&a.StartedAt), seconds(a.DurationSeconds), text(a.Trigger),
			place(a.Namespace, a.Pod), text(a.Node), ending(&a.Outcome, a.ExitCode, a.Message),
		}, "\t"))
	}
	if len(s.Skips) > 0 {
		fmt.Fprint(w, "\nSKIPPED (UTC)\tREASON\tTRIGGER\tPOD\tNODE\n")
		for _, k := range s.Skips {
			fmt.Fprintln(w, strings.Join([]string{
				instant(&k.SkippedAt), k.Reason, text(k.Trigger), place(k.Namespace, k.Pod), text(k.Node),
			}, "\t"))
		}
	}
	return w.Flush()
}

func window(x audit.Window) string {
	s := instant(&x.WindowStart)
	if x.WindowEnd != nil {
		s += " to " + instant(x.WindowEnd)
	}
	return s
}

func state(x audit.Window) string {
	switch {
	case x.State == audit.Running && x.LeaseExpiresAt != nil:
		return "running, lease until " + instant(x.LeaseExpiresAt)
	case x.State == audit.LeaseEnded && x.LeaseExpiresAt != nil:
		return "lease ended at " + instant(x.LeaseExpiresAt) + ": its holder died, the next claim takes over"
	case x.State == audit.Failed:
		return "failed, may be retried"
	}
	return string(x.State)
}

func place(namespace, pod *string) string {
	if namespace == nil || pod == nil {
		return text(pod)
	}
	return printable(*namespace + "/" + *pod)
}
