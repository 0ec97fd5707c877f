package guard

import (
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/pkg/wire"
)

// holding is another window of the job, and who has it.
func holding(start string) claim.Holder {
	at, err := time.Parse(time.RFC3339, start)
	if err != nil {
		panic(err)
	}
	return claim.Holder{Window: window.Window{JobName: "shop/order-sync", Start: at}, Attempt: 2, Pod: "shop/other"}
}

// What the ledger says becomes an exit code and a sentence that says why, in both
// languages: who is in the way, and what a person can do.
func TestEachVerdictIsExplained(t *testing.T) {
	const own, other = "2026-11-30T13:18:00Z", "2026-11-30T13:17:00Z"
	payload := holding(own)
	payload.PayloadDigest = "sha256:stored"
	heard := map[claim.Verdict]wire.Message{
		claim.Skip: {Type: wire.TypeSkip}, claim.Wait: {Type: wire.TypeWait}, claim.Refuse: {Type: wire.TypeRefuse, Code: contract.ExitRefused},
	}
	seen := claim.Holder{Window: holding(other).Window}
	for _, c := range []struct {
		verdict claim.Verdict
		reason  claim.Reason
		holder  claim.Holder
		words   []string
	}{
		{claim.Skip, claim.Late, holding(own), []string{own, "30m0s", "start-deadline"}},
		{claim.Skip, claim.Overlap, holding(other), []string{own, other, "2", "shop/other", "overlap=skip"}},
		{claim.Skip, claim.Overlap, holding(own), []string{own}},
		{claim.Skip, claim.Superseded, holding(other), []string{own, other, "2", "shop/other"}},
		{claim.Skip, claim.Superseded, claim.Holder{}, []string{own}},
		{claim.Skip, claim.Cancelled, claim.Holder{}, []string{own}},
		{claim.Skip, claim.Closed, claim.Holder{}, []string{own}},
		{claim.Skip, claim.DST, claim.Holder{}, []string{own}},
		{claim.Skip, "of tomorrow", claim.Holder{}, []string{own, "of tomorrow"}},

		{claim.Wait, claim.Overlap, holding(other), []string{own, other, "2", "shop/other"}},
		{claim.Wait, claim.Replacing, holding(other), []string{own, other, "2", "shop/other"}},
		{claim.Wait, claim.Order, holding(other), []string{own, other, "2", "shop/other", "order=serial", "kubectl onceguard cancel shop/order-sync " + other}},
		{claim.Wait, claim.Order, seen, []string{own, other, "order=serial", "kubectl onceguard cancel shop/order-sync " + other}},
		{claim.Wait, claim.Committing, holding(other), []string{own, other, "2", "shop/other"}},
		{claim.Wait, claim.Committing, holding(own), []string{own, "2", "shop/other"}},

		{claim.Refuse, claim.PayloadConflict, payload, []string{own, "sha256:stored", "sha256:ours"}},
		{claim.Refuse, claim.IsExhausted, holding(own), []string{own, "exhausted", "2", "shop/other", "kubectl onceguard rerun shop/order-sync " + own}},
		{claim.Refuse, claim.IsHeld, holding(own), []string{own, "2", "shop/other", "kubectl onceguard rerun shop/order-sync " + own, "kubectl onceguard cancel shop/order-sync " + own}},
		{claim.Refuse, "of tomorrow", claim.Holder{}, []string{own, "of tomorrow"}},
	} {
		for _, language := range []string{"en", "zh"} {
			w := newStory(t, func(conf *Conf) {
				conf.LogLanguage, conf.StartDeadline, conf.PayloadDigest = language, contract.Duration(30*time.Minute), "sha256:ours"
			}).play(Start{}, main1()).asked(claim.Answer{Verdict: c.verdict, Reason: c.reason, Holder: c.holder})
			if c.verdict == claim.Skip {
				if r, ok := w.did[len(w.did)-1].(RecordSkip); !ok || r.Reason != c.reason {
					t.Errorf("%s: %+v is not the record of the skip", c.reason, w.did[len(w.did)-1])
				}
				w.play(SkipRecorded{})
			}
			want := heard[c.verdict]
			m := w.wants(1, want.Type, want.Code)
			for _, word := range c.words {
				if !strings.Contains(m.Message, word) {
					t.Errorf("%s %s (%s) does not say %q: %s", c.verdict, c.reason, language, word, m.Message)
				}
			}
			if strings.Contains(m.Message, "%!") {
				t.Errorf("%s %s (%s): %s", c.verdict, c.reason, language, m.Message)
			}
		}
	}
}

// A refusal stands for this container only: a person may decide, and a container that is
// started again asks anew.
func TestARefusalIsAskedAgain(t *testing.T) {
	held := claim.Answer{Verdict: claim.Refuse, Reason: claim.IsHeld}
	w := newStory(t, nil).play(Start{}).asked(held) // before anybody came
	w.play(main1()).asked(held).wants(1, wire.TypeRefuse, contract.ExitRefused)
	w.play(Broken{1}, Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).
		asked(claim.Answer{Verdict: claim.Run, Reason: claim.Retry, Attempt: 3}).wants(2, wire.TypeRun, 0)
}

// busy speaks of the same window: another window of the job is waited for in any case.
func TestBusyIsAboutTheSameWindow(t *testing.T) {
	for _, busy := range []contract.Busy{contract.BusySkip, contract.BusyFail} {
		for _, reason := range []claim.Reason{claim.Overlap, claim.Replacing, claim.Order, claim.Committing} {
			w := newStory(t, func(c *Conf) { c.Busy = busy }).play(Start{}, main1()).
				asked(claim.Answer{Verdict: claim.Wait, Reason: reason, Holder: holding("2026-11-30T13:17:00Z")})
			w.wants(1, wire.TypeWait, 0)
		}
	}
}

func TestARestartedContainerWithAProbeWaitsForNobody(t *testing.T) {
	w := newStory(t, func(c *Conf) { c.Probed, c.RestartInPlace = []string{"main"}, true })
	w.play(Start{}, main1()).asked(first).play(Exited{1, 1}).settled()
	w.play(Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).
		asked(claim.Answer{Verdict: claim.Wait, Reason: claim.Overlap, Holder: holding("2026-11-30T13:17:00Z")})
	if m := w.wants(2, wire.TypeRefuse, contract.ExitRetry); !strings.Contains(m.Message, "13:17:00Z") {
		t.Errorf("it waits for whom? %s", m.Message)
	}
}

// Another window may run for hours, so it is asked for ever less often; this one's own
// outcome is near.
func TestPausesBetweenQuestions(t *testing.T) {
	for reason, want := range map[claim.Reason]time.Duration{
		claim.BusyHeld: 5 * time.Second, claim.Committing: 5 * time.Second, claim.Replacing: 5 * time.Second,
		claim.Overlap: 30 * time.Second, claim.Order: 30 * time.Second,
	} {
		w := newStory(t, nil).play(Start{}, main1())
		answer := claim.Answer{Verdict: claim.Wait, Reason: reason, Holder: holding("2026-11-30T13:17:00Z")}
		var pauses []time.Duration
		for range 120 {
			w.asked(answer)
			pauses = append(pauses, w.s.askAt.Sub(w.now))
			w.now = w.s.askAt
			w.play(Tick{})
		}
		// The story's chance is 0: three quarters of the pause.
		if first, last := pauses[0], pauses[len(pauses)-1]; first != 750*time.Millisecond || last != want*3/4 {
			t.Errorf("%s: pauses from %s to %s, want to %s", reason, first, last, want*3/4)
		}
	}
	// Pods that wait for the same window do not ask in the same instant.
	if low, high := poll(200, 30*time.Second, 0), poll(200, 30*time.Second, 0.99); high-low < 10*time.Second || high > 40*time.Second {
		t.Errorf("pauses from %s to %s", low, high)
	}
}

// A newer window replaces this one: its worker gets TERM, then KILL, while the lease goes
// on; the window is given back as soon as it is gone, and its pod says why.
func TestAReplacedWindowIsGivenBackAtOnce(t *testing.T) {
	const grace = 2 * time.Minute
	pod := func(c *Conf) { c.Grace = contract.Duration(grace) }
	w := newStory(t, pod).play(Start{}, main1()).asked(first)
	w.play(Beaten{ID: w.s.ExecutionID, Sent: w.now, Beat: claim.BeatCancel})
	if m := w.wants(1, wire.TypeStop, 0); m.GraceMS != grace.Milliseconds() || !strings.Contains(m.Message, "overlap=replace") {
		t.Errorf("stopped by %+v", m)
	}
	if w.s.Phase != Stopping {
		t.Fatalf("%s while the worker runs", w.s.Phase)
	}
	w.play(Exited{1, 0}) // politely, and not done
	if e := w.ending(); e.Complete || e.End.Outcome != claim.OutcomeStopped || !strings.Contains(e.End.Message, "overlap=replace") {
		t.Errorf("ending %+v", e)
	}
	if m := w.settled().wants(1, wire.TypeAck, contract.ExitRetry); !strings.Contains(m.Message, "overlap=replace") {
		t.Errorf("the pod says %q", m.Message)
	}
	// Its next pod, or the container started again, learns that the window is closed.
	w.play(Hello{Conn: 2, Container: "main", Kind: wire.KindWorker}).asked(claim.Answer{Verdict: claim.Skip, Reason: claim.Superseded}).
		play(SkipRecorded{}).wants(2, wire.TypeSkip, 0)

	// Nobody told the pod's grace: it is what Kubernetes gives by default.
	w = newStory(t, nil).play(Start{}, main1()).asked(first)
	w.play(Beaten{ID: w.s.ExecutionID, Sent: w.now, Beat: claim.BeatCancel})
	if m := w.wants(1, wire.TypeStop, 0); m.GraceMS != (30 * time.Second).Milliseconds() {
		t.Errorf("stopped by %+v", m)
	}

	// The pod is being deleted already: KILL is the kubelet's, after the grace it was told.
	w = newStory(t, pod).play(Start{}, main1()).asked(first).play(Terminating{1})
	w.play(Beaten{ID: w.s.ExecutionID, Sent: w.now, Beat: claim.BeatCancel})
	if m := w.wants(1, wire.TypeStop, 0); m.GraceMS < time.Hour.Milliseconds() {
		t.Errorf("stopped by %+v", m)
	}

	// What it committed in its grace counts.
	w = newStory(t, nil).play(Start{}, main1()).asked(first)
	w.play(Beaten{ID: w.s.ExecutionID, Sent: w.now, Beat: claim.BeatCancel}, Committed{w.s.ExecutionID}, Exited{1, 0}).settled().wants(1, wire.TypeAck, 0)

	// Nobody has started: at once.
	w = newStory(t, nil).play(Start{}).asked(first)
	w.play(Beaten{ID: w.s.ExecutionID, Sent: w.now, Beat: claim.BeatCancel})
	if e := w.ending(); e.End.Outcome != claim.OutcomeStopped {
		t.Errorf("ending %+v", e)
	}
}
