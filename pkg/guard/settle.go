package guard

import (
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

const (
	// failureAck is how long a container that failed is kept for the sake of the
	// ledger: its outcome is then written in the background.
	failureAck = 5 * time.Second
	// stillSettling is how often a wrapper that waits for its ack is told so.
	stillSettling = 10 * time.Second
	// stillWaiting is how often one that waits for its verdict is told so.
	stillWaiting = 10 * time.Second
)

// settle begins to write an outcome.
func (m *step) settle(e Ending) {
	m.Phase, m.Ending = Settling, &e
	m.settling, m.tries, m.trouble = false, 0, ""
	m.settleAt = m.now
	m.ackBy = m.now.Add(failureAck)
	m.giveUp = m.conf.ledgerDeadline(m.now, Away)
	m.sayAt = m.now.Add(stillSettling)
	m.why = m.say(TextSettling)
}

// finish records how the processes of a completed attempt ended; it decides nothing
// any more.
func (m *step) finish() {
	code := 0
	for _, name := range m.conf.Containers {
		if r, ok := m.Reports[name]; ok && code == 0 {
			code = r.Code
		}
	}
	m.settle(Ending{End: claim.End{Outcome: claim.OutcomeCompleted, ExitCode: &code}})
	m.giveUp = m.now.Add(leastLedgerWait)
}

// settled takes the ledger's answer to Settle.
func (m *step) settled(e Settled) {
	m.settling = false
	if m.Phase != Settling || e.ID != m.ExecutionID {
		return
	}
	if t := e.Trouble; t != nil && t.Fault.passes() {
		m.tries++
		m.trouble = t.Text
		m.settleAt = m.now.Add(backoff(m.tries, m.chance))
		return
	}
	switch {
	case e.Trouble != nil && m.NextID != uuid.Nil: // a resolve may have replaced the id unseen
		m.ExecutionID, m.NextID = m.NextID, uuid.Nil
		m.settleAt = m.now
	case m.Committed:
		m.over()
	case m.Ending.awaited() && e.Trouble != nil:
		m.spoil(contract.ExitRetry, m.say(TextLostAtEnd, m.conf.Window, e.Trouble.Text))
		m.over()
	case m.Ending.Complete, e.Trouble == nil && e.Recorded == claim.OutcomeCompleted:
		// Not by Complete: the worker committed with a driver of its own, or through a guard
		// that was killed before it heard of the commit.
		m.Committed = true
		m.Skip = m.say(TextSkipCommitted, m.conf.Window, m.Attempt)
		m.log(zapcore.InfoLevel, m.say(TextCompleted, m.conf.Window))
		m.over()
	case m.Ending.awaited():
		m.log(zapcore.InfoLevel, m.say(TextReleased, m.Ending.End.Outcome, m.Ending.End.Message))
		code := 1 // the worker's own mistake: it did not commit
		if m.Ending.End.Outcome == claim.OutcomeStopped {
			code = contract.ExitRetry
		}
		m.spoil(code, m.Ending.End.Message)
		m.over()
	case e.Trouble != nil:
		m.log(zapcore.WarnLevel, m.say(TextNothingToRecord, e.Trouble.Text))
		m.over()
	default:
		m.log(zapcore.InfoLevel, m.say(TextReleased, m.Ending.End.Outcome, m.Ending.End.Message))
		m.over()
	}
}

// spoil turns the exit 0 of those who wait into a failure: what they did is not
// recorded, so it must be tried again. Who was told 0 before is not started again, so
// its part stands.
func (m *step) spoil(code int, why string) {
	m.log(zapcore.ErrorLevel, why)
	for name, r := range m.Reports {
		if r.Code == 0 && r.Ack == 0 && !r.Told {
			r.Ack, r.Said = code, why
			m.Reports[name] = r
		}
	}
}

// over ends the attempt, whose outcome was written or given up.
func (m *step) over() {
	m.ackAll()
	m.Ending = nil
	m.Phase = Idle
	if m.Committed {
		m.Phase = Done
	}
}

// settleDue performs what is due while an outcome is being written.
func (m *step) settleDue() {
	if !m.settling && !m.now.Before(m.giveUp) {
		switch text := m.trouble; {
		case m.Ending.Complete:
			m.spoil(contract.ExitRetry, m.say(TextNotRecorded, text))
		case m.Ending.awaited():
			m.spoil(contract.ExitRetry, m.say(TextNotLearned, text))
		default:
			m.log(zapcore.ErrorLevel, m.say(TextNothingToRecord, text))
		}
		m.over()
		return
	}
	if !m.settling && !m.now.Before(m.settleAt) {
		m.settling = true
		m.do(Settle{ID: m.ExecutionID, Ending: *m.Ending})
	}
	if !m.Ending.awaited() && !m.now.Before(m.ackBy) {
		m.ackAll() // goes on in the background
	}
	if !m.now.Before(m.sayAt) {
		m.sayAt = m.now.Add(stillSettling)
		for c, p := range m.each() {
			if p.exited {
				m.wait(c, m.say(TextSettling))
			}
		}
	}
}

// leave ends the guard after its SIGTERM, once no counted process is connected.
func (m *step) leave() {
	if m.leaving.IsZero() || m.Phase == Left {
		return
	}
	if m.anyCounted() && m.now.Before(m.leaving.Add(longestLeave)) {
		m.leaveBy = time.Time{}
		return
	}
	if m.leaveBy.IsZero() {
		m.leaveBy = m.now.Add(lastWords)
		m.farewell()
	}
	busy := m.Phase == Claiming && m.asking || m.Phase == Skipping || m.Phase == Settling
	if m.Phase == Held && !m.Committed { // a claim was answered after the farewell
		m.farewell()
		busy = true
	}
	if !busy || !m.now.Before(m.leaveBy) {
		m.Phase = Left
		m.do(Quit{})
	}
}

const (
	// lastWords bounds what is still written once all wrapped processes are gone: the
	// kubelet grants two seconds when the grace period is used up.
	lastWords = 700 * time.Millisecond
	// longestLeave bounds the wait for wrapped processes; the kubelet ends it earlier.
	longestLeave = time.Hour
)

// farewell gives back what the guard holds and nobody uses.
func (m *step) farewell() {
	if len(m.Running) > 0 {
		// A process that has not come back to a restarted guard may still run: its lease
		// must end by itself.
		return
	}
	e := Ending{End: claim.End{Outcome: claim.OutcomeStopped, Message: m.say(TextPodLeft)}}
	switch {
	case m.Phase == Held && m.Committed:
		m.finish()
		m.settleDue()
	case m.Phase == Held && len(m.Reports) == 0:
		e.End.Outcome = claim.OutcomeNotStarted
		fallthrough
	case m.Phase == Held, m.Phase == Adopting, m.Phase == Claiming && m.Unsure && !m.asking:
		m.settle(e)
		m.settleDue()
	}
}
