package guard

import (
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// A worker that answers SIGTERM with exit 0 broke off politely: a deadline, a deletion or
// concurrencyPolicy Replace ended it, and its window must be tried again.
func TestExitZeroAfterSIGTERMIsNoCompletion(t *testing.T) {
	w := newStory(t, nil).play(Start{}, main1()).asked(first).play(Terminating{1}, Exited{1, 0})
	e := w.ending()
	if e.Complete || e.End.Outcome != claim.OutcomeStopped || *e.End.ExitCode != 0 {
		t.Fatalf("ending %+v", e)
	}
	w.settled().wants(1, wire.TypeAck, contract.ExitRetry)

	// What it committed before stays done, whoever saw the commit.
	w = newStory(t, nil).play(Start{}, main1()).asked(first).play(Terminating{1}, Exited{1, 0})
	w.play(Settled{ID: w.s.ExecutionID, Recorded: claim.OutcomeCompleted}).wants(1, wire.TypeAck, 0)
	w = newStory(t, nil).play(Start{}, main1()).asked(first)
	w.play(Committed{w.s.ExecutionID}, Terminating{1}, Exited{1, 0}).settled().wants(1, wire.TypeAck, 0)

	// Without the signal exit 0 completes.
	w = newStory(t, nil).play(Start{}, main1()).asked(first).play(Exited{1, 0})
	if e := w.ending(); !e.Complete {
		t.Errorf("ending %+v", e)
	}
}

// A wrong Secret is not waited for until the next window, which may be a day away: only
// the end of the pod tells anybody.
func TestWhatSomebodyMustMendIsNotWaitedForLong(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		what string
		conf Conf
		f    Fault
		want time.Duration
	}{
		{"an outage lasts until the next window", Conf{GuardConfig: contract.GuardConfig{WindowEnd: at.Add(24 * time.Hour)}}, Away, 24 * time.Hour},
		{"a mistake ten minutes", Conf{GuardConfig: contract.GuardConfig{WindowEnd: at.Add(24 * time.Hour)}}, Misset, 10 * time.Minute},
		{"or until the next window", Conf{GuardConfig: contract.GuardConfig{WindowEnd: at.Add(time.Minute)}}, Misset, time.Minute},
		{"or as long as is wished", Conf{GuardConfig: contract.GuardConfig{LedgerWait: contract.Duration(time.Hour)}}, Misset, time.Hour},
	} {
		if got := c.conf.ledgerDeadline(at, c.f).Sub(at); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
