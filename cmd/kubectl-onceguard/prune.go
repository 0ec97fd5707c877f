package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/audit"
)

// prunable says what to prune.
type prunable struct {
	job       string // empty: all jobs of the namespace
	before    string
	olderThan string
	dryRun    bool
}

func (p *program) pruneCommand() *cobra.Command {
	var what prunable
	var all bool
	c := &cobra.Command{
		Use:   "prune {JOB | --all [-A]} {--before INSTANT | --older-than DURATION}",
		Short: "Close old windows for ever, and delete their record",
		Long: `Close the windows of a job before an instant for ever, and delete their record. A late
pod for one of them skips (closed). Decisions by people stay.

All windows before it are closed, also those without a record: one that no pod has claimed
yet, and one whose pods still wait for another window or their turn, never runs. Keep
more than a Job can be late or retried: less than a day is warned about.

It never passes a window that may still run: one that is running, failed, held or planned,
or whose lease has ended. It goes as far as it can, names that window and exits with 1.
The indexes and separate runs of a job go with it. Needs the URL of the ledger's owner.`,
		Example: `  kubectl onceguard prune shop/order-sync --older-than 90d --dry-run --ledger-url-file owner.url
  kubectl onceguard prune --all -A --before 2026-09-01T00:00:00Z --ledger-url-file owner.url`,
		Args: func(c *cobra.Command, args []string) error {
			if !all && !p.allNamespaces {
				return exactly("JOB or --all")(c, args)
			}
			if len(args) > 0 {
				return usagef("JOB %q and --all exclude each other", args[0])
			}
			if !all {
				return usagef("-A goes with --all: it means the jobs of all namespaces")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				what.job = args[0]
			}
			return p.prune(c.Context(), what)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all jobs of the namespace")
	c.Flags().BoolVarP(&p.allNamespaces, "all-namespaces", "A", false, "with --all: those of all namespaces in this ledger")
	c.Flags().StringVar(&what.before, "before", "", "windows that began before this instant, as in 2026-09-01T00:00:00Z")
	c.Flags().StringVar(&what.olderThan, "older-than", "", "windows that began longer ago than this, by the database's clock: 90d, 36h")
	c.Flags().BoolVar(&what.dryRun, "dry-run", false, "say what it would do, and change nothing")
	return c
}

// limit gives where to prune up to: an instant, or how long before now.
func (w prunable) limit() (upto time.Time, age time.Duration, err error) {
	switch {
	case (w.before == "") == (w.olderThan == ""):
		return upto, 0, usagef("say one of --before and --older-than")
	case w.before != "":
		start, err := parseWindow(w.before)
		if err != nil || start == nil {
			return upto, 0, usagef("--before %q: must be an instant with its zone, like 2026-09-01T00:00:00Z", w.before)
		}
		return *start, 0, nil
	}
	if age, err = parseAge(w.olderThan); err != nil {
		return upto, 0, usagef("--older-than %q: must be a duration above 0, like 90d or 36h", w.olderThan)
	}
	return upto, age, nil
}

// parseAge reads a duration above 0; "90d" are days of 24 hours.
func parseAge(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		s = days + "h"
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 || d > 36500*time.Hour || strings.ContainsAny(days, "hms.") {
			return 0, errors.New("not a number of days")
		}
		return d * 24, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("not a duration above 0")
	}
	return d, nil
}

func (p *program) prune(ctx context.Context, what prunable) error {
	upto, age, err := what.limit()
	if err != nil {
		return err
	}
	if b := base(what.job); b != what.job {
		return usagef("JOB %q: a job is pruned as a whole, with its indexes and separate runs: %s", what.job, b)
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ledger, namespace, err := p.ledgerOf(ctx, what.job)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	var now time.Time
	if err := ledger.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return fmt.Errorf("%s: %w", ledger.name, err)
	}
	if age > 0 {
		upto = now.Add(-age).Truncate(time.Second)
	}
	if upto.After(now) {
		return usagef("--before %q is in the future: only what has begun can be closed", what.before)
	}
	jobs, err := p.jobsToPrune(ctx, ledger, namespace, what.job)
	if err != nil {
		return err
	}
	if len(jobs) > 0 && now.Sub(upto) < leastAge {
		fmt.Fprintf(p.stderr, "Warning: %s is less than a day ago. Windows before it that have no record, also those whose pods still wait or are yet to come, never run.\n",
			instant(&upto))
	}
	if len(jobs) == 0 {
		fmt.Fprintf(p.stderr, "There are no jobs in %s.\n", ledger.name)
	}
	var failed []error
	for _, job := range jobs {
		err := p.pruneJob(ctx, ledger, job, upto.UTC(), what.dryRun)
		if err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// leastAge is how old windows should be that are closed: Kubernetes starts Jobs late, and
// pods wait for other windows.
const leastAge = 24 * time.Hour

// maxJobs bounds the jobs of one command.
const maxJobs = 100_000

// jobsToPrune gives the names of jobs without index and separate run: one, or all.
func (p *program) jobsToPrune(ctx context.Context, ledger *connection, namespace, job string) ([]string, error) {
	found, err := audit.Jobs(ctx, ledger, namespace, job, maxJobs)
	if err != nil {
		return nil, needsOwner(ledger.explain(err))
	}
	names := make([]string, 0, len(found))
	for _, j := range found {
		names = append(names, base(j.JobName))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if job == "" {
		return names, nil
	}
	full := job
	if namespace != "" {
		full = namespace + "/" + job
	}
	switch {
	case slices.Contains(names, full):
		return []string{full}, nil
	case len(names) == 0:
		return nil, noJob(full, ledger)
	case len(names) > 1:
		return nil, fmt.Errorf("%s may be one of %s: give the full name", full, strings.Join(names, ", "))
	}
	return names, nil
}

func (p *program) pruneJob(ctx context.Context, ledger *connection, job string, upto time.Time, dryRun bool) error {
	prospect, err := admin.Prospects(ctx, ledger, job, upto)
	if err != nil {
		return needsOwner(fmt.Errorf("%s: %w", ledger.name, err))
	}
	came := upto
	if prospect.Stop != nil {
		came = prospect.Stop.Start
	}
	if dryRun {
		fmt.Fprintf(p.stdout, "%s: %s before %s would be deleted, and none before it would ever run again. Nothing is changed (--dry-run).\n",
			job, plural(int(prospect.Windows), "window"), instant(&came))
	} else {
		if came, err = admin.Prune(ctx, ledger, job, upto); err != nil {
			far := ""
			if !came.IsZero() {
				far = " (it has come to " + instant(&came) + ")"
			}
			return needsOwner(fmt.Errorf("%s%s, ask again%s: %w", ledger.name, far, timeoutHint(err), err))
		}
		fmt.Fprintf(p.stdout, "%s: %s before %s deleted, and none before it ever runs again.\n", job, plural(int(prospect.Windows), "window"), instant(&came))
	}
	if !came.Before(upto) {
		return nil
	}
	if prospect.Stop == nil || !prospect.Stop.Start.Equal(came) { // it came up meanwhile
		if prospect, err = admin.Prospects(ctx, ledger, job, upto); err != nil {
			return needsOwner(fmt.Errorf("%s: %w", ledger.name, err))
		}
	}
	if prospect.Stop == nil {
		return nil
	}
	return p.stopped(ctx, ledger, job, upto, prospect)
}

func timeoutHint(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return " with a longer --timeout"
	}
	return ""
}

// stopped says which window pruning does not pass, why, and what to do about it.
func (p *program) stopped(ctx context.Context, ledger *connection, job string, upto time.Time, prospect admin.Prospect) error {
	stop := *prospect.Stop
	if prospect.Planned {
		return p.stoppedByPlan(ctx, ledger, job, upto, stop.Start)
	}
	told, err := audit.Tell(ctx, ledger, stop.JobName, stop.Start)
	if err != nil {
		return needsOwner(ledger.explain(err))
	}
	x := told.Window
	decide := fmt.Sprintf("kubectl onceguard cancel %s %s %s", stop.JobName, instant(&stop.Start), byOwner)
	var why string
	switch x.State {
	case audit.Running, audit.Done:
		why = fmt.Sprintf("%s is still there: wait until it has ended, then prune again", holder(x))
	case audit.LeaseEnded:
		why = fmt.Sprintf("%s died: let it be tried again, or close it (%s)", holder(x), decide)
	case audit.Held:
		why = fmt.Sprintf("it is held until a person decides: kubectl onceguard release likewise, or close it (%s)", decide)
	case audit.Failed, audit.Exhausted, audit.Skipped, audit.Planned:
		why = fmt.Sprintf("it may be tried again: let it, or close it (%s)", decide)
	}
	return fmt.Errorf("%s is not pruned up to %s: window %s of %s is %s; %s", job, instant(&upto), instant(&stop.Start), stop.JobName, x.State, why)
}

// stoppedByPlan says who planned the window that pruning does not pass, and how it goes on.
func (p *program) stoppedByPlan(ctx context.Context, ledger *connection, job string, upto, start time.Time) error {
	due, err := audit.DueOf(ctx, ledger, job, start)
	if err != nil {
		return needsOwner(ledger.explain(err))
	}
	whose := ""
	if due.Plan != nil {
		whose = " (" + planEvidence(*due.Plan) + ")"
	}
	at := instant(&start)
	return fmt.Errorf("%s is not pruned up to %s: window %s of it is planned%s: wait until it has run, or take it back: kubectl onceguard backfill %s --from %s --to %s --cancel %s",
		job, instant(&upto), at, whose, printable(job), at, at, byOwner)
}

// errNoJob begins an error about a name that the record does not know.
var errNoJob = errors.New("no job")

func noJob(name string, ledger *connection) error {
	return fmt.Errorf("%w %s in %s: kubectl onceguard windows -A lists what there is", errNoJob, name, ledger.name)
}
