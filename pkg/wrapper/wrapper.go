// Package wrapper is the worker's side of package wire: it asks the guard whether
// the command may run, runs it as package supervise does, and reports how it ended
// before the container ends. It is all of guard-exec's wrapping, and guard run uses
// it inside the guard's own process.
package wrapper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/supervise"
	"github.com/onceguard/onceguard/pkg/wire"
)

// Options of one wrapped command.
type Options struct {
	Socket    string    // of the guard; contract.PathExecSocket in a pod
	Container string    // name of the container, as in GuardConfig
	Kind      wire.Kind // any
	Argv      []string  // the command; none for KindWait
	Env       []string  // environment to which the run's is added
	Stderr    io.Writer // for our own log lines; the command has this program's

	// TerminationLog is where the reason is left when the container ends otherwise
	// than by its worker; empty for nowhere. The file is never created.
	TerminationLog string
	// GuardWait bounds the time without a word from any guard before the verdict; 0
	// means DefaultGuardWait. From a connected guard that has spoken it is at least
	// twice wire.WaitEvery. As long as the guard speaks there is no bound but its own.
	GuardWait time.Duration
	// AckWait bounds the wait for the ack of an exit, counted from the end of trust or
	// from the guard's last word; 0 means DefaultAckWait. After a stop it is at most 10s.
	AckWait time.Duration
	// NoWait, for KindHook: do not wait for a verdict that is not there at once.
	NoWait bool
}

// Defaults of Options.
const (
	DefaultGuardWait = 5 * time.Minute
	DefaultAckWait   = 30 * time.Second

	stopAckWait = 10 * time.Second
	// trustGrace is between TERM and KILL at the end of trust, when the guard named none.
	trustGrace = 500 * time.Millisecond
	// frozen is how late a timer fires only in a program that was itself stopped.
	frozen = time.Second
)

// Run does all of it and gives the code to exit with. It catches the program's
// signals (see supervise.Catch); the end of ctx counts as SIGTERM. Call it once: the
// program is expected to exit with the code.
func Run(ctx context.Context, o Options) int {
	caught := supervise.Catch()
	s := &session{
		o:   o,
		log: journal{to: o.Stderr, termination: o.TerminationLog, line: line{Container: o.Container}},
	}
	if s.o.GuardWait <= 0 {
		s.o.GuardWait = DefaultGuardWait
	}
	if s.o.AckWait <= 0 {
		s.o.AckWait = DefaultAckWait
	}
	s.silence = max(s.o.GuardWait, 2*wire.WaitEvery)
	s.link = newLink(o.Socket, s.hello)
	defer s.link.close()

	run, code, decided := s.verdict(ctx, caught)
	switch {
	case decided:
		return code
	case o.Kind == wire.KindWait:
		return 0
	case o.Kind == wire.KindHook:
		return s.hook(run)
	}
	return s.work(ctx, caught, run)
}

// session is one Run.
type session struct {
	o    Options
	log  journal
	link *link
	// silence is how long a guard that has spoken may say nothing before its verdict.
	silence time.Duration

	proc *supervise.Process // nil before the start
}

func (s *session) hello() wire.Message {
	m := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: s.o.Container, Kind: s.o.Kind}
	if s.proc != nil {
		m.PID = s.proc.PID()
	}
	return m
}

// verdict waits until the guard has decided. decided is false when the command is to
// run, and then run is that message; else the container ends with code.
func (s *session) verdict(ctx context.Context, caught <-chan os.Signal) (run wire.Message, code int, decided bool) {
	// absent fires when nothing was heard for as long as bound: no guard, or a frozen one.
	absent := stoppedTimer()
	defer absent.Stop()
	var bound time.Duration
	var due time.Time
	patience := func(d time.Duration) {
		bound, due = d, time.Now().Add(d)
		absent.Reset(d)
	}
	patience(s.o.GuardWait)
	said := ""
	for {
		select {
		case <-s.link.retry.C:
			s.link.dial()
		case e := <-s.link.events:
			if e.from != s.link.conn {
				continue // of a connection already given up
			}
			if e.err != nil {
				s.link.drop(e.err)
				continue
			}
			patience(s.silence)
			s.link.heard()
			s.log.name(e.msg.Env)
			switch m := e.msg; m.Type {
			case wire.TypeRun:
				return m, 0, false
			case wire.TypeWait:
				if s.o.NoWait {
					return m, 0, true
				}
				if m.Message != said && s.o.Kind != wire.KindHook { // once per reason, not per try
					said = m.Message
					s.log.info(said)
				}
			case wire.TypeSkip:
				s.refused("info", m.Message)
				return m, 0, true
			case wire.TypeRefuse:
				s.refused("error", m.Message)
				if s.o.Kind == wire.KindHook {
					return m, 0, true
				}
				return m, orRefused(m.Code), true
			case wire.TypeStop:
				s.refused("error", m.Message)
				return m, contract.ExitRetry, true
			}
		case sig := <-caught:
			if n, ends := leave(sig); ends {
				return run, s.leave(n), true
			}
		case <-ctx.Done():
			return run, s.leave(syscall.SIGTERM), true
		case <-absent.C:
			if time.Since(due) > frozen { // what the guard said meanwhile lies unread
				patience(bound)
				continue
			}
			why := "it took the connection and said nothing"
			if !s.link.connected() {
				why = s.link.lost.Error()
			}
			s.refused("error", fmt.Sprintf("no guard answered at %s for %s, so nothing was run: %s. "+
				"Look at the log of container %q of this pod.", s.o.Socket, bound, why, contract.ContainerGuard))
			return run, contract.ExitRetry, true
		}
	}
}

// refused leaves the reason why nothing is run; hooks stay quiet, the worker's
// container says it.
func (s *session) refused(level, msg string) {
	if s.o.Kind != wire.KindHook {
		s.log.last(level, msg)
	}
}

// orRefused: a refusal is never success.
func orRefused(code int) int {
	if code == 0 {
		return contract.ExitRefused
	}
	return code
}

// leave says whether sig, before the command started, ends the wait. It does if it
// is a usual way to end a container (STOPSIGNAL); USR1, WINCH and the like are meant
// for a worker that is not there yet.
func leave(sig os.Signal) (syscall.Signal, bool) {
	n, _ := sig.(syscall.Signal)
	switch n {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP:
		return n, true
	}
	return n, n >= 32 // real-time signals: systemd as PID 1 is stopped by one
}

func (s *session) leave(n syscall.Signal) int {
	s.link.send(wire.Message{Type: wire.TypeTerminating, Signal: int(n)})
	s.log.info(fmt.Sprintf("ended by signal %d before the worker was started", int(n)))
	return 128 + int(n)
}

// hook becomes the lifecycle hook's own command.
func (s *session) hook(run wire.Message) int {
	s.link.close()
	if len(s.o.Argv) == 0 {
		return 0
	}
	env := Environ(s.o.Env, run.Env)
	file, err := supervise.Lookup(s.o.Argv[0], env)
	if err == nil {
		err = syscall.Exec(file, s.o.Argv, env)
	}
	return s.cannotStart(err)
}

// cannotStart says why and gives the shell's code.
func (s *session) cannotStart(err error) int {
	s.log.write("error", err.Error())
	if start, ok := errors.AsType[*supervise.StartError](err); ok {
		return start.Code
	}
	return contract.ExitNotExecutable
}

// Environ adds add to env: a name that is there gets the new value, the others come
// sorted behind.
func Environ(env []string, add map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := add[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(add)) {
		out = append(out, name+"="+add[name])
	}
	return out
}
