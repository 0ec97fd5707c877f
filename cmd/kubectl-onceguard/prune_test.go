package main

import (
	"strings"
	"testing"
	"time"
)

// Windows without a record are closed too, so a young instant is warned about.
func TestPruneWarnsOfYoungWindows(t *testing.T) {
	b := newBook(t)
	b.done(orderSync, hour(1))
	for _, c := range []struct {
		age   string
		warns bool
	}{{"25h", false}, {"23h", true}} {
		for _, flag := range []string{"--dry-run=true", "--dry-run=false"} {
			r := b.run("prune", orderSync, "--older-than", c.age, flag).ok(t)
			if got := strings.Contains(r.stderr, "less than a day ago") && strings.Contains(r.stderr, "wait"); got != c.warns {
				t.Errorf("%s %s: %s", c.age, flag, r.stderr)
			}
		}
	}
}

func TestPrune(t *testing.T) {
	b := newBook(t)
	b.states()
	b.done("shop/report#0", hour(1))
	b.done("shop/report#0@4e1b", hour(2))
	b.release("shop/report#1", hour(3), b.claim("shop/report#1", hour(3)), "failed", 1)
	b.done("bank/interest", hour(1))
	const midnight = "2020-05-05T00:00:00Z"

	// A dry run says what the real one does.
	for _, flag := range []string{"--dry-run", ""} {
		args := []string{"prune", orderSync, "--before", midnight}
		if flag != "" {
			args = append(args, flag)
		}
		r := b.run(args...)
		r.fails(t, 1, orderSync+": 1 window before "+at(2), "is not pruned up to "+midnight, "window "+at(2)+" of "+orderSync+" is failed",
			"cancel "+orderSync+" "+at(2)+" --reason TEXT --ledger-url-file OWNER_URL")
		if got, want := b.state(orderSync, 1) == "", flag == ""; got != want {
			t.Errorf("%q: hour 1 is deleted: %v", flag, got)
		}
	}
	for _, c := range []struct {
		hour int
		want string
	}{{4, "is held; it is held until a person decides: kubectl onceguard release likewise"}, {7, "is lease ended; attempt 1 in pod shop/order-sync-26476260-x on node n1 died"}} {
		b.run("cancel", orderSync, at(2), "--reason", "x")
		b.run("prune", orderSync, "--before", midnight).fails(t, 1, "window "+at(c.hour)+" of", c.want)
		b.run("cancel", orderSync, at(c.hour), "--reason", "x").ok(t)
	}
	b.run("prune", orderSync, "--before", midnight).fails(t, 1, "window "+at(8)+" of "+orderSync+" is done; attempt 1 in pod", "wait until it has ended")
	b.run("rerun", orderSync, at(1), "--reason", "x").fails(t, 1, "pruned", "closed")
	b.run("show", orderSync, at(2)).fails(t, 1, "was pruned", "cancel by")

	// Indexes and separate runs go with their job; the other jobs of a namespace do not stop it.
	b.run("prune", "--all", "-n", "shop", "--older-than", "90d").fails(t, 1, "shop/report: 2 windows before "+at(3), "of shop/report#1 is failed")
	if b.state("bank/interest", 1) == "" {
		t.Error("a job of another namespace was pruned")
	}
	b.run("cancel", "shop/report#1", at(3), "--reason", "x").ok(t)
	b.run("prune", "shop/report", "--older-than", "36h").ok(t).has(t, "shop/report: 1 window before ")
	b.run("prune", "--all", "-A", "--before", midnight).fails(t, 1, "bank/interest: 1 window before "+midnight, orderSync+" is not pruned")
	b.run("windows", "-n", "bank").ok(t).has(t, "No windows found")

	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing":         {nil, 2, "JOB or --all is missing"},
		"JOB and --all":   {[]string{orderSync, "--all", "--before", midnight}, 2, "exclude each other"},
		"-A alone":        {[]string{"-A", "--before", midnight}, 2, "-A goes with --all"},
		"no limit":        {[]string{orderSync}, 2, "one of --before and --older-than"},
		"two limits":      {[]string{orderSync, "--before", midnight, "--older-than", "1h"}, 2, "one of --before and --older-than"},
		"latest":          {[]string{orderSync, "--before", "latest"}, 2, `--before "latest"`},
		"no zone":         {[]string{orderSync, "--before", "2020-05-05"}, 2, `--before "2020-05-05"`},
		"in the future":   {[]string{orderSync, "--before", "2190-01-01T00:00:00Z"}, 2, "in the future"},
		"negative":        {[]string{orderSync, "--older-than", "-1h"}, 2, `--older-than "-1h"`},
		"no unit":         {[]string{orderSync, "--older-than", "90"}, 2, "like 90d or 36h"},
		"an index":        {[]string{"shop/report#1", "--before", midnight}, 2, "shop/report"},
		"an unknown job":  {[]string{"shop/none", "--before", midnight}, 1, "no job shop/none"},
		"in no namespace": {[]string{"order-sync", "-n", "bank", "--before", midnight}, 1, "no job bank/order-sync"},
	} {
		t.Run(name, func(t *testing.T) { b.run(append([]string{"prune"}, c.args...)...).fails(t, c.code, c.want) })
	}
}

// What is planned is not deleted: pruning stops there, and says whose plan it is.
func TestPruneStopsAtAPlan(t *testing.T) {
	b := watchedBook(t)
	b.done(orderSync, hour(1))
	b.backfill(3, 4, "--detach").ok(t)
	prune := []string{"prune", orderSync, "--before", at(9)}
	for _, flag := range [][]string{{"--dry-run"}, nil} {
		b.run(append(prune, flag...)...).flat().fails(t, 1, orderSync+": 1 window before "+at(3), "is not pruned up to "+at(9)+": window "+at(3)+" of it is planned (planned by ann: TICKET-19",
			"no Job was made for it yet", "wait until it has run, or take it back: kubectl onceguard backfill "+orderSync+" --from "+at(3)+" --to "+at(3)+" --cancel")
		if n := len(b.plans()); n != 2 {
			t.Fatalf("%d plans are left", n)
		}
	}
	b.backfill(3, 4, "--cancel").ok(t)
	b.run(prune...).ok(t)
}

func TestAges(t *testing.T) {
	for s, want := range map[string]time.Duration{"90d": 90 * 24 * time.Hour, "1d": 24 * time.Hour, "36h": 36 * time.Hour, "1h30m": 90 * time.Minute} {
		if got, err := parseAge(s); err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "d", "0d", "-1d", "1.5d", "1h2d", "90", "0s", "-1h", "99999d", "9999999999999d"} {
		if got, err := parseAge(s); err == nil {
			t.Errorf("%q is taken as %v", s, got)
		}
	}
}

func TestStatesAreTold(t *testing.T) {
	b := newBook(t)
	b.states()
	r := b.run("windows", "-A").ok(t)
	column := strings.Index(r.stdout, "STATE")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	for i, want := range []string{"running ", "done ", "lease ended ", "skipped (superseded) ", "skipped (late) ", "held ", "exhausted ", "failed (checkpoint 2) ", "done "} {
		if line := lines[i+1]; !strings.HasPrefix(line[column:], want) || len(line) > tableWidth {
			t.Errorf("want %s under STATE and at most %d characters: %s", want, tableWidth, line)
		}
	}
	for states, want := range map[string]int{"held": 1, "exhausted,skipped": 3, "lease-ended": 1, "done,running": 3} {
		r := b.run("windows", "-A", "--state", states).ok(t)
		if n := strings.Count(r.stdout, orderSync); n != want {
			t.Errorf("--state %s: %d windows, want %d\n%s", states, n, want, r.stdout)
		}
	}
	for h, words := range map[int][]string{
		1: {"3 pods: 2 completed, 1 busy", "3 prevented"},
		2: {"failed, may be retried", "Checkpoint     2"},
		3: {"exhausted: ", "mend the cause, then kubectl onceguard rerun " + orderSync + " " + at(3) + " --reason TEXT --ledger-url-file OWNER_URL"},
		4: {"held: ", "kubectl onceguard release " + orderSync + " " + at(4), "or cancel it likewise", "crashed (137)"},
		5: {"skipped (late): its start-deadline passed", "Closed by      shop/order-sync-"},
		6: {"skipped (superseded): a newer window", "Closed by      shop/order-sync-"},
		7: {"lease ended at ", "its holder died"},
		9: {"running, lease until", "sha256:0123456789abcdef"},
	} {
		b.run("show", orderSync, at(h)).ok(t).has(t, words...)
	}
	s := b.story(orderSync, 9)
	if s.Window.PayloadDigest == nil || *s.Window.PayloadDigest != "sha256:0123456789abcdef" {
		t.Errorf("no payload digest in %+v", s.Window)
	}
}
