package gaps_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
	. "github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
	"github.com/onceguard/onceguard/test/postgres"
)

// What is judged is what is loaded, by whoever loads it.
func TestWhatIsRememberedComesBack(t *testing.T) {
	b := open(t)
	if all, err := gaps.Load(t.Context(), b.engine); err != nil || len(all) != 0 {
		t.Fatal(all, err)
	}
	s := schedule("u1")
	s.DST, s.CatchUp, s.Indexes, s.Note = contract.DSTOnce, contract.CatchUpAll, 7, "nothing is known of its namespace"
	s.State = State{JudgedBefore: at(5), Open: []time.Time{at(1), at(3)}, Suspensions: []Span{{From: at(0), To: at(2)}, {From: at(4)}}}
	b.judge(gaps.Judgement{Schedule: s, From: start}, gaps.Judgement{Schedule: schedule("u0"), From: start})
	all, err := gaps.Load(t.Context(), b.engine)
	if err != nil || len(all) != 2 || all[0].CronJobUID != "u0" || all[1].LookedAt.IsZero() {
		t.Fatal(all, err)
	}
	if s.LookedAt = all[1].LookedAt; !reflect.DeepEqual(all[1], s) {
		t.Fatalf("%+v\n%+v, %v", all, s, err)
	}
}

func TestLook(t *testing.T) {
	b := open(t)
	states := []string{"completed", "skipped", "exhausted", "held", "failed", "dead", "running"}
	for i, s := range states {
		b.execution(job, at(i), s)
	}
	// An index less closed than the window's other ones, and what is another job's.
	b.execution(job+"#0", at(10), "completed")
	b.execution(job+"#1", at(10), "failed")
	b.execution(job+"#10", at(10), "completed")
	b.execution(job+"#0", at(11), "completed")
	b.execution(job+"#1", at(11), "completed")
	for _, other := range []string{job + "@u", job + "#1@u", job + "b", "shop/"} {
		b.execution(other, at(12), "failed")
	}
	seen := b.look(gaps.Ask{JobName: job, From: at(2), Upto: at(12), Open: []time.Time{at(0), at(1), at(5), at(-7)}})
	var got []string
	for _, e := range seen.Executions {
		if e.UpdatedAt.IsZero() {
			t.Error(e)
		}
		got = append(got, fmt.Sprint(e.WindowStart.Sub(start).Minutes(), e.Closed, e.Alive, e.Failed))
	}
	want := []string{
		"0 true false false", "1 true false false", "2 true false false", "3 true false false", "4 false false true", "5 false false true", "6 false true false",
		"10 false false true", "11 true false false",
	}
	if !reflect.DeepEqual(got, want) || !seen.Upto.Equal(at(12)) || !seen.ClosedBefore.IsZero() {
		t.Errorf("%q, %+v", got, seen)
	}
	if seen := b.look(gaps.Ask{JobName: "shop/unknown", From: at(0), Upto: at(9)}); len(seen.Executions)+len(seen.Plans) != 0 {
		t.Error(seen)
	}
	b.exec("UPDATE onceguard.job SET closed_before = $1", at(1))
	if seen := b.look(gaps.Ask{JobName: job, From: at(2), Upto: at(12)}); !seen.ClosedBefore.Equal(at(1)) {
		t.Error(seen)
	}
}

// More windows than an answer holds: it ends where it is complete, for all indexes.
func TestLookIsBounded(t *testing.T) {
	b := open(t)
	b.exec(`INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, attempt, fencing_token)
		SELECT n, $1::timestamptz + m * interval '1 minute', 'skipped', 'late', 0, 0 FROM generate_series(0, 20005) m, unnest('{shop/b,shop/c#0,shop/c#1}'::text[]) n`, start)
	for name, most := range map[string]int{"shop/b": 20_000, "shop/c": 6666} {
		from, n := start, 0
		for range 5 {
			seen := b.look(gaps.Ask{JobName: name, From: from, Upto: at(20_005)})
			if len(seen.Executions) > most {
				t.Fatalf("%s: %d executions in one answer", name, len(seen.Executions))
			}
			for _, e := range seen.Executions {
				if !e.WindowStart.Equal(at(n)) {
					t.Fatalf("%s: window %s is where %s should be", name, e.WindowStart, at(n))
				}
				n++
			}
			if from = seen.Upto.Add(time.Microsecond); !seen.Upto.Before(at(20_005)) {
				break
			}
		}
		if n != 20_006 {
			t.Errorf("%s: %d windows", name, n)
		}
	}
	// The whole is bounded as well: after long away each CronJob has that many.
	asks := slices.Repeat([]gaps.Ask{{JobName: "shop/b", From: start, Upto: at(20_005)}}, 300)
	all, err := gaps.Look(t.Context(), b.engine, asks)
	if err != nil {
		t.Fatal(err)
	}
	for _, seen := range all {
		if n := len(seen.Executions); n != 666 || !seen.Upto.Before(at(n)) || seen.Upto.Before(at(n-1)) {
			t.Fatalf("%d executions in one of 300 answers, up to %s", n, seen.Upto)
		}
	}
}

// Plans go when their window is closed; those that are to open it again do not.
func TestPlansOfClosedWindowsGo(t *testing.T) {
	b := open(t)
	j := judged("u1", 0, 9)
	for m := range 9 {
		j.Plans = append(j.Plans, Plan{WindowStart: at(m), Reason: Controller})
	}
	b.execution(job, at(0), "skipped") // before it is planned
	b.judge(j)
	b.execution(job, at(1), "completed")
	b.execution(job, at(2), "failed")
	b.execution(job, at(3), "running")
	b.exec("UPDATE onceguard.job SET closed_before = $1", at(1))
	b.exec("UPDATE onceguard.job_plan SET reprocess = 'completed', planned_by = 'ann' WHERE window_start = $1", at(4))
	b.execution(job, at(4), "completed")
	seen := b.look(gaps.Ask{JobName: job, From: at(4), Upto: at(9)})
	var got []string
	for _, p := range seen.Plans {
		got = append(got, strings.Join(strings.Fields(fmt.Sprint(p.WindowStart.Sub(start).Minutes(), " ", p.Reason, " by ", p.By, " ", p.CronJobUID)), " "))
	}
	if want := "2 controller by u1, 3 controller by u1, 4 controller by ann u1, 5 controller by u1, 6 controller by u1, 7 controller by u1, 8 controller by u1"; strings.Join(got, ", ") != want {
		t.Errorf("%q", got)
	}
	if e := seen.Executions; len(e) != 1 || e[0].Closed || !e[0].Failed {
		t.Errorf("a window that is to run again: %+v", e)
	}
	if got := b.answers(0, 6); got != "execution:skipped execution:done execution:failed execution:running execution:done plan plan" {
		t.Error(got)
	}
}

// Final gaps that say the same and follow each other are one; late ones are made anew.
func TestGapsAreRanges(t *testing.T) {
	b := open(t)
	b.judge(judged("u1", 0, 3, gap(0, 2, Missed, Controller), gap(3, 4, Late, Controller)))
	first := b.text("SELECT recorded_at::text FROM onceguard.gaps WHERE status = 'late'")
	b.judge(judged("u1", 3, 3, gap(3, 5, Late, Controller)))
	if b.text("SELECT recorded_at::text FROM onceguard.gaps WHERE status = 'late'") != first {
		t.Error("a late gap that grows was recorded anew")
	}
	if got := b.recorded("u1"); got != "0-2 3 missed controller, 3-5 3 late controller" {
		t.Fatal(got)
	}
	if got := b.answers(0, 6); got != "gap:missed gap:missed gap:missed gap:late gap:late gap:late none" {
		t.Error(got)
	}
	// It is continued, and the late one is over.
	b.judge(judged("u1", 3, 6, gap(3, 5, Missed, Controller)))
	if got := b.recorded("u1"); got != "0-5 6 missed controller" {
		t.Fatal(got)
	}
	b.judge(judged("u1", 6, 9, gap(6, 6, Missed, Overlap), gap(7, 8, Missed, Controller))) // another reason
	b.judge(judged("u1", 9, 12, gap(10, 11, Missed, Controller)))                          // 9 was run: not the same range
	b.judge(judged("u1", 12, 12))
	if got := b.recorded("u1"); got != "0-5 6 missed controller, 6-6 1 missed overlap, 7-8 2 missed controller, 10-11 2 missed controller" {
		t.Fatal(got)
	}
	edited := judged("u1", 12, 13, gap(12, 12, Missed, Controller))
	edited.Schedule.Schedule = "*/1 * * * *"
	b.judge(edited)
	if got := b.recorded("u1"); !strings.HasSuffix(got, "10-11 2 missed controller, 12-12 1 missed controller") {
		t.Fatal(got)
	}
	// A Job that comes after all overrides it.
	b.execution(job, at(4), "completed")
	if got := b.answers(3, 5); got != "gap:missed execution:done gap:missed" {
		t.Error(got)
	}
}

// A judgement from a state that is no longer the recorded one changes nothing, whichever
// way it is outdated; one for another CronJob beside it is taken.
func TestOutdatedJudgements(t *testing.T) {
	b := open(t)
	old := judged("u1", 0, 2, gap(0, 1, Missed, Controller))
	b.judge(old)
	refused := func(want []int, all ...gaps.Judgement) {
		t.Helper()
		var outdated *gaps.Outdated
		if err := gaps.Judge(t.Context(), b.engine, all); !errors.As(err, &outdated) || !reflect.DeepEqual(outdated.Judgements, want) {
			t.Fatal(err)
		}
	}
	before := b.recorded("u1")
	late := old
	late.Gaps = []Gap{gap(0, 0, Skipped, Suspended)}
	refused([]int{0}, old)
	refused([]int{1}, judged("u2", 0, 1, gap(0, 0, Missed, Overlap)), late)
	if got := b.recorded("u1"); got != before {
		t.Error(got)
	}
	if got := b.recorded("u2"); got != "0-0 1 missed overlap" {
		t.Error(got)
	}

	// The schedule is edited. What was late under the old one will not be judged again, and
	// what was judged stays; the new one begins at its since.
	b.judge(judged("u1", 2, 2, gap(2, 4, Late, Controller)))
	edited := judged("u1", 5, 6, gap(5, 5, Missed, Quota))
	edited.Since, edited.Schedule.Schedule = at(5), "*/1 * * * *"
	b.judge(edited)
	want := "0-1 2 missed controller, 2-4 3 missed controller, 5-5 1 missed quota"
	if got := b.recorded("u1"); got != want {
		t.Error(got)
	}
	refused([]int{0}, judged("u1", 2, 5, gap(2, 4, Skipped, Suspended))) // by one that does not know of the edit
	if got := b.recorded("u1"); got != want {
		t.Error(got)
	}
	// The edit is taken back, and nobody judges under it any more.
	b.exec("UPDATE onceguard.job_schedule SET looked_at = looked_at - interval '11 minutes'")
	b.judge(judged("u1", 6, 8, gap(7, 7, Missed, Controller)))
	if got := b.recorded("u1"); got != want+", 7-7 1 missed controller" {
		t.Error(got)
	}
}

// CronJobs that share a job have their gaps apart, and of two answers the one that may
// still be overtaken goes first.
func TestTwoCronJobsShareAJob(t *testing.T) {
	b := open(t)
	b.judge(judged("u1", 0, 3, gap(0, 2, Missed, Controller)), judged("u2", 0, 1, gap(0, 0, Skipped, Suspended), gap(1, 1, Late, Starting)))
	if got := b.answers(0, 3); got != "gap:missed gap:late gap:missed none" {
		t.Error(got)
	}
	// Each plans what it misses; a window is planned once, by whoever came first.
	one, other := judged("u1", 3, 4), judged("u2", 1, 1)
	one.Plans, other.Plans = []Plan{{WindowStart: at(3), Reason: Controller}}, []Plan{{WindowStart: at(3), Reason: Overlap}}
	b.judge(one, other)
	if seen := b.look(gaps.Ask{JobName: job, From: at(0), Upto: at(4)}); len(seen.Plans) != 1 || seen.Plans[0].CronJobUID != "u1" || seen.Plans[0].Reason != Controller {
		t.Error(seen.Plans)
	}
	// The other cannot take it away.
	other.Plans, other.Unplan = nil, []Gap{gap(3, 3, Missed, Overlap)}
	b.judge(other)
	if got := b.answers(3, 3); got != "plan" {
		t.Error(got)
	}
}

// What is planned no more has the answer that is recorded with that, once.
func TestUnplan(t *testing.T) {
	b := open(t)
	j := judged("u1", 0, 9, gap(0, 5, Missed, Controller))
	j.Plans = []Plan{{WindowStart: at(7), Reason: Controller}, {WindowStart: at(8), Reason: Controller}}
	b.judge(j)
	if _, err := admin.Backfill(t.Context(), b.owner, job, []time.Time{at(2)}, admin.ReprocessNone, "ann", "why"); err != nil {
		t.Fatal(err)
	}
	given := func(m int) Gap { g := gap(m, m, Missed, JobGone); g.Rule = GivenUp; return g }
	j = judged("u1", 9, 9)
	j.Unplan = []Gap{given(2), given(7)}
	b.judge(j)
	b.judge(j)
	if got := b.recorded("u1"); got != "0-1 2 missed controller, 2-2 1 missed job-gone given-up, 3-5 3 missed controller, 7-7 1 missed job-gone given-up" {
		t.Error(got)
	}
	if got := b.answers(0, 9); got != "gap:missed gap:missed gap:missed gap:missed gap:missed gap:missed none gap:missed plan none" {
		t.Error(got)
	}
}

// A window whose Job has given up is closed, but never one that a worker holds, that commits
// just now, that is completed, or that a person has opened again.
func TestExhaust(t *testing.T) {
	b := open(t)
	for i, s := range []string{"failed", "dead", "running", "completed", "held"} {
		b.execution(job, at(i), s)
	}
	b.execution(job, at(5), "failed")
	if _, err := admin.Rerun(t.Context(), b.owner, window(5), "ann", "again"); err != nil {
		t.Fatal(err)
	}
	b.execution(job, at(6), "dead")
	b.execution(job+"#1", at(7), "failed")
	b.execution(job+"#2", at(7), "completed")
	zombie := connect(t, b.url)
	if _, err := zombie.Exec(t.Context(), "BEGIN; SELECT onceguard.begin(job_name, window_start, execution_id), onceguard.complete(job_name, window_start, execution_id) FROM onceguard.job_lease WHERE window_start = '"+at(6).Format(time.RFC3339)+"'"); err != nil {
		t.Fatal(err)
	}
	j := judged("u1", 0, 9)
	for m := range 9 {
		g := gap(m, m, Missed, JobFailed)
		g.Evidence = "Job a-1: BackoffLimitExceeded"
		j.Exhaust = append(j.Exhaust, g)
	}
	b.judge(j)
	if _, err := zombie.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	want := "exhausted job-failed, exhausted job-failed, running, completed, held held, failed rerun, completed, #1 exhausted job-failed, #2 completed"
	if got := b.text(`SELECT string_agg(concat_ws(' ', nullif(substr(job_name, 7), ''), status, reason), ', ' ORDER BY window_start, job_name) FROM onceguard.job_execution`); got != want {
		t.Errorf("%q", got)
	}
	if got := b.text("SELECT outcome || ' ' || message FROM onceguard.job_attempt WHERE window_start = $1", at(1)); got != "lost Job a-1: BackoffLimitExceeded" {
		t.Error(got)
	}
	if n := b.text("SELECT count(*)::text FROM onceguard.job_lease WHERE window_start IN ($1, $2)", at(0), at(1)); n != "0" {
		t.Error(n)
	}
}

// on-crash=hold: what crashed, or died, is for a person to decide, as if another claim had come. What
// he has let go on since, and what failed otherwise, is not.
func TestExhaustHolds(t *testing.T) {
	b := open(t)
	for i, s := range []string{"failed", "failed", "dead", "failed"} {
		b.execution(job, at(i), s)
	}
	for _, i := range []int{1, 3} {
		b.exec("UPDATE onceguard.job_attempt SET outcome = 'crashed' WHERE window_start = $1", at(i))
	}
	b.exec("UPDATE onceguard.job_execution SET decided = attempt WHERE window_start = $1", at(3))
	j := judged("u1", 0, 9)
	j.Hold = true
	for m := range 4 {
		j.Exhaust = append(j.Exhaust, gap(m, m, Missed, JobFailed))
	}
	b.judge(j)
	want := "exhausted job-failed, held held, held held, exhausted job-failed"
	if got := b.text(`SELECT string_agg(status || ' ' || reason, ', ' ORDER BY window_start) FROM onceguard.job_execution`); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := admin.Release(t.Context(), b.owner, window(1), "ann", "nothing was sent"); err != nil {
		t.Error(err)
	}
}

// A CronJob that is gone has no window that may still come, and plans of people go on.
func TestGone(t *testing.T) {
	b := open(t)
	j := judged("u1", 0, 4, gap(0, 0, Missed, Controller), gap(4, 5, Late, Overlap))
	j.Plans = []Plan{{WindowStart: at(1), Reason: Controller}, {WindowStart: at(2), Reason: Controller}, {WindowStart: at(3), Reason: Quota}}
	b.judge(j)
	if _, err := admin.Backfill(t.Context(), b.owner, job, []time.Time{at(0)}, admin.ReprocessNone, "ann", "why"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := gaps.Gone(t.Context(), b.engine, "u1"); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.recorded("u1"); got != "0-0 1 missed controller, 1-2 2 missed controller gone, 3-3 1 missed quota gone, 4-5 2 missed overlap" {
		t.Error(got)
	}
	if got := b.answers(0, 6); got != "plan gap:missed gap:missed gap:missed gap:missed gap:missed none" {
		t.Error(got)
	}
	if _, err := admin.Backfill(t.Context(), b.owner, job, []time.Time{at(1)}, admin.ReprocessNone, "ann", "why"); !errors.Is(err, admin.ErrState) {
		t.Error(err)
	}
	// It is made again: another UID, which takes over what a person had planned.
	again := judged("u2", 10, 10)
	again.Since = at(10)
	b.judge(again)
	if seen := b.look(gaps.Ask{JobName: job, From: at(10), Upto: at(11)}); len(seen.Plans) != 1 || seen.Plans[0].CronJobUID != "u2" || seen.Plans[0].By != "ann" {
		t.Error(seen.Plans)
	}
	all, err := gaps.Load(t.Context(), b.engine)
	if err != nil || len(all) != 2 || all[0].Gone.IsZero() || !all[1].Gone.IsZero() {
		t.Error(all, err)
	}
	// The first was only out of sight.
	b.judge(judged("u1", 6, 7, gap(6, 6, Missed, Controller)))
	if all, err := gaps.Load(t.Context(), b.engine); err != nil || !all[0].Gone.IsZero() {
		t.Error(all, err)
	}
}

// Bad arguments name themselves and change nothing.
func TestArguments(t *testing.T) {
	b := open(t)
	with := func(change func(*gaps.Judgement)) gaps.Judgement {
		j := judged("u1", 0, 3)
		change(&j)
		return j
	}
	for want, j := range map[string]gaps.Judgement{
		"job_name \"shop/a#1\"":           with(func(j *gaps.Judgement) { j.JobName += "#1" }),
		"uid, cron_job":                   with(func(j *gaps.Judgement) { j.CronJobUID = "" }),
		"judged_before not less than":     with(func(j *gaps.Judgement) { j.From = at(4) }),
		"status \"odd\"":                  with(func(j *gaps.Judgement) { j.Gaps = []Gap{gap(0, 1, "odd", Controller)} }),
		"reason \"Odd!\"":                 with(func(j *gaps.Judgement) { j.Gaps = []Gap{gap(0, 1, Missed, "Odd!")} }),
		"less than 1":                     with(func(j *gaps.Judgement) { j.Gaps = []Gap{{First: at(0), Last: at(1), Status: Missed, Reason: Quota}} }),
		"in order":                        with(func(j *gaps.Judgement) { j.Gaps = []Gap{gap(0, 1, Missed, Quota), gap(1, 2, Missed, Quota)} }),
		"or else after it":                with(func(j *gaps.Judgement) { j.Gaps = []Gap{gap(2, 3, Missed, Quota)} }),
		"and before judged_before":        with(func(j *gaps.Judgement) { j.Gaps = []Gap{gap(1, 2, Late, Quota)} }),
		"after from":                      with(func(j *gaps.Judgement) { j.Since = at(1); j.Gaps = []Gap{gap(0, 0, Missed, Quota)} }),
		"must be one window":              with(func(j *gaps.Judgement) { j.Exhaust = []Gap{gap(0, 2, Missed, Quota)} }),
		"gaps has 10001 elements":         with(func(j *gaps.Judgement) { j.Gaps = make([]Gap, 10_001) }),
		"note of job \"shop/a\" is miss":  with(func(j *gaps.Judgement) { j.CronJob = strings.Repeat("x", 401) }),
		"open of job \"shop/a\" has 2000": with(func(j *gaps.Judgement) { j.State.Open = make([]time.Time, 20_001) }),
	} {
		if err := gaps.Judge(t.Context(), b.engine, []gaps.Judgement{judged("u0", 0, 1), j}); !errors.Is(err, gaps.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := gaps.Judge(t.Context(), b.engine, make([]gaps.Judgement, gaps.Most+1)); !errors.Is(err, gaps.ErrInvalid) {
		t.Error(err)
	}
	if _, err := gaps.Look(t.Context(), b.engine, []gaps.Ask{{JobName: job + "@u"}}); !errors.Is(err, gaps.ErrInvalid) {
		t.Error(err)
	}
	if _, err := gaps.Making(t.Context(), b.engine, job, start, "", ""); !errors.Is(err, gaps.ErrInvalid) {
		t.Error(err)
	}
	if n := b.text("SELECT count(*)::text FROM onceguard.schedules"); n != "0" {
		t.Error(n, " schedules were recorded")
	}
	// Texts of the cluster are cut, not refused.
	j := judged("u1", 0, 1, gap(0, 0, Missed, Admission))
	j.Note, j.Gaps[0].Evidence = strings.Repeat("é", 1000), "a\x00b\xff"+strings.Repeat("ü", 600)
	b.judge(j)
	if got := b.text("SELECT octet_length(evidence) || ' ' || left(evidence, 4) FROM onceguard.gaps"); got != "1023 a\uFFFDb\uFFFD" && got != "1024 a\uFFFDb\uFFFD" {
		t.Errorf("%q", got)
	}
}

// The engine's login may do what it is for, and nothing else; a job's login may do none of it.
func TestRights(t *testing.T) {
	b := open(t)
	b.execution(job, at(0), "completed")
	b.judge(judged("u1", 0, 1))
	for _, sql := range []string{
		"INSERT INTO onceguard.job_gap SELECT * FROM onceguard.job_gap", "DELETE FROM onceguard.job_plan", "UPDATE onceguard.job_schedule SET note = ''", "TABLE onceguard.job_execution",
		"SELECT onceguard.rerun('shop/a', now(), 'x', 'y')", "SELECT onceguard.backfill('shop/a', ARRAY[now()], 'none', 'x', 'y')", "SELECT onceguard.grant_engine('x')",
		"SELECT onceguard.claim('shop/a', now(), gen_random_uuid(), '1 s')", "SELECT onceguard.exhaust('shop/a', now(), 'x', 'y', true)", "SELECT onceguard.drop_plans('{shop/a}')",
		"SELECT onceguard.unhold('shop/a', now(), 'x', 'y')", "SELECT onceguard.cancel_backfill('shop/a', now(), now(), 'x', 'y')",
	} {
		if _, err := b.engine.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	role, url := postgres.Login(t, b.url)
	b.exec("SELECT onceguard.grant_job($1, '*')", role)
	worker := connect(t, url)
	b.exec("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA onceguard TO " + role) // by a hand, against the rules
	if _, err := gaps.Load(t.Context(), worker); !errors.Is(err, gaps.ErrForbidden) {
		t.Error(err)
	}
	if _, err := gaps.Look(t.Context(), worker, []gaps.Ask{{JobName: job, Upto: at(1)}}); !errors.Is(err, gaps.ErrForbidden) {
		t.Error(err)
	}
	if err := gaps.Judge(t.Context(), worker, []gaps.Judgement{judged("u1", 1, 2)}); !errors.Is(err, gaps.ErrForbidden) {
		t.Error(err)
	}
	if _, err := gaps.Making(t.Context(), worker, job, start, "u1", "j"); !errors.Is(err, gaps.ErrForbidden) {
		t.Error(err)
	}
	if err := gaps.Gone(t.Context(), worker, "u1"); !errors.Is(err, gaps.ErrForbidden) {
		t.Error(err)
	}
	if _, err := admin.Answers(t.Context(), worker, job, []time.Time{start}); !errors.Is(err, admin.ErrForbidden) {
		t.Error(err)
	}
	b.exec("SELECT onceguard.revoke_engine(role) FROM onceguard.engine_grant")
	if _, err := gaps.Load(t.Context(), b.engine); !errors.Is(err, gaps.ErrForbidden) {
		t.Error(err)
	}
}
