package guard

import (
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// Whoever looks at a run learns which window it means and how that is known.
func TestMeaning(t *testing.T) {
	for _, c := range []struct {
		trigger contract.Trigger
		source  contract.Source
		job     string
		words   []string
	}{
		{contract.TriggerScheduled, contract.SourceTimestamp, "sync-29146200", []string{"sync-29146200", "CronJob"}},
		{contract.TriggerScheduled, contract.SourceName, "sync-29146200", []string{"sync-29146200"}},
		{contract.TriggerManual, contract.SourceManual, "by-hand", []string{"by-hand"}},
		{contract.TriggerManual, contract.SourceSeparate, "by-hand", []string{"by-hand", "onceguard.dev/manual=separate"}},
		{contract.TriggerScheduled, contract.SourceDeclared, "load-7", []string{"load-7", "onceguard.dev/window-start"}},
		{contract.TriggerCatchUp, contract.SourceTimestamp, "sync-r29146200", []string{"sync-r29146200"}},
		{contract.TriggerScheduled, contract.SourceDeclared, "", []string{"--window-start"}},
		{contract.TriggerScheduled, contract.SourceSchedule, "", []string{"Sat 12:00 CET", `"0 * * * *"`, "Europe/Berlin"}},
	} {
		for _, language := range []string{"en", "zh"} {
			text := Meaning(contract.GuardConfig{
				JobName: "shop/sync", WindowStart: time.Date(2025, 11, 1, 11, 0, 0, 0, time.UTC), Job: c.job, Trigger: c.trigger, Source: c.source,
				Schedule: "0 * * * *", TimeZone: "Europe/Berlin", LogLanguage: language,
			})
			for _, word := range append(c.words, "shop/sync 2025-11-01T11:00:00Z") {
				if !strings.Contains(text, word) || strings.Contains(text, "%!") {
					t.Errorf("%s %s (%s) does not say %q: %s", c.trigger, c.source, language, word, text)
				}
			}
		}
	}
}

// A person who made a Job by hand reads in the worker's log which window that was, and in
// its end (which becomes an Event) why it did not run; a scheduled Job runs without a word.
func TestUnusualRunsExplainThemselves(t *testing.T) {
	byHand := func(c *Conf) {
		c.Trigger, c.Source, c.Job = contract.TriggerManual, contract.SourceManual, "by-hand"
		c.JobName, c.WindowStart = c.Window.JobName, c.Window.Start
	}
	said := "Job by-hand was made by hand and means window shop/order-sync 2026-11-30T13:18:00Z"
	w := newStory(t, byHand).play(Start{}, main1()).asked(first)
	w.wants(1, wire.TypeRun, 0)
	if m := w.sent[1][0]; m.Type != wire.TypeWait || !strings.HasPrefix(m.Message, said) {
		t.Errorf("the worker's log begins with %+v", m)
	}
	w = newStory(t, byHand).play(Start{}, main1()).asked(done).play(SkipRecorded{})
	if m := w.wants(1, wire.TypeSkip, 0); !strings.HasPrefix(m.Message, said) || !strings.Contains(m.Message, "was completed by attempt 1 of pod shop/other") {
		t.Errorf("the skip says %q", m.Message)
	}
	w = newStory(t, byHand).play(Start{}, main1()).asked(claim.Answer{Verdict: claim.Refuse, Reason: claim.IsHeld, Holder: busy.Holder})
	if m := w.wants(1, wire.TypeRefuse, contract.ExitRefused); !strings.HasPrefix(m.Message, said) {
		t.Errorf("the refusal says %q", m.Message)
	}
	w = newStory(t, func(c *Conf) { byHand(c); c.Busy = contract.BusySkip }).play(Start{}, main1()).asked(busy).play(SkipRecorded{})
	if m := w.wants(1, wire.TypeSkip, 0); !strings.HasPrefix(m.Message, said) {
		t.Errorf("the skip of a busy window says %q", m.Message)
	}
	w = newStory(t, nil).play(Start{}, main1()).asked(first)
	for _, m := range w.sent[1] {
		if m.Message != "" {
			t.Errorf("a scheduled run says %q", m.Message)
		}
	}
}

// The second occurrence of a civil time names the first, which stands for both.
func TestARepeatNamesTheFirst(t *testing.T) {
	for _, language := range []string{"en", "zh"} {
		w := newStory(t, func(c *Conf) { c.Repeats, c.LogLanguage = time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC), language }).
			play(Start{}, main1()).asked(claim.Answer{Verdict: claim.Skip, Reason: claim.DST}).play(SkipRecorded{})
		if m := w.wants(1, wire.TypeSkip, 0); !strings.Contains(m.Message, "shop/order-sync 2026-10-25T00:30:00Z") {
			t.Errorf("it says %q", m.Message)
		}
	}
}

// What is caught up was due long ago: its end says nothing about how long to wait for the
// ledger, and a Job that gives up at once would be made again at once.
func TestLedgerWaitOfOldWindows(t *testing.T) {
	now := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	conf := func(trigger contract.Trigger, end time.Time, wait time.Duration) Conf {
		return Conf{GuardConfig: contract.GuardConfig{Trigger: trigger, WindowEnd: end, LedgerWait: contract.Duration(wait)}}
	}
	for _, c := range []struct {
		what string
		conf Conf
		want time.Duration
	}{
		{"until the next window", conf(contract.TriggerScheduled, now.Add(time.Hour), 0), time.Hour},
		{"a late retry makes room for the next window", conf(contract.TriggerScheduled, now.Add(-time.Hour), 0), leastLedgerWait},
		{"caught up", conf(contract.TriggerCatchUp, now.Add(-time.Hour), 0), unknownLedgerWait},
		{"caught up, as wished", conf(contract.TriggerCatchUp, now.Add(-time.Hour), time.Minute), time.Minute},
		{"of no known end", conf(contract.TriggerScheduled, time.Time{}, 0), unknownLedgerWait},
	} {
		if got := c.conf.ledgerDeadline(now, Away).Sub(now); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
