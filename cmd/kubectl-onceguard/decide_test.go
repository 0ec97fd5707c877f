package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/user"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

const orderSync = "shop/order-sync"

// story is what show -o json says.
func (b *book) story(job string, h int) audit.Story {
	b.t.Helper()
	r := b.run("show", job, at(h), "-o", "json").ok(b.t)
	var s audit.Story
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

func TestRerun(t *testing.T) {
	b := newBook(t)
	b.states()
	for h, want := range map[int]string{
		1: "was done (completed ", 2: "was failed after 1 attempt, and", 3: "was exhausted after 1 attempt, and", 4: "was held after 1 attempt, and",
		5: "was skipped (late), and", 6: "was skipped (superseded) after 1 attempt, and", 7: "was left by a worker whose lease has ended, and",
	} {
		before := b.story(orderSync, h)
		r := b.run("rerun", orderSync, at(h), "--reason", "prices were wrong", "--by", "ann", "--dry-run").ok(t)
		r.has(t, "Nothing is changed", want, "would be open")
		if now := b.story(orderSync, h); now.Window.State != before.Window.State || len(now.Decisions) != 0 {
			t.Errorf("hour %d: a dry run changed %s to %s with %d decisions", h, before.Window.State, now.Window.State, len(now.Decisions))
		}
		generation, words := 1, "still generation 1"
		if h == 1 {
			generation, words = 2, "generation 2, with another idempotency key"
		}
		b.run("rerun", orderSync, at(h), "--reason", "prices were wrong", "--by", "ann").ok(t).
			has(t, "Window "+at(h)+" of "+orderSync+" "+want, "by decision of ann it is now open", words)
		after := b.story(orderSync, h)
		if after.Window.State != audit.Failed || after.Window.Reason == nil || *after.Window.Reason != "rerun" || after.Window.Generation != generation {
			t.Errorf("hour %d: %+v", h, after.Window)
		}
		if d := after.Decisions; len(d) != 1 || d[0].What != "rerun" || d[0].Who != "ann" || d[0].Why != "prices were wrong" || d[0].Login == "" || len(d[0].Before) == 0 {
			t.Errorf("hour %d: decisions %+v", h, d)
		}
		// What was promised: the next claim runs.
		id := b.claim(orderSync, hour(h), "max_attempts => 1", "hold_on_crash => true", "start_deadline => '1 minute'")
		if got := b.state(orderSync, h); got != "running" {
			t.Errorf("hour %d: after a claim the window is %s", h, got)
		}
		b.release(orderSync, hour(h), id, "failed", 1)
	}
	b.run("rerun", orderSync, at(2), "--reason", "again").ok(t).has(t, "works from checkpoint 2", "The next retry of Job shop/order-sync-")
	b.run("show", orderSync, at(1)).ok(t).has(t, "DECIDED", "rerun by ann (login ", "it was done (completed ", ": prices were wrong", "(generation 2)")
}

func TestDecisionsAreRefused(t *testing.T) {
	b := newBook(t)
	b.states()
	b.claimFrom(originOf("office/report", hour(3), "source", "declared", "namespace", "", "pod", "", "job", ""), "office/report", hour(3), "1 hour")
	b.claim("shop/report#0", hour(3))
	b.claim("shop/report#1", hour(3))
	b.claim("lab/probe@4e1b", hour(3))
	b.done("lab/old", hour(1))
	b.run("prune", "lab/old", "--before", at(2)).ok(t)
	long := strings.Repeat("x", admin.MaxWhy+1)
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"rerun of a running window":     {[]string{"rerun", orderSync, at(9)}, 1, []string{"is running", "attempt 1 in pod shop/order-sync-26476380-x on node n1", "kubectl -n shop delete pod order-sync-26476380-x"}},
		"rerun beside its worker":       {[]string{"rerun", orderSync, at(8)}, 1, []string{"is done", "its worker is still there", "delete pod"}},
		"rerun without Kubernetes":      {[]string{"rerun", "office/report", at(3)}, 1, []string{"attempt 1 on n1", "wait until it has ended"}},
		"rerun of an unknown window":    {[]string{"rerun", orderSync, at(10)}, 1, []string{"never claimed", "latest window in the record is " + at(9), "check WINDOW"}},
		"rerun of a pruned window":      {[]string{"rerun", "lab/old", at(1)}, 1, []string{"closed", at(2)}},
		"rerun of an unknown job":       {[]string{"rerun", "shop/none", at(1)}, 1, []string{"no job shop/none", "windows -A"}},
		"rerun of one of several":       {[]string{"rerun", "shop/report", at(3)}, 1, []string{"shop/report#0, shop/report#1", "full name"}},
		"rerun of the latest":           {[]string{"rerun", orderSync, "latest"}, 2, []string{"WINDOW latest", "show shop/order-sync latest"}},
		"cancel of a running window":    {[]string{"cancel", orderSync, at(9)}, 1, []string{"is running", "delete pod"}},
		"cancel of a done window":       {[]string{"cancel", orderSync, at(1)}, 1, []string{"is done since", "cannot be cancelled", "rerun"}},
		"cancel beside its worker":      {[]string{"cancel", orderSync, at(8)}, 1, []string{"cannot be cancelled"}},
		"cancel of a skipped window":    {[]string{"cancel", orderSync, at(5)}, 1, []string{"skipped already (late)", "nothing to do"}},
		"cancel of a pruned window":     {[]string{"cancel", "lab/old", at(1)}, 1, []string{"closed", at(2)}},
		"cancel of a separate run":      {[]string{"cancel", "lab/probe", at(4)}, 1, []string{"lab/probe@4e1b is a separate run", "lab/probe "}},
		"cancel of no instant":          {[]string{"cancel", orderSync, "2020-05-04T10:30:00Z"}, 1, []string{"no instant of the schedule 0 * * * * Asia/Shanghai", at(10), at(11), "--off-schedule"}},
		"cancel of an index's no time":  {[]string{"cancel", "shop/order-sync#3", "2020-05-04T10:30:00Z"}, 1, []string{"no instant of the schedule 0 * * * * Asia/Shanghai", "--off-schedule"}},
		"cancel of no one's run":        {[]string{"cancel", "shop/order-sync@4e1b", at(10)}, 1, []string{"is a separate run", "name its job shop/order-sync"}},
		"cancel of an unknown job":      {[]string{"cancel", "shop/none#0", at(1)}, 1, []string{"no job shop/none", "--off-schedule"}},
		"cancel of a pruned index":      {[]string{"cancel", "lab/old#1", at(1)}, 1, []string{"closed", at(2)}},
		"cancel of the latest":          {[]string{"cancel", orderSync, "latest"}, 2, []string{"WINDOW latest"}},
		"a reason of spaces":            {[]string{"rerun", orderSync, at(1), "--reason", " "}, 2, []string{"--reason is missing"}},
		"a reason that is too long":     {[]string{"rerun", orderSync, at(1), "--reason", long}, 2, []string{"--reason has 1001 characters", "at most 1000"}},
		"a reason of several lines":     {[]string{"cancel", orderSync, at(4), "--reason", "a\nb"}, 2, []string{"one line"}},
		"nobody":                        {[]string{"rerun", orderSync, at(1), "--by", ""}, 2, []string{"--by is missing"}},
		"somebody with a long name":     {[]string{"rerun", orderSync, at(1), "--by", long}, 2, []string{"--by has 1001 characters", "at most 200"}},
		"an instant without its zone":   {[]string{"rerun", orderSync, "2020-05-04T01:00:00"}, 2, []string{"with its zone"}},
		"a command line without WINDOW": {[]string{"cancel", orderSync}, 2, []string{"WINDOW is missing"}},
	} {
		args := c.args
		if !strings.Contains(strings.Join(args, " "), "--reason") {
			args = append(args, "--reason", "TICKET-17")
		}
		t.Run(name, func(t *testing.T) { b.run(args...).fails(t, c.code, c.want...) })
	}
	b.run("rerun", orderSync, at(1)).fails(t, 2, "--reason is missing")
	if d := b.story(orderSync, 1).Decisions; len(d) != 0 {
		t.Errorf("a refused decision was recorded: %+v", d)
	}
	for _, args := range [][]string{{"rerun", orderSync, at(1), "--reason", "x"}, {"cancel", orderSync, at(2), "--reason", "x"}, {"prune", orderSync, "--older-than", "1h"}} {
		plugin(t, nil, append(args, "--ledger-url-file", b.login)...).fails(t, 1, "the ledger's owner", "--ledger-url-file")
	}
	plugin(t, nil, "grant", b.role, "--audit", "--revoke", "--ledger-url-file", b.owner).ok(t)
	plugin(t, nil, "rerun", orderSync, at(1), "--reason", "x", "--ledger-url-file", b.login).fails(t, 1, "need the URL of the ledger's owner")
}

func TestCancel(t *testing.T) {
	b := newBook(t)
	b.states()
	for _, c := range []struct {
		hour int
		was  string
	}{{2, "failed after 1 attempt"}, {3, "exhausted"}, {4, "held"}, {7, "left by a worker"}, {10, "never claimed"}} {
		b.run("cancel", orderSync, at(c.hour), "--reason", "done by hand", "--by", "ann", "--dry-run").ok(t).has(t, "Nothing is changed", "would be skipped")
		if s := b.state(orderSync, c.hour); s == "skipped" {
			t.Errorf("hour %d: a dry run cancelled it", c.hour)
		}
		b.run("cancel", orderSync, at(c.hour), "--reason", "done by hand", "--by", "ann").ok(t).
			has(t, "was "+c.was, "by decision of ann it is now skipped (cancelled)", "opens it again")
		b.claim(orderSync, hour(c.hour))
		if s := b.story(orderSync, c.hour).Window; s.State != audit.Skipped || *s.Reason != "cancelled" || *s.ClosedBy != "ann" {
			t.Errorf("hour %d: after a claim it is %+v", c.hour, s)
		}
	}
	b.run("cancel", orderSync, "2020-05-04T10:30:00Z", "--reason", "x", "--off-schedule").ok(t)
	// An instant in another zone is the same window.
	b.run("rerun", orderSync, "2020-05-04T18:00:00+08:00", "--reason", "after all").ok(t).has(t, at(10), "was skipped (cancelled)")
	b.run("show", orderSync, at(10)).ok(t).has(t, "cancel by ann", "it was never claimed: done by hand", "it was skipped (cancelled): after all")
}

// A later window may wait for an index that never came, or for a job that the record does
// not know yet: both can be cancelled.
func TestCancelOfANameWithoutWindows(t *testing.T) {
	b := newBook(t)
	b.states()
	const index = "shop/order-sync#3"
	b.run("cancel", index, at(10), "--reason", "never made").ok(t).has(t, "of "+index+" was never claimed", "skipped (cancelled)")
	b.run("cancel", "order-sync#4", at(10), "-n", "shop", "--reason", "never made").ok(t).has(t, "of shop/order-sync#4 was never claimed")
	b.run("cancel", "none#0", at(10), "-n", "shop", "--reason", "never made", "--off-schedule").ok(t).has(t, "of shop/none#0 was never claimed")
	for _, job := range []string{index, "shop/order-sync#4", "shop/none#0"} {
		b.claim(job, hour(10))
		if s := b.state(job, 10); s != "skipped" {
			t.Errorf("%s is %q", job, s)
		}
	}
}

// Work that was done stays visible when the window is opened again, and then cancelled.
func TestDoneBeforeStaysVisible(t *testing.T) {
	b := newBook(t)
	b.done(orderSync, hour(1))
	b.run("rerun", orderSync, at(1), "--reason", "oops").ok(t)
	b.run("cancel", orderSync, at(1), "--reason", "not after all").ok(t).has(t, "Its work was done before (generation 1, completed ", "that is not undone")
	b.run("show", orderSync, at(1)).ok(t).has(t, "skipped (cancelled)", "Done before    generation 1, completed ")
	b.release(orderSync, hour(2), b.claim(orderSync, hour(2)), "failed", 1)
	r := b.run("cancel", orderSync, at(2), "--reason", "x").ok(t)
	r.stdout += b.run("show", orderSync, at(2)).ok(t).stdout
	if strings.Contains(strings.ToLower(r.stdout), "done before") {
		t.Errorf("it was never done: %s", r.stdout)
	}
}

func TestWhoDecides(t *testing.T) {
	b := newBook(t)
	b.done(orderSync, hour(1))
	kubeconfig := apiServer(t, "postgres://unused/unused")
	b.run("rerun", orderSync, at(1), "--reason", "x", "--kubeconfig", kubeconfig).ok(t).has(t, "by decision of ann@example.com")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	b.run("rerun", orderSync, at(1), "--reason", "x").ok(t).has(t, "by decision of "+me.Username+"@"+host)
}

// A kubectl create job of the answer must make a Job that means the very window.
func TestTheNextRunMeansTheWindow(t *testing.T) {
	created := regexp.MustCompile(`kubectl -n (\S+) create job (\S+) --from=cronjob/(\S+)`)
	annotated := regexp.MustCompile(`batch\.kubernetes\.io/cronjob-scheduled-timestamp=(\S+)`)
	long := strings.Repeat("long-name-", 5)[:49] + "ab"
	now := hour(9).Add(20 * time.Minute)
	for name, c := range map[string]struct {
		job, source, zone, made, cronJob string
		hour                             int
		newest                           bool
	}{
		"the newest due window":    {"shop/order-sync", "timestamp", "Asia/Shanghai", "order-sync-26476380", "order-sync", 9, true},
		"an older window":          {"shop/order-sync", "name", "Asia/Shanghai", "order-sync-26475900", "order-sync", 1, false},
		"a window yet to come":     {"shop/order-sync", "timestamp", "Asia/Shanghai", "order-sync-26476440", "order-sync", 10, false},
		"a window of a manual Job": {"shop/order-sync", "manual", "Asia/Shanghai", "again-7", "order-sync", 9, true},
		"a job-name of its own":    {"eu:shop/orders", "timestamp", "Asia/Shanghai", "order-sync-26476380", "order-sync", 9, true},
		"an index":                 {"shop/order-sync#3", "timestamp", "Asia/Shanghai", "order-sync-26475900", "order-sync", 1, false},
		"no time zone":             {"shop/order-sync", "timestamp", "", "order-sync-26476380", "order-sync", 9, false},
		"the longest name":         {"shop/" + long, "timestamp", "Asia/Shanghai", long + "-26475900", long, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			schedule, shop := "0 * * * *", "shop"
			x := audit.Window{
				JobName: c.job, WindowStart: hour(c.hour), Generation: 2, Attempts: 1,
				Source: &c.source, Namespace: &shop, Job: &c.made, Schedule: &schedule, TimeZone: &c.zone,
			}
			said := nextRun(x, was{Status: "completed", Attempt: 1, Generation: 1}, now)
			create, stamp := created.FindStringSubmatch(said), annotated.FindStringSubmatch(said)
			if create == nil || create[1] != "shop" || create[3] != c.cronJob || len(create[2]) > 63 || c.newest != (stamp == nil) {
				t.Fatalf("said %s", said)
			}
			job := window.Job{Namespace: "shop", Name: create[2], UID: "u", CronJob: c.cronJob, Created: now, Annotations: map[string]string{contract.AnnotationInstantiate: "manual"}}
			if stamp != nil {
				if !strings.Contains(said, contract.AnnotationInstantiate+"- ") {
					t.Errorf("the Job would stay a manual one: %s", said)
				}
				job.Annotations = map[string]string{contract.AnnotationScheduledTimestamp: stamp[1]}
			}
			got, err := window.Derive(job, contract.Settings{
				CronJob: c.cronJob, JobName: base(c.job), Schedule: schedule, TimeZone: c.zone, Manual: contract.ManualWindow, Since: hour(0),
			}, now)
			if err != nil || !got.Window.Start.Equal(x.WindowStart) {
				t.Errorf("means %s, %v; said %s", got.Window, err, said)
			}
		})
	}

	declared, separate, shop, made := "declared", "separate", "shop", "once"
	for name, c := range map[string]struct {
		x    audit.Window
		want string
	}{
		"a Job of no CronJob": {audit.Window{JobName: "shop/once", Source: &declared, Namespace: &shop, Job: &made}, `a Job like shop/once, with the annotation onceguard.dev/window-start: "` + at(1) + `"`},
		"without Kubernetes":  {audit.Window{JobName: "office/report", Source: &declared}, "guard run --job office/report --window-start " + at(1)},
		"a separate run":      {audit.Window{JobName: "shop/probe@4e1b", Source: &separate, Namespace: &shop, Job: &made}, "only a retry of its own Job"},
		"nothing known":       {audit.Window{JobName: "shop/order-sync"}, "that means the window " + at(1)},
	} {
		c.x.WindowStart = hour(1)
		if said := nextRun(c.x, was{Status: "failed"}, now); !strings.Contains(said, c.want) {
			t.Errorf("%s: said %s", name, said)
		}
	}
}

func selfSubjectReview(w http.ResponseWriter) {
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
		"status": map[string]any{"userInfo": map[string]any{"username": "ann@example.com"}},
	})
}
