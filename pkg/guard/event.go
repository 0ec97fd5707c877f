package guard

import (
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/wire"
)

// Input is one step of the reducer: an event and everything that is not a function
// of the state.
type Input struct {
	Now    time.Time
	Fresh  uuid.UUID // random; becomes an execution_id when a new one is needed
	Chance float64   // in [0,1), for jitter
	Event  Event
}

// Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// Start is the first event.
	Start struct{}
	// Tick says that time has passed; see State.Wake.
	Tick struct{}
	// Leave says that the guard itself got a signal to end.
	Leave struct{}

	// Hello is said by a wrapper that has connected.
	Hello struct {
		Conn      Conn
		Container string
		Kind      wire.Kind
		PID       int // not 0: its process is running already
	}
	// Started says that the process runs.
	Started struct{ Conn Conn }
	// Terminating says that the container got a signal that ends it.
	Terminating struct{ Conn Conn }
	// Exited says how the process ended, as Kubernetes shows it.
	Exited struct {
		Conn Conn
		Code int
	}
	// Broken is the end of a connection.
	Broken struct{ Conn Conn }

	// Asked answers Ask.
	Asked struct {
		ID      uuid.UUID
		Sent    time.Time // before the request was sent
		Answer  claim.Answer
		Trouble *Trouble
	}
	// Beaten answers Heartbeat.
	Beaten struct {
		ID      uuid.UUID
		Sent    time.Time
		Beat    claim.Beat
		Trouble *Trouble
	}
	// SkipRecorded answers RecordSkip.
	SkipRecorded struct{ Trouble *Trouble }
	// Settled answers Settle.
	Settled struct {
		ID       uuid.UUID
		Recorded claim.Outcome // completed also when the guard did not know of the commit
		Trouble  *Trouble
	}

	// Committed says that the local endpoint completed the window as ID.
	Committed struct{ ID uuid.UUID }
	// Fenced says that the local endpoint learned that ID no longer holds the window.
	Fenced struct{ ID uuid.UUID }
	// Replacing says that a resolve will be sent that may put Next in the place of ID.
	Replacing struct{ ID, Next uuid.UUID }
	// Replaced says that it did.
	Replaced struct{ ID, Next uuid.UUID }
)

func (Start) event()        {}
func (Tick) event()         {}
func (Leave) event()        {}
func (Hello) event()        {}
func (Started) event()      {}
func (Terminating) event()  {}
func (Exited) event()       {}
func (Broken) event()       {}
func (Asked) event()        {}
func (Beaten) event()       {}
func (SkipRecorded) event() {}
func (Settled) event()      {}
func (Committed) event()    {}
func (Fenced) event()       {}
func (Replacing) event()    {}
func (Replaced) event()     {}

// Fault says what an error of the ledger means for the attempt.
type Fault int

// The faults.
const (
	// Away: no answer. Worth asking again.
	Away Fault = iota
	// Misset: somebody has to mend something first (Secret, URL, login, schema, grant).
	// Asked again like Away, but not for as long: only the end of the pod makes an
	// Event, and so tells somebody.
	Misset
	// Gone: this execution_id does not hold the window.
	Gone
	// Repeated: the window was completed by another attempt.
	Repeated
)

// passes says whether the same question may be answered later.
func (f Fault) passes() bool { return f == Away || f == Misset }

// Trouble is an error of the ledger as the reducer sees it.
type Trouble struct {
	Fault Fault
	Text  string // one sentence without secrets
}

// Effect is something to be done. Effects are performed in order.
type Effect interface{ effect() }

// The effects.
type (
	// Save writes the saved part of the state; it comes before whatever depends on it.
	Save struct{}
	// Ask sends a claim and gives Asked.
	Ask struct{ ID uuid.UUID }
	// Heartbeat gives Beaten; it is of no use after By.
	Heartbeat struct {
		ID uuid.UUID
		By time.Time
	}
	// RecordSkip gives SkipRecorded.
	RecordSkip struct {
		ID     uuid.UUID
		Reason claim.Reason
	}
	// Settle writes an outcome and gives Settled.
	Settle struct {
		ID     uuid.UUID
		Ending Ending
	}
	// Send says a message to a wrapper.
	Send struct {
		Conn    Conn
		Message wire.Message
	}
	// Log tells people.
	Log struct {
		Level zapcore.Level
		Text  string
	}
	// Quit ends the guard.
	Quit struct{}
)

func (Save) effect()       {}
func (Ask) effect()        {}
func (Heartbeat) effect()  {}
func (RecordSkip) effect() {}
func (Settle) effect()     {}
func (Send) effect()       {}
func (Log) effect()        {}
func (Quit) effect()       {}
