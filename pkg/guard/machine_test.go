package guard

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// story plays events one second apart and keeps what was sent.
type story struct {
	t    *testing.T
	s    State
	now  time.Time
	sent map[Conn][]wire.Message
	did  []Effect
}

func newStory(t *testing.T, change func(*Conf)) *story {
	t.Helper()
	c := testConf()
	c.InitContainers, c.Containers = nil, []string{"main"}
	if change != nil {
		change(&c)
	}
	return &story{t: t, s: NewState(c, nil), now: time.Unix(1_800_000_000, 0), sent: map[Conn][]wire.Message{}}
}

func (w *story) play(events ...Event) *story {
	for _, e := range events {
		w.now = w.now.Add(time.Second)
		var effects []Effect
		w.s, effects = Next(w.s, Input{Now: w.now, Fresh: uuid.New(), Event: e})
		for _, f := range effects {
			if m, ok := f.(Send); ok {
				w.sent[m.Conn] = append(w.sent[m.Conn], m.Message)
			}
			w.did = append(w.did, f)
		}
	}
	return w
}

func (w *story) asked(a claim.Answer) *story {
	return w.play(Asked{ID: w.s.ExecutionID, Sent: w.now, Answer: a})
}

func (w *story) settled() *story { return w.play(Settled{ID: w.s.ExecutionID}) }

func (w *story) last(c Conn) wire.Message {
	w.t.Helper()
	if len(w.sent[c]) == 0 {
		w.t.Fatalf("nothing was sent to %d", c)
	}
	return w.sent[c][len(w.sent[c])-1]
}

func (w *story) wants(c Conn, t wire.Type, code int) wire.Message {
	w.t.Helper()
	m := w.last(c)
	if m.Type != t || m.Code != code {
		w.t.Errorf("%d heard %+v, want %s %d", c, m, t, code)
	}
	return m
}

func (w *story) ending() Ending {
	w.t.Helper()
	for i := len(w.did) - 1; i >= 0; i-- {
		if s, ok := w.did[i].(Settle); ok {
			return s.Ending
		}
	}
	w.t.Fatal("nothing was settled")
	return Ending{}
}

var (
	first = claim.Answer{Verdict: claim.Run, Reason: claim.First, Attempt: 1}
	busy  = claim.Answer{Verdict: claim.Wait, Reason: claim.BusyHeld, Holder: claim.Holder{Attempt: 2, Pod: "shop/other"}}
	done  = claim.Answer{Verdict: claim.Skip, Reason: claim.AlreadyCompleted, Holder: claim.Holder{Attempt: 1, Pod: "shop/other", CompletedAt: time.Unix(1_700_000_000, 0)}}
)

func main1() Hello { return Hello{Conn: 1, Container: "main", Kind: wire.KindWorker} }

func TestVerdictWhileTheWindowIsHeld(t *testing.T) {
	w := newStory(t, nil).play(Start{}, main1()).asked(busy)
	if m := w.wants(1, wire.TypeWait, 0); !strings.Contains(m.Message, "attempt 2 of pod shop/other") {
		t.Errorf("it waits for whom? %q", m.Message)
	}
	w.play(Tick{}, Tick{}).asked(done)
	if _, ok := w.did[len(w.did)-1].(RecordSkip); !ok {
		t.Errorf("the duplicate is not recorded first: %+v", w.did)
	}
	w.play(SkipRecorded{})
	if m := w.wants(1, wire.TypeSkip, 0); !strings.Contains(m.Message, "was completed by attempt 1 of pod shop/other at 2023-") {
		t.Errorf("skip says %q", m.Message)
	}

	w = newStory(t, func(c *Conf) { c.Busy = contract.BusySkip }).play(Start{}, main1()).asked(busy).play(SkipRecorded{})
	w.wants(1, wire.TypeSkip, 0)
	w = newStory(t, func(c *Conf) { c.Busy = contract.BusyFail }).play(Start{}, main1()).asked(busy)
	w.wants(1, wire.TypeRefuse, contract.ExitRetry)
	// Restarted in place, it asks again.
	w.play(Broken{1}, Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).asked(first).wants(2, wire.TypeRun, 0)
}

func TestRestartedContainerWithAProbeDoesNotWait(t *testing.T) {
	w := newStory(t, func(c *Conf) { c.Probed, c.RestartInPlace = []string{"main"}, true })
	w.play(Start{}, main1()).asked(busy).wants(1, wire.TypeWait, 0) // its first start: the claim container has waited
	w.play(Tick{}, Tick{}).asked(first).wants(1, wire.TypeRun, 0)
	w.play(Exited{1, 1}).settled().wants(1, wire.TypeAck, 1)
	w.play(Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).asked(busy).wants(2, wire.TypeRefuse, contract.ExitRetry)
}

func TestSeveralContainers(t *testing.T) {
	two := func(inPlace bool) func(*Conf) {
		return func(c *Conf) {
			c.Containers, c.InitContainers, c.RestartInPlace = []string{"main", "side"}, []string{"prepare"}, inPlace
		}
	}
	side := Hello{Conn: 2, Container: "side", Kind: wire.KindWorker}

	// Never: the last one ends the attempt, and one failure is enough.
	w := newStory(t, two(false)).play(Start{}).asked(first).play(main1(), side, Exited{1, 3})
	w.wants(1, wire.TypeAck, 3)
	w.play(Exited{2, 0})
	if e := w.ending(); e.Complete || e.End.Outcome != claim.OutcomeFailed || *e.End.ExitCode != 3 {
		t.Errorf("ending %+v", e)
	}
	w.settled().wants(2, wire.TypeAck, 0)

	// All 0: completed, and only then acknowledged.
	w = newStory(t, two(false)).play(Start{}).asked(first).play(main1(), side, Exited{1, 0})
	w.wants(1, wire.TypeAck, 0)
	w.play(Exited{2, 0}).wants(2, wire.TypeRun, 0)
	if !w.ending().Complete {
		t.Error("not completed")
	}
	w.settled().wants(2, wire.TypeAck, 0)

	// OnFailure: the first failure stops the others; the window is given back when they
	// are gone; their part is done again.
	w = newStory(t, two(true)).play(Start{}).asked(first).play(main1(), side, Exited{1, 3})
	w.wants(2, wire.TypeStop, 0)
	if w.s.Phase != Stopping {
		t.Errorf("%s while a container runs", w.s.Phase)
	}
	w.play(Exited{2, 0}).wants(2, wire.TypeAck, contract.ExitRetry)
	w.settled().wants(1, wire.TypeAck, 3)
	w.play(Hello{Conn: 3, Container: "main", Kind: wire.KindWorker}, Hello{Conn: 4, Container: "side", Kind: wire.KindWorker}).
		asked(claim.Answer{Verdict: claim.Run, Reason: claim.Retry, Attempt: 2})
	w.play(Exited{3, 0}).wants(3, wire.TypeAck, 0)
	if w.s.Phase != Held {
		t.Errorf("%s although side has not done its part again", w.s.Phase)
	}

	// A failed init container ends the attempt at once.
	w = newStory(t, two(false)).play(Start{}).asked(first).play(Hello{Conn: 1, Container: "prepare", Kind: wire.KindInit}, Exited{1, 1})
	if e := w.ending(); e.End.Outcome != claim.OutcomeFailed {
		t.Errorf("ending %+v", e)
	}
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		what   string
		events []Event
		want   claim.Outcome
		code   int // -1: not known
	}{
		{"exit code", []Event{Exited{1, 42}}, claim.OutcomeFailed, 42},
		{"out of memory", []Event{Exited{1, 137}}, claim.OutcomeCrashed, 137},
		{"segmentation fault", []Event{Exited{1, 139}}, claim.OutcomeCrashed, 139},
		{"the highest signal", []Event{Exited{1, 192}}, claim.OutcomeCrashed, 192},
		{"no signal any more", []Event{Exited{1, 193}}, claim.OutcomeFailed, 193},
		{"signal 0 is none", []Event{Exited{1, 128}}, claim.OutcomeFailed, 128},
		{"pod deleted, KILL", []Event{Terminating{1}, Exited{1, 137}}, claim.OutcomeStopped, 137},
		{"vanished", []Event{Broken{1}}, claim.OutcomeCrashed, -1},
		{"pod deleted", []Event{Terminating{1}, Exited{1, 143}}, claim.OutcomeStopped, 143},
		{"pod deleted, grace used up", []Event{Terminating{1}, Broken{1}}, claim.OutcomeStopped, 137},
	} {
		w := newStory(t, nil).play(Start{}, main1()).asked(first).play(c.events...)
		e := w.ending().End
		if e.Outcome != c.want || (e.ExitCode == nil) != (c.code < 0) || e.ExitCode != nil && *e.ExitCode != c.code || e.Message == "" {
			t.Errorf("%s: %+v", c.what, e)
		}
	}
}

// A crash of one container counts before an exit of another, whichever comes first.
func TestACrashCountsBeforeAnExit(t *testing.T) {
	for _, codes := range [][2]int{{3, 139}, {139, 3}} {
		w := newStory(t, func(c *Conf) { c.Containers = []string{"main", "side"} }).play(Start{}, main1(), Hello{Conn: 2, Container: "side", Kind: wire.KindWorker}).asked(first)
		w.play(Exited{1, codes[0]}, Exited{2, codes[1]})
		if e := w.ending().End; e.Outcome != claim.OutcomeCrashed || *e.ExitCode != 139 || !strings.Contains(e.Message, "signal 11") {
			t.Errorf("%v: %+v", codes, e)
		}
	}
}

// However long the lease, a worker hears soon that it is to be replaced.
func TestALongLeaseIsRenewedOften(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{30 * time.Second: 10 * time.Second, time.Hour: 30 * time.Second} {
		w := newStory(t, func(c *Conf) { c.Lease = contract.Duration(lease) }).play(Start{}, main1()).asked(first)
		if at, ok := w.s.Wake(); !ok || w.s.beatAt.After(at) || w.s.beatAt.Sub(w.s.trust) != want-lease+w.s.conf.margin() {
			t.Errorf("lease %s: the next heartbeat is %s before the end of trust", lease, w.s.trust.Sub(w.s.beatAt))
		}
	}
}

func TestCommitThroughTheEndpoint(t *testing.T) {
	// The exit is just recorded; a failure after the commit keeps its code.
	w := newStory(t, func(c *Conf) { c.Completion = contract.CompletionTransaction }).play(Start{}, main1()).asked(first)
	w.play(Committed{w.s.ExecutionID})
	if m := w.last(1); m.Type != wire.TypeTrust || m.TrustMS < time.Hour.Milliseconds() {
		t.Errorf("a worker whose window is done is bound by %+v", m)
	}
	w.play(Exited{1, 3})
	if e := w.ending(); e.Complete || e.End.Outcome != claim.OutcomeCompleted || *e.End.ExitCode != 3 {
		t.Errorf("ending %+v", e)
	}
	w.settled().wants(1, wire.TypeAck, 3)
	w.play(Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).wants(2, wire.TypeSkip, 0)

	// Without a commit exit 0 is a failure.
	w = newStory(t, func(c *Conf) { c.Completion = contract.CompletionTransaction }).play(Start{}, main1()).asked(first).play(Exited{1, 0})
	if e := w.ending(); e.End.Outcome != claim.OutcomeUncommitted {
		t.Errorf("ending %+v", e)
	}
	w.settled().wants(1, wire.TypeAck, 1)
}

// "Without a commit" is what the ledger says: the worker may have committed with a driver
// of its own, or through a guard that was killed before it heard of it.
func TestACommitThatTheGuardDidNotSee(t *testing.T) {
	transaction := func(c *Conf) { c.Completion = contract.CompletionTransaction }
	w := newStory(t, transaction).play(Start{}, main1()).asked(first).play(Exited{1, 0})
	w.play(Settled{ID: w.s.ExecutionID, Recorded: claim.OutcomeCompleted}).wants(1, wire.TypeAck, 0)
	w.play(Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).wants(2, wire.TypeSkip, 0)

	// After a failure too: the window is done, the code stays.
	w = newStory(t, nil).play(Start{}, main1()).asked(first).play(Exited{1, 3})
	w.play(Settled{ID: w.s.ExecutionID, Recorded: claim.OutcomeCompleted}).wants(1, wire.TypeAck, 3)
	w.play(Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).wants(2, wire.TypeSkip, 0)

	// While the ledger is away nobody is told that it did not commit.
	w = newStory(t, transaction).play(Start{}, main1()).asked(first).play(Exited{1, 0})
	for range 20 {
		w.play(Settled{ID: w.s.ExecutionID, Trouble: &Trouble{Fault: Away, Text: "connection refused"}}, Tick{})
	}
	w.wants(1, wire.TypeWait, 0)
	w.now = w.now.Add(time.Hour)
	w.play(Tick{}).wants(1, wire.TypeAck, contract.ExitRetry)
}

// A container that was told 0 is not started again; its part must stand when the
// completion of the others is lost.
func TestWhoWasToldStands(t *testing.T) {
	w := newStory(t, func(c *Conf) { c.Containers, c.RestartInPlace = []string{"main", "side"}, true })
	w.play(Start{}).asked(first).play(main1(), Hello{Conn: 2, Container: "side", Kind: wire.KindWorker}, Exited{2, 0}).wants(2, wire.TypeAck, 0)
	w.play(Exited{1, 0}, Settled{ID: w.s.ExecutionID, Trouble: &Trouble{Fault: Gone, Text: "fence lost"}}).wants(1, wire.TypeAck, contract.ExitRetry)
	w.play(Hello{Conn: 3, Container: "main", Kind: wire.KindWorker}).asked(claim.Answer{Verdict: claim.Run, Reason: claim.Retry, Attempt: 2})
	w.did = nil
	w.play(Exited{3, 0})
	if !w.ending().Complete {
		t.Errorf("%s: nobody will run side again, so the window is never completed", w.s.Phase)
	}
}

// Whoever waits for a verdict hears something at once, and then again and again.
func TestWaitingIsNeverSilent(t *testing.T) {
	w := newStory(t, nil).play(Start{}, main1())
	w.wants(1, wire.TypeWait, 0)
	for range 65 {
		w.play(Tick{})
	}
	if n := len(w.sent[1]); n != 7 {
		t.Errorf("%d words in 65 seconds: %+v", n, w.sent[1])
	}
	at, ok := w.s.Wake()
	if !ok || at.Sub(w.now) > stillWaiting {
		t.Errorf("the next word is due at %s", at)
	}
}

// A container that is started again while the guard is away is a new attempt, as it is
// when the guard is there; one that the word "run" never reached is not.
func TestRestartOfContainerWhileTheGuardIsAway(t *testing.T) {
	for _, ran := range []bool{true, false} {
		w := newStory(t, func(c *Conf) { c.RestartInPlace = true }).play(Start{}, main1()).asked(first)
		if ran {
			w.play(Started{1})
		}
		before, saved := w.s.ExecutionID, w.s.Saved
		w.s = NewState(w.s.conf, &saved)
		w.play(Start{}, Hello{Conn: 2, Container: "main", Kind: wire.KindWorker})
		if ran {
			if e := w.ending(); e.End.Outcome != claim.OutcomeCrashed {
				t.Errorf("ending %+v", e)
			}
			w.settled().asked(claim.Answer{Verdict: claim.Run, Reason: claim.Retry, Attempt: 2})
		} else {
			w.play(Beaten{ID: before, Sent: w.now, Beat: claim.BeatOK})
		}
		m := w.wants(2, wire.TypeRun, 0)
		if same := m.Env[contract.EnvExecutionID] == before.String(); same == ran {
			t.Errorf("ran %v, the same attempt %v", ran, same)
		}
	}
}

func TestReplacedIdIsFoundByHeartbeat(t *testing.T) {
	w := newStory(t, nil).play(Start{}, main1()).asked(first)
	old, next := w.s.ExecutionID, uuid.New()
	w.play(Replacing{old, next}) // the resolve replaced it, and its answer was lost
	w.play(Beaten{ID: old, Sent: w.now, Beat: claim.BeatLost})
	if w.s.Phase != Held || w.s.ExecutionID != next {
		t.Errorf("%s as %s, want held as %s", w.s.Phase, w.s.ExecutionID, next)
	}
	w.play(Beaten{ID: next, Sent: w.now, Beat: claim.BeatLost}).wants(1, wire.TypeStop, 0)
}

func TestStopLeavesTimeToKillBeforeTheLeaseEnds(t *testing.T) {
	w := newStory(t, nil).play(Start{}, main1()).asked(first)
	sent := w.now.Add(-time.Second)
	for w.s.Phase == Held {
		at, ok := w.s.Wake()
		if !ok || at.After(sent.Add(time.Minute)) {
			t.Fatal("never stopped")
		}
		var effects []Effect
		w.now = at
		w.s, effects = Next(w.s, Input{Now: at, Event: Tick{}})
		for _, f := range effects {
			if m, ok := f.(Send); ok {
				w.sent[m.Conn] = append(w.sent[m.Conn], m.Message)
			}
		}
	}
	m := w.wants(1, wire.TypeStop, 0)
	if killed := w.now.Add(time.Duration(m.GraceMS) * time.Millisecond); !killed.Before(sent.Add(30 * time.Second)) {
		t.Errorf("killed at %s, the lease ends at %s", killed, sent.Add(30*time.Second))
	}
}

// A guard that is killed while it stops its workers must not hold on to the window and
// complete it: one of them was told to break off.
func TestRestartWhileStopping(t *testing.T) {
	two := func(c *Conf) { c.Containers = []string{"main", "side"} }
	w := newStory(t, two).play(Start{}).asked(first).play(main1(), Hello{Conn: 2, Container: "side", Kind: wire.KindWorker})
	w.play(Fenced{w.s.ExecutionID}, Exited{2, 0}).wants(2, wire.TypeAck, contract.ExitRetry)
	saved := w.s.Saved
	w.s = NewState(w.s.conf, &saved)
	w.play(Start{}, Hello{Conn: 3, Container: "main", Kind: wire.KindWorker, PID: 42}).wants(3, wire.TypeStop, 0)
	w.play(Exited{3, 0}).wants(3, wire.TypeAck, contract.ExitRetry)
	for _, f := range w.did {
		if s, ok := f.(Settle); ok && s.Ending.Complete {
			t.Error("completed what was broken off")
		}
	}
}
