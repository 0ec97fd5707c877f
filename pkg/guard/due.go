package guard

import (
	"iter"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// due performs what the clock asks for.
func (m *step) due() {
	switch m.Phase {
	case Claiming:
		m.claimDue()
	case Held, Adopting, Stopping:
		m.holdDue()
	case Refused, Idle, Skipping, Settling, Done, Left:
	}
	if m.Phase == Settling { // also when it has just begun
		m.settleDue()
	}
}

func (m *step) claimDue() {
	if m.asking {
		return
	}
	if !m.awaySince.IsZero() && !m.now.Before(m.awayUntil()) {
		m.giveUpWaiting()
		m.Phase = Idle
		return
	}
	if !m.now.Before(m.askAt) {
		m.asking = true
		m.do(Ask{ID: m.ExecutionID})
	}
}

func (m *step) giveUpWaiting() {
	text := m.say(TextAwayOver, m.trouble)
	m.log(zapcore.WarnLevel, text)
	m.refuseWaiting(contract.ExitRetry, text)
}

func (m *step) holdDue() {
	m.expectDue()
	keep := m.anyCounted() || len(m.Running) > 0 || m.now.Before(m.keepUntil)
	switch {
	case m.Phase == Stopping:
		m.stopped()
		if m.Phase != Stopping || !m.stopKeep {
			return
		}
		if m.now.After(m.trust) { // the stop outlived the lease: KILL now
			m.stopKeep = false
			for c, p := range m.each() {
				if p.live() {
					m.stop(c, m.stopWhy, 0)
				}
			}
			return
		}
	case m.Phase == Held && m.Committed:
		if !keep {
			m.finish()
		}
		return
	case m.Phase == Held && !keep:
		timeout := time.Duration(m.conf.StartTimeout)
		m.settle(Ending{End: claim.End{Outcome: claim.OutcomeNotStarted, Message: m.say(TextNotStarted, timeout)}})
		return
	case m.Phase == Held && m.anyLive() && !m.now.Before(m.stopAt()):
		m.stopAll(m.say(TextTrustEnded), m.graceLeft(), false,
			&Ending{End: claim.End{Outcome: claim.OutcomeStopped, Message: m.say(TextTrustEnded)}})
		return
	case m.Phase == Held && !m.anyLive() && m.now.After(m.trust):
		// Nobody runs, so asking again is safe: with the same id it is adopted, or gone.
		m.Phase, m.Unsure, m.askAt = Claiming, true, m.now
		m.claimDue()
		return
	case m.Phase == Adopting && !m.awaySince.IsZero() && !m.now.Before(m.awayUntil()):
		m.giveUpWaiting()
		m.awaySince = m.now
	}
	if m.Phase != Idle && !m.beating && !m.now.Before(m.beatAt) {
		m.beating = true
		by := m.trust
		if m.Phase == Adopting {
			by = m.now.Add(time.Duration(m.conf.Lease))
		}
		m.do(Heartbeat{ID: m.ExecutionID, By: by})
	}
}

// expectDue gives up on processes of before a restart that did not come back.
func (m *step) expectDue() {
	if m.now.Before(m.expectBy) {
		return
	}
	for _, name := range m.missing() {
		m.ended(proc{container: name, kind: m.kindOf(name)}, Report{Code: 137, Ack: 137, Vanished: true})
	}
}

// missing names the containers that ran before a restart and are not connected.
func (s State) missing() []string {
	var names []string
	for _, name := range s.Running {
		back := false
		for _, p := range s.conns {
			back = back || p.counted() && p.running && p.container == name
		}
		if !back {
			names = append(names, name)
		}
	}
	return names
}

func (m *step) kindOf(name string) wire.Kind {
	if slices.Contains(m.conf.InitContainers, name) {
		return wire.KindInit
	}
	return wire.KindWorker
}

// answer gives a verdict to whoever can have one.
func (m *step) answer() {
	for c, p := range m.each() {
		if p.told {
			continue
		}
		if !m.leaving.IsZero() && m.Phase != Done && m.Phase != Refused {
			m.refuse(c, contract.ExitRetry, m.say(TextLeaving))
			continue
		}
		switch m.Phase {
		case Refused:
			m.refuse(c, contract.ExitRefused, m.say(TextRefused, m.conf.Refusal))
		case Done:
			m.skipOne(c, m.Skip)
		case Idle:
			if p.kind == wire.KindHook {
				m.skipOne(c, m.say(TextSkipHook, m.conf.Window))
				continue
			}
			m.acquire()
			m.claimDue()
			m.patience(c, p)
		case Held:
			if _, reported := m.Reports[p.container]; m.Committed && reported && p.counted() {
				m.skipOne(c, m.Skip)
			} else if m.trusted() {
				m.run(c, p)
			}
		case Claiming, Adopting, Settling, Stopping, Skipping:
			m.patience(c, p)
		case Left:
		}
	}
}

// patience tells p to wait: at once, if only with an empty word, and again from time to
// time, since who hears nothing takes the guard for dead.
func (m *step) patience(c Conn, p proc) {
	why := m.why
	if why == "" && p.kind == wire.KindHook {
		why = m.say(TextAsking, m.conf.Window) // a hook may not want to wait
	}
	switch {
	case m.Phase == Claiming && m.held && m.mustNotWait(p):
		m.refuse(c, contract.ExitRetry, m.say(TextProbed, m.why))
	case p.saidAt.IsZero(), p.said != why, !m.now.Before(p.saidAt.Add(stillWaiting)):
		p.said, p.saidAt = why, m.now
		m.conns[c] = p
		m.wait(c, why)
	}
}

// mustNotWait says whether a probe would kill p while it waits: the claim container,
// which waits in its stead, is not run again when a container is restarted in place.
func (m *step) mustNotWait(p proc) bool {
	return p.counted() && slices.Contains(m.conf.Probed, p.container) && slices.Contains(m.Started, p.container)
}

// started notes that a container's process ran.
func (m *step) started(container string) {
	if !slices.Contains(m.Started, container) {
		m.Started = append(m.Started, container)
	}
}

// run gives the right to run.
func (m *step) run(c Conn, p proc) {
	p.told, p.running = true, p.counted()
	m.conns[c] = p
	if p.counted() {
		delete(m.Reports, p.container)
		if !slices.Contains(m.Running, p.container) {
			m.Running = append(m.Running, p.container)
		}
	}
	msg := m.trustMessage(wire.TypeRun)
	msg.Env = m.env()
	m.do(Send{c, msg})
}

// Wake is when the next Tick is due; false means that nothing is awaited from the clock.
func (s State) Wake() (time.Time, bool) {
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	switch s.Phase {
	case Claiming:
		if !s.asking {
			sooner(s.askAt)
			if !s.awaySince.IsZero() {
				sooner(s.awayUntil())
			}
		}
	case Held, Adopting, Stopping:
		if !s.beating && !s.Committed && (s.Phase != Stopping || s.stopKeep) {
			sooner(s.beatAt)
		}
		if len(s.missing()) > 0 {
			sooner(s.expectBy)
		}
		if s.Phase == Held && !s.anyCounted() && len(s.Running) == 0 {
			sooner(s.keepUntil)
		}
		if s.Phase == Held && !s.Committed {
			if s.anyLive() {
				sooner(s.trust.Add(-s.conf.grace()))
			} else {
				sooner(s.trust.Add(time.Nanosecond))
			}
		}
		if s.Phase == Stopping && s.stopKeep {
			sooner(s.trust.Add(time.Nanosecond))
		}
		if s.Phase == Adopting && !s.awaySince.IsZero() {
			sooner(s.awayUntil())
		}
	case Settling:
		if !s.settling {
			sooner(s.settleAt)
			sooner(s.giveUp)
		}
		if !s.Ending.awaited() && s.anyExited() {
			sooner(s.ackBy)
		}
		if s.anyExited() {
			sooner(s.sayAt)
		}
	case Refused, Idle, Skipping, Done, Left:
	}
	switch s.Phase {
	case Claiming, Adopting, Settling, Stopping, Skipping:
		for _, p := range s.conns {
			if !p.told && !p.saidAt.IsZero() {
				sooner(p.saidAt.Add(stillWaiting))
			}
		}
	case Refused, Idle, Held, Done, Left:
	}
	if !s.leaving.IsZero() {
		sooner(s.leaveBy)
		if s.leaveBy.IsZero() {
			sooner(s.leaving.Add(longestLeave))
		}
	}
	return at, !at.IsZero()
}

func (s State) anyExited() bool {
	for _, p := range s.conns {
		if p.exited {
			return true
		}
	}
	return false
}

// each gives the connections in a fixed order, so that a step is a function of its
// input; it may be changed meanwhile.
func (m *step) each() iter.Seq2[Conn, proc] {
	return func(yield func(Conn, proc) bool) {
		for _, c := range slices.Sorted(maps.Keys(m.conns)) {
			if p, ok := m.conns[c]; ok && !yield(c, p) {
				return
			}
		}
	}
}

func (m *step) log(l zapcore.Level, text string) { m.do(Log{l, text}) }

func (m *step) do(e Effect) { m.out = append(m.out, e) }

func (m *step) say(k Key, args ...any) string { return say(m.conf.LogLanguage, k, args...) }

// backoff is the pause before another try at a ledger that is away: doubling from
// a quarter of a second to five, with jitter, so that a thousand guards that lost
// the same database do not come back in the same instant.
func backoff(tries int, chance float64) time.Duration {
	d := 5 * time.Second
	if tries < 6 {
		d = min(d, 250*time.Millisecond<<max(0, tries-1))
	}
	return d/2 + time.Duration(chance*float64(d/2))
}
