package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// atMain is the program as if it had been started at another instant: guard-at INSTANT ….
func atMain() {
	started, err := time.Parse(time.RFC3339Nano, os.Args[1])
	if err != nil {
		panic(err)
	}
	os.Exit(run(context.Background(), os.Args[2:], os.Environ(), started, os.Stdout, os.Stderr))
}

// A start means the newest instant of its schedule, also a moment before it.
func TestTheWindowOfAStart(t *testing.T) {
	const five, night = "*/5 * * * *", "30 2 * * *"
	for _, c := range []struct {
		what, started, schedule string
		flags                   []string
		want, previous, end     string
	}{
		{"on time", "2026-11-30T13:20:00.4Z", five, nil, "2026-11-30T13:20:00Z", "2026-11-30T13:15:00Z", "2026-11-30T13:25:00Z"},
		{"late", "2026-11-30T13:24:54Z", five, nil, "2026-11-30T13:20:00Z", "2026-11-30T13:15:00Z", "2026-11-30T13:25:00Z"},
		{"3s early", "2026-11-30T13:19:57Z", five, nil, "2026-11-30T13:20:00Z", "2026-11-30T13:15:00Z", "2026-11-30T13:25:00Z"},
		{"as early as may be", "2026-11-30T13:19:55Z", five, nil, "2026-11-30T13:20:00Z", "2026-11-30T13:15:00Z", "2026-11-30T13:25:00Z"},
		{"too early", "2026-11-30T13:19:54.9Z", five, nil, "2026-11-30T13:15:00Z", "2026-11-30T13:10:00Z", "2026-11-30T13:20:00Z"},
		{"no time early", "2026-11-30T13:19:59.9Z", five, []string{"--early", "0s"}, "2026-11-30T13:15:00Z", "2026-11-30T13:10:00Z", "2026-11-30T13:20:00Z"},
		{"after days without power", "2026-11-30T13:20:00Z", night, nil, "2026-11-30T01:30:00Z", "2026-11-29T01:30:00Z", "2026-12-01T01:30:00Z"},

		// Berlin's clocks go back at 2026-10-25T01:00:00Z: 02:30 is 00:30Z and 01:30Z.
		{"02:30 for the first time", "2026-10-25T00:30:01Z", night, nil, "2026-10-25T00:30:00Z", "2026-10-24T00:30:00Z", "2026-10-25T01:30:00Z"},
		{"02:30 again", "2026-10-25T01:30:01Z", night, nil, "2026-10-25T01:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"02:30 again, once", "2026-10-25T01:30:01Z", night, []string{"--dst", "once"}, "2026-10-25T00:30:00Z", "2026-10-24T00:30:00Z", "2026-10-26T01:30:00Z"},
		// They go forward at 2026-03-29T01:00:00Z: there is no 02:30.
		{"no 02:30", "2026-03-29T01:30:01Z", night, nil, "2026-03-28T01:30:00Z", "2026-03-27T01:30:00Z", "2026-03-30T00:30:00Z"},
		{"no 02:30, once", "2026-03-29T01:30:01Z", night, []string{"--dst", "once"}, "2026-03-29T01:30:00Z", "2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"},
		// Some crons start at 03:00 what they have skipped.
		{"no 02:30, made up at 03:00", "2026-03-29T01:00:01Z", night, []string{"--dst", "once", "--early", "1h"}, "2026-03-29T01:30:00Z", "2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"},
		{"such a line on another day", "2026-06-01T00:30:01Z", night, []string{"--dst", "once", "--early", "1h"}, "2026-06-01T00:30:00Z", "2026-05-31T00:30:00Z", "2026-06-02T00:30:00Z"},
		// Half an hour in Lord Howe.
		{"a zone of half hours", "2026-04-04T15:10:00Z", "0 * * * *", []string{"--time-zone", "Australia/Lord_Howe"}, "2026-04-04T14:00:00Z", "2026-04-04T13:00:00Z", "2026-04-04T15:30:00Z"},
	} {
		t.Run(c.what, func(t *testing.T) {
			args := append([]string{"--job", "shop/report", "--schedule", c.schedule, "--time-zone", "Europe/Berlin"}, c.flags...)
			o, err := parse(append(args, "--", "true"), instantOf(t, c.started), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			g := o.config
			if !g.WindowStart.Equal(instantOf(t, c.want)) || !g.Previous.Equal(instantOf(t, c.previous)) || !g.WindowEnd.Equal(instantOf(t, c.end)) {
				t.Errorf("got %s after %s until %s", g.WindowStart, g.Previous, g.WindowEnd)
			}
			if g.Source != contract.SourceSchedule || g.Trigger != contract.TriggerScheduled || g.Schedule != c.schedule {
				t.Errorf("recorded as %+v", g)
			}
		})
	}
}

func TestSchedulesThatMeanNoWindow(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--schedule", "*/5 * * * *"}, "--time-zone is missing: cron and systemd timers read their fields in the zone of the machine"},
		{[]string{"--schedule", "*/5 * * * *", "--time-zone", "Berlin"}, `--time-zone: "Berlin" is not a time zone; give a name like Europe/Berlin`},
		{[]string{"--schedule", "*/5 * * * *", "--time-zone", "Local"}, `"Local" is not a time zone`},
		{[]string{"--schedule", "CRON_TZ=Europe/Berlin */5 * * * *"}, "take it out and give it as --time-zone"},
		{[]string{"--schedule", "@every 5m", "--time-zone", "Etc/UTC"}, "give five fields"},
		{[]string{"--schedule", "@reboot", "--time-zone", "Etc/UTC"}, `--schedule: "@reboot" is not understood`},
		{[]string{"--schedule", "0 0 * * 7", "--time-zone", "Etc/UTC"}, "in which Sunday is 0"},
		{[]string{"--schedule", "* * * *", "--time-zone", "Etc/UTC"}, "the five fields"},
		{[]string{"--schedule", "0 0 30 2 *", "--time-zone", "Etc/UTC"}, "names no date that exists"},
		{[]string{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--early", "1m"}, "are 1m0s apart: a start on time would mean the next one"},
		{[]string{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--early", "-1s"}, "must not be negative"},
		{[]string{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--dst", "twice"}, `--dst is "twice"; it must be kubernetes or once`},
		{[]string{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--window-start", "2026-11-30T13:18:00Z"}, "--window-start is given beside --schedule"},
		{[]string{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--window-previous", "2026-11-30T13:18:00Z"}, "--window-previous is given beside --schedule"},
		{[]string{"--schedule", ""}, "--schedule needs the fields of the crontab line"},
		{[]string{"--window-start", "2026-11-30T13:18:00Z", "--time-zone", "Etc/UTC"}, "--time-zone needs the fields of the crontab line"},
		{[]string{"--window-start", "2026-11-30T13:18:00Z", "--early", "1s"}, "--early needs the fields"},
		{[]string{"--window-start", "2026-11-30T13:18:00Z", "--dst", "once"}, "--dst needs the fields"},
		{[]string{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--order", "serial"}, "--since is missing: with --order serial a window waits for those before it, and no start makes up older ones; give the first window that is to be waited for, for example this one: --since 2026-11-30T13:18:00Z"},
		{nil, "--schedule is missing; give the fields of the crontab line and --time-zone, or the planned instant as --window-start"},
	} {
		args := append([]string{"--job", "shop/report"}, c.args...)
		if _, err := parse(append(args, "--", "true"), windowStart, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "spec.") {
			t.Errorf("%q: got %v, want %q", c.args, err, c.want)
		}
	}
	for _, args := range [][]string{
		{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--order", "serial", "--since", "2026-11-30T13:18:00Z"},
		{"--schedule", "* * * * *", "--time-zone", "Etc/UTC", "--order", "any"},
		{"--window-start", "2026-11-30T13:18:00Z", "--order", "serial"},
	} {
		if _, err := parse(append(append([]string{"--job", "shop/report"}, args...), "--", "true"), windowStart, io.Discard); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	// Before the first instant of a schedule there is nothing to mean.
	args := []string{"--job", "shop/report", "--schedule", "0 0 29 2 *", "--time-zone", "Etc/UTC", "--", "true"}
	if _, err := parse(args, time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC), io.Discard); err == nil || !strings.Contains(err.Error(), "was due by 1970-01-02T00:00:00Z") {
		t.Errorf("a start before the first instant: %v", err)
	}
}

func instantOf(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
