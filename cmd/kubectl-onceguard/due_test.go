package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// asOwner executes as the ledger's owner: what the windows engine would have written.
func (b *book) asOwner(sql string, args ...any) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.ownerURL)
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close(b.t.Context())
	if _, err := conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// watch records a CronJob of a job, looked at just now, guarded since a time.
func (b *book) watch(job, cronJob, schedule, zone string, since time.Time) {
	b.t.Helper()
	b.asOwner(`INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, schedule, time_zone, catch_up, since, judged_before, looked_at)
		VALUES ($1, 'uid-' || $2, $2, $3, $4, 'none', $5, $5, clock_timestamp())`, job, cronJob, schedule, zone, since)
}

func (b *book) gap(job, cronJob string, first, last time.Time, n int, status disposition.Status, reason disposition.Reason, rule disposition.Rule, evidence string) {
	b.t.Helper()
	b.asOwner(`INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason, rule, evidence, schedule, time_zone)
		VALUES ($1, 'uid-' || $2, $3, $4, $5, $6, $7, nullif($8, ''), nullif($9, ''), '0 * * * *', 'Asia/Shanghai')`,
		job, cronJob, first, last, n, status, reason, rule, evidence)
}

func (b *book) planFor(job string, w time.Time, reason disposition.Reason, made int) {
	b.t.Helper()
	b.asOwner(`INSERT INTO onceguard.job_plan (job_name, window_start, cron_job, reason, made, job, made_at)
		VALUES ($1, $2, $1, $3, $4, CASE WHEN $4 > 0 THEN 'order-sync-r1' END, CASE WHEN $4 > 0 THEN clock_timestamp() END)`, job, w, reason, made)
}

// gapped has of shop/order-sync hours 1 to 5 missed, 6 skipped, 8 and 9 late, 7 planned;
// of bank/interest nothing.
func gapped(t *testing.T) *book {
	t.Helper()
	b := newBook(t)
	b.watch(orderSync, "shop/order-sync", "0 * * * *", "Asia/Shanghai", hour(0))
	b.gap(orderSync, "shop/order-sync", hour(1), hour(5), 5, disposition.Missed, disposition.Suspended, disposition.WhileAway, "it was suspended from 2020-05-04T00:30:00Z to 2020-05-04T05:30:00Z")
	b.gap(orderSync, "shop/order-sync", hour(6), hour(6), 1, disposition.Skipped, disposition.NewerWindow, disposition.NotAsked, "")
	b.gap(orderSync, "shop/order-sync", hour(8), hour(9), 2, disposition.Late, disposition.Quota, disposition.NotAsked, "pods \"x\" is forbidden: exceeded quota: small\x1b[2J")
	b.planFor(orderSync, hour(7), disposition.Controller, 1)
	b.watch("bank/interest", "bank/interest", "0 0 1 * *", "Europe/Berlin", hour(0))
	b.watch("bank/every", "bank/every", "@every 1h", "", hour(0))
	b.asOwner("UPDATE onceguard.job_schedule SET note = $2 WHERE job_name = $1", "bank/every", "the instants of @every cannot be known")
	return b
}

func TestGaps(t *testing.T) {
	b := gapped(t)
	read := func(args ...string) (d dues) {
		t.Helper()
		r := plugin(t, nil, append(append([]string{"gaps", "-o", "json"}, args...), "--ledger-url-file", b.login)...).ok(t)
		if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	text := func(d dues) string {
		var s []string
		for _, g := range d.Gaps {
			s = append(s, fmt.Sprintf("%s %02d-%02d %d %s %s", g.JobName, g.FirstWindow.Hour(), g.LastWindow.Hour(), g.Windows, g.Status, g.Reason))
		}
		return strings.Join(s, ", ")
	}
	const all = "shop/order-sync 08-09 2 late quota, shop/order-sync 06-06 1 skipped superseded, shop/order-sync 01-05 5 missed suspended"
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all, newest first":    {[]string{"-A", "--since", "0"}, all},
		"a job of a context":   {[]string{"order-sync", "-n", "shop", "--since", "0"}, all},
		"a full name":          {[]string{"shop/order-sync", "--since", "0"}, all},
		"late ones":            {[]string{"-A", "--since", "0", "--late"}, "shop/order-sync 08-09 2 late quota"},
		"another namespace":    {[]string{"-n", "bank", "--since", "0"}, ""},
		"late ones of any age": {[]string{"-A"}, "shop/order-sync 08-09 2 late quota"},
		"nothing of the week":  {[]string{"bank/interest"}, ""},
		"a limit":              {[]string{"-A", "--since", "0", "--limit", "1"}, "shop/order-sync 08-09 2 late quota"},
	} {
		if got := text(read(c.args...)); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	d := read("-A", "--since", "0")
	if d.Totals != (totals{Late: 2, Missed: 5, Skipped: 1}) || d.More {
		t.Errorf("totals %+v, more %v", d.Totals, d.More)
	}
	if len(d.Planned) != 1 || d.Planned[0].Windows != 1 || d.Planned[0].Made != 1 || !d.Planned[0].First.Equal(hour(7)) {
		t.Errorf("planned %+v", d.Planned)
	}
	if len(d.Schedules) != 3 {
		t.Errorf("schedules %+v", d.Schedules)
	}
	if !read("-A", "--since", "0", "--limit", "2").More {
		t.Error("a third range is not said")
	}
}

func TestGapsTable(t *testing.T) {
	b := gapped(t)
	r := plugin(t, nil, "gaps", "-A", "--since", "0", "--ledger-url-file", b.login).ok(t)
	want := `shop/order-sync
  FIRST (UTC)           LAST (UTC)  WINDOWS  STATUS   WHY
  2020-05-04T08:00:00Z  09:00:00Z         2  LATE     quota
    pods "x" is forbidden: exceeded quota: small` + "\uFFFD" + `[2J
  2020-05-04T06:00:00Z  -                 1  skipped  superseded
  2020-05-04T01:00:00Z  05:00:00Z         5  missed   suspended
    it was suspended from 2020-05-04T00:30:00Z to 2020-05-04T05:30:00Z
    Not caught up: it passed while the CronJob was suspended, and
    onceguard.dev/suspended-windows is skip.

2 late, 5 missed, 1 skipped windows in 3 ranges of 1 job.
Planned: 1 window of shop/order-sync, 2020-05-04T07:00:00Z, to be caught up; a
         Job was made for 1
Note: CronJob bank/every: the instants of @every cannot be known
`
	if r.stdout != want {
		t.Errorf("got\n%s\nwant\n%s", r.stdout, want)
	}

	// An engine that looks no more is noticed as soon as something was due, not before.
	b.asOwner("UPDATE onceguard.job_schedule SET looked_at = clock_timestamp() - interval '3 hours' WHERE job_name = $1", orderSync)
	b.asOwner("UPDATE onceguard.job_schedule SET looked_at = clock_timestamp(), schedule = '0 0 29 2 *' WHERE job_name = 'bank/interest'")
	r = plugin(t, nil, "gaps", "-A", "--ledger-url-file", b.login).ok(t).flat()
	r.has(t, "2 late, 0 missed, 0 skipped windows in 1 range of 1 job.", "CronJob shop/order-sync: no engine has looked since ")
	if strings.Contains(r.stdout, "bank/interest:") {
		t.Errorf("a CronJob with nothing due: %s", r.stdout)
	}

	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"--fail":            {[]string{"-A", "--since", "0", "--fail"}, 1, []string{"shop/order-sync ", "error: 2 late, 5 missed, 1 skipped; notes about CronJobs bank/every, shop/order-sync"}},
		"--fail, nothing":   {[]string{"bank/interest", "--fail"}, 0, []string{"No gaps found. Looked for windows that nobody has run of job bank/interest of the last 168h0m0s, and late ones of any age, in"}},
		"--fail, a note":    {[]string{"-n", "bank", "--fail"}, 1, []string{"No gaps found", "error: notes about CronJobs bank/every"}},
		"--fail, unwatched": {[]string{"-n", "none", "--fail"}, 1, []string{"no CronJob is recorded here", "error: nothing is judged"}},
		"a bad age":         {[]string{"--since", "week"}, 2, []string{`--since "week"`, "7d"}},
		"a negative limit":  {[]string{"--limit", "-1"}, 2, []string{"--limit"}},
		"an index":          {[]string{"shop/order-sync#3"}, 2, []string{"as a whole: shop/order-sync"}},
		"a bad output":      {[]string{"-o", "yaml"}, 2, []string{"table or json"}},
		"two jobs":          {[]string{"a", "b"}, 2, []string{"unexpected argument \"b\""}},
		"-n and -A":         {[]string{"-n", "shop", "-A"}, 2, []string{"exclude each other"}},
		"no engine at all":  {[]string{"-n", "none"}, 0, []string{"no CronJob is recorded here", "engine.enabled"}},
		"a limit, and more": {[]string{"-A", "--since", "0", "--limit", "2"}, 0, []string{"more than 2 ranges"}},
	} {
		t.Run(name, func(t *testing.T) {
			plugin(t, nil, append(append([]string{"gaps"}, c.args...), "--ledger-url-file", b.login)...).flat().fails(t, c.code, c.want...)
		})
	}
	plugin(t, nil, "grant", b.role, "--audit", "--revoke", "--ledger-url-file", b.owner).ok(t)
	plugin(t, nil, "gaps", "-A", "--ledger-url-file", b.login).fails(t, 1, "may not read the record", "grant "+b.role+" --audit")
}

// A monitor that asks with --fail hears of an engine that looks no more, of a CronJob that
// cannot be judged, and of what is late for longer than it looks back; not of a CronJob that
// is gone.
func TestGapsFailsWhenNothingIsWatched(t *testing.T) {
	b := newBook(t)
	b.watch(orderSync, "shop/order-sync", "0 * * * *", "Etc/UTC", hour(0))
	fail := func(code int, words ...string) {
		t.Helper()
		plugin(t, nil, "gaps", "-n", "shop", "--fail", "--ledger-url-file", b.login).flat().fails(t, code, words...)
	}
	fail(0, "No gaps found")
	b.asOwner("UPDATE onceguard.job_schedule SET looked_at = clock_timestamp() - interval '3 hours'")
	fail(1, "no engine has looked since", "error: notes about CronJobs shop/order-sync")
	b.asOwner("UPDATE onceguard.job_schedule SET gone_at = clock_timestamp()")
	fail(0, "No gaps found")
	b.asOwner("UPDATE onceguard.job_schedule SET gone_at = NULL, looked_at = clock_timestamp(), note = 'another ledger'")
	fail(1, "Note: CronJob shop/order-sync: another ledger", "error: notes about")
	b.asOwner("UPDATE onceguard.job_schedule SET note = NULL")
	b.gap(orderSync, "shop/order-sync", hour(1), hour(2), 2, disposition.Late, disposition.Image, "", "")
	fail(1, "error: 2 late, 0 missed, 0 skipped")
	for i := range maxUnjudged + 1 {
		b.watch(fmt.Sprintf("shop/n%d", i), fmt.Sprintf("shop/n%d", i), "@every 1h", "", hour(0))
	}
	b.asOwner("UPDATE onceguard.job_schedule SET note = 'every' WHERE schedule = '@every 1h'")
	fail(1, "error: 2 late, 0 missed, 0 skipped; notes about CronJobs shop/n0, shop/n1, shop/n2, shop/n3, shop/n4 and 1 more")
}

// Neighbours that are cut out of a range may leave pieces of it between two windows.
func TestPiecesOfRangesWithoutAWindowAreNotShown(t *testing.T) {
	b := newBook(t)
	b.watch(orderSync, "shop/order-sync", "0 * * * *", "Asia/Shanghai", hour(0))
	b.gap(orderSync, "shop/order-sync", hour(1), hour(2), 2, disposition.Missed, disposition.Controller, "", "")
	b.gap(orderSync, "shop/order-sync", hour(2).Add(time.Microsecond), hour(3).Add(-time.Microsecond), 1, disposition.Missed, disposition.Controller, "", "")
	b.gap(orderSync, "shop/order-sync", hour(4).Add(time.Microsecond), hour(6), 3, disposition.Missed, disposition.Controller, "", "")
	plugin(t, nil, "gaps", orderSync, "--since", "0", "--ledger-url-file", b.login).ok(t).has(t,
		at(5)+"  06:00:00Z         2  missed", at(1)+"  02:00:00Z         2  missed", "0 late, 4 missed, 0 skipped windows in 2 ranges of 1 job.")
}

// Each answer that explain knows, from a record that has it.
func TestExplain(t *testing.T) {
	b := gapped(t)
	b.states2()
	explain := func(window string) (e explanation, r result) {
		t.Helper()
		r = plugin(t, nil, "explain", orderSync, window, "-o", "json", "--ledger-url-file", b.login).ok(t)
		if err := json.Unmarshal([]byte(r.stdout), &e); err != nil {
			t.Fatal(err)
		}
		return e, plugin(t, nil, "explain", orderSync, window, "--ledger-url-file", b.login).ok(t)
	}
	next := time.Now().UTC().Truncate(time.Hour).Add(2 * time.Hour).Format(time.RFC3339)
	for _, c := range []struct {
		window, answer, reason string
		want                   []string
	}{
		{at(1), "missed", "suspended", []string{"the CronJob was suspended; not caught up", "it was suspended from", "(with 5 windows from " + at(1), "backfill shop/order-sync --from " + at(1) + " --to " + at(1)}},
		{at(2), "done", "", []string{"caught up: Job shop/order-sync-", "recorded ", "missed, the CronJob was suspended", "1 duplicate prevented", "ATTEMPT", "SKIPPED"}},
		{at(6), "skipped", "superseded", []string{"a newer window took its place", "to run it after all"}},
		{at(7), "planned", "", []string{"to be caught up, since it was missed (no Job was made", "Job order-sync-r1 was made for it", "--cancel"}},
		{at(8), "late", "quota", []string{"it may still run: its Job or its pods exceeded a quota", "raise the quota", "exceeded quota: small"}},
		{at(10), "not judged", "", []string{"nothing is recorded of it so far", "watched since " + at(0)}},
		{at(11), "failed", "", []string{"attempt 1 in pod shop/order-sync-26476500-x: failed (42)", "next retry", "--reprocess failed"}},
		{at(12), "running", "", []string{"running, lease until"}},
		{at(13), "held", "held", []string{"a person is to decide", "kubectl onceguard release shop/order-sync " + at(13)}},
		{"2020-05-04T10:30:00Z", "not scheduled", "", []string{"is no instant of its schedule 0 * * * * Asia/Shanghai", at(10), at(11)}},
		{"2020-05-03T23:00:00Z", "before guarding", "", []string{"older windows are not answered for", "--before-guarding"}},
		{next, "future", "", []string{"not due yet", "cancel shop/order-sync " + next}},
	} {
		t.Run(c.window, func(t *testing.T) {
			e, r := explain(c.window)
			if e.Answer != c.answer || e.Reason != c.reason || e.JobName != orderSync {
				t.Errorf("answer %q (%q), want %q (%q)\n%s", e.Answer, e.Reason, c.answer, c.reason, r.stdout)
			}
			r.flat().has(t, c.want...)
			prose, _, _ := strings.Cut(r.stdout, "\n\n")
			for _, line := range strings.Split(prose, "\n") {
				if n := len([]rune(line)); n > foldWidth && !strings.Contains(line, "  kubectl ") && strings.Contains(strings.TrimSpace(line[10:]), " ") {
					t.Errorf("a line of %d characters: %s", n, line)
				}
			}
		})
	}
	if e, _ := explain("latest"); !e.WindowStart.Equal(time.Now().UTC().Truncate(time.Hour)) && !e.WindowStart.Equal(time.Now().UTC().Truncate(time.Hour).Add(-time.Hour)) {
		t.Errorf("the latest is %s", e.WindowStart)
	}

	b.run("prune", "bank/interest", "--before", at(3)).fails(t, 1, "no job bank/interest")
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"a job that never claimed":  {[]string{"interest", at(1), "-n", "bank"}, 0, []string{"not scheduled", "0 0 1 * * Europe/Berlin"}},
		"an unknown schedule":       {[]string{"bank/every", at(1)}, 0, []string{"unknown", "cannot be computed", "@every"}},
		"an unknown job":            {[]string{"shop/none", at(1)}, 1, []string{"no job shop/none"}},
		"no zone":                   {[]string{orderSync, "2020-05-04T01:00:00"}, 2, []string{"with its zone"}},
		"no window":                 {[]string{orderSync}, 2, []string{"WINDOW is missing"}},
		"a bad output":              {[]string{orderSync, "latest", "-o", "yaml"}, 2, []string{"table or json"}},
		"an index nobody has heard": {[]string{"shop/order-sync#3", at(1)}, 1, []string{"no job"}},
	} {
		t.Run(name, func(t *testing.T) {
			plugin(t, nil, append(append([]string{"explain"}, c.args...), "--ledger-url-file", b.login)...).flat().fails(t, c.code, c.want...)
		})
	}
}

// flat has each run of blanks as one, so that folded lines are like others.
func (r result) flat() result {
	return result{r.code, strings.Join(strings.Fields(r.stdout), " "), strings.Join(strings.Fields(r.stderr), " ")}
}

// states2 makes hour 2 done by a catch-up Job with a duplicate prevented, 11 failed, 12
// running, 13 held.
func (b *book) states2() {
	b.t.Helper()
	id := b.claimFrom(originOf(orderSync, hour(2), "trigger", string(contract.TriggerCatchUp)), orderSync, hour(2), "1 hour")
	b.commit(orderSync, hour(2), id)
	b.release(orderSync, hour(2), id, "completed", 0)
	b.skip(orderSync, hour(2), "completed")
	b.release(orderSync, hour(11), b.claim(orderSync, hour(11)), "failed", 42)
	b.claim(orderSync, hour(12))
	b.release(orderSync, hour(13), b.claim(orderSync, hour(13)), "crashed", 137)
	b.claim(orderSync, hour(13), "hold_on_crash => true")
}

// What several CronJobs of one job have recorded, and one that is gone.
func TestExplainSharedJobs(t *testing.T) {
	f := facts{
		job: "shop/shared", start: hour(4), now: hour(9),
		due: audit.Due{Gaps: []audit.Gap{
			{JobName: "shop/shared", CronJobUID: "a", FirstWindow: hour(4), LastWindow: hour(4), Windows: 1, Status: disposition.Skipped, Reason: disposition.Suspended},
			{JobName: "shop/shared", CronJobUID: "b", FirstWindow: hour(4), LastWindow: hour(4), Windows: 1, Status: disposition.Late, Reason: disposition.Controller},
		}},
		schedules: []audit.Schedule{
			{JobName: "shop/shared", CronJob: "shop/a", Schedule: "0 * * * *", TimeZone: "Etc/UTC", Since: hour(0)},
			{JobName: "shop/shared", CronJob: "shop/b", Schedule: "30 * * * *", TimeZone: "Etc/UTC", Since: hour(0)},
		},
	}
	if e := explainWindow(f); e.Answer != "late" || e.Reason != "controller" || len(e.Evidence) != 4 {
		t.Errorf("%+v", e)
	}
	gone := hour(3)
	f.due.Gaps, f.schedules[0].GoneAt = nil, &gone
	if e := explainWindow(f); e.Answer != notScheduled || !strings.Contains(strings.Join(e.Evidence, "\n"), "it was gone by then") {
		t.Errorf("%+v", e)
	}
	closed := hour(5)
	f.closedBefore = &closed
	if e := explainWindow(f); e.Answer != pruned {
		t.Errorf("%+v", e)
	}
}
