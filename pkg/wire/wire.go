// Package wire is the line protocol between the wrapper (guard-exec) in a worker's
// container and the guard in the sidecar: one JSON object per line over the Unix
// socket contract.PathExecSocket. The wrapper dials and keeps the connection open
// for as long as its process lives; the guard takes a broken connection without a
// report as a crash, unless the wrapper comes back (below).
//
//	wrapper                               guard
//	hello {container, kind}  ->
//	                         <-  wait {message}            zero or more: still alive, and why (if there is a word to say)
//	                         <-  run {env, trustMs, graceMs} | skip {message} | refuse {message, code}
//	started {pid}            ->
//	                         <-  trust {trustMs, graceMs}  zero or more: the right goes on, at each heartbeat
//	                         <-  stop {message, graceMs}   the right ended: TERM, then KILL
//	terminating {signal}     ->                            the container got a signal that ends it
//	exit {code, signal}      ->
//	                         <-  wait {message}            zero or more: still recording, be patient
//	                         <-  ack {code, message}       recorded; the container ends with code
//
// The guard answers hello at once, with wait when there is no verdict yet, and says
// wait again at least every WaitEvery until there is one: a wrapper that hears nothing
// for much longer takes the guard for dead.
//
// # Trust
//
// trustMs says how long the worker may go on without hearing from the guard again,
// counted on the wrapper's monotonic clock from the arrival of the message; what
// the way here and the way to KILL may cost was subtracted by the guard. The last
// message counts. When it is used up the wrapper by itself sends TERM, after
// graceMs KILL, and the container ends with contract.ExitRetry. A run without
// trustMs is not bounded.
//
// # Coming back
//
// The worker outlives the guard: when the connection breaks, the wrapper keeps it
// running and dials again until the trust is used up. A hello with a pid means
// "already running" and is answered by run or trust (go on), by wait (not known
// yet; the old trust goes on running), or by stop, skip or refuse, all of which stop the worker.
// Env of such a run is ignored. A process that ended in the meantime is told in one
// breath, hello {pid} and exit; the guard acks as if the connection had never
// broken, and acks an exit that it already knows a second time.
//
// # Leaving before the start
//
// A signal that ends the wrapper before its process started is told as terminating,
// then the connection closes (the guard may read a reset instead of the end, when the
// wrapper had not read everything). A command that cannot be started is an exit (126 or
// 127) without started.
//
// # Endings
//
// The code of ack is the container's exit code. After stop the container ends with
// contract.ExitRetry when the ack only repeats the code of exit. A guard that cannot
// record an exit at once says wait every 10 s or so: the wrapper's patience is 30 s.
//
// The package depends on the standard library only and does no I/O of its own.
package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// Version of the protocol; a guard refuses another one in hello.
const Version = 1

// MaxLine bounds one message in bytes, both ways.
const MaxLine = 1 << 20

// WaitEvery is the longest time between two words of the guard to a wrapper that
// waits for its verdict.
const WaitEvery = 30 * time.Second

// Kind of process that says hello.
type Kind string

// The kinds.
const (
	KindInit   Kind = "init"   // a wrapped init container
	KindWorker Kind = "worker" // a wrapped container
	KindHook   Kind = "hook"   // an exec lifecycle hook: learns the verdict, is not counted
	KindWait   Kind = "wait"   // the claim container: learns the verdict, is not counted
)

// Type of a message.
type Type string

// Types sent by the wrapper.
const (
	TypeHello       Type = "hello"
	TypeStarted     Type = "started"
	TypeTerminating Type = "terminating"
	TypeExit        Type = "exit"
)

// Types sent by the guard.
const (
	TypeWait   Type = "wait"
	TypeRun    Type = "run"
	TypeSkip   Type = "skip"
	TypeRefuse Type = "refuse"
	TypeTrust  Type = "trust"
	TypeStop   Type = "stop"
	TypeAck    Type = "ack"
)

// Message is one line. Only the fields that its type names above are set.
type Message struct {
	Type      Type   `json:"type"`
	Version   int    `json:"version,omitempty"`   // hello
	Container string `json:"container,omitempty"` // hello
	Kind      Kind   `json:"kind,omitempty"`      // hello
	PID       int    `json:"pid,omitempty"`       // started; hello: already running as this
	Signal    int    `json:"signal,omitempty"`    // terminating, exit
	Code      int    `json:"code"`                // exit, refuse, ack: 0 to 255
	Message   string `json:"message,omitempty"`   // wait, skip, refuse, stop, ack: one sentence for people
	TrustMS   int64  `json:"trustMs,omitempty"`   // run, trust: how long the right lasts without another word
	GraceMS   int64  `json:"graceMs,omitempty"`   // stop: TERM now, KILL after this; run, trust: the same when trust ends
	// Env of run is added to the worker's environment. With wait, skip and refuse it
	// may name the window for the wrapper's log lines.
	Env map[string]string `json:"env,omitempty"`
}

// Encode gives the line of m with its newline. It fails with ErrTooLong when the
// other side would not read it.
func (m Message) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) >= MaxLine {
		return nil, fmt.Errorf("%w: %s message of %d bytes", ErrTooLong, m.Type, len(b))
	}
	return append(b, '\n'), nil
}
