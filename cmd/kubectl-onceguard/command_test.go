package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// explained is what explain says of an hour of a job.
func (b *book) explained(job, window string) (e explanation, r result) {
	b.t.Helper()
	r = plugin(b.t, nil, "explain", job, window, "-o", "json", "--ledger-url-file", b.login).ok(b.t)
	if err := json.Unmarshal([]byte(r.stdout), &e); err != nil {
		b.t.Fatal(err)
	}
	return e, plugin(b.t, nil, "explain", job, window, "--ledger-url-file", b.login).ok(b.t).flat()
}

// accepted runs the command that explain ends with, without a change.
func (b *book) accepted(e explanation) {
	b.t.Helper()
	args := strings.Fields(strings.TrimPrefix(e.Command, "kubectl onceguard "))
	for i, a := range args {
		if a == "OWNER_URL" {
			args[i] = b.owner
		}
	}
	plugin(b.t, nil, append(args, "--by", "ann", "--dry-run")...).ok(b.t)
}

// What explain says is to be typed is accepted, whatever became of the CronJob since.
func TestTheCommandOfExplainIsAccepted(t *testing.T) {
	const a, gone = "shop/a", "UPDATE onceguard.job_schedule SET gone_at = clock_timestamp(), judged_before = $1 WHERE cron_job_uid = 'uid-shop/a'"
	for name, c := range map[string]struct {
		then    func(b *book)
		answer  string
		command string   // a part of it; empty: none
		want    []string // in the text
		not     string   // in the text; empty: anything may be
	}{
		"nothing": {func(*book) {}, "missed", "--to " + at(3) + " --reason", []string{"look at the CronJob"}, "--before-guarding"},
		"the schedule was edited, and still has it": {func(b *book) {
			b.asOwner("UPDATE onceguard.job_schedule SET since = $1", hour(6))
		}, "missed", "--before-guarding", nil, "--cronjob"},
		"the schedule was edited, and has it no more": {
			func(b *book) {
				b.asOwner("UPDATE onceguard.job_schedule SET schedule = '30 * * * *', since = $1", hour(6))
			},
			"missed", "",
			[]string{"only a Job made by hand can run it: its CronJob's schedule has no such instant any more"},
			"backfill",
		},
		"it was deleted": {func(b *book) {
			b.asOwner(gone, hour(9))
		}, "missed", "", []string{"its CronJob was deleted, so nothing can run it; create it again, then backfill it with --before-guarding"}, "look at the CronJob"},
		"it was deleted and created again": {func(b *book) {
			b.asOwner(gone, hour(9))
			b.asOwner("UPDATE onceguard.job_schedule SET cron_job_uid = 'uid-old'")
			b.asOwner("UPDATE onceguard.job_gap SET cron_job_uid = 'uid-old'")
			b.watch(a, "shop/a", "0 * * * *", "Etc/UTC", hour(9))
		}, "missed", "--before-guarding", nil, "--cronjob"},
		"another CronJob of the job": {func(b *book) { b.watch(a, "shop/b", "30 * * * *", "Etc/UTC", hour(0)) }, "missed", "--cronjob shop/a", nil, "--before-guarding"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(t)
			b.watch(a, "shop/a", "0 * * * *", "Etc/UTC", hour(0))
			b.gap(a, "shop/a", hour(1), hour(5), 5, disposition.Missed, disposition.Controller, "", "")
			c.then(b)
			e, r := b.explained(a, at(3))
			if e.Answer != c.answer || (e.Command == "") != (c.command == "") || !strings.Contains(e.Command, c.command) || c.not != "" && strings.Contains(r.stdout, c.not) {
				t.Errorf("answer %q, command %q\n%s", e.Answer, e.Command, r.stdout)
			}
			r.has(t, c.want...)
			if e.Command != "" {
				b.accepted(e)
			}
		})
	}
}

// A range is an answer only for the windows of the schedule that it was recorded by.
func TestAnInstantBetweenMissedWindowsWasNotMissed(t *testing.T) {
	b := watchedBook(t)
	b.gap(orderSync, "shop/order-sync", hour(1), hour(5), 5, disposition.Missed, disposition.Controller, "", "")
	e, r := b.explained(orderSync, "2020-05-04T02:30:00Z")
	if e.Answer != notScheduled || e.Command != "" || len(e.Gaps) > 0 || strings.Contains(r.stdout, "missed") {
		t.Errorf("%s", r.stdout)
	}
	// Nor is the second 02:30 of a night under dst=once.
	b.watch("shop/once", "shop/once", "30 2 * * *", "Europe/Berlin", hour(0))
	b.asOwner("UPDATE onceguard.job_schedule SET dst = 'once', since = '2020-10-01T00:00:00Z' WHERE job_name = 'shop/once'")
	b.asOwner(`INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason, schedule, time_zone)
		VALUES ('shop/once', 'uid-shop/once', '2020-10-23T23:30:00Z', '2020-10-27T00:30:00Z', 4, 'missed', 'controller', '30 2 * * *', 'Europe/Berlin')`)
	if e, r := b.explained("shop/once", "2020-10-25T00:30:00Z"); e.Answer != "missed" {
		t.Errorf("the first 02:30: %s", r.stdout)
	}
	if e, r := b.explained("shop/once", "2020-10-25T01:30:00Z"); e.Answer != notScheduled || !strings.Contains(r.stdout, "repeats the civil time") {
		t.Errorf("the second 02:30: %s", r.stdout)
	}
}

// A window of a deleted CronJob that nobody had judged by then is not one that is judged soon.
func TestExplainOfADeletedCronJob(t *testing.T) {
	gone, judged := hour(5), hour(3)
	old := audit.Schedule{JobName: "shop/a", CronJob: "shop/a", Schedule: "0 * * * *", TimeZone: "Etc/UTC", Since: hour(0), JudgedBefore: &judged, GoneAt: &gone}
	again := audit.Schedule{JobName: "shop/a", CronJob: "shop/a", Schedule: "0 * * * *", TimeZone: "Etc/UTC", Since: hour(6)}
	f := facts{job: "shop/a", start: hour(4), now: hour(9), schedules: []audit.Schedule{old}}
	const unjudged = "its CronJob was deleted before the engine had judged it"
	if e := explainWindow(f); e.Answer != notJudged || !strings.Contains(e.Means, unjudged) || e.Command != "" || !strings.Contains(e.ToDo, "create it again") {
		t.Errorf("%+v", e)
	}
	f.schedules = []audit.Schedule{again, old}
	if e := explainWindow(f); e.Answer != notJudged || !strings.Contains(e.Means, unjudged) || !strings.Contains(e.Command, " --before-guarding") {
		t.Errorf("created again: %+v", e)
	}
	f.start = hour(2)
	if e := explainWindow(f); strings.Contains(e.Means, unjudged) {
		t.Errorf("a judged one: %+v", e)
	}
	again.Since, f.start = hour(0), hour(4)
	f.schedules = []audit.Schedule{again, old}
	if e := explainWindow(f); e.Answer != notJudged || strings.Contains(e.Means, unjudged) {
		t.Errorf("another CronJob has it: %+v", e)
	}
}
