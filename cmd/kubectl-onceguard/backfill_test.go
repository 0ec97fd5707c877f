package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// How a window ends that the simulated engine makes a Job for.
const (
	completes = ""
	fails     = "fails"  // and its Job gives up: the window is closed as exhausted
	vanishes  = "vanish" // its pod never comes
)

// engine stands in for the windows engine and the pods of its Jobs: planned windows are made
// oldest first, one at a time, claimed and completed, or as become says.
func (b *book) engine(become func(w time.Time) string) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.runEngine(ctx, become) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

func (b *book) runEngine(ctx context.Context, become func(w time.Time) string) error {
	conn, err := pgx.Connect(ctx, b.ownerURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for {
		var w time.Time
		var job, uid string
		err := conn.QueryRow(ctx, "SELECT job_name, window_start, cron_job_uid FROM onceguard.job_plan WHERE made = 0 ORDER BY window_start LIMIT 1").Scan(&job, &w, &uid)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, pgx.ErrNoRows):
			select { // nothing is planned so far
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
			continue
		case err != nil:
			return err
		}
		if err := runPlanned(ctx, conn, job, uid, w.UTC(), become); err != nil {
			return err
		}
	}
}

func runPlanned(ctx context.Context, conn *pgx.Conn, job, uid string, w time.Time, become func(w time.Time) string) error {
	var make bool
	name := fmt.Sprintf("order-sync-r%d", w.Unix()/60)
	if err := conn.QueryRow(ctx, "SELECT onceguard.engine_making($1, $2, $3, $4)", job, w, uid, name).Scan(&make); err != nil || !make {
		return err
	}
	how := completes
	if become != nil {
		how = become(w)
	}
	if how == vanishes {
		return nil
	}
	id := uuid.New()
	var verdict string
	origin := originOf(job, w, "trigger", "catch-up", "job", name)
	if err := conn.QueryRow(ctx, "SELECT verdict FROM onceguard.claim($1, $2, $3, '1 hour', $4::text::jsonb)", job, w, id, origin).Scan(&verdict); err != nil || verdict != "run" {
		return err // without a verdict to run it was cancelled meanwhile
	}
	if how == fails {
		if _, err := conn.Exec(ctx, "SELECT onceguard.release($1, $2, $3, 'failed', 1)", job, w, id); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "UPDATE onceguard.job_execution SET status = 'exhausted', reason = 'exhausted' WHERE job_name = $1 AND window_start = $2", job, w)
		return err
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT onceguard.begin($1, $2, $3)", job, w, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT onceguard.complete($1, $2, $3)", job, w, id)
		return err
	})
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT onceguard.release($1, $2, $3, 'completed', 0)", job, w, id)
	}
	return err
}

// watched is a ledger with the CronJob shop/order-sync, every hour, guarded since hour 0.
func watchedBook(t *testing.T) *book {
	t.Helper()
	b := newBook(t)
	b.watch(orderSync, "shop/order-sync", "0 * * * *", "Asia/Shanghai", hour(0))
	return b
}

// backfill is the command for hours from to upto.
func (b *book) backfill(from, upto int, more ...string) result {
	b.t.Helper()
	return b.run(append([]string{"backfill", orderSync, "--from", at(from), "--to", at(upto), "--reason", "TICKET-19", "--by", "ann"}, more...)...)
}

// now gives the states of hours from to upto in the record.
func (b *book) now(from, upto int) string {
	b.t.Helper()
	var s []string
	for h := from; h <= upto; h++ {
		s = append(s, b.state(orderSync, h))
	}
	return strings.Join(s, " ")
}

// generations of hours 1 to upto.
func (b *book) generation(h int) (n int) {
	b.t.Helper()
	if err := b.conn.QueryRow(b.t.Context(), "SELECT generation FROM onceguard.windows WHERE job_name = $1 AND window_start = $2", orderSync, hour(h)).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestBackfill(t *testing.T) {
	b := watchedBook(t)
	b.gap(orderSync, "shop/order-sync", hour(1), hour(5), 4, disposition.Missed, disposition.Controller, "", "")
	b.done(orderSync, hour(3))

	r := b.backfill(1, 5, "--dry-run").ok(t)
	want := `Nothing is changed (--dry-run).
5 windows of shop/order-sync, from 2020-05-04T01:00:00Z to 2020-05-04T05:00:00Z
(0 * * * * Asia/Shanghai, CronJob shop/order-sync):
       4 never run    to be run
       1 done         stays (--reprocess completed runs it once more)
`
	if r.stdout != want {
		t.Errorf("got\n%s\nwant\n%s", r.stdout, want)
	}
	if plans := b.plans(); len(plans) != 0 {
		t.Fatalf("a dry run planned %v", plans)
	}

	b.backfill(1, 5, "--detach").ok(t).has(t, "4 never run    to be run", "The windows engine makes their Jobs", "kubectl onceguard gaps shop/order-sync")
	plans := b.plans()
	if len(plans) != 4 || plans[0].PlannedBy != "ann" || plans[0].Why != "TICKET-19" {
		t.Fatalf("planned: %+v", plans)
	}
	b.run("windows", "-n", "shop", "--state", "planned").ok(t).has(t, at(5), at(1), "planned")
	b.run("gaps", orderSync, "--since", "0", "--fail").ok(t).flat().has(t, "No gaps found", "Planned: 4 windows of shop/order-sync, "+at(1)+" to "+at(5)+", by ann")
	b.run("explain", orderSync, at(2)).ok(t).flat().has(t, "Answer planned", "planned by ann: TICKET-19", "recorded ", "missed, no Job was made for it", "--cancel")

	// The same command goes on, and shows how far it comes.
	b.backfill(1, 5, "--detach").ok(t).has(t, "4 planned      planned already")
	stop := b.engine(nil)
	b.backfill(1, 5).ok(t).has(t, "5 of 5 done, 0 running, 0 planned, 0 failed\n")
	stop()
	if got := b.now(1, 5); got != "done done done done done" {
		t.Error(got)
	}
	b.run("show", orderSync, at(2)).ok(t).flat().has(t, "Came late recorded ", "missed, no Job was made for it", "DECIDED", "backfill by ann (login ", "of the windows "+at(1)+" to "+at(5)+": TICKET-19")
	b.run("gaps", orderSync, "--since", "0", "--fail").ok(t).has(t, "No gaps found")
	b.run("explain", orderSync, at(2)).ok(t).flat().has(t, "caught up: Job shop/order-sync-r"+fmt.Sprint(hour(2).Unix()/60)+" was made for it")
	b.run("windows", "-n", "shop").ok(t).has(t, "done (caught up)")
	b.backfill(1, 5).ok(t).has(t, "5 done         stays", "5 of 5 done")
}

// plans are those of the ledger, newest first.
func (b *book) plans() []audit.Plan {
	b.t.Helper()
	plans, err := audit.Plans(b.t.Context(), b.conn, "", "", 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	return plans
}

func TestReprocessLevels(t *testing.T) {
	b := watchedBook(t)
	b.states() // 1 done, 2 failed, 3 exhausted, 4 held, 5 late, 6 superseded, 7 died, 8 done, 9 running
	b.run("windows", "-n", "shop").ok(t)
	for _, c := range []struct {
		level string
		want  []string
	}{
		{"none", []string{"1 failed       stays (--reprocess failed runs it)", "1 held         stays (--rep", "1 exhausted    stays (--rep", "2 skipped      to be run", "2 done         stays (--reprocess completed", "1 running      goes on", "1 never run    to be run"}},
		{"failed", []string{"1 failed       to be run", "1 held         to be run", "1 exhausted    to be run", "2 skipped      to be run", "2 done         stays"}},
		{"completed", []string{"1 exhausted    to be run", "2 done         to be run once more, as a new generation"}},
	} {
		b.backfill(1, 10, "--reprocess", c.level, "--dry-run").ok(t).has(t, c.want...)
	}
	if plans := b.plans(); len(plans) != 0 {
		t.Fatalf("dry runs planned %+v", plans)
	}
	b.engine(nil)
	b.backfill(1, 6, "--reprocess", "none").fails(t, 1, "3 of 6 done, 0 running, 0 planned, 3 failed", "3 windows of shop/order-sync came to an end without being done: "+at(2)+" (failed), "+at(3)+" (exhausted), "+at(4)+" (held)", "explain shop/order-sync WINDOW")
	b.backfill(1, 6, "--reprocess", "failed").ok(t).has(t, "6 of 6 done")
	if b.generation(1) != 1 {
		t.Error("what was done was run again")
	}
	b.backfill(1, 3, "--reprocess", "completed", "--reason", "prices").ok(t).has(t, "3 done         to be run once more", "3 of 3 done")
	for h := 1; h <= 3; h++ {
		if got := b.generation(h); got != 2 {
			t.Errorf("hour %d has generation %d", h, got)
		}
	}
	b.backfill(1, 3, "--reprocess", "completed", "--reason", "prices").ok(t).has(t, "3 done         stays: it was run again with this --reason")
	if got := b.generation(1); got != 2 {
		t.Errorf("the same command ran it again: generation %d", got)
	}
}

// Interrupted in the middle it goes on by itself; the same command shows the rest. Cancelled
// in the middle what has run stays, and the rest is not run.
func TestBackfillIsInterruptedAndCancelled(t *testing.T) {
	b := watchedBook(t)
	gate := make(chan struct{}, 100)
	stop := b.engine(func(time.Time) string { <-gate; return completes })
	t.Cleanup(func() { close(gate) })
	b.engineGate(gate, 2)

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out, errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"backfill", orderSync, "--from", at(1), "--to", at(6), "--reason", "TICKET-19", "--by", "ann", "--ledger-url-file", b.owner}, nil, strings.NewReader(""), &out, &errs)
	}()
	b.waitFor(orderSync, 2, "done")
	interrupt()
	result{<-code, out.String(), errs.String()}.fails(t, 1, "interrupted: the backfill goes on without this command", "--cancel")
	if n := len(b.plans()); n == 0 {
		t.Fatal("the interrupted backfill is gone")
	}

	b.engineGate(gate, 1)
	b.waitFor(orderSync, 3, "done")
	b.backfill(1, 6, "--cancel", "--dry-run").ok(t).has(t, "would be taken back. Nothing is changed")
	b.backfill(1, 6, "--cancel").ok(t).has(t, "planned windows of shop/order-sync from "+at(1)+" to "+at(6)+" taken back, by ann")
	b.engineGate(gate, 50)
	if got := b.now(1, 3); got != "done done done" {
		t.Error(got)
	}
	// The engine had one in the making: it is closed as cancelled, or its pod had come before.
	b.backfill(4, 6, "--dry-run").ok(t)
	for _, h := range []int{5, 6} {
		if got := b.state(orderSync, h); got != "" {
			t.Errorf("hour %d ran after it was taken back: %s", h, got)
		}
	}
	for _, p := range b.plans() {
		if p.Made == 0 {
			t.Errorf("still planned: %+v", p)
		}
	}
	stop()
}

// engineGate lets the engine run n windows.
func (b *book) engineGate(gate chan struct{}, n int) {
	for range n {
		gate <- struct{}{}
	}
}

// What is opened by hand can be left to the engine.
func TestRerunPointsToTheEngine(t *testing.T) {
	b := watchedBook(t)
	b.done(orderSync, hour(1))
	b.done(orderSync+"@4e1b", hour(2))
	r := b.run("rerun", orderSync, at(1), "--reason", "prices").ok(t)
	r.has(t, "Or let the windows engine make it:\n  kubectl onceguard backfill "+orderSync+" --from "+at(1)+" --to "+at(1)+" --reprocess failed --reason TEXT")
	if r := b.run("rerun", orderSync+"@4e1b", at(2), "--reason", "prices").ok(t); strings.Contains(r.stdout, "backfill") {
		t.Errorf("a separate run: %s", r.stdout)
	}
	b.engine(nil)
	b.backfill(1, 1, "--reprocess", "failed").ok(t).has(t, "1 failed       to be run", "1 of 1 done")
	if got := b.generation(1); got != 2 {
		t.Errorf("generation %d", got)
	}
}

func TestBackfillThatFails(t *testing.T) {
	b := watchedBook(t)
	b.engine(func(w time.Time) string {
		if w.Equal(hour(2)) {
			return fails
		}
		return completes
	})
	b.backfill(1, 3).fails(t, 1, "2 of 3 done, 0 running, 0 planned, 1 failed", "1 window of shop/order-sync came to an end without being done: "+at(2)+" (exhausted)")
}

func TestBackfillIsRefused(t *testing.T) {
	b := watchedBook(t)
	b.done(orderSync, hour(1))
	b.watch("shop/every", "shop/every", "@every 1h", "", hour(0))
	b.watch("shop/zoneless", "shop/zoneless", "0 * * * *", "", hour(0))
	b.watch("shop/shared", "shop/a", "0 * * * *", "Etc/UTC", hour(0))
	b.watch("shop/shared", "shop/b", "30 * * * *", "Etc/UTC", hour(0))
	b.watch("shop/gone", "shop/gone", "0 * * * *", "Etc/UTC", hour(0))
	b.asOwner("UPDATE onceguard.job_schedule SET gone_at = clock_timestamp() WHERE job_name = 'shop/gone'")
	b.watch("shop/minutely", "shop/minutely", "* * * * *", "Etc/UTC", hour(0))
	b.done("shop/unwatched", hour(1))
	span := []string{"--from", at(1), "--to", at(3)}
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"@every":                {append([]string{"shop/every"}, span...), 1, []string{"cannot be computed", "@every", "five fields"}},
		"no zone":               {append([]string{"shop/zoneless"}, span...), 1, []string{"has no time zone", "spec.timeZone"}},
		"several CronJobs":      {append([]string{"shop/shared"}, span...), 1, []string{"shop/a, shop/b", "--cronjob"}},
		"another CronJob":       {append([]string{"shop/shared", "--cronjob", "c"}, span...), 1, []string{`--cronjob "c"`, "shop/a, shop/b"}},
		"a deleted CronJob":     {append([]string{"shop/gone"}, span...), 1, []string{"was deleted", "create it again"}},
		"an unknown job":        {append([]string{"shop/none"}, span...), 1, []string{"no job shop/none", "engine"}},
		"a job without engine":  {append([]string{"shop/unwatched"}, span...), 1, []string{"no job shop/unwatched", "engine.enabled"}},
		"too many":              {[]string{"shop/minutely", "--from", at(0), "--to", "2020-06-01T00:00:00Z"}, 1, []string{"more than 10000 windows", "begin with --to 2020-05-10T22:39:00Z"}},
		"many, and no terminal": {[]string{"shop/minutely", "--from", at(0), "--to", at(2)}, 2, []string{"Plan 121 windows?", "--yes"}},
		"before guarding":       {[]string{orderSync, "--from", "2020-05-03T22:00:00Z", "--to", at(1)}, 1, []string{"2 windows of the span, the first 2020-05-03T22:00:00Z", "before " + at(0), "--from " + at(0), "--before-guarding"}},
		"the future":            {[]string{orderSync, "--from", at(1), "--to", "2120-01-01T00:00:00Z"}, 2, []string{"--to 2120-01-01T00:00:00Z is in the future"}},
		"the wrong way":         {[]string{orderSync, "--from", at(3), "--to", at(1)}, 2, []string{"is before --from"}},
		"no window between":     {[]string{orderSync, "--from", "2020-05-04T01:10:00Z", "--to", "2020-05-04T01:50:00Z"}, 1, []string{"has no window from", at(1), at(2)}},
		"no --from":             {[]string{orderSync, "--to", at(1)}, 2, []string{"--from is missing"}},
		"no --to":               {[]string{orderSync, "--from", at(1)}, 2, []string{"--to is missing"}},
		"no instant":            {[]string{orderSync, "--from", "yesterday", "--to", at(1)}, 2, []string{`--from "yesterday"`, "2026-11-01T00:00:00Z"}},
		"a level":               {append([]string{orderSync, "--reprocess", "all"}, span...), 2, []string{`--reprocess "all"`, "none, failed or completed"}},
		"a level with --cancel": {append([]string{orderSync, "--reprocess", "failed", "--cancel"}, span...), 2, []string{"--cancel", "leave out"}},
		"an index":              {append([]string{orderSync + "#1"}, span...), 2, []string{"as a whole"}},
		"two lines":             {append([]string{orderSync, "--reason", "a\nb"}, span...), 2, []string{"one line"}},
		"nobody":                {append([]string{orderSync, "--by", ""}, span...), 2, []string{"--by is missing"}},
		"no job":                {span, 2, []string{"JOB is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"backfill"}, c.args...)
			if name != "two lines" {
				args = append(args, "--reason", "x")
			}
			b.run(args...).flat().fails(t, c.code, c.want...)
		})
	}
	b.run(append([]string{"backfill", orderSync}, span...)...).fails(t, 2, "--reason is missing")
	// A login that may read, and even claim, plans nothing, and takes nothing back.
	for _, flag := range []string{"--dry-run", "--detach", "--cancel"} {
		plugin(t, nil, append(append([]string{"backfill", orderSync, flag, "--reason", "x"}, span...), "--ledger-url-file", b.login)...).fails(t, 1, "need the URL of the ledger's owner")
	}
	if plans := b.plans(); len(plans) != 0 {
		t.Errorf("planned all the same: %+v", plans)
	}
	b.run("prune", orderSync, "--before", at(2)).ok(t)
	b.backfill(1, 3).fails(t, 1, "window "+at(1)+" of "+orderSync+" is closed", "--from "+at(2))
	b.run("backfill", "shop/minutely", "--from", at(0), "--to", at(2), "--yes", "--detach", "--reason", "x").ok(t).has(t, "121 windows")
}

// A local time that the clocks leave out, or that they have twice, is said; windows are
// those of the schedule on that day.
func TestBackfillOfADayWhenClocksAreMoved(t *testing.T) {
	b := newBook(t)
	b.watch("shop/ny", "shop/ny", "30 * * * *", "America/New_York", time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
	r := b.run("backfill", "shop/ny", "--from", "2025-03-09 01:00", "--to", "2025-03-09 02:30", "--reason", "x", "--dry-run").ok(t)
	r.flat().has(t, "--to: 2025-03-09 02:30:00 does not occur in America/New_York", "it is taken as 03:30:00 -04:00, which is 2025-03-09T07:30:00Z")
	r.has(t, "2 windows of shop/ny, from 2025-03-09T06:30:00Z to 2025-03-09T07:30:00Z")
	r = b.run("backfill", "shop/ny", "--from", "2025-11-02 01:30", "--to", "2025-11-02 01:30", "--reason", "x", "--dry-run").ok(t)
	r.has(t, "the first is taken, which is 2025-11-02T05:30:00Z", "the second is taken, which is 2025-11-02T06:30:00Z", "2 windows of shop/ny, from 2025-11-02T05:30:00Z to 2025-11-02T06:30:00Z")
}

// After an edit the windows are those of the new schedule; older ones only if that is said.
func TestBackfillAfterAnEdit(t *testing.T) {
	b := watchedBook(t)
	b.gap(orderSync, "shop/order-sync", hour(1), hour(3), 3, disposition.Missed, disposition.Controller, "", "")
	b.asOwner("UPDATE onceguard.job_schedule SET schedule = '30 */2 * * *', time_zone = 'Etc/UTC', since = $1 WHERE job_name = $2", hour(6), orderSync)
	b.backfill(1, 12, "--dry-run").fails(t, 1, "2 windows of the span, the first 2020-05-04T02:30:00Z", "say --from "+at(6)+", or --before-guarding to run them as schedule 30 */2 * * * Etc/UTC of CronJob shop/order-sync has them now")
	b.backfill(6, 12, "--dry-run").ok(t).has(t, "3 windows of shop/order-sync, from 2020-05-04T06:30:00Z to 2020-05-04T10:30:00Z")
	b.backfill(1, 12, "--dry-run", "--before-guarding").ok(t).has(t, "5 windows of shop/order-sync, from 2020-05-04T02:30:00Z")
	// What was missed by the former schedule stays answered.
	b.run("explain", orderSync, at(1)).ok(t).flat().has(t, "Answer missed (controller)", "is no instant of its schedule 30 */2 * * * Etc/UTC")
}

// Of several CronJobs of a job the one that is named runs the windows that it has.
func TestBackfillBySharedJobs(t *testing.T) {
	b := newBook(t)
	b.watch("shop/shared", "shop/a", "0 * * * *", "Etc/UTC", hour(0))
	b.watch("shop/shared", "shop/b", "30 * * * *", "Etc/UTC", hour(0))
	for _, c := range []struct{ cronJob, first string }{{"b", "2020-05-04T01:30:00Z"}, {"shop/a", "2020-05-04T01:00:00Z"}} {
		b.run("backfill", "shop/shared", "--from", at(1), "--to", at(3), "--cronjob", c.cronJob, "--detach", "--reason", "x").ok(t).has(t, "from "+c.first)
	}
	for _, p := range b.plans() {
		if want := map[int]string{0: "shop/a", 30: "shop/b"}[p.WindowStart.Minute()]; p.CronJob != want {
			t.Errorf("%s is run by %s", p.WindowStart, p.CronJob)
		}
	}
	if n := len(b.plans()); n != 5 {
		t.Errorf("%d windows are planned", n)
	}
}

// What is planned can be taken back whatever became of its CronJob; of several CronJobs with
// --cronjob that of one.
func TestCancelOfABackfill(t *testing.T) {
	shared := func(t *testing.T) *book {
		t.Helper()
		b := newBook(t)
		b.watch("shop/shared", "shop/a", "0 * * * *", "Etc/UTC", hour(0))
		b.watch("shop/shared", "shop/b", "30 * * * *", "Etc/UTC", hour(0))
		for _, name := range []string{"a", "b"} {
			b.run("backfill", "shop/shared", "--from", at(1), "--to", at(3), "--cronjob", name, "--detach", "--reason", "x").ok(t)
		}
		return b
	}
	cancel := []string{"backfill", "shop/shared", "--from", at(1), "--to", at(3), "--cancel", "--reason", "x", "--by", "ann"}
	b := shared(t)
	b.run(append(cancel, "--cronjob", "a", "--dry-run")...).ok(t).has(t, "3 planned windows of shop/shared from "+at(1)+" to "+at(3)+" would be taken back")
	b.run(append(cancel, "--cronjob", "a")...).ok(t).has(t, "3 planned windows of shop/shared from "+at(1)+" to "+at(3)+" taken back, by ann")
	for _, p := range b.plans() {
		if p.CronJob != "shop/b" {
			t.Errorf("left is %+v", p)
		}
	}
	if n := len(b.plans()); n != 2 {
		t.Errorf("%d plans of b are left", n)
	}
	b.run(append(cancel, "--cronjob", "c")...).fails(t, 1, `--cronjob "c": the CronJobs of job shop/shared are shop/a, shop/b`)
	b.run(cancel...).ok(t).has(t, "2 planned windows of shop/shared")

	for name, then := range map[string]string{
		"deleted":   "UPDATE onceguard.job_schedule SET gone_at = clock_timestamp()",
		"no zone":   "UPDATE onceguard.job_schedule SET time_zone = ''",
		"unparsed":  "UPDATE onceguard.job_schedule SET schedule = 'a b'",
		"new zones": "UPDATE onceguard.job_schedule SET time_zone = 'Asia/Shanghai' WHERE cron_job = 'shop/a'",
	} {
		t.Run(name, func(t *testing.T) {
			b := shared(t)
			b.asOwner(then)
			civil := []string{"backfill", "shop/shared", "--from", "2020-05-04 01:00", "--to", at(3), "--cancel", "--reason", "x", "--by", "ann"}
			if name != "deleted" { // then both have one zone
				b.run(civil...).fails(t, 1, `say "2020-05-04 01:00" as an instant with its zone`)
			} else {
				b.run(append(civil, "--dry-run")...).ok(t).has(t, "5 planned windows")
			}
			e, _ := b.explained("shop/shared", at(1))
			if !strings.Contains(e.Command, "--cancel") {
				t.Fatalf("explain says %q", e.Command)
			}
			b.accepted(e)
			b.run(cancel...).ok(t).has(t, "5 planned windows of shop/shared")
			if n := len(b.plans()); n != 0 {
				t.Errorf("%d are left", n)
			}
		})
	}
}

// Who takes back what was to be done once more is told what that leaves.
func TestCancelOfAReprocess(t *testing.T) {
	b := watchedBook(t)
	for h := 1; h <= 3; h++ {
		b.done(orderSync, hour(h))
	}
	b.backfill(1, 3, "--reprocess", "completed", "--detach").ok(t)
	for _, h := range []int{2, 3} { // their Jobs are made; that of hour 3 has tried
		var made bool
		uid := "uid-shop/order-sync"
		conn := b.ownerConn()
		if err := conn.QueryRow(t.Context(), "SELECT onceguard.engine_making($1, $2, $3, 'order-sync-r1')", orderSync, hour(h), uid).Scan(&made); err != nil || !made {
			t.Fatal(made, err)
		}
	}
	b.release(orderSync, hour(3), b.claimFrom(originOf(orderSync, hour(3), "trigger", "catch-up"), orderSync, hour(3), "1 hour"), "failed", 1)
	r := b.backfill(1, 3, "--cancel").ok(t)
	r.has(t, "3 planned windows of "+orderSync, "       2 done: it stays so, or is so again", "       1 skipped (cancelled), though its work was done before: that is not undone")
	if got := b.now(1, 3); got != "done done skipped" {
		t.Error(got)
	}
	b.backfill(1, 3, "--dry-run").ok(t).has(t, "1 cancelled    stays (--reprocess failed runs it)", "2 done         stays")
}

// ownerConn is a connection of the ledger's owner.
func (b *book) ownerConn() *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.ownerURL)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(b.t.Context())) })
	return conn
}

// Windows of an Indexed Job are done when all their indexes are, also when it is not seen
// from those that have come.
func TestBackfillOfAnIndexedJob(t *testing.T) {
	b := watchedBook(t)
	b.done(orderSync+"#0", hour(1))
	b.done(orderSync+"#1", hour(1))
	b.done(orderSync+"#0", hour(2))
	b.release(orderSync+"#1", hour(2), b.claim(orderSync+"#1", hour(2)), "failed", 1)
	b.done(orderSync+"#0@4e1b", hour(3))
	b.backfill(1, 3, "--dry-run").ok(t).has(t, "1 never run    to be run", "1 failed       stays", "1 done         stays")

	// Index 1 of hour 4 has not come. Hour 5 ran when it was no Indexed Job.
	b.done(orderSync+"#0", hour(4))
	b.done(orderSync, hour(5))
	stand := func(want ...audit.State) {
		t.Helper()
		found, err := audit.Standings(t.Context(), b.conn, orderSync, []time.Time{hour(1), hour(4), hour(5)})
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range found {
			if x.State != want[i] {
				t.Errorf("hour %s is %q, want %q", instant(&x.WindowStart), x.State, want[i])
			}
		}
	}
	stand(audit.Done, "", audit.Done)
	b.backfill(4, 4, "--dry-run").ok(t).has(t, "1 partly run   ")
	b.asOwner("UPDATE onceguard.job_schedule SET indexes = 2")
	stand(audit.Done, "", audit.Done)
	b.asOwner("UPDATE onceguard.job_schedule SET indexes = 3") // the third has never come
	stand("", "", audit.Done)
	b.asOwner("UPDATE onceguard.job_schedule SET indexes = 1") // the second was taken away
	stand(audit.Done, audit.Done, audit.Done)
	b.asOwner("UPDATE onceguard.job_schedule SET indexes = 0")
	stand(audit.Done, audit.Done, audit.Done)
}

// explain of an Indexed Job is about all its indexes: the least closed answers.
func TestExplainOfAnIndexedJob(t *testing.T) {
	b := watchedBook(t)
	explain := func(h int) (explanation, result) { t.Helper(); return b.explained(orderSync, at(h)) }
	b.done(orderSync+"#0", hour(1))
	if e, r := explain(1); e.Answer != "done" || e.JobName != orderSync || len(e.Indexes) != 1 {
		t.Errorf("one index: %s", r.stdout)
	}
	b.done(orderSync+"#1", hour(2))
	b.done(orderSync+"#0", hour(2))
	if e, r := explain(2); e.Answer != "done" || e.JobName != orderSync || len(e.Indexes) != 2 {
		t.Errorf("both are done: %s", r.stdout)
	}
	e, r := explain(1)
	r.has(t, "Answer partly run", "indexes not come: 1; done: 0", "kubectl onceguard cancel "+orderSync+"#1 "+at(1))
	if e.Answer != partlyRun {
		t.Errorf("answer %q", e.Answer)
	}
	b.accepted(e)
	b.planFor(orderSync, hour(1), disposition.Controller, 1)
	if e, r := explain(1); e.Answer != planned || e.Plan == nil {
		t.Errorf("it is planned: %s", r.stdout)
	}
	b.done(orderSync+"#0", hour(3))
	b.release(orderSync+"#1", hour(3), b.claim(orderSync+"#1", hour(3)), "failed", 1)
	e, r = explain(3)
	r.has(t, "Answer failed", "indexes failed: 1; done: 0; the answer is that of the least closed, "+orderSync+"#1", "backfill "+orderSync+" --from")
	b.accepted(e)
	if e, r := b.explained(orderSync+"#0", at(3)); e.Answer != "done" || e.JobName != orderSync+"#0" {
		t.Errorf("one index: %s", r.stdout)
	}
	if e, r := explain(4); e.Answer != notJudged || e.JobName != orderSync || len(e.Indexes) > 0 && e.Indexes[0].State != "" {
		t.Errorf("no index has come: %s", r.stdout)
	}
	b.run("explain", orderSync, "latest").ok(t).flat().has(t, "Job "+orderSync+" Window")
	// It needs no engine.
	b.done("shop/report#0", hour(1))
	b.done("shop/report#1", hour(1))
	b.done("shop/report#1@4e1b", hour(1))
	b.run("explain", "report", at(1), "-n", "shop").ok(t).flat().has(t, "Job shop/report Window", "Answer done", "indexes done: 0, 1")
	b.run("explain", "report", "latest", "-n", "shop").ok(t).flat().has(t, "Window "+at(1))
}

func TestIndexesAreToldInShort(t *testing.T) {
	var lanes []audit.Lane
	for i := range 25 {
		lanes = append(lanes, audit.Lane{JobName: fmt.Sprintf("shop/a#%d", i), State: audit.Done})
	}
	lanes[0].State = audit.Held
	want := "indexes held: 0; done: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and 4 more"
	if got := indexText(lanes); got != want {
		t.Errorf("got %s", got)
	}
}

func TestRelease(t *testing.T) {
	b := newBook(t)
	b.states()
	b.run("release", orderSync, at(4), "--reason", "nothing was sent", "--by", "ann", "--dry-run").ok(t).has(t, "Nothing is changed", "was held after 1 attempt, and by decision of ann it would be open, still generation 1")
	if got := b.state(orderSync, 4); got != "held" {
		t.Fatalf("a dry run made it %s", got)
	}
	b.run("release", orderSync, at(4), "--reason", "nothing was sent", "--by", "ann").ok(t).has(t, "it is now open, still generation 1", "The next retry of Job shop/order-sync-")
	if d := b.story(orderSync, 4).Decisions; len(d) != 1 || d[0].What != "release" || d[0].Who != "ann" || d[0].Why != "nothing was sent" {
		t.Errorf("decisions %+v", d)
	}
	b.claim(orderSync, hour(4), "hold_on_crash => true")
	if got := b.state(orderSync, 4); got != "running" {
		t.Errorf("after a claim it is %s", got)
	}
	for h, want := range map[int]string{
		1: "is done, and only a held window can be released: kubectl onceguard rerun does its work once more",
		2: "is failed, and only a held window can be released: it is open, and its next pod runs it",
		3: "is exhausted, and only a held window can be released: kubectl onceguard rerun opens it",
		5: "is skipped, and only a held window can be released: kubectl onceguard rerun opens it",
		9: "is running, and only a held window can be released: it is open",
	} {
		b.run("release", orderSync, at(h), "--reason", "x").fails(t, 1, want)
	}
	b.run("release", orderSync, at(11), "--reason", "x").fails(t, 1, "never claimed", "only a held window can be released")
	b.run("release", orderSync, "latest", "--reason", "x").fails(t, 2, "WINDOW latest")
	b.run("release", orderSync, at(4)).fails(t, 2, "--reason is missing")
	plugin(t, nil, "release", orderSync, at(3), "--reason", "x", "--ledger-url-file", b.login).fails(t, 1, "the ledger's owner")
}

// A backfill that nobody carries out says so, once for as long as nothing changes.
func TestStalledBackfillIsTold(t *testing.T) {
	for name, c := range map[string]struct{ since, says string }{
		"no engine looks":   {"looked_at = clock_timestamp() - interval '3 hours'", "no engine has looked since "},
		"it is suspended":   {"suspensions = '[{\"from\": \"2020-05-04T00:30:00Z\"}]'", "it is suspended since 2020-05-04T00:30:00Z: no Job is made for what is planned until it is resumed"},
		"Jobs are refused":  {"note = 'quota'", "CronJob shop/order-sync: quota"},
		"nothing is amiss":  {"note = NULL", ""},
		"it was resumed":    {"suspensions = '[{\"from\": \"2020-05-04T00:30:00Z\", \"to\": \"2020-05-04T01:30:00Z\"}]'", ""},
		"nobody can say it": {"suspensions = '[1]'", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := watchedBook(t)
			b.asOwner("UPDATE onceguard.job_schedule SET " + c.since)
			now := time.Now()
			p := &program{urlFile: b.owner, timeout: 30 * time.Second, now: func() time.Time { return now }}
			conn, err := p.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			w := watcher{p: p, job: orderSync, conn: conn}
			defer w.close(t.Context())
			s := stretch{cronJob: audit.Schedule{CronJobUID: "uid-shop/order-sync"}}
			for i, step := range []struct {
				passed time.Duration
				t      tally
				says   bool
			}{
				{0, tally{all: 3, planned: 3}, false},
				{stalledAfter / 2, tally{all: 3, planned: 3}, false},
				{stalledAfter, tally{all: 3, planned: 3}, true},
				{stalledAfter, tally{all: 3, planned: 3}, false},
				{stalledAfter, tally{all: 3, done: 1, planned: 2}, false},
				{stalledAfter, tally{all: 3, done: 1, planned: 2}, true},
			} {
				now = now.Add(step.passed)
				got := w.stalled(t.Context(), step.t, s)
				if want := step.says && c.says != ""; want != (got != "") || !strings.Contains(got, c.says) && want {
					t.Errorf("step %d: %q", i, got)
				}
			}
		})
	}
}

// Who plans windows of a suspended CronJob hears that nothing comes of it until the resume.
func TestBackfillOfASuspendedCronJob(t *testing.T) {
	b := watchedBook(t)
	const note = "CronJob shop/order-sync: it is suspended since 2020-05-04T00:30:00Z: no Job is made for what is planned until it is resumed"
	b.asOwner("UPDATE onceguard.job_schedule SET suspensions = '[{\"from\": \"2020-05-04T00:30:00Z\"}]'")
	if r := b.run("gaps", orderSync).ok(t); strings.Contains(r.stdout, "suspended") {
		t.Errorf("nothing is planned: %s", r.stdout)
	}
	b.backfill(1, 2, "--detach").ok(t).flat().has(t, "Note: "+note)
	b.run("explain", orderSync, at(1)).ok(t).flat().has(t, "Answer planned", note)
	b.run("gaps", orderSync, "--fail").ok(t).flat().has(t, "Note: "+note)
	b.asOwner("UPDATE onceguard.job_schedule SET gone_at = clock_timestamp()")
	b.run("explain", orderSync, at(1)).ok(t).flat().has(t, "Answer planned", "CronJob shop/order-sync was deleted: no Job is made for it until one of this job is there again")
}
