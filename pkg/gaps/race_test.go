package gaps_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/admin"
	. "github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
	"github.com/onceguard/onceguard/test/prove"
)

// engine judges three CronJobs, each a few windows further, from what it remembers, which
// another may have made old. All windows are missed; some of the newest are late for now. It
// stops when all are judged, or after so many times.
func engine(ctx context.Context, c *pgx.Conn, r *rand.Rand, windows, times int) (outdated int, err error) {
	uids := []string{"u1", "u2", "u3"}
	state := map[string]time.Time{}
	for range times {
		var all []gaps.Judgement
		r.Shuffle(len(uids), func(i, k int) { uids[i], uids[k] = uids[k], uids[i] })
		for _, uid := range uids {
			from := int(state[uid].Sub(start).Minutes())
			if state[uid].IsZero() {
				from = 0
			}
			to := min(windows, from+r.IntN(4))
			if from == windows {
				continue
			}
			var list []Gap
			if to > from {
				reason := []Reason{Controller, Overlap}[r.IntN(2)]
				list = append(list, gap(from, to-1, Missed, reason))
			}
			if to < windows {
				list = append(list, gap(to, to, Late, Controller))
			}
			j := judged(uid, from, to, list...)
			// What it plans besides is not judged here, but locked.
			j.Plans = []Plan{{WindowStart: at(-1 - r.IntN(5)), Reason: Controller}, {WindowStart: at(-1 - r.IntN(5)), Reason: Controller}}
			j.Unplan = []Gap{gap(-1-r.IntN(5), -1, Missed, Controller)}
			all = append(all, j)
		}
		if len(all) == 0 {
			break
		}
		err := gaps.Judge(ctx, c, all)
		stale, ok := errors.AsType[*gaps.Outdated](err)
		switch {
		case err == nil:
			for _, j := range all {
				state[j.CronJobUID] = j.State.JudgedBefore
			}
		case ok:
			outdated += len(stale.Judgements)
			known, err := gaps.Load(ctx, c)
			if err != nil {
				return outdated, err
			}
			for _, s := range known {
				state[s.CronJobUID] = s.State.JudgedBefore
			}
		default:
			return outdated, err
		}
	}
	return outdated, nil
}

// Two engines that do not know of each other, with connections of their own, leave each
// window with one answer, and never wait for each other for ever.
func TestTwoEnginesAtOnce(t *testing.T) {
	b := open(t)
	seed := prove.Seed(t)
	const windows = 60
	run := func() (outdated int, broken string) {
		t.Helper()
		b.exec("TRUNCATE onceguard.job_gap, onceguard.job_plan, onceguard.job_schedule")
		var group sync.WaitGroup
		var mu sync.Mutex
		for i := range uint64(2) {
			c := connect(t, b.login)
			group.Go(func() {
				n, err := engine(t.Context(), c, rand.New(rand.NewPCG(seed, i)), windows, []int{1000, 15}[i]) // one is stopped midway
				mu.Lock()
				defer mu.Unlock()
				outdated += n
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		return outdated, b.text(`SELECT string_agg(format('%s: %s windows of %s covered once', u, n, $2::int), ', ') FROM (
			SELECT u, count(*) FILTER (WHERE (SELECT count(*) FROM onceguard.gaps g WHERE g.cron_job_uid = u AND g.status = 'missed'
				AND w BETWEEN g.first_window AND g.last_window) = 1) AS n
			FROM unnest('{u1,u2,u3}'::text[]) u, generate_series($1::timestamptz, $1::timestamptz + ($2::int - 1) * interval '1 minute', '1 minute') w GROUP BY 1) x WHERE n <> $2`, start, windows)
	}
	outdated, broken := run()
	if broken != "" || outdated == 0 {
		t.Errorf("%d outdated judgements; %s", outdated, broken)
	}
	t.Logf("%d outdated judgements", outdated)

	const was = `s.judged_before <> j."from"`
	function := b.text("SELECT pg_get_functiondef('onceguard.engine_judge'::regproc)")
	if strings.Count(function, was) != 1 {
		t.Fatalf("engine_judge does not have %q once; say what has to be changed now", was)
	}
	b.exec(strings.Replace(function, was, "false", 1))
	for range 10 {
		if _, broken = run(); broken != "" {
			return
		}
	}
	t.Error("without the check of what is outdated the same engines do no harm: the test is blind")
}

// Jobs claim windows while the engine judges them, and plans some: in the end each window
// has an answer, and each that was planned has run, once.
func TestClaimsAndJudgementsAtOnce(t *testing.T) {
	b := open(t)
	ctx := t.Context()
	seed := prove.Seed(t)
	const windows, workers = 150, 3
	var all []time.Time
	for m := range windows {
		all = append(all, at(m))
	}
	var group sync.WaitGroup
	claimed := make([][]time.Time, workers)
	for i := range workers {
		c := connect(t, b.url)
		group.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for _, m := range r.Perm(windows)[:windows/3] {
				if ran, err := runOnce(ctx, c, at(m)); err != nil {
					t.Error(err)
				} else if ran {
					claimed[i] = append(claimed[i], at(m))
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(seed, workers))
	from := 0
	for from < windows {
		seen := b.look(gaps.Ask{JobName: job, From: at(from), Upto: at(windows)})
		ran := map[int64]bool{}
		for _, e := range seen.Executions {
			ran[e.WindowStart.Unix()] = true
		}
		to := min(windows, from+1+r.IntN(3))
		j := judged("u1", from, to)
		for m := from; m < to; m++ {
			switch {
			case ran[at(m).Unix()]:
			case r.IntN(2) == 0:
				j.Plans = append(j.Plans, Plan{WindowStart: at(m), Reason: Controller})
			default:
				j.Gaps = append(j.Gaps, gap(m, m, Missed, Controller))
			}
		}
		if len(j.Gaps) > 0 {
			j.Before = j.Gaps[0].First.Add(-time.Minute)
		}
		b.judge(j)
		from = to
	}
	group.Wait()
	answered := func(when string) (kinds map[admin.Kind]int) {
		t.Helper()
		answers, err := admin.Answers(ctx, b.engine, job, all)
		if err != nil {
			t.Fatal(err)
		}
		kinds = map[admin.Kind]int{}
		for _, a := range answers {
			kinds[a.Kind]++
			if a.Kind == admin.ByNone {
				t.Errorf("%s: %s has no answer", when, a.Window)
			}
		}
		return kinds
	}
	first := answered("judged")
	seen := b.look(gaps.Ask{JobName: job, From: at(windows), Upto: at(windows)})
	c := connect(t, b.url)
	caught := 0
	for _, p := range seen.Plans {
		wanted, err := gaps.Making(ctx, b.engine, job, p.WindowStart, "u1", "a-r1")
		if err != nil || !wanted {
			t.Fatal(p, wanted, err)
		}
		ran, err := runOnce(ctx, c, p.WindowStart)
		if err != nil || !ran {
			t.Error(p, ran, err)
		}
		caught++
	}
	if seen := b.look(gaps.Ask{JobName: job, From: at(windows), Upto: at(windows)}); len(seen.Plans) != 0 {
		t.Error(seen.Plans)
	}
	last := answered("caught up")
	runs := caught
	for _, c := range claimed {
		runs += len(c)
	}
	if got := b.text("SELECT count(*) || ' ' || max(attempt) || ' ' || max(generation) FROM onceguard.job_execution WHERE status = 'completed'"); got != fmt.Sprint(runs, " 1 1") {
		t.Errorf("%s windows, attempts and generations after %d runs", got, runs)
	}
	if caught == 0 || last[admin.ByPlan] != 0 || first[admin.ByExecution]+caught != last[admin.ByExecution] {
		t.Error(first, last, caught)
	}
}

// runOnce claims a window and completes it; false when it is not to run.
func runOnce(ctx context.Context, c *pgx.Conn, w time.Time) (bool, error) {
	var verdict, id string
	for {
		err := c.QueryRow(ctx, "SELECT gen_random_uuid()::text").Scan(&id)
		if err == nil {
			err = c.QueryRow(ctx, "SELECT verdict FROM onceguard.claim($1, $2, $3, '1 hour')", job, w, id).Scan(&verdict)
		}
		if err != nil {
			return false, err
		}
		if verdict != "wait" {
			break
		}
	}
	if verdict != "run" {
		return false, nil
	}
	tx, err := c.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, sql := range []string{"SELECT onceguard.begin($1, $2, $3)", "SELECT onceguard.complete($1, $2, $3)"} {
		if _, err := tx.Exec(ctx, sql, job, w, id); err != nil {
			return false, err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return false, err
	}
	_, err = c.Exec(ctx, "SELECT onceguard.release($1, $2, $3, 'completed')", job, w, id)
	return true, err
}

// 10,000 CronJobs are looked at and judged by one statement each, which read the rows that
// they are about and no whole history.
func TestManySchedules(t *testing.T) {
	b := open(t)
	ctx := t.Context()
	const many, history = gaps.Most, 20
	b.exec(`INSERT INTO onceguard.job (name) SELECT 'ns/j' || i FROM generate_series(0, $1::int - 1) i`, many)
	b.exec(`INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, attempt, fencing_token)
		SELECT 'ns/j' || i, $2::timestamptz - m * interval '1 minute', 'skipped', 'late', 0, 0 FROM generate_series(0, $1::int - 1) i, generate_series(0, $3::int) m`, many, start, history)
	b.exec("VACUUM ANALYZE")
	asks, all := make([]gaps.Ask, many), make([]gaps.Judgement, many)
	for i := range many {
		name := fmt.Sprint("ns/j", i)
		asks[i] = gaps.Ask{JobName: name, CronJobUID: fmt.Sprint("u", i), From: at(0), Upto: at(1)}
		all[i] = judged(fmt.Sprint("u", i), 0, 1, gap(1, 1, Late, Controller))
		all[i].JobName, all[i].CronJob = name, name
	}
	read := func(f func() error) string {
		t.Helper()
		before := time.Now()
		if _, err := b.engine.Exec(ctx, "BEGIN"); err != nil {
			t.Fatal(err)
		}
		if err := f(); err != nil {
			t.Fatal(err)
		}
		took := time.Since(before)
		var s string
		// pg_stat_xact_user_tables is about this very transaction.
		if err := b.engine.QueryRow(ctx, `SELECT string_agg(relname || ' ' || seq_scan || ' ' || (seq_tup_read + idx_tup_fetch), ', ' ORDER BY relname) FROM pg_stat_xact_user_tables
			WHERE schemaname = 'onceguard' AND relname IN ('job', 'job_execution', 'job_lease', 'job_gap', 'job_plan') AND (seq_scan > 0 AND relname = 'job_execution' OR seq_tup_read + coalesce(idx_tup_fetch, 0) > 3 * $1::int)`, many).Scan(&s); err != nil && !strings.Contains(err.Error(), "NULL") {
			t.Fatal(err)
		}
		if _, err := b.engine.Exec(ctx, "COMMIT"); err != nil {
			t.Fatal(err)
		}
		t.Log(took)
		return s
	}
	look := func() string {
		return read(func() error {
			seen, err := gaps.Look(ctx, b.engine, asks)
			if err == nil && (len(seen[7].Executions) != 1 || !seen[7].Executions[0].WindowStart.Equal(start)) {
				t.Error(seen[7])
			}
			return err
		})
	}
	if s := look(); s != "" {
		t.Error("look reads too much: ", s)
	}
	if s := read(func() error { return gaps.Judge(ctx, b.engine, all) }); s != "" {
		t.Error("judge reads too much: ", s)
	}
	for i := range all {
		all[i].From, all[i].State.JudgedBefore, all[i].Gaps[0].Status = at(1), at(2), Missed
	}
	if s := read(func() error { return gaps.Judge(ctx, b.engine, all) }); s != "" {
		t.Error("judge reads too much: ", s)
	}
	if got := b.text("SELECT count(*) || ' ' || min(status) || ' ' || max(status) FROM onceguard.gaps"); got != fmt.Sprint(many, " missed missed") {
		t.Error(got)
	}
	if _, err := gaps.Load(ctx, b.engine); err != nil {
		t.Error(err)
	}
}
