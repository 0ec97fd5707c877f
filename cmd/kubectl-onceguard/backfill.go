package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/window"
)

const (
	// maxBackfill bounds the windows of one call.
	maxBackfill = admin.MostWindows
	// unasked is how many windows are planned without a question.
	unasked = 100
)

// backfill is what a person wants to be run later.
type backfill struct {
	job, cronJob   string // as typed
	from, to       string
	reprocess      string
	why, by        string
	beforeGuarding bool
	dryRun         bool
	cancel         bool
	detach         bool
	yes            bool
}

func (p *program) backfillCommand() *cobra.Command {
	var b backfill
	c := &cobra.Command{
		Use:   "backfill JOB --from INSTANT --to INSTANT --reason TEXT",
		Short: "Run the windows of a span that nobody has run",
		Long: `Plan the windows between two instants, both included, as the job's schedule has them: the
windows engine makes a Job for each, oldest first, as many at a time as
onceguard.dev/catch-up-parallel says. What is done, running or planned already is left as
it is, so the same command can be given again, and goes on.

  --reprocess none       windows that nobody has run, and skipped ones (default)
  --reprocess failed     also those that failed, are held or exhausted, or were cancelled
  --reprocess completed  also those that are done: as a new generation

It then shows how far they have come until all are closed; Ctrl-C ends only the showing,
and so does --detach. --cancel takes back what is planned and has not begun.

An instant is like 2026-11-01T00:00:00Z, or a time of the schedule's zone like
"2026-11-01 00:00". One that occurs twice there is the first in --from and the second in
--to; one that does not occur is read as if the clocks had not been put forward yet.

JOB is NAME (in the namespace), NAMESPACE/NAME or the full name of the record. Who, why and
the database's login are recorded. Needs the URL of the ledger's owner.`,
		Example: `  kubectl onceguard backfill shop/order-sync --from '2026-11-01 00:00' --to '2026-11-02 00:00' --reason TICKET-19 --dry-run --ledger-url-file owner.url
  kubectl onceguard backfill shop/order-sync --from 2026-11-01T00:00:00Z --to 2026-11-02T00:00:00Z --reason TICKET-19 --cancel --ledger-url-file owner.url`,
		Args: exactly("JOB"),
		RunE: func(c *cobra.Command, args []string) error {
			b.job = args[0]
			if err := b.check(c.Flags().Changed("by")); err != nil {
				return err
			}
			return p.backfill(c.Context(), b)
		},
	}
	c.Flags().StringVar(&b.from, "from", "", "the first window, or an instant before it (required)")
	c.Flags().StringVar(&b.to, "to", "", "the last window, or an instant after it (required)")
	c.Flags().StringVar(&b.reprocess, "reprocess", "none", "none, failed or completed")
	c.Flags().StringVar(&b.cronJob, "cronjob", "", "whose schedule is meant, and whose Jobs run the windows, where several CronJobs share the job; with --cancel only what that one is to run")
	c.Flags().StringVar(&b.why, "reason", "", "why: it is recorded (required)")
	c.Flags().StringVar(&b.by, "by", "", "who decides (default: the Kubernetes user of the current context, else user@host)")
	c.Flags().BoolVar(&b.beforeGuarding, "before-guarding", false, "also windows before guarding began, or before the schedule was last changed")
	c.Flags().BoolVar(&b.dryRun, "dry-run", false, "say what it would do, and change nothing")
	c.Flags().BoolVar(&b.cancel, "cancel", false, "take back what is planned between the two instants and has not begun")
	c.Flags().BoolVar(&b.detach, "detach", false, "do not wait until they have run")
	c.Flags().BoolVar(&b.yes, "yes", false, fmt.Sprintf("plan more than %d windows without a question", unasked))
	return c
}

// check refuses what no ledger is needed for.
func (b *backfill) check(named bool) (err error) {
	for _, x := range []struct{ flag, value string }{{"--from", b.from}, {"--to", b.to}} {
		if x.value == "" {
			return usagef("%s is missing: %w", x.flag, errNoInstant)
		}
		if _, _, err := parseInstant(x.value, time.UTC, false); err != nil {
			return usagef("%s %q: %w", x.flag, x.value, err)
		}
	}
	if !slices.Contains([]string{"none", "failed", "completed"}, b.reprocess) {
		return usagef("--reprocess %q: must be none, failed or completed", b.reprocess)
	}
	if b.cancel && (b.reprocess != "none" || b.beforeGuarding || b.detach) {
		return usagef("--cancel takes back what is planned, whatever it was planned with: leave out --reprocess, --before-guarding and --detach")
	}
	if all := base(b.job); all != b.job {
		return usagef("JOB %q: a job is backfilled as a whole, with its indexes: %s", b.job, all)
	}
	if b.why, err = line("--reason", b.why, admin.MaxWhy); err != nil {
		return err
	}
	if named {
		b.by, err = line("--by", b.by, admin.MaxWho)
	}
	return err
}

// stretch is a backfill whose words are resolved.
type stretch struct {
	job      string // full name
	from, to time.Time
	cronJob  audit.Schedule
	schedule window.Schedule
	windows  []time.Time
}

func (p *program) backfill(ctx context.Context, b backfill) error {
	if b.cancel {
		return p.takeBack(ctx, b)
	}
	s, done, err := p.plan(ctx, &b)
	if err != nil || done {
		return err
	}
	return p.follow(ctx, b, s)
}

// plan records the backfill. It is done when nothing is left to be shown.
func (p *program) plan(ctx context.Context, b *backfill) (s stretch, done bool, err error) {
	long := ctx
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ledger, namespace, err := p.ledgerOf(ctx, b.job)
	if err != nil {
		return s, false, err
	}
	defer ledger.close(ctx)
	if s, err = p.resolve(ctx, ledger, namespace, *b); err != nil {
		return s, false, err
	}
	if b.by == "" {
		if b.by, err = p.whoami(ctx); err != nil {
			return s, false, err
		}
	}
	if s.windows, err = s.enumerate(*b); err != nil {
		return s, false, err
	}
	if err := p.mayRun(ctx, ledger, s); err != nil {
		return s, false, err
	}
	before, err := audit.Standings(ctx, ledger, s.job, s.windows)
	if err != nil {
		return s, false, needsOwner(ledger.explain(err))
	}
	// What is said is what is done: it is tried first, and rolled back.
	after, err := p.record(ctx, ledger, *b, s, true)
	if err != nil {
		return s, false, err
	}
	fresh := p.foretell(*b, s, before, after)
	if b.dryRun {
		return s, true, nil
	}
	if fresh > unasked && !b.yes {
		if err := p.confirm(long, fmt.Sprintf("Plan %s", plural(fresh, "window"))); err != nil {
			return s, false, err
		}
		ctx, cancel = context.WithTimeout(long, p.timeout)
		defer cancel()
	}
	if slices.ContainsFunc(after, func(x audit.Standing) bool { return x.Planned }) {
		if _, err = p.record(ctx, ledger, *b, s, false); err != nil {
			return s, false, err
		}
	}
	return s, false, nil
}

// resolve finds the job, the CronJob and the instants that are meant.
func (p *program) resolve(ctx context.Context, ledger *connection, namespace string, b backfill) (s stretch, err error) {
	now, err := clock(ctx, ledger)
	if err != nil {
		return s, err
	}
	if s.job, err = scheduledJob(ctx, ledger, namespace, b.job); errors.Is(err, errNoJob) {
		return s, fmt.Errorf("%w; only a job whose CronJob the windows engine knows can be backfilled: %w", err, errNoEngine)
	} else if err != nil {
		return s, needsOwner(err)
	}
	all, err := schedulesOf(ctx, ledger, s.job)
	if err != nil {
		return s, needsOwner(err)
	}
	if s.cronJob, err = chooseCronJob(all, s.job, b.cronJob); err != nil {
		return s, err
	}
	if s.schedule, err = scheduleOfCronJob(s.cronJob); err != nil {
		return s, fmt.Errorf("the windows of CronJob %s cannot be computed: %w", s.cronJob.CronJob, err)
	}
	if s.from, s.to, err = p.span(b, s.schedule.Zone()); err != nil {
		return s, err
	}
	if s.to.After(now) {
		return s, usagef("--to %s is in the future (it is %s): only windows that are due can be run later", instant(&s.to), instant(&now))
	}
	return s, nil
}

// span reads --from and --to, which may be civil times of zone.
func (p *program) span(b backfill, zone *time.Location) (from, to time.Time, err error) {
	for _, x := range []struct {
		flag, value string
		at          *time.Time
	}{{"--from", b.from, &from}, {"--to", b.to, &to}} {
		at, note, err := parseInstant(x.value, zone, x.flag == "--to")
		if err != nil {
			return from, to, usagef("%s %q: %w", x.flag, x.value, err)
		}
		if *x.at = at; note != "" {
			fmt.Fprintf(p.stderr, "%s: %s.\n", x.flag, note)
		}
	}
	if to.Before(from) {
		return from, to, usagef("--to %s is before --from %s", instant(&to), instant(&from))
	}
	return from, to, nil
}

// enumerate gives the windows of the span, by the schedule.
func (s stretch) enumerate(b backfill) ([]time.Time, error) {
	var found []time.Time
	by := fmt.Sprintf("schedule %s of CronJob %s", zoned(s.cronJob.Schedule, s.cronJob.TimeZone), s.cronJob.CronJob)
	for at := range s.schedule.Due(s.from.Add(-time.Nanosecond), s.to) {
		if len(found) == maxBackfill {
			last := found[maxBackfill-1]
			return nil, fmt.Errorf("%s has more than %d windows in this span, and so many are planned at once at most: begin with --to %s, then go on from there", by, maxBackfill, instant(&last))
		}
		found = append(found, at)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no window from %s to %s (nearest: %s and %s)", by, instant(&s.from), instant(&s.to),
			orNone(s.schedule.Previous(s.from)), orNone(s.schedule.Next(s.to)))
	}
	if first := found[0]; first.Before(s.cronJob.Since) && !b.beforeGuarding {
		n := 0
		for n < len(found) && found[n].Before(s.cronJob.Since) {
			n++
		}
		return nil, fmt.Errorf("%s of the span, the first %s, are before %s, when guarding began or the schedule, its zone, the job's name or its ledger was last changed: "+
			"whether they were due then, or have run unguarded, the record does not know; say --from %s, or --before-guarding to run them as %s has them now",
			plural(n, "window"), instant(&first), instant(&s.cronJob.Since), instant(&s.cronJob.Since), by)
	}
	return found, nil
}

// mayRun refuses windows that are closed for ever.
func (p *program) mayRun(ctx context.Context, ledger *connection, s stretch) error {
	jobs, err := audit.Jobs(ctx, ledger, "", s.job, maxNamesakes)
	if err != nil {
		return needsOwner(ledger.explain(err))
	}
	for _, j := range jobs {
		if base(j.JobName) == s.job && j.ClosedBefore != nil && s.windows[0].Before(*j.ClosedBefore) {
			return fmt.Errorf("window %s of %s is closed: the history before %s was pruned, and no window of it ever runs again: say --from %s",
				instant(&s.windows[0]), s.job, instant(j.ClosedBefore), instant(j.ClosedBefore))
		}
	}
	return nil
}

// record plans the windows, and gives how they stand then; a trial is rolled back.
func (p *program) record(ctx context.Context, ledger *connection, b backfill, s stretch, trial bool) ([]audit.Standing, error) {
	tx, err := ledger.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ledger.name, err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := admin.BackfillBy(ctx, tx, s.job, s.cronJob.CronJobUID, s.windows, admin.Reprocess(b.reprocess), b.by, b.why); err != nil {
		return nil, needsOwner(fmt.Errorf("%s: %w", ledger.name, err))
	}
	if trial {
		after, err := audit.Standings(ctx, tx, s.job, s.windows)
		if err != nil {
			err = needsOwner(ledger.explain(err))
		}
		return after, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("%s: it is not known whether the backfill was recorded; the same command again does no harm: %w", ledger.name, err)
	}
	return nil, nil
}

// group is the word by which foretell tells windows apart.
func group(x audit.Standing) string {
	switch {
	case x.State == audit.Running:
		return "running"
	case x.Planned:
		return "planned"
	case x.State == "" && x.Lacks:
		return partlyRun
	case x.State == "":
		return "never run"
	case x.State == audit.Skipped && x.Reason == string(disposition.Cancelled):
		return "cancelled"
	}
	return string(x.State)
}

// unplanned says why windows of a group are left as they are.
var unplanned = map[string]string{
	"planned": "planned already", "running": "goes on", partlyRun: "stays: the indexes that have not come are left to its Job", "done": "stays (--reprocess completed runs it once more)",
	"failed": failedStays, "lease ended": failedStays, "held": failedStays, "exhausted": failedStays, "cancelled": failedStays, "skipped": "stays",
}

const failedStays = "stays (--reprocess failed runs it)"

// foretell says what becomes of each group of windows, and gives how many are planned that
// were not before.
func (p *program) foretell(b backfill, s stretch, before, after []audit.Standing) (fresh int) {
	if b.dryRun {
		fmt.Fprintln(p.stdout, "Nothing is changed (--dry-run).")
	}
	first, last := s.windows[0], s.windows[len(s.windows)-1]
	fmt.Fprintf(p.stdout, "%s of %s, from %s to %s\n(%s, CronJob %s):\n", plural(len(s.windows), "window"), s.job, instant(&first), instant(&last),
		zoned(s.cronJob.Schedule, s.cronJob.TimeZone), s.cronJob.CronJob)
	count := map[[2]string]int{}
	for i, x := range before {
		what := unplanned[group(x)]
		if after[i].Planned && group(x) != "planned" && group(x) != "running" {
			fresh++
			what = "to be run"
			if x.State == audit.Done {
				what = "to be run once more, as a new generation"
			}
		} else if x.State == audit.Done && b.reprocess == "completed" {
			what = "stays: it was run again with this --reason"
		}
		count[[2]string{group(x), what}]++
	}
	for _, g := range []string{"never run", partlyRun, "failed", "lease ended", "held", "exhausted", "cancelled", "skipped", "done", "planned", "running"} {
		for _, key := range slices.SortedFunc(maps.Keys(count), func(a, b [2]string) int { return strings.Compare(a[1], b[1]) }) {
			if key[0] == g {
				fmt.Fprintf(p.stdout, "  %6d %-12s %s\n", count[key], g, key[1])
			}
		}
	}
	for _, note := range []string{notLooked(s.cronJob, p.now()), suspended(s.cronJob), s.cronJob.Note} {
		if note != "" {
			fmt.Fprint(p.stderr, folded("Note: ", fmt.Sprintf("CronJob %s: %s", s.cronJob.CronJob, note)))
		}
	}
	return fresh
}
