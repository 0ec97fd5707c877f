package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// latest stands for a job's newest window.
const latest = "latest"

func (p *program) showCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "show JOB WINDOW",
		Short: "Show one window: how it stands, each attempt at it, what people decided, each pod that skipped it",
		Long: `Show one window: how it stands and what is to be done about it, each attempt at it, what
people decided, each pod that skipped it.

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
	ledger, namespace, err := p.ledgerOf(ctx, job)
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
		return p.notFound(found, *start, story)
	}
	if err != nil {
		return ledger.explain(err)
	}
	due, err := dueOf(ctx, ledger, base(found.JobName), *start)
	if err != nil {
		return err
	}
	if !story.Window.Planned {
		due.Plan = nil
	}
	if output == outputJSON {
		return p.printJSON(struct {
			audit.Story
			Gaps []audit.Gap `json:"gaps,omitempty"`
			Plan *audit.Plan `json:"plan,omitempty"`
		}{story, due.Gaps, due.Plan})
	}
	return p.storyTable(story, due)
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
		return audit.Job{}, noJob(full, ledger)
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

func (p *program) storyTable(s audit.Story, due audit.Due) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	x := s.Window
	row := func(name, value string) {
		if value != none && value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("Job", printable(x.JobName))
	row("Window", span(x))
	row("State", state(x))
	prose, command := toDo(x)
	row("To do", strings.TrimSpace(prose+" "+command))
	if due.Plan != nil {
		row("Planned", printable(planEvidence(*due.Plan)))
	}
	for _, g := range due.Gaps {
		row("Came late", printable(gapEvidence(g)))
	}
	row("Closed by", text(x.ClosedBy))
	row("Completed", instant(x.CompletedAt))
	row("Done before", doneBefore(s.Decisions))
	row("Took", seconds(x.DurationSeconds))
	row("Processed", number(x.Processed))
	row("Attempts", fmt.Sprint(x.Attempts))
	row("Duplicates", fmt.Sprintf("%d prevented", x.DuplicatesPrevented))
	row("Skipped", skipCounts(s.Skips))
	row("Schedule", scheduleText(x))
	row("Payload", text(x.PayloadDigest))
	if x.CheckpointSeq > 0 {
		row("Checkpoint", fmt.Sprint(x.CheckpointSeq))
	}
	row("Generation", fmt.Sprint(x.Generation))
	row("Execution", text(x.ExecutionID))
	row("Fencing token", fmt.Sprint(x.FencingToken))
	if err := w.Flush(); err != nil {
		return err
	}
	return p.storyTables(s)
}

// storyTables prints what people decided, each attempt and each skip.
func (p *program) storyTables(s audit.Story) error {
	if len(s.Decisions) > 0 {
		fmt.Fprintln(p.stdout, "\nDECIDED (UTC)")
		for _, d := range s.Decisions {
			fmt.Fprintln(p.stdout, decisionText(d))
		}
	}
	if err := p.attemptTable(s.Attempts); err != nil {
		return err
	}
	return p.skipTable(s.Skips)
}

func (p *program) attemptTable(attempts []audit.Attempt) error {
	if len(attempts) == 0 {
		return nil
	}
	rows := [][]string{{"ATTEMPT", "STARTED (UTC)", "TOOK", "TRIGGER", "POD", "NODE", "ENDED AS"}}
	for _, a := range attempts {
		number := fmt.Sprint(a.Attempt)
		if a.Generation > 1 {
			number += fmt.Sprintf(" (generation %d)", a.Generation)
		}
		rows = append(rows, []string{
			number, instant(&a.StartedAt), seconds(a.DurationSeconds), text(a.Trigger),
			place(a.Namespace, a.Pod), text(a.Node), ending(&a.Outcome, a.ExitCode, a.Message),
		})
	}
	fmt.Fprintln(p.stdout)
	return p.table(rows)
}

func (p *program) skipTable(skips []audit.Skip) error {
	if len(skips) == 0 {
		return nil
	}
	rows := [][]string{{"SKIPPED (UTC)", "REASON", "TRIGGER", "POD", "NODE"}}
	for _, k := range skips {
		rows = append(rows, []string{
			instant(&k.SkippedAt), k.Reason, text(k.Trigger), place(k.Namespace, k.Pod), text(k.Node),
		})
	}
	fmt.Fprintln(p.stdout)
	return p.table(rows)
}

// decisionText is one decision in a line: when, what, on what, by whom and why.
func decisionText(d audit.Decision) string {
	head := fmt.Sprintf("%s  %s by %s (login %s), ", instant(&d.DecidedAt), d.What, printable(d.Who), printable(d.Login))
	if d.LastWindow != nil {
		what := "of the windows " + instant(d.FirstWindow) + " to " + instant(d.LastWindow)
		if d.Reprocess != "" && d.Reprocess != "none" {
			what += ", also those " + d.Reprocess
		}
		return head + what + ": " + printable(d.Why)
	}
	_, before := stateBefore(d)
	return head + "it was " + before + ": " + printable(d.Why)
}

// skipCounts is "9 pods: 7 completed, 2 busy".
func skipCounts(skips []audit.Skip) string {
	if len(skips) == 0 {
		return none
	}
	count := map[string]int{}
	for _, k := range skips {
		count[k.Reason]++
	}
	reasons := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), strings.Compare(a, b))
	})
	for i, r := range reasons {
		reasons[i] = fmt.Sprintf("%d %s", count[r], r)
	}
	return plural(len(skips), "pod") + ": " + strings.Join(reasons, ", ")
}

func span(x audit.Window) string {
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
	case x.State == audit.Failed && x.Reason != nil && *x.Reason == rerun:
		return "failed (rerun): a person opened it, the next claim runs"
	case x.State == audit.Failed:
		return "failed, may be retried"
	case x.State == audit.Held:
		return "held: an attempt crashed or lost its lease, and a person is to decide"
	case x.State == audit.Exhausted:
		return exhausted(text(x.Reason))
	case x.State == audit.Skipped:
		return "skipped (" + text(x.Reason) + "): " + skipMeaning[text(x.Reason)]
	}
	return string(x.State)
}

// exhausted says in words why a window that has failed is not tried again: max-attempts, or
// the windows engine has seen the end of its Job.
func exhausted(reason string) string {
	switch reason {
	case string(disposition.DeadlineExceeded):
		return "exhausted: its Job was ended by activeDeadlineSeconds, and no other one comes"
	case string(disposition.JobFailed):
		return "exhausted: its Job has failed for good, and no other one comes"
	case string(disposition.JobGone):
		return "exhausted: its Job is not there any more, and no other one comes"
	}
	if meaning := reasonMeaning[disposition.Reason(reason)]; meaning != "" {
		return "exhausted: " + meaning + ", and no other Job comes"
	}
	return "exhausted: it has failed as often as it may"
}

// skipMeaning says in words why a window is closed as skipped.
var skipMeaning = map[string]string{
	string(claim.Late):       "its start-deadline passed before it ran",
	string(claim.Overlap):    "another window of the job was running",
	string(claim.Superseded): "a newer window took its place",
	string(claim.Cancelled):  "a person decided that it shall not run",
	string(claim.DST):        "the clocks were put back, and its civil time had been a window before",
}

// byOwner are the flags without which nothing is decided.
const byOwner = "--reason TEXT --ledger-url-file OWNER_URL"

// toDo is what a person can do about a window that does not go on by itself: prose, and
// the command that ends it.
func toDo(x audit.Window) (prose, command string) {
	about := fmt.Sprintf("%s %s %s", printable(x.JobName), instant(&x.WindowStart), byOwner)
	switch x.State {
	case audit.Held:
		return "find out what the attempt did, then let it be tried again, or cancel it likewise:", "kubectl onceguard release " + about
	case audit.Exhausted:
		return "mend the cause, then", "kubectl onceguard rerun " + about
	case audit.Skipped:
		return "to run it after all:", "kubectl onceguard rerun " + about
	case audit.Done, audit.Running, audit.Failed, audit.LeaseEnded, audit.Planned:
	}
	return "", ""
}

func place(namespace, pod *string) string {
	if namespace == nil || pod == nil {
		return text(pod)
	}
	return printable(*namespace + "/" + *pod)
}
