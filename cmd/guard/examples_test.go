package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/window"
)

// machine is a directory in which an example finds what it names: the programs of
// /usr/local/bin and the files of /etc/onceguard.
type machine struct {
	t   *testing.T
	dir string
	url string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	m := machine{t: t, dir: t.TempDir(), url: migrated(t)}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(m.dir, "guard")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(m.dir, "report.url"), m.url+"\n")
	writeFile(t, filepath.Join(m.dir, "report.env"), "ONCEGUARD_LEDGER_URL="+m.url+"\n")
	worker := "#!/bin/sh\necho \"$ONCEGUARD_JOB_NAME $ONCEGUARD_WINDOW_START ${ONCEGUARD_LEDGER_URL-}${ONCEGUARD_LEDGER_URL_FILE-}\" >>" + m.dir + "/done\n"
	if err := os.WriteFile(filepath.Join(m.dir, "report"), []byte(worker), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	return m
}

// placed is a text with its paths in the machine.
func (m machine) placed(text string) string {
	return strings.NewReplacer("/usr/local/bin", m.dir, "/etc/onceguard", m.dir).Replace(text)
}

// starts runs a command as sh does, three times, with no other environment than env, and
// demands that each window of the schedule that came meanwhile was run once.
func (m machine) starts(command string, env []string, schedule window.Schedule) {
	m.t.Helper()
	before := time.Now()
	skips := 0
	for range 3 {
		ctx, cancel := context.WithTimeout(m.t.Context(), soon)
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
		cmd.Dir, cmd.Env = "/", append(slices.Clone(env), "GORACE=atexit_sleep_ms=0")
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			m.t.Fatalf("%s: %v\n%s", command, err, out)
		}
		if strings.Contains(string(out), "was completed by attempt 1") {
			skips++
		}
	}
	var want []string
	for w := schedule.Nominal(before, defaultEarly); !w.After(time.Now().Add(defaultEarly)); w = schedule.Next(w) {
		want = append(want, "office/report "+w.Format(time.RFC3339)+" ")
	}
	done, err := os.ReadFile(filepath.Join(m.dir, "done"))
	if err != nil {
		m.t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(done), "\n"), "\n")
	// The last one may have come when the last start was over.
	if len(got) < 1 || len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || len(got)+skips != 3 {
		m.t.Errorf("worked for %q and skipped %d times; windows %q", got, skips, want)
	}
}

// flags of a command line that guard run understands.
func flagOf(t *testing.T, command, name string) string {
	t.Helper()
	found := regexp.MustCompile(`--` + name + ` ('[^']*'|\S+)`).FindStringSubmatch(command)
	if found == nil {
		t.Fatalf("no --%s in %s", name, command)
	}
	return strings.Trim(found[1], "'")
}

func scheduleOf(t *testing.T, command string) window.Schedule {
	t.Helper()
	s, err := window.ParseSchedule(flagOf(t, command, "schedule"), flagOf(t, command, "time-zone"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The crontab line is run as cron runs it: by SHELL -c, with cron's environment and the
// variables of the file.
func TestExampleCrontab(t *testing.T) {
	m := newMachine(t)
	env := []string{"HOME=/", "LOGNAME=report"}
	entry := regexp.MustCompile(`^((?:\S+\s+){5})(\S+)\s+(.+)$`)
	variable := regexp.MustCompile(`^[A-Z_]+=`)
	entries := 0
	for line := range strings.Lines(m.placed(example(t, "crontab"))) {
		switch line = strings.TrimSpace(line); {
		case line == "" || strings.HasPrefix(line, "#"):
		case variable.MatchString(line):
			env = append(env, line)
		default:
			entries++
			found := entry.FindStringSubmatch(line)
			if found == nil {
				t.Fatalf("%q is no entry of a crontab", line)
			}
			fields, command := strings.Join(strings.Fields(found[1]), " "), found[3]
			if got := flagOf(t, command, "schedule"); got != fields {
				t.Errorf("--schedule %q beside the fields %q", got, fields)
			}
			if strings.Contains(strings.ReplaceAll(command, `\%`, ""), "%") {
				t.Errorf("cron ends the command at %%: %s", command)
			}
			m.starts(command, env, scheduleOf(t, command))
		}
	}
	if entries != 1 {
		t.Errorf("%d entries", entries)
	}
}

// The unit's command is run with the environment of its file.
func TestExampleUnits(t *testing.T) {
	m := newMachine(t)
	service, timer := example(t, "systemd/onceguard-report.service"), example(t, "systemd/onceguard-report.timer")
	command := directive(t, m.placed(service), "ExecStart")
	file, err := os.ReadFile(directive(t, m.placed(service), "EnvironmentFile"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(command, "%$\\") {
		t.Errorf("systemd reads %s otherwise than sh", command)
	}
	schedule := scheduleOf(t, command)
	m.starts(command, []string{"PATH=/usr/bin:/bin", strings.TrimSpace(string(file))}, schedule)
	if directive(t, timer, "Persistent") != "true" {
		t.Error("a start is not made up for")
	}

	analyze, err := exec.LookPath("systemd-analyze")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("systemd-analyze is not installed: the units are not verified, nor is OnCalendar= compared with --schedule")
	} else if err != nil {
		t.Fatal(err)
	}
	verify := func(service string) string {
		dir := t.TempDir()
		paths := []string{filepath.Join(dir, "onceguard-report.service"), filepath.Join(dir, "onceguard-report.timer")}
		writeFile(t, paths[0], m.placed(service))
		writeFile(t, paths[1], timer)
		out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify"}, paths...)...).CombinedOutput()
		if err != nil {
			return err.Error() + ": " + string(out)
		}
		return string(out)
	}
	if out := verify(service); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	if out := verify(strings.Replace(service, "KillMode=mixed", "KillMode=mixd", 1)); out == "" {
		t.Error("systemd-analyze verify finds no fault with a faulty unit")
	}

	// OnCalendar= and --schedule mean the same instants, also when clocks are moved.
	calendar := exec.CommandContext(t.Context(), analyze, "calendar", "--iterations=400", "--base-time=2026-01-01 00:00:00 UTC", directive(t, timer, "OnCalendar"))
	calendar.Env = []string{"TZ=UTC", "LC_ALL=C"}
	out, err := calendar.Output()
	if err != nil {
		t.Fatal(err)
	}
	elapses := regexp.MustCompile(`(?m)^ *(?:Next elapse|Iter\. #\d+|Iteration #\d+): \w+ (\S+ \S+) UTC$`).FindAllStringSubmatch(string(out), -1)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, elapse := range elapses {
		if at = schedule.Next(at); at.Format(time.DateTime) != elapse[1] {
			t.Fatalf("the timer elapses at %s, the schedule's next instant is %s", elapse[1], at)
		}
	}
	if len(elapses) != 400 {
		t.Errorf("%d of 400 instants were compared:\n%.400s", len(elapses), out)
	}
}

// directive is the value of the one line KEY=VALUE of a unit.
func directive(t *testing.T, unit, key string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+key+`=(.*)$`).FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("%d lines %s=", len(found), key)
	}
	return found[0][1]
}
