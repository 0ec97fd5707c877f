package gaps_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
)

// indexed plans the window of a minute for a CronJob whose Jobs have so many indexes, and
// makes its Job.
func (b *book) indexed(indexes, minute int) {
	b.Helper()
	j := judged("u1", 0, 9)
	j.Indexes = indexes
	j.Plans = []Plan{{WindowStart: at(minute), Reason: Controller}}
	b.judge(j)
	if made, err := gaps.Making(b.Context(), b.engine, job, at(minute), "u1", "a-r1"); err != nil || !made {
		b.Fatal(made, err)
	}
}

func (b *book) serial(name string, minute int) string {
	b.Helper()
	return b.text("SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, gen_random_uuid(), '1 hour', serial => true)", name, at(minute))
}

// The plan of an Indexed Job's window stands until each index is closed: one that comes later
// than the others is wanted as they are.
func TestPlanStandsForEachIndex(t *testing.T) {
	for _, indexes := range []int{2, -1} { // -1: known by what has run before
		b := open(t)
		b.execution(job+"#0", at(6), "completed")
		b.execution(job+"#1", at(6), "completed")
		b.indexed(indexes, 3)
		ask := gaps.Ask{JobName: job, From: at(3), Upto: at(3)}
		b.execution(job+"#0", at(3), "completed")
		seen := b.look(ask)
		if len(seen.Plans) != 1 || len(seen.Executions) != 1 || seen.Executions[0].Closed || !seen.Executions[0].Failed {
			t.Fatalf("%d indexes: %+v", indexes, seen)
		}
		if got := b.serial(job+"#1", 3); got != "run first" {
			t.Error(got)
		}
		b.finish(job+"#1", at(3))
		if seen := b.look(ask); len(seen.Plans) != 0 || !seen.Executions[0].Closed {
			t.Errorf("%d indexes: %+v", indexes, seen)
		}
	}
}

// The first time of all: how many indexes there are is known from the CronJob. What has not
// come when the Job has given up is given up too.
func TestIndexThatNeverCame(t *testing.T) {
	b := open(t)
	b.indexed(3, 3)
	b.execution(job+"#1", at(3), "completed")
	b.execution(job+"#2", at(3), "failed")
	j := judged("u1", 9, 9)
	j.Indexes, j.Exhaust = 3, []Gap{gap(3, 3, Missed, DeadlineExceeded)}
	b.judge(j)
	want := "#0 exhausted deadline-exceeded, #1 completed, #2 exhausted deadline-exceeded"
	if got := b.text(`SELECT string_agg(concat_ws(' ', substr(job_name, 7), status, reason), ', ' ORDER BY job_name) FROM onceguard.job_execution`); got != want {
		t.Error(got)
	}
	if seen := b.look(gaps.Ask{JobName: job, From: at(3), Upto: at(3)}); len(seen.Plans) != 0 || !seen.Executions[0].Closed {
		t.Errorf("%+v", seen)
	}
	if got := b.answers(3, 3); got != "execution:exhausted" {
		t.Error(got)
	}
}

// What a Job of another CronJob has run is told apart, and a dead attempt is not older than
// the end of its lease.
func TestForeign(t *testing.T) {
	b := open(t)
	for i, origin := range []string{
		`{"namespace": "shop", "job": "a.b-29000000", "trigger": "scheduled"}`, `{"namespace": "shop", "job": "a.b-r29000000", "trigger": "catch-up"}`,
		`{"namespace": "shop", "job": "by-hand", "trigger": "manual"}`, `{}`,
		`{"namespace": "shop", "job": "b-29000000", "trigger": "scheduled"}`, `{"namespace": "shop", "job": "a.b-c-29000000", "trigger": "scheduled"}`,
		`{"namespace": "shop", "job": "axb-29000000", "trigger": "scheduled"}`, `{"namespace": "other", "job": "a.b-29000000", "trigger": "scheduled"}`,
		`{"namespace": "other", "job": "by-hand", "trigger": "manual"}`,
	} {
		b.exec("SELECT onceguard.claim($1, $2, gen_random_uuid(), '1 hour', $3)", job, at(i), origin)
		b.exec("UPDATE onceguard.job_execution SET updated_at = clock_timestamp() - interval '2 hours' WHERE window_start = $1", at(i))
		b.exec("UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 second' WHERE window_start = $1", at(i))
		seen := b.look(gaps.Ask{JobName: job, CronJob: "shop/a.b", From: at(i), Upto: at(i)})
		if e := seen.Executions[0]; e.Foreign != (i > 3) || e.Alive || time.Since(e.UpdatedAt) > time.Hour {
			t.Errorf("%s: %+v", origin, e)
		}
		if seen := b.look(gaps.Ask{JobName: job, From: at(i), Upto: at(i)}); seen.Executions[0].Foreign {
			t.Errorf("%s by nobody: %+v", origin, seen)
		}
	}
}

// A CronJob that goes leaves an answer for what was planned, also behind what is judged.
func TestGoneLeavesNoPlanWithoutAnswer(t *testing.T) {
	b := open(t)
	j := judged("u1", 0, 4, gap(4, 4, Late, Image))
	j.Plans = []Plan{{WindowStart: at(3), Reason: Quota}, {WindowStart: at(5), Reason: Controller}}
	b.judge(j)
	if err := gaps.Gone(t.Context(), b.engine, "u1"); err != nil {
		t.Fatal(err)
	}
	if got := b.recorded("u1"); got != "3-3 1 missed quota gone, 4-4 1 missed image, 5-5 1 missed controller gone" {
		t.Error(got)
	}
}

// Neighbours that are cut out of a range leave no range without a window between them.
func TestNeighboursAreCutOut(t *testing.T) {
	for text, step := range map[string]time.Duration{"* * * * *": time.Minute, "5 * * * *": time.Hour, "0 0 * * *": 24 * time.Hour} {
		b := open(t)
		nth := func(n int) time.Time { return start.Add(time.Duration(n) * step) }
		j := judged("u1", 0, 0, Gap{First: nth(1), Last: nth(10), Windows: 10, Status: Missed, Reason: Controller})
		j.Schedule.Schedule, j.State.JudgedBefore, j.Before = text, nth(11), start
		for _, n := range []int{4, 5, 6, 8} {
			j.Plans = append(j.Plans, Plan{WindowStart: nth(n), Reason: Image})
		}
		b.judge(j)
		j.From, j.Gaps, j.Plans = nth(11), nil, nil
		for _, n := range []int{4, 5, 6, 8} {
			j.Unplan = append(j.Unplan, Gap{First: nth(n), Last: nth(n), Windows: 1, Status: Missed, Reason: Image, Rule: GivenUp})
		}
		b.judge(j)
		if got := b.text("SELECT string_agg(windows || ' ' || reason, ', ' ORDER BY first_window) || ' ' || sum(windows) FROM onceguard.gaps"); got !=
			"3 controller, 1 image, 1 image, 1 image, 1 controller, 1 image, 2 controller 10" {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// What was judged before a prune, and is recorded after it, says nothing of what was pruned.
func TestJudgedBeforePruned(t *testing.T) {
	b := open(t)
	b.judge(judged("u1", 0, 1))
	b.execution(job, at(0), "completed")
	b.exec("SELECT onceguard.prune($1, $2)", job, at(5))
	b.judge(judged("u1", 1, 8, gap(1, 3, Missed, Controller), gap(4, 7, Missed, Overlap)))
	if got := b.recorded("u1"); got != "5-7 3 missed overlap" {
		t.Error(got)
	}
}

// Whatever an engine's login sends: what is taken can be read again.
func TestHostileJudgements(t *testing.T) {
	b := open(t)
	for _, part := range []string{
		`"open": [null]`, `"open": ["infinity"]`, `"suspensions": [1]`, `"suspensions": ["x", null]`, `"suspensions": [{}]`,
		`"suspensions": [{"from": "2026-11-30"}]`, `"suspensions": [{"from": "2026-13-01T00:00:00Z"}]`, `"suspensions": [{"from": "2026-03-01T00:00:00Z", "to": "soon"}]`,
		`"plans": [{}]`, `"plans": [{"window": "infinity"}]`, `"plans": [{"window": "2999-01-01T00:00:00Z"}]`,
		fmt.Sprintf(`"plans": [{"window": "2026-03-01T00:00:00Z", "reason": %q}]`, strings.Repeat("x", 41)), `"judged_before": "9999-01-01"`, `"indexes": -2`,
	} {
		all := `[{"job": "shop/a", "uid": "u1", "cron_job": "shop/a", "since": "2026-03-01", "from": "2026-03-01", "judged_before": "2026-03-01", ` + part + `}]`
		if _, err := b.engine.Exec(t.Context(), "SELECT onceguard.engine_judge($1::text::jsonb)", all); err == nil || !strings.Contains(err.Error(), "22023") {
			t.Errorf("%s: %v", part, err)
		}
	}
	b.exec(`SELECT onceguard.grant_engine(session_user)`)
	b.exec(`SELECT onceguard.engine_judge($1::text::jsonb)`, `[{"job": "shop/a", "uid": "u1", "cron_job": "shop/a", "since": "2026-03-01", "from": "2026-03-01", "judged_before": "2026-03-01",
		"suspensions": [{"from": "2026-03-31T00:00:00Z", "to": null, "more": "`+strings.Repeat("x", 100_000)+`"}, {"from": "2026-02-28T23:59:59.5+01:00", "to": "2026-03-30T00:00:00Z"}]}]`)
	if all, err := gaps.Load(t.Context(), b.engine); err != nil || len(all) != 1 || len(all[0].State.Suspensions) != 2 || !all[0].State.Suspensions[0].To.IsZero() {
		t.Error(all, err)
	}
	if n := b.text("SELECT octet_length(suspensions::text)::text FROM onceguard.schedules"); len(n) > 3 {
		t.Error(n, "bytes of suspensions are kept")
	}
	j := judged("u1", 0, 1)
	j.Plans = []Plan{{WindowStart: time.Now().AddDate(1, 0, 0)}}
	if err := gaps.Judge(t.Context(), b.engine, []gaps.Judgement{j}); !errors.Is(err, gaps.ErrInvalid) {
		t.Error(err)
	}
}
