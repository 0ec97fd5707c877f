// Package wire is the line protocol between the wrapper (guard-exec) in a worker's
// container and the guard in the sidecar: one JSON object per line over the Unix
// socket contract.PathExecSocket. The wrapper dials and keeps the connection open
// for as long as its process lives; the guard takes a broken connection without a
// report as a crash.
//
//	wrapper                               guard
//	hello {container, kind}  ->
//	                         <-  wait {message}            zero or more, for the log
//	                         <-  run {env} | skip {message} | refuse {message, code}
//	started {pid}            ->
//	                         <-  stop {message, graceMs}   the right ended: TERM, then KILL
//	terminating {signal}     ->                            the container got SIGTERM
//	exit {code, signal}      ->
//	                         <-  ack {code, message}       recorded; the container ends with code
//
// The package depends on the standard library only and does no I/O of its own.
package wire

import "encoding/json"

// Version of the protocol; a guard refuses another one in hello.
const Version = 1

// MaxLine bounds one message in bytes, both ways.
const MaxLine = 1 << 20

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
	TypeStop   Type = "stop"
	TypeAck    Type = "ack"
)

// Message is one line. Only the fields that its type names above are set.
type Message struct {
	Type      Type              `json:"type"`
	Version   int               `json:"version,omitempty"`   // hello
	Container string            `json:"container,omitempty"` // hello
	Kind      Kind              `json:"kind,omitempty"`      // hello
	PID       int               `json:"pid,omitempty"`       // started
	Signal    int               `json:"signal,omitempty"`    // terminating, exit
	Code      int               `json:"code"`                // exit, refuse, ack
	Message   string            `json:"message,omitempty"`   // wait, skip, refuse, stop, ack: one sentence for people
	GraceMS   int64             `json:"graceMs,omitempty"`   // stop: TERM now, KILL after this
	Env       map[string]string `json:"env,omitempty"`       // run
}

// Encode gives the line of m with its newline.
func (m Message) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	return append(b, '\n'), err
}
