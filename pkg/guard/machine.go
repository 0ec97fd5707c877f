package guard

import (
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// Next is the guard's whole decision. It computes only: the clock, chance and new
// identifiers are in the input.
func Next(s State, in Input) (State, []Effect) {
	if s.Phase == Left {
		return s, nil
	}
	m := &step{State: s.clone(), now: in.Now, fresh: in.Fresh, chance: in.Chance}
	m.take(in.Event)
	m.due()
	m.answer()
	m.leave()
	if !reflect.DeepEqual(s.Saved, m.Saved) {
		// What is persisted stands before everything that relies on it: the claim, the
		// word "run", the acknowledgement.
		m.out = slices.Insert(m.out, 0, Effect(Save{}))
	}
	return m.State, m.out
}

// step is one transition under way.
type step struct {
	State
	now    time.Time
	fresh  uuid.UUID
	chance float64
	out    []Effect
}

func (m *step) take(e Event) {
	switch e := e.(type) {
	case Start:
		m.start()
	case Tick:
	case Leave:
		if m.leaving.IsZero() {
			m.leaving = m.now
		}
	case Hello:
		m.hello(e)
	case Started:
		if p, ok := m.conns[e.Conn]; ok && p.running {
			m.started(p.container)
		}
	case Terminating:
		if p, ok := m.conns[e.Conn]; ok {
			p.terminating = true
			m.conns[e.Conn] = p
		}
	case Exited:
		m.exited(e)
	case Broken:
		m.broken(e)
	case Asked:
		m.asked(e)
	case Beaten:
		m.beaten(e)
	case SkipRecorded:
		if m.Phase == Skipping {
			m.Phase = Done
		}
	case Settled:
		m.settled(e)
	case Committed:
		m.committed(e)
	case Fenced:
		if e.ID == m.ExecutionID && m.Phase == Held && !m.Committed {
			m.lost()
		}
	case Replacing:
		if e.ID == m.ExecutionID {
			m.NextID = e.Next
		}
	case Replaced:
		if e.ID == m.ExecutionID {
			m.ExecutionID, m.NextID = e.Next, uuid.Nil
			m.beatAt = m.now
		}
	}
}

// start goes on where an earlier guard of this pod stood.
func (m *step) start() {
	m.keepUntil = m.now.Add(time.Duration(m.conf.StartTimeout))
	m.expectBy = m.now.Add(time.Duration(m.conf.Lease))
	switch m.Phase {
	case "":
		// The claim goes out before the first hello: it saves the worker a round trip,
		// and the start timeout bounds how long nobody may come.
		m.acquire()
	case Claiming, Skipping:
		m.Phase, m.Unsure = Claiming, true
		m.askAt = m.now
	case Stopping:
		// Who was told to stop is told again; who comes no more has stopped by the end of
		// its trust. Going on as if held could complete what was broken off.
		m.stopWhy = m.say(TextNotAdopted, m.conf.Window)
		m.stopped()
	case Adopting, Held:
		if m.Committed {
			m.Phase = Held
			break
		}
		m.Phase = Adopting
		m.beatAt = m.now
		m.why = m.say(TextAdopting)
	case Settling:
		m.settle(*m.Ending)
	case Refused, Idle, Done, Left:
	}
}

// acquire begins a new acquisition.
func (m *step) acquire() {
	if !m.Unsure {
		m.ExecutionID = m.fresh
	}
	m.Phase = Claiming
	m.NextID, m.Attempt, m.FencingToken, m.Generation = uuid.Nil, 0, 0, 0
	m.Committed, m.Ending, m.Running, m.Skip = false, nil, nil, ""
	// Containers that ended well are not started again by Kubernetes: their part of
	// the work stands for the new attempt as well.
	for name, r := range m.Reports {
		if r.Code != 0 || r.Ack != 0 {
			delete(m.Reports, name)
		}
	}
	m.askAt, m.tries, m.why, m.awaySince = m.now, 0, "", time.Time{}
	m.held = false
}

// hello admits a wrapper.
func (m *step) hello(e Hello) {
	p := proc{container: e.Container, kind: e.Kind}
	switch {
	case e.Kind == wire.KindHook || e.Kind == wire.KindWait || m.Phase == Refused:
	case e.Kind != wire.KindInit && e.Kind != wire.KindWorker, !m.conf.known(e.Kind, e.Container):
		m.refuse(e.Conn, contract.ExitRefused, m.say(TextUnknown, e.Container, e.Kind, m.conf.names()))
		return
	default:
		for _, q := range m.conns {
			if q.counted() && q.container == e.Container {
				m.refuse(e.Conn, contract.ExitRetry, m.say(TextTwice, e.Container))
				return
			}
		}
	}
	if e.PID != 0 && p.counted() {
		p.told = true
		p.running = true
		m.conns[e.Conn] = p
		m.started(p.container)
		m.back(e.Conn, p)
		return
	}
	if p.counted() && slices.Contains(m.missing(), p.container) && slices.Contains(m.Started, p.container) {
		// Its process ended while the guard was away, and its container was started anew. One
		// that never started is still the same: the word "run" did not reach it.
		m.ended(p, Report{Code: 137, Ack: 137, Vanished: true})
	}
	m.conns[e.Conn] = p
	if text := m.conf.unusual(); text != "" && p.counted() && m.Phase != Refused {
		m.wait(e.Conn, text)
	}
	if e.Kind == wire.KindWorker {
		// The kubelet starts workers when every init container has succeeded, also the one
		// whose end a guard that was away did not hear of.
		for _, name := range m.missing() {
			if m.kindOf(name) == wire.KindInit {
				m.Running = slices.DeleteFunc(m.Running, func(n string) bool { return n == name })
				m.Reports[name] = Report{}
			}
		}
	}
}

// back answers a wrapper whose process ran on while the guard was away.
func (m *step) back(c Conn, p proc) {
	_, reported := m.Reports[p.container]
	expected := slices.Contains(m.Running, p.container)
	switch {
	case reported && !expected:
		m.wait(c, m.say(TextSettling)) // its exit follows and is acknowledged again
	case m.Phase == Adopting:
		m.wait(c, m.say(TextAdopting))
	case m.Phase == Held && expected:
		if m.trusted() { // else it is about to be told to stop
			m.sendTrust(c)
		}
	case m.Committed:
		m.sendTrust(c) // the window is done; let it end by itself
	default:
		m.stop(c, m.say(TextNotAdopted, m.conf.Window), m.conf.grace())
	}
}

// exited takes a wrapper's report.
func (m *step) exited(e Exited) {
	p, ok := m.conns[e.Conn]
	if !ok || p.exited {
		return
	}
	p.exited = true
	m.conns[e.Conn] = p
	if !p.counted() {
		m.ack(e.Conn, e.Code, "")
		return
	}
	if _, known := m.Reports[p.container]; known && !slices.Contains(m.Running, p.container) {
		if m.Phase != Settling { // else it is acknowledged with the others
			m.ackOne(p.container)
		}
		return
	}
	if !p.running { // it could not be started, or left before the verdict
		m.ack(e.Conn, e.Code, "")
		return
	}
	m.started(p.container)
	m.ended(p, Report{Code: e.Code, Ack: e.Code, Terminated: p.terminating})
}

// broken takes the end of a connection. Without a report it is a crash.
func (m *step) broken(e Broken) {
	p, ok := m.conns[e.Conn]
	if !ok {
		return
	}
	delete(m.conns, e.Conn)
	if p.live() {
		m.started(p.container)
		m.ended(p, Report{Code: 137, Ack: 137, Vanished: true, Terminated: p.terminating})
	}
}

// committed notes that the window was completed through the local endpoint.
func (m *step) committed(e Committed) {
	if e.ID != m.ExecutionID && e.ID != m.NextID || m.Committed {
		return
	}
	m.Committed = true
	m.Skip = m.say(TextSkipCommitted, m.conf.Window, m.Attempt)
	m.log(zapcore.InfoLevel, m.say(TextCommitted, m.conf.Window))
	for c, p := range m.each() {
		if p.live() && !p.stopped {
			m.sendTrust(c)
		}
	}
	switch m.Phase {
	case Held:
		if m.allReported() {
			m.finish()
		}
	case Stopping:
	case Settling:
		m.finish()
	case Idle, Claiming, Adopting, Skipping, Refused, Done, Left:
		m.Phase = Done
	}
}
