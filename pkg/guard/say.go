package guard

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// untilEnd is the trust of a worker whose window is completed: no lease binds it.
const untilEnd = 366 * 24 * time.Hour

// env is the worker's environment as the verdict determines it.
func (m *step) env() map[string]string {
	w := m.conf.Window
	env := map[string]string{
		contract.EnvJobName:        w.JobName,
		contract.EnvWindowStart:    w.Start.UTC().Format(time.RFC3339),
		contract.EnvExecutionID:    m.ExecutionID.String(),
		contract.EnvAttempt:        strconv.Itoa(m.Attempt),
		contract.EnvFencingToken:   strconv.FormatInt(m.FencingToken, 10),
		contract.EnvIdempotencyKey: idempotencyKey(m.conf, m.Generation),
		contract.EnvTrigger:        string(m.conf.Trigger),
	}
	if !m.conf.WindowEnd.IsZero() {
		env[contract.EnvWindowEnd] = m.conf.WindowEnd.UTC().Format(time.RFC3339)
	}
	maps.Copy(env, m.conf.Env)
	return env
}

// idempotencyKey is equal over all attempts at a window, and another one after a
// rerun, so that other systems do not take the rerun for a repetition.
func idempotencyKey(c Conf, generation int) string {
	return fmt.Sprintf("%s/%s/%d", c.Window.JobName, c.Window.Start.UTC().Format(time.RFC3339), generation)
}

// label names the window for a wrapper that learns nothing else.
func (m *step) label() map[string]string {
	w := m.conf.Window
	if w.JobName == "" {
		return nil
	}
	env := map[string]string{contract.EnvJobName: w.JobName}
	if !w.Start.IsZero() {
		env[contract.EnvWindowStart] = w.Start.UTC().Format(time.RFC3339)
	}
	return env
}

func (m *step) trustMessage(t wire.Type) wire.Message {
	left := m.stopAt().Sub(m.now)
	if m.Committed {
		left = untilEnd
	}
	// 0 would mean "not bounded".
	return wire.Message{Type: t, TrustMS: max(1, left.Milliseconds()), GraceMS: m.conf.grace().Milliseconds()}
}

func (m *step) sendTrust(c Conn) { m.do(Send{c, m.trustMessage(wire.TypeTrust)}) }

func (m *step) wait(c Conn, text string) {
	m.do(Send{c, wire.Message{Type: wire.TypeWait, Message: text, Env: m.label()}})
}

// waiting tells the log, and by answer everyone who waits, why they do.
func (m *step) waiting(l zapcore.Level, text string) {
	if text != m.why {
		m.why = text
		m.log(l, text)
	}
}

func (m *step) refuse(c Conn, code int, text string) {
	m.told(c)
	m.do(Send{c, wire.Message{Type: wire.TypeRefuse, Code: code, Message: text, Env: m.label()}})
}

// refuseWaiting refuses everyone who has no verdict yet.
func (m *step) refuseWaiting(code int, text string) {
	for c, p := range m.each() {
		if !p.told {
			m.refuse(c, code, text)
		}
	}
}

func (m *step) skipOne(c Conn, text string) {
	m.told(c)
	m.do(Send{c, wire.Message{Type: wire.TypeSkip, Message: text, Env: m.label()}})
}

func (m *step) told(c Conn) {
	if p, ok := m.conns[c]; ok {
		p.told = true
		m.conns[c] = p
	}
}

func (m *step) stop(c Conn, text string, grace time.Duration) {
	if p, ok := m.conns[c]; ok {
		p.stopped = true
		m.conns[c] = p
		m.stopWhy = text
	}
	m.do(Send{c, wire.Message{Type: wire.TypeStop, Message: text, GraceMS: grace.Milliseconds()}})
}

func (m *step) ack(c Conn, code int, text string) {
	delete(m.conns, c)
	m.do(Send{c, wire.Message{Type: wire.TypeAck, Code: code, Message: text}})
}

// ackOne acknowledges the exit of one container.
func (m *step) ackOne(name string) {
	for c, p := range m.each() {
		if p.counted() && p.exited && p.container == name {
			m.ackFor(c, name)
		}
	}
}

// ackAll acknowledges every exit that was reported.
func (m *step) ackAll() {
	for c, p := range m.each() {
		if p.counted() && p.exited {
			m.ackFor(c, p.container)
		}
	}
}

func (m *step) ackFor(c Conn, name string) {
	r := m.Reports[name]
	r.Told = true
	m.Reports[name] = r
	m.ack(c, r.Ack, r.Said)
}
