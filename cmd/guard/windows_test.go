package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// The controller's Job for the second occurrence of a civil time is skipped, with the first
// one's name, and recorded so.
func TestARepeatedCivilTimeDoesNotRun(t *testing.T) {
	url := migrated(t)
	config := testConfig()
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC)
	config.WindowStart, config.WindowEnd, config.Repeats, config.DST = first.Add(time.Hour), first.Add(25*time.Hour), first, contract.DSTOnce
	p := startPod(t, config, testPaths(t, url), "order-sync-a")
	if m := p.hello("main", wire.KindWorker, 0).hears(wire.TypeSkip); !strings.Contains(m.Message, "shop/order-sync 2026-10-25T00:30:00Z") {
		t.Errorf("the skip says %q", m.Message)
	}
	if got := query[string](t, url, "SELECT status || ' ' || reason || ' ' || dst FROM onceguard.job_execution"); got != "skipped dst once" {
		t.Errorf("recorded as %s", got)
	}
}

// A window that is caught up runs however late it is, and says what it is.
func TestAWindowIsCaughtUp(t *testing.T) {
	url := migrated(t)
	config := testConfig()
	config.Trigger, config.Job, config.StartDeadline = contract.TriggerCatchUp, "order-sync-r29146200", contract.Duration(time.Hour)
	config.WindowStart, config.WindowEnd = time.Date(2025, 6, 1, 10, 0, 0, 0, time.UTC), time.Date(2025, 6, 1, 10, 5, 0, 0, time.UTC)
	s := startPod(t, config, testPaths(t, url), "order-sync-a").hello("main", wire.KindWorker, 0)
	if m := s.hears(wire.TypeWait); !strings.Contains(m.Message, "Job order-sync-r29146200 catches up window shop/order-sync 2025-06-01T10:00:00Z") {
		t.Errorf("the worker's log begins with %q", m.Message)
	}
	if m := s.hears(wire.TypeRun); m.Env[contract.EnvTrigger] != "catch-up" {
		t.Errorf("%+v", m.Env)
	}
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("%+v", ack)
	}
	if got := query[string](t, url, "SELECT status || ' ' || trigger FROM onceguard.job_execution JOIN onceguard.windows USING (job_name, window_start)"); got != "completed catch-up" {
		t.Errorf("recorded as %s", got)
	}
}

// Who made a Job by hand learns from its worker's log which window it means, and when
// another run has done it, who that was. The guard's own log tells it of each pod.
func TestAManualJobExplainsItself(t *testing.T) {
	url := migrated(t)
	scheduled := startPod(t, testConfig(), testPaths(t, url), "order-sync-a").hello("main", wire.KindWorker, 0)
	scheduled.hears(wire.TypeRun)
	config := testConfig()
	config.Trigger, config.Source, config.Job, config.Asked = contract.TriggerManual, contract.SourceManual, "by-hand", windowStart.Add(time.Minute)
	byHand := startPod(t, config, testPaths(t, url), "by-hand-a").hello("main", wire.KindWorker, 0)
	const means = "Job by-hand was made by hand and means window shop/order-sync 2026-11-30T13:18:00Z"
	if m := byHand.hears(wire.TypeWait); !strings.HasPrefix(m.Message, means) {
		t.Errorf("the worker's log begins with %q", m.Message)
	}
	if m := byHand.hears(wire.TypeWait); !strings.Contains(m.Message, "is being worked on by attempt 1 of pod shop/order-sync-a") {
		t.Errorf("it waits for %q", m.Message)
	}
	if ack := scheduled.exits(0); ack.Code != 0 {
		t.Errorf("%+v", ack)
	}
	if m := byHand.hears(wire.TypeSkip); !strings.HasPrefix(m.Message, means) || !strings.Contains(m.Message, "was completed by attempt 1 of pod shop/order-sync-a") {
		t.Errorf("the skip says %q", m.Message)
	}
}

func TestTheSidecarsLogSaysWhichWindow(t *testing.T) {
	_, log := startSidecar(t, testConfig(), testPaths(t, ""))
	eventually(t, "the first line of the log", func() error {
		for _, word := range []string{
			"Job order-sync-1 was made by the CronJob controller for window shop/order-sync 2026-11-30T13:18:00Z",
			`"trigger":"scheduled"`, `"source":"timestamp"`, `"window_start":"2026-11-30T13:18:00`,
		} {
			if !strings.Contains(log.String(), word) {
				return errors.New("no " + word)
			}
		}
		return nil
	})
}
