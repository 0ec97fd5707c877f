package guard

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// renewed trusts the lease again, counted from before the request was sent, so that
// a slow answer cannot stretch it.
func (m *step) renewed(sent time.Time) {
	lease := time.Duration(m.conf.Lease)
	m.trust = sent.Add(lease - m.conf.margin())
	m.beatAt = sent.Add(min(lease/3, longestBeat))
	m.beatTries = 0
}

// longestBeat is the longest pause between two heartbeats, however long the lease: by
// them a worker hears that it is to be replaced.
const longestBeat = 30 * time.Second

// trusted says whether enough of the lease is left to start or go on.
func (m *step) trusted() bool { return m.Committed || m.now.Before(m.stopAt()) }

// stopAt is when workers must be told to stop, so that KILL falls before the end.
func (m *step) stopAt() time.Time { return m.trust.Add(-m.conf.grace()) }

// beaten takes the answer to a heartbeat.
func (m *step) beaten(e Beaten) {
	m.beating = false
	keeping := m.Phase == Held || m.Phase == Adopting || m.Phase == Stopping && m.stopKeep
	if !keeping || m.Committed {
		return
	}
	if e.ID != m.ExecutionID { // replaced meanwhile
		m.beatAt = m.now
		return
	}
	if t := e.Trouble; t != nil && t.Fault.passes() {
		m.beatTries++
		m.beatAt = m.now.Add(backoff(m.beatTries, m.chance))
		if m.Phase == Adopting {
			m.adoptAway(t)
			return
		}
		m.log(zapcore.WarnLevel, m.say(TextAwayRunning, m.stopAt().UTC().Format(time.RFC3339Nano), t.Text))
		return
	}
	switch {
	case e.Trouble != nil || e.Beat == claim.BeatLost:
		if m.NextID != uuid.Nil { // a resolve whose answer we never saw may have replaced it
			m.ExecutionID, m.NextID = m.NextID, uuid.Nil
			m.beatAt = m.now
			return
		}
		m.lost()
	case e.Beat == claim.BeatCancel:
		m.renewed(e.Sent)
		if m.Phase != Stopping {
			m.adopted()
			m.stopAll(m.say(TextCancelled, m.conf.Window), m.conf.stopGrace(), true,
				&Ending{End: claim.End{Outcome: claim.OutcomeStopped, Message: m.say(TextCancelled, m.conf.Window)}})
		}
	default:
		m.renewed(e.Sent)
		m.adopted()
		for c, p := range m.each() {
			if p.live() && !p.stopped && m.trusted() { // not when the answer took too long
				m.sendTrust(c)
			}
		}
	}
}

// adopted ends Adopting: the attempt of before the restart is still current.
func (m *step) adopted() {
	if m.Phase != Adopting {
		return
	}
	m.Phase, m.awaySince = Held, time.Time{}
	m.log(zapcore.InfoLevel, m.say(TextAdopted, m.conf.Window))
}

// adoptAway lets wrappers wait that came while it is not known whether the attempt
// is still ours; those that run count down the trust that they have.
func (m *step) adoptAway(t *Trouble) {
	if m.awaySince.IsZero() {
		m.awaySince = m.now
	}
	m.trouble = t.Text
	m.away = t.Fault
	m.waiting(zapcore.WarnLevel, m.say(TextAway, m.awayUntil().UTC().Format(time.RFC3339), t.Text))
}

// lost stops everything at once: another attempt may be running already. There is
// nothing to report, since the record is no longer ours.
func (m *step) lost() {
	m.stopAll(m.say(TextLost, m.conf.Window), m.graceLeft(), false, nil)
}

// graceLeft is the grace that the trusted time still allows; a lease that was lost
// early gets the whole grace, since the fence protects what is committed.
func (m *step) graceLeft() time.Duration {
	if m.trust.IsZero() {
		return m.conf.grace()
	}
	return min(m.conf.grace(), max(0, m.trust.Sub(m.now)))
}

// stopAll tells every live process to stop; the ending is written when all are gone.
func (m *step) stopAll(why string, grace time.Duration, keep bool, e *Ending) {
	m.Phase, m.stopKeep, m.stopWhy, m.Ending = Stopping, keep, why, e
	m.log(zapcore.WarnLevel, why)
	for c, p := range m.each() {
		if p.live() && keep && p.terminating {
			m.stop(c, why, longestLeave) // the pod is being deleted: the kubelet sends KILL, when its time has come
		} else if p.live() {
			m.stop(c, why, grace)
		}
	}
	m.stopped()
}

// stopped leaves Stopping once nobody runs.
func (m *step) stopped() {
	if m.Phase != Stopping || m.anyLive() {
		return
	}
	switch {
	case m.Committed:
		m.finish()
	case m.Ending != nil:
		m.settle(*m.Ending)
	default:
		m.ackAll()
		m.Phase = Idle
	}
}

// ended takes the end of a counted process that was running.
func (m *step) ended(p proc, r Report) {
	m.Running = slices.DeleteFunc(m.Running, func(n string) bool { return n == p.container })
	m.keepUntil = m.now.Add(time.Duration(m.conf.StartTimeout))
	switch {
	case m.Committed:
		m.Reports[p.container] = r
		if m.Phase == Held && m.allReported() {
			m.finish()
			return
		}
		m.ackOne(p.container)
		m.stopped()
	case m.Phase == Stopping || p.stopped:
		r.Ack, r.Said = contract.ExitRetry, m.stopWhy
		m.Reports[p.container] = r
		m.ackOne(p.container)
		m.stopped()
	case m.Phase == Held || m.Phase == Adopting:
		m.Reports[p.container] = r
		m.judge(p, r)
	default:
		m.Reports[p.container] = r
		m.ackOne(p.container)
	}
}

// judge decides what the end of one container means for the attempt.
//
//	container    code   others        in place   then
//	init         ≠ 0    –             –          the attempt failed
//	worker       ≠ 0    any           yes        the attempt failed; the others are stopped
//	worker       ≠ 0    not ended     no         go on; it cannot become a success
//	init         0      –             –          go on
//	worker       0      not ended     any        go on
//	worker       any    all ended, one ≠ 0       the attempt failed
//	worker       0      all ended 0              completed; when only a commit completes: uncommitted,
//	                                             unless the ledger knows of one
//	worker       0      all ended 0, one after SIGTERM    stopped, unless the ledger knows of a commit:
//	                                             Kubernetes asked it to break off (deadline, deletion,
//	                                             Replace), and a polite exit 0 does not say that the
//	                                             work is whole
func (m *step) judge(p proc, r Report) {
	if r.Code != 0 && (p.kind == wire.KindInit || m.conf.RestartInPlace) {
		m.fail(p.container, r)
		return
	}
	if !m.allReported() {
		m.ackOne(p.container)
		return
	}
	if name := m.culprit(); name != "" {
		m.fail(name, m.Reports[name])
		return
	}
	if m.conf.Completion == contract.CompletionTransaction {
		// Only the ledger knows whether a commit was made that the guard did not see.
		m.settle(Ending{End: claim.End{Outcome: claim.OutcomeUncommitted, ExitCode: &r.Code, Message: m.say(TextUncommitted, m.conf.Window)}})
		return
	}
	for _, name := range m.conf.Containers {
		if q := m.Reports[name]; q.Terminated {
			m.settle(Ending{End: claim.End{Outcome: claim.OutcomeStopped, ExitCode: &q.Code, Message: m.say(TextSignalled, name, q.Code)}})
			return
		}
	}
	m.settle(Ending{Complete: true})
}

// culprit is the worker for whose sake the attempt failed; empty when none did. A crash
// counts before an exit, which may be its consequence.
func (m *step) culprit() (name string) {
	for _, n := range m.conf.Containers {
		switch r := m.Reports[n]; {
		case r.crashed():
			return n
		case r.Code != 0 && name == "":
			name = n
		}
	}
	return name
}

// fail ends the attempt for the sake of one container.
func (m *step) fail(name string, r Report) {
	e := Ending{End: claim.End{Outcome: claim.OutcomeFailed, ExitCode: &r.Code, Message: m.say(TextExited, name, r.Code)}}
	switch {
	case r.Terminated:
		e.End.Outcome, e.End.Message = claim.OutcomeStopped, m.say(TextSignalled, name, r.Code)
	case r.crashed() && !r.Vanished:
		e.End.Outcome, e.End.Message = claim.OutcomeCrashed, m.say(TextKilled, name, r.Code-128, r.Code)
	case r.Vanished:
		// Kubernetes knows its code, we do not.
		e.End.Outcome, e.End.ExitCode, e.End.Message = claim.OutcomeCrashed, nil, m.say(TextVanished, name)
	}
	if m.anyLive() {
		// The lease is kept until they are gone: another pod must not start beside them.
		m.stopAll(m.say(TextSibling, e.End.Message), m.conf.stopGrace(), true, &e)
		return
	}
	m.settle(e)
}
