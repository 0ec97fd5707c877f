package guard

import (
	"cmp"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// asked takes the ledger's answer to a claim.
func (m *step) asked(e Asked) {
	m.asking = false
	if m.Phase != Claiming || e.ID != m.ExecutionID {
		return
	}
	if t := e.Trouble; t != nil {
		m.Unsure, m.trouble = true, t.Text
		if m.awaySince.IsZero() {
			m.awaySince, m.tries = m.now, 0
		}
		m.tries++
		m.askAt = m.now.Add(backoff(m.tries, m.chance))
		m.away = t.Fault
		m.waiting(zapcore.WarnLevel, m.say(TextAway, m.awayUntil().UTC().Format(time.RFC3339), t.Text))
		return
	}
	if !m.awaySince.IsZero() {
		m.awaySince, m.tries = time.Time{}, 0
	}
	m.Unsure = false
	a := e.Answer
	switch a.Verdict {
	case claim.Run:
		m.Phase = Held
		m.Attempt, m.FencingToken, m.Generation = a.Attempt, a.FencingToken, a.Generation
		m.renewed(e.Sent)
		m.keepUntil = m.now.Add(time.Duration(m.conf.StartTimeout))
		m.log(zapcore.InfoLevel, m.say(TextClaimed, m.conf.Window, a.Reason))
	case claim.Skip:
		m.skip(a.Reason, m.explained(m.skipText(a)))
	case claim.Wait:
		m.later(a)
	case claim.Refuse:
		m.refused(m.explained(m.refuseText(a)))
	}
}

// later handles a window that may not be taken yet: the same question is asked again.
// The wait has no bound of its own: the ledger ends it by start-deadline, Kubernetes by
// activeDeadlineSeconds.
func (m *step) later(a claim.Answer) {
	h := a.Holder
	m.held = a.Reason != claim.FenceLost
	m.tries++
	m.askAt = m.now.Add(poll(m.tries, longestPoll(a.Reason, time.Duration(m.conf.Lease)), m.chance))
	own := a.Reason == claim.BusyHeld || a.Reason == claim.Committing && m.isOwn(h) // busy speaks of this window only
	switch {
	case a.Reason == claim.FenceLost:
		m.ExecutionID = m.fresh
		m.log(zapcore.WarnLevel, m.say(TextClaimGone, m.conf.Window))
	case m.conf.Busy == contract.BusyFail && own:
		m.refuseWaiting(contract.ExitRetry, m.explained(m.say(TextBusyFail, m.conf.Window, h.Attempt, m.holder(h))))
		m.Phase = Idle
	case m.conf.Busy == contract.BusySkip && a.Reason == claim.BusyHeld:
		m.skip(a.Reason, m.explained(m.say(TextSkipBusy, m.conf.Window, h.Attempt, m.holder(h))))
	default:
		m.waiting(zapcore.InfoLevel, m.waitText(a))
	}
}

// skip ends the pod's interest in the window: recorded first, so that a duplicate
// is counted before its containers are gone.
func (m *step) skip(r claim.Reason, sentence string) {
	m.Phase, m.Skip = Skipping, sentence
	m.log(zapcore.InfoLevel, sentence)
	m.do(RecordSkip{ID: m.ExecutionID, Reason: r})
}

// refused ends everyone who waits with a code that a retry does not cure. Who comes
// later has the ledger asked again: a person may have decided since.
func (m *step) refused(sentence string) {
	m.log(zapcore.WarnLevel, sentence)
	m.refuseWaiting(contract.ExitRefused, sentence)
	m.Phase = Idle
}

// isOwn says whether h is about the window that was asked for.
func (m *step) isOwn(h claim.Holder) bool {
	return h.Window == window.Window{} || h.Window.JobName == m.conf.Window.JobName && h.Window.Start.Equal(m.conf.Window.Start)
}

// skipText explains a skip.
func (m *step) skipText(a claim.Answer) string {
	w, h := m.conf.Window, a.Holder
	switch r := a.Reason; {
	case r == claim.Closed:
		return m.say(TextSkipClosed, w)
	case r == claim.DST && !m.conf.Repeats.IsZero():
		return m.say(TextSkipRepeats, w, window.Window{JobName: w.JobName, Start: m.conf.Repeats})
	case r == claim.DST: // closed before, by one that knew
		return m.say(TextSkipRepeated, w)
	case r == claim.Late:
		if d := m.conf.StartDeadline; d > 0 {
			return m.say(TextSkipLate, w, time.Duration(d))
		}
		return m.say(TextSkipWasLate, w)
	case r == claim.Overlap && m.isOwn(h): // closed before: who was in the way is not told
		return m.say(TextSkipOverlapped, w)
	case r == claim.Overlap:
		return m.say(TextSkipOverlap, w, h.Window, h.Attempt, m.holder(h))
	case r == claim.Superseded && m.isOwn(h):
		return m.say(TextSkipReplaced, w)
	case r == claim.Superseded:
		return m.say(TextSkipSuperseded, w, h.Window, h.Attempt, m.holder(h))
	case r == claim.Cancelled:
		return m.say(TextSkipCancelled, w)
	case r == claim.AlreadyCompleted:
		return m.say(TextSkipCompleted, w, h.Attempt, m.holder(h), h.CompletedAt.UTC().Format(time.RFC3339))
	}
	return m.say(TextSkipOther, w, a.Reason)
}

// waitText says what is waited for.
func (m *step) waitText(a claim.Answer) string {
	w, h := m.conf.Window, a.Holder
	switch {
	case a.Reason == claim.Overlap:
		return m.say(TextOverlap, w, h.Window, h.Attempt, m.holder(h))
	case a.Reason == claim.Replacing:
		return m.say(TextReplacing, w, h.Window, h.Attempt, m.holder(h))
	case a.Reason == claim.Order && h.Attempt > 0:
		return m.say(TextOrder, w, h.Window, h.Attempt, m.holder(h), m.command("cancel", h.Window))
	case a.Reason == claim.Order && m.conf.Namespace == "": // guard run
		return m.say(TextOrderRun, w, h.Window, h.Window.JobName, h.Window.Start.UTC().Format(time.RFC3339), m.command("cancel", h.Window))
	case a.Reason == claim.Order:
		return m.say(TextOrderUnseen, w, h.Window, m.command("cancel", h.Window))
	case a.Reason == claim.Committing && !m.isOwn(h):
		return m.say(TextCommittingOther, w, h.Window, h.Attempt, m.holder(h))
	case a.Reason == claim.Committing:
		return m.say(TextCommitting, w, h.Attempt, m.holder(h))
	default:
		return m.say(TextBusy, w, h.Attempt, m.holder(h))
	}
}

// refuseText says why a retry makes no sense, and what a person can do.
func (m *step) refuseText(a claim.Answer) string {
	w, h := m.conf.Window, a.Holder
	if a.Reason == claim.PayloadConflict {
		return m.say(TextRefusePayload, w, h.PayloadDigest, cmp.Or(m.conf.PayloadDigest, "-"), m.command("rerun", w), m.command("cancel", w))
	}
	if a.Reason == claim.IsExhausted {
		return m.say(TextRefuseExhausted, w, h.Attempt, m.holder(h), m.command("rerun", w))
	}
	if a.Reason == claim.IsHeld {
		return m.say(TextRefuseHeld, w, h.Attempt, m.holder(h), m.command("rerun", w), m.command("cancel", w))
	}
	return m.say(TextRefuseOther, w, a.Reason)
}

// command is what a person types about a window, with the login of the ledger's owner.
func (m *step) command(verb string, w window.Window) string {
	return "kubectl onceguard " + verb + " " + w.JobName + " " + w.Start.UTC().Format(time.RFC3339) + " --reason TEXT --ledger-url-file OWNER_URL"
}

// holder names an attempt's place for people.
func (m *step) holder(h claim.Holder) string {
	if h.Pod == "" {
		return m.say(TextProcess)
	}
	return m.say(TextPod, h.Pod)
}

// longestPoll bounds the pause between two questions. What stands in the way of this
// window itself, or was asked to stop, is about to be decided; another window of the job
// may run for hours.
func longestPoll(why claim.Reason, lease time.Duration) time.Duration {
	if why == claim.Overlap || why == claim.Order {
		return 30 * time.Second
	}
	return min(lease/3, 5*time.Second)
}

// poll is the pause before asking again: from about a second it grows by half a second
// with each try up to most, with jitter.
func poll(tries int, most time.Duration, chance float64) time.Duration {
	d := min(most, time.Second+time.Duration(max(0, tries-1))*500*time.Millisecond)
	return d*3/4 + time.Duration(chance*float64(d/2))
}
