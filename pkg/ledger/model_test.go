package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/ledger/ledgertest"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/prove"
)

// people decide with the owner's connection.
type people struct {
	ctx   context.Context
	owner *pgx.Conn
}

func (p people) Rerun(w window.Window) (int, error) {
	return admin.Rerun(p.ctx, p.owner, w, ledgertest.Somebody, "a test")
}

func (p people) CancelWindow(w window.Window) error {
	return admin.Cancel(p.ctx, p.owner, w, ledgertest.Somebody, "a test")
}

func (p people) Prune(jobName string, upto time.Time) (time.Time, error) {
	return admin.Prune(p.ctx, p.owner, jobName, upto)
}

// Plan, Unplan and Judge leave what the windows engine would.
func (p people) Plan(w window.Window) error {
	_, err := p.owner.Exec(p.ctx, "INSERT INTO onceguard.job_plan (job_name, window_start, cron_job_uid) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", w.JobName, w.Start, ledgertest.Planner)
	return err
}

func (p people) Unplan(w window.Window) error {
	_, err := p.owner.Exec(p.ctx, "DELETE FROM onceguard.job_plan WHERE job_name = $1 AND window_start = $2", w.JobName, w.Start)
	return err
}

func (p people) Judge(jobName, cronJobUID string, first, last time.Time, s disposition.Status) error {
	_, err := p.owner.Exec(p.ctx, "INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before) VALUES ($1, $2, $1, $3, $3) ON CONFLICT (job_name, cron_job_uid) DO UPDATE SET looked_at = clock_timestamp(), gone_at = NULL",
		jobName, cronJobUID, time.Unix(0, 0))
	if err == nil {
		_, err = p.owner.Exec(p.ctx, "DELETE FROM onceguard.job_gap WHERE job_name = $1 AND cron_job_uid = $2 AND last_window >= $3 AND first_window <= $4", jobName, cronJobUID, first, last)
	}
	if err == nil {
		_, err = p.owner.Exec(p.ctx, "INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason) VALUES ($1, $2, $3, $4, 1, $5, 'controller')",
			jobName, cronJobUID, first, last, string(s))
	}
	return err
}

func (p people) Leave(jobName, cronJobUID string, gone bool) error {
	sql := `INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before, looked_at) VALUES ($1, $2, $1, $3, $3, clock_timestamp() - interval '181 minutes')
		ON CONFLICT (job_name, cron_job_uid) DO UPDATE SET looked_at = excluded.looked_at`
	if gone {
		sql = `INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before, gone_at) VALUES ($1, $2, $1, $3, $3, clock_timestamp())
			ON CONFLICT (job_name, cron_job_uid) DO UPDATE SET gone_at = excluded.gone_at`
	}
	_, err := p.owner.Exec(p.ctx, sql, jobName, cronJobUID, time.Unix(0, 0))
	if err == nil && gone {
		_, err = p.owner.Exec(p.ctx, "UPDATE onceguard.job_plan SET cron_job_uid = NULL WHERE job_name = $1 AND cron_job_uid = $2", jobName, cronJobUID)
	}
	return err
}

func (p people) expire(w window.Window) error {
	_, err := p.owner.Exec(p.ctx, "UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 second' WHERE job_name = $1 AND window_start = $2", w.JobName, w.Start)
	return err
}

func TestSuite(t *testing.T) {
	url := database(t)
	owner := session(t, url)
	ledgertest.Run(t, func(t *testing.T) ledgertest.Subject {
		empty(t, owner)
		p := people{t.Context(), owner}
		return ledgertest.Subject{API: open(t, url), People: p, Engine: p, Expire: func(w window.Window) {
			if err := p.expire(w); err != nil {
				t.Fatal(err)
			}
		}}
	})
}

// Random sequences of everything that guards and people do with the windows of a job:
// Postgres and the model (the fake, built on claim.Decide) answer the same, at every step.
func TestProveModelAgreesWithSQL(t *testing.T) {
	const workers = 4
	sequences := prove.Times(3200, 20_000)
	if testing.Short() {
		sequences = 400
	}
	seed := prove.Seed(t)
	url := database(t)
	counts := make([]tally, workers)
	var g sync.WaitGroup
	for k := range workers {
		l, p := open(t, url), people{t.Context(), session(t, url)}
		counts[k] = tally{}
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(k)))
			for i := range sequences / workers {
				if err := compare(t.Context(), l, p, fmt.Sprintf("model/w%d-%d", k, i), rnd, counts[k]); err != nil {
					t.Errorf("sequence %d of worker %d: %v", i, k, err)
					return
				}
			}
		})
	}
	g.Wait()
	total := tally{}
	operations := 0
	for _, c := range counts {
		for k, n := range c {
			total[k] += n
			operations += n
		}
	}
	// A comparison that never came to a rule says nothing about it.
	musts := []string{
		"claim run first", "claim run retry", "claim run takeover", "claim run reopened", "claim run adopted",
		"claim skip completed", "claim skip closed", "claim skip late", "claim skip overlap", "claim skip superseded", "claim skip cancelled", "claim skip dst",
		"claim wait busy", "claim wait fence-lost", "claim wait overlap", "claim wait replacing", "claim wait order",
		"claim refuse payload", "claim refuse exhausted", "claim refuse held", "rerun", "cancel", "prune", "checkpoint", "resolve", "complete", "release", "heartbeat", "plan", "unplan", "judge", "leave",
	}
	missing := func() bool { return slices.ContainsFunc(musts, func(must string) bool { return total[must] == 0 }) }
	l, p, rnd := open(t, url), people{t.Context(), session(t, url)}, rand.New(rand.NewPCG(seed, workers))
	for more := 10 * sequences; more > 0 && missing() && !t.Failed(); more-- { // a rare one: it goes on
		c := tally{}
		if err := compare(t.Context(), l, p, fmt.Sprint("model/more-", more), rnd, c); err != nil {
			t.Errorf("one sequence more: %v", err)
		}
		for k, n := range c {
			total[k] += n
			operations += n
		}
		sequences++
	}
	for _, must := range musts {
		if total[must] == 0 && !t.Failed() {
			t.Errorf("no %q in %d operations: %v", must, operations, total)
		}
	}
	prove.Report(t, "the SQL agrees with the pure rule", "%d operations in %d sequences, %d claims that run, %d that do not",
		operations, sequences, total.sum("claim run"), total.sum("claim")-total.sum("claim run"))
}

// tally counts what was done and answered.
type tally map[string]int

func (t tally) sum(prefix string) (n int) {
	for k, v := range t {
		if strings.HasPrefix(k, prefix) {
			n += v
		}
	}
	return n
}

// subject is one of the two that are compared.
type subject struct {
	ledgertest.API
	ledgertest.People
	ledgertest.Engine
}

// focus is what a sequence is about: with all terms at once few rules are come to.
type focus int

const (
	mixed focus = iota
	overlaps
	ordered
	attempts
	pieces
	planned
	unrun // gaps
)

// run is one random sequence against both.
type run struct {
	rnd     *rand.Rand
	people  people
	model   *ledgertest.Fake
	base    string
	focus   focus
	windows []window.Window
	ids     [][]uuid.UUID // of each window, two that ask
	steps   int
}

func compare(ctx context.Context, l *ledger.Ledger, p people, base string, rnd *rand.Rand, count tally) error {
	start := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &run{rnd: rnd, people: p, model: &ledgertest.Fake{}, base: base, focus: focus(rnd.IntN(7))}
	names := []string{base, base, base, base + "@u", base + "#1", base + "#1@u"}
	switch r.focus {
	case attempts, pieces:
		names = names[:1]
	case ordered:
		names = names[:2+rnd.IntN(3)]
	case mixed, overlaps:
		names = names[:2+rnd.IntN(5)]
	case planned:
		names = append(names[:2:2], names[rnd.IntN(len(names))])
	case unrun:
		names = names[:3+rnd.IntN(3)]
		r.steps = 2 * rnd.IntN(2) // every other one begins with gaps
		if rnd.IntN(3) == 0 {     // the windows of an index, with the gaps of the job
			copy(names, []string{base + "#1", base + "#1", base + "#1"})
		}
	}
	for _, name := range names {
		r.windows = append(r.windows, window.Window{JobName: name, Start: start.Add(time.Duration(len(r.windows)%4) * time.Minute)})
		r.ids = append(r.ids, []uuid.UUID{uuid.New(), uuid.New()})
	}
	var trace []string
	for range 16 + rnd.IntN(32) {
		op, both := r.step(ctx)
		got, want := both(subject{l, p, p}), both(subject{r.model, r.model, r.model})
		trace = append(trace, op+": "+got)
		if got != want {
			return fmt.Errorf("the database and the model disagree after\n%s\nmodel: %s", strings.Join(trace, "\n"), want)
		}
		name, _, _ := strings.Cut(op, " ")
		if name == "claim" {
			name = strings.Join(append([]string{name}, strings.Fields(got)[:2]...), " ")
		}
		count[name]++
	}
	return r.outcomes(ctx)
}

// outcomes compares how all windows, checkpoints and attempts are recorded.
func (r *run) outcomes(ctx context.Context) error {
	for _, w := range r.windows {
		s, err := r.model.Stored(ctx, w)
		if err != nil {
			return err
		}
		want := []string{fmt.Sprint("checkpoint ", s.Checkpoint.Seq), string(s.Status)}
		for _, a := range r.model.Attempts(w) {
			want = append(want, string(a.Outcome))
		}
		rows, err := r.people.owner.Query(ctx, `SELECT coalesce(x, '') FROM (
			SELECT -1 AS n, 'checkpoint ' || coalesce((SELECT seq FROM onceguard.job_checkpoint WHERE job_name = $1 AND window_start = $2), 0) AS x
			UNION ALL SELECT 0, (SELECT status FROM onceguard.job_execution WHERE job_name = $1 AND window_start = $2)
			UNION ALL SELECT attempt, outcome FROM onceguard.job_attempt WHERE job_name = $1 AND window_start = $2) y ORDER BY n`, w.JobName, w.Start)
		if err != nil {
			return err
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("outcomes of %s: %q, model %q, %w", w, got, want, err)
		}
	}
	return nil
}
