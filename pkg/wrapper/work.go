package wrapper

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/supervise"
	"github.com/onceguard/onceguard/pkg/wire"
)

// run is a command between its verdict and its ack.
type run struct {
	*session
	trust    *time.Timer   // fires when the right to run is used up
	trustEnd time.Time     // zero when not bounded
	grace    time.Duration // between TERM and KILL at trustEnd

	stopped string // why the right ended; empty while it lasts
	exit    *wire.Message
	ack     *time.Timer // fires when the ack is no longer waited for
	ackWait time.Duration
}

// work starts the command and stays with it until its end is acknowledged.
func (s *session) work(ctx context.Context, caught <-chan os.Signal, verdict wire.Message) int {
	r := &run{session: s, trust: stoppedTimer(), ack: stoppedTimer(), ackWait: s.o.AckWait, grace: trustGrace}
	defer r.trust.Stop()
	defer r.ack.Stop()
	r.trusted(verdict)

	var done <-chan struct{}
	proc, err := supervise.Start(s.o.Argv, Environ(s.o.Env, verdict.Env))
	if err != nil {
		r.ended(supervise.Status{Code: s.cannotStart(err)})
	} else {
		s.proc, done = proc, proc.Done()
		s.link.send(wire.Message{Type: wire.TypeStarted, PID: proc.PID()})
	}
	cancelled := ctx.Done()
	for {
		select {
		case sig := <-caught:
			if n, ok := sig.(syscall.Signal); ok {
				r.signal(n)
			}
		case <-cancelled:
			cancelled = nil
			r.signal(syscall.SIGTERM)
		case <-done:
			done = nil
			r.ended(proc.Status())
		case <-s.link.retry.C:
			r.dial()
		case e := <-s.link.events:
			if e.from != s.link.conn {
				continue
			}
			if e.err != nil {
				s.link.drop(e.err)
				continue
			}
			s.link.heard()
			if code, end := r.message(e.msg); end {
				return code
			}
		case <-r.trust.C:
			r.stop("the guard did not renew the right to run in time", r.grace)
		case <-r.ack.C:
			return r.unacknowledged()
		}
	}
}

// signal tells the guard first: at the end of the grace period there may be no time.
func (r *run) signal(n syscall.Signal) {
	if _, ends := leave(n); ends {
		r.link.send(wire.Message{Type: wire.TypeTerminating, Signal: int(n)})
	}
	if r.proc != nil {
		r.proc.Forward(n)
	}
}

// dial comes back to a guard that may know nothing of us.
func (r *run) dial() {
	r.link.dial()
	if r.exit != nil {
		r.link.send(*r.exit)
	}
}

// message reacts to the guard; end is true when the container ends with code.
func (r *run) message(m wire.Message) (code int, end bool) {
	if r.exit != nil {
		return r.afterExit(m)
	}
	switch m.Type {
	case wire.TypeRun, wire.TypeTrust:
		r.trusted(m)
	case wire.TypeStop:
		r.stop(m.Message, time.Duration(m.GraceMS)*time.Millisecond)
	case wire.TypeSkip, wire.TypeRefuse: // answers to a hello with our pid: the claim is gone
		r.stop(m.Message, r.grace)
	}
	return 0, false
}

// trusted takes over a new right. Once stopping there is no way back.
func (r *run) trusted(m wire.Message) {
	if m.GraceMS > 0 {
		r.grace = time.Duration(m.GraceMS) * time.Millisecond
	}
	if m.TrustMS == 0 || r.stopped != "" || r.exit != nil {
		return
	}
	if !r.trustEnd.IsZero() && time.Now().After(r.trustEnd) {
		return // too late: it lay unread while this program was frozen, and says nothing of now
	}
	d := time.Duration(m.TrustMS) * time.Millisecond
	r.trustEnd = time.Now().Add(d)
	r.trust.Reset(d)
}

// stop ends the command: its right has ended.
func (r *run) stop(why string, grace time.Duration) {
	if r.exit != nil {
		return
	}
	if r.stopped == "" {
		if r.stopped = why; why == "" {
			r.stopped = "the guard asked to stop"
		}
		r.trust.Stop()
		r.ackWait = min(r.ackWait, stopAckWait)
		r.log.last("error", "stopping the worker: "+r.stopped)
	}
	if r.proc != nil {
		r.proc.Stop(grace)
	}
}

// ended reports the end and begins to wait for the ack.
func (r *run) ended(s supervise.Status) {
	r.exit = &wire.Message{Type: wire.TypeExit, Code: s.Code, Signal: int(s.Signal)}
	r.trust.Stop()
	r.patience()
	r.link.send(*r.exit)
}

// patience sets how long the ack is waited for from now: as long as the guard may
// still be renewing the lease, and then some.
func (r *run) patience() {
	r.ack.Reset(max(0, time.Until(r.trustEnd)) + r.ackWait)
}

// afterExit reacts to the guard once the command has ended.
func (r *run) afterExit(m wire.Message) (code int, end bool) {
	switch m.Type {
	case wire.TypeAck:
		if r.stopped != "" && m.Code == r.exit.Code {
			return contract.ExitRetry, true
		}
		if m.Message != "" {
			if m.Code != r.exit.Code {
				r.log.last("error", m.Message)
			} else {
				r.log.info(m.Message)
			}
		}
		return m.Code, true
	case wire.TypeSkip: // the window is done, by us or another: there is nothing left to record
		return r.exit.Code, true
	case wire.TypeRefuse:
		r.log.last("error", m.Message)
		return orRefused(m.Code), true
	case wire.TypeStop: // crossed our exit, or our claim is gone
		if r.stopped == "" {
			r.stopped = m.Message
			r.ackWait = min(r.ackWait, stopAckWait)
			r.log.last("error", "the worker ended, but its right had ended too: "+m.Message)
			r.patience()
		}
	case wire.TypeWait, wire.TypeRun, wire.TypeTrust:
		if m.TrustMS > 0 {
			r.trustEnd = time.Now().Add(time.Duration(m.TrustMS) * time.Millisecond)
		}
		r.patience()
	}
	return 0, false
}

// unacknowledged decides without the guard. Success that nobody recorded is not
// success: the retry skips if it was recorded after all. A failure stays what it was.
func (r *run) unacknowledged() int {
	why := "the guard did not answer"
	if !r.link.connected() {
		why = fmt.Sprintf("the guard is away: %v", r.link.lost)
	}
	r.log.last("error", fmt.Sprintf("the worker ended with code %d, which could not be recorded (%s)", r.exit.Code, why))
	if r.stopped != "" || r.exit.Code == 0 {
		return contract.ExitRetry
	}
	return r.exit.Code
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
