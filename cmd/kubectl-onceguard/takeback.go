package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// takeBack cancels what is planned, also where its CronJob is gone or has another schedule.
func (p *program) takeBack(ctx context.Context, b backfill) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ledger, namespace, err := p.ledgerOf(ctx, b.job)
	if err != nil {
		return err
	}
	defer ledger.close(ctx)
	job, err := scheduledJob(ctx, ledger, namespace, b.job)
	if err != nil {
		return needsOwner(err)
	}
	all, err := schedulesOf(ctx, ledger, job)
	if err != nil {
		return needsOwner(err)
	}
	if all, err = called(all, job, b.cronJob); err != nil {
		return err
	}
	zone, err := zoneOf(all, b)
	if err != nil {
		return err
	}
	from, to, err := p.span(b, zone)
	if err != nil {
		return err
	}
	if b.by == "" {
		if b.by, err = p.whoami(ctx); err != nil {
			return err
		}
	}
	uids := []string{""} // those of all CronJobs
	if b.cronJob != "" {
		uids = nil
		for _, x := range all { // one that was created again has several
			uids = append(uids, x.CronJobUID)
		}
	}

	// In a transaction, so that what is said is what was done, and a dry run is the same.
	tx, err := ledger.Begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", ledger.name, err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	planned, err := audit.PlannedWindows(ctx, tx, job, from, to, maxPlans)
	if err != nil {
		return needsOwner(ledger.explain(err))
	}
	n := 0
	for _, uid := range uids {
		m, err := admin.CancelBackfillBy(ctx, tx, job, uid, from, to, b.by, b.why)
		if err != nil {
			return needsOwner(fmt.Errorf("%s: %w", ledger.name, err))
		}
		n += m
	}
	fates, err := p.fates(ctx, ledger, tx, job, planned)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s of %s from %s to %s", plural(n, "planned window"), job, instant(&from), instant(&to))
	if b.dryRun {
		fmt.Fprintf(p.stdout, "%s would be taken back. Nothing is changed (--dry-run).\n%s", what, fates)
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%s: it is not known whether it was taken back; the same command again does no harm: %w", ledger.name, err)
	}
	fmt.Fprintf(p.stdout, "%s taken back, by %s. What runs already goes on.\n%s", what, printable(b.by), fates)
	return nil
}

// fates says how windows stand that were planned, one line for each state.
func (p *program) fates(ctx context.Context, ledger *connection, q audit.Querier, job string, planned []time.Time) (string, error) {
	if len(planned) == 0 {
		return "", nil
	}
	now, err := audit.Standings(ctx, q, job, planned)
	if err != nil {
		return "", needsOwner(ledger.explain(err))
	}
	before, err := audit.DoneBefore(ctx, q, job, planned)
	if err != nil {
		return "", needsOwner(ledger.explain(err))
	}
	count := map[string]int{}
	for _, x := range now {
		again := slices.ContainsFunc(before, x.WindowStart.Equal)
		switch {
		case x.Planned || x.State == audit.Skipped && x.Reason != string(disposition.Cancelled):
		case x.State == audit.Skipped && again:
			count["skipped (cancelled), though its work was done before: that is not undone"]++
		case x.State == audit.Skipped:
			count["skipped (cancelled): no Job runs it, unless --reprocess failed asks for it"]++
		case x.State == audit.Done:
			count["done: it stays so, or is so again"]++
		}
	}
	var b strings.Builder
	for _, text := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(&b, "  %6d %s\n", count[text], text)
	}
	return b.String(), nil
}

// called gives the CronJobs of a job that have a name, those that are gone too; without a
// name all.
func called(all []audit.Schedule, job, name string) ([]audit.Schedule, error) {
	if name == "" {
		return all, nil
	}
	var names []string
	found := slices.DeleteFunc(slices.Clone(all), func(x audit.Schedule) bool {
		names = append(names, x.CronJob)
		_, short, _ := strings.Cut(x.CronJob, "/")
		return name != x.CronJob && name != short
	})
	if len(found) == 0 {
		slices.Sort(names)
		return nil, fmt.Errorf("--cronjob %q: the CronJobs of job %s are %s", name, job, strings.Join(slices.Compact(names), ", "))
	}
	return found, nil
}

// zoneOf is the zone that --from and --to are read in where they are civil times.
func zoneOf(all []audit.Schedule, b backfill) (*time.Location, error) {
	var civil string
	for _, x := range []string{b.from, b.to} {
		if start, err := parseWindow(x); err != nil || start == nil {
			civil = x
		}
	}
	if civil == "" {
		return time.UTC, nil
	}
	var zone *time.Location
	for _, x := range all {
		s, err := scheduleOfCronJob(x)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the zone of CronJob %s is not known: say %q as an instant with its zone, like 2026-11-01T00:00:00Z: %w", x.CronJob, civil, err)
		case zone == nil:
			zone = s.Zone()
		case zone.String() != s.Zone().String():
			return nil, fmt.Errorf("the CronJobs of job %s have several time zones: say %q as an instant with its zone, like 2026-11-01T00:00:00Z, or which CronJob by --cronjob", x.JobName, civil)
		}
	}
	return zone, nil
}
