package guard

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/pkg/wire"
)

// Phase is where the guard stands; the picture is in the package comment.
type Phase string

// The phases.
const (
	Refused  Phase = "refused"  // permanently: nothing is claimed
	Idle     Phase = "idle"     // no attempt; the next hello claims
	Claiming Phase = "claiming" // asking the ledger, or waiting to ask again
	Skipping Phase = "skipping" // the duplicate is being recorded
	Adopting Phase = "adopting" // restarted: asking whether the attempt is still current
	Held     Phase = "held"     // the window is ours
	Stopping Phase = "stopping" // wrapped processes are being stopped
	Settling Phase = "settling" // the outcome is being written
	Done     Phase = "done"     // the window needs no more work from this pod
	Left     Phase = "left"     // the guard has gone
)

// Conf is what the reducer must know of the pod; it never changes.
type Conf struct {
	contract.GuardConfig
	Window window.Window
	Pod    string // "<namespace>/<pod>", or how people call this process
	// Env is added to every worker's environment besides what the claim tells.
	Env map[string]string
}

// margin is how long before its end by the ledger's clock a lease is no longer
// trusted: it covers the difference in speed of two clocks.
func (c Conf) margin() time.Duration {
	l := time.Duration(c.Lease)
	return min(max(l/10, time.Second), l/5)
}

// grace is the time between TERM and KILL when the right ends.
func (c Conf) grace() time.Duration { return min(time.Duration(c.Lease)/10, 5*time.Second) }

// stopGrace is the time between TERM and KILL while the lease is still held: what
// Kubernetes would give when it deletes the pod.
func (c Conf) stopGrace() time.Duration {
	return cmp.Or(time.Duration(c.Grace), unknownGrace)
}

// unknownGrace is used when nobody told the pod's: it is the default of Kubernetes.
const unknownGrace = 30 * time.Second

// leastLedgerWait bounds waiting for the ledger from below: a retry after the next
// window's start must not give up at its first try.
const leastLedgerWait = 30 * time.Second

// unknownLedgerWait is used when the next window is not known, or was due long before a
// window is caught up.
const unknownLedgerWait = 10 * time.Minute

// missetLedgerWait is used, unless one is configured, while somebody has to mend
// something: a window that begins a day from now is no reason to stay silent for a day.
const missetLedgerWait = 10 * time.Minute

// ledgerDeadline is when waiting for a ledger that went away at since ends.
func (c Conf) ledgerDeadline(since time.Time, f Fault) time.Time {
	least, most := since.Add(leastLedgerWait), since.Add(missetLedgerWait)
	switch {
	case c.LedgerWait > 0:
		return since.Add(time.Duration(c.LedgerWait))
	case f == Misset && (c.WindowEnd.IsZero() || c.WindowEnd.After(most)):
		return most
	case c.WindowEnd.IsZero() || c.Trigger == contract.TriggerCatchUp:
		return since.Add(unknownLedgerWait)
	case c.WindowEnd.Before(least):
		return least
	default:
		return c.WindowEnd
	}
}

// awayUntil is when waiting for the absent ledger ends.
func (s State) awayUntil() time.Time { return s.conf.ledgerDeadline(s.awaySince, s.away) }

// known says whether a counted container of that kind stands in the configuration.
func (c Conf) known(k wire.Kind, name string) bool {
	if k == wire.KindInit {
		return slices.Contains(c.InitContainers, name)
	}
	return slices.Contains(c.Containers, name)
}

func (c Conf) names() string {
	return strings.Join(slices.Concat(c.InitContainers, c.Containers), ", ")
}

// Saved is the part of the state that survives a restart of the guard.
type Saved struct {
	Phase        Phase     `json:"phase"`
	ExecutionID  uuid.UUID `json:"executionId"`
	NextID       uuid.UUID `json:"nextId,omitzero"`   // what a resolve under way may have put in its place
	Unsure       bool      `json:"unsure,omitempty"`  // a claim was sent whose answer is not known
	Attempt      int       `json:"attempt,omitempty"` // as Answer told
	FencingToken int64     `json:"fencingToken,omitempty"`
	Generation   int       `json:"generation,omitempty"`
	Committed    bool      `json:"committed,omitempty"` // this attempt completed the window
	Skip         string    `json:"skip,omitempty"`      // in Done: the sentence
	// Running are the counted containers that were told to run and have not reported.
	Running []string          `json:"running,omitempty"`
	Reports map[string]Report `json:"reports,omitempty"`
	// Started are the containers that certainly got the word "run" at any time in this pod.
	Started []string `json:"started,omitempty"`
	Ending  *Ending  `json:"ending,omitempty"` // what is to be written in Settling
}

// Report is how a counted container ended in this acquisition.
type Report struct {
	Code       int    `json:"code"` // as Kubernetes shows it
	Vanished   bool   `json:"vanished,omitempty"`
	Terminated bool   `json:"terminated,omitempty"` // a signal from outside came first
	Ack        int    `json:"ack"`                  // the code that its container ends with
	Said       string `json:"said,omitempty"`
	Told       bool   `json:"told,omitempty"` // Ack was sent: it stands
}

// crashed says whether it ended by a signal that neither the pod's end nor the guard
// explains, such as an OOM kill or a segmentation fault, or without a word.
func (r Report) crashed() bool {
	return !r.Terminated && (r.Vanished || r.Code > 128 && r.Code <= 128+64)
}

// Ending is an outcome to be written.
type Ending struct {
	Complete bool      `json:"complete,omitempty"`
	End      claim.End `json:"end,omitzero"` // without Complete
}

// awaited says whether an exit 0 depends on what the ledger answers.
func (e Ending) awaited() bool {
	return e.Complete || e.End.Outcome != claim.OutcomeCompleted && e.End.ExitCode != nil && *e.End.ExitCode == 0
}

// Conn names one connection of a wrapper.
type Conn int64

// proc is a connected wrapper.
type proc struct {
	container   string
	kind        wire.Kind
	told        bool // the verdict was given
	running     bool // was told to run, or came back running
	stopped     bool // was told to stop
	terminating bool // got a signal from outside
	exited      bool // reported its exit and waits for ack
	said        string
	saidAt      time.Time // when it was told to wait
}

// counted says whether the attempt depends on this process.
func (p proc) counted() bool { return p.kind == wire.KindInit || p.kind == wire.KindWorker }

// live says whether a counted process may be working.
func (p proc) live() bool { return p.counted() && p.running && !p.exited }

// State is everything the guard knows. Its zero value is of no use: see NewState.
type State struct {
	Saved
	conf  Conf
	conns map[Conn]proc

	leaving time.Time // when SIGTERM came
	leaveBy time.Time // set once no counted process is connected

	// Claiming; also used while Adopting.
	asking    bool
	askAt     time.Time
	tries     int
	held      bool      // the last answer was that another attempt holds the window
	why       string    // what those who wait are told
	awaySince time.Time // zero while the ledger answers
	away      Fault     // what its absence is, as last heard

	// Held, Adopting, and Stopping while the lease goes on.
	trust     time.Time // the lease is believed in until then
	beating   bool
	beatAt    time.Time
	beatTries int
	keepUntil time.Time // heartbeats go on until then with nobody connected
	expectBy  time.Time // processes of before a restart must be back by then

	stopKeep bool   // Stopping: the lease is still ours
	stopWhy  string // Stopping: what the stopped are told

	// Settling.
	settling bool
	settleAt time.Time
	ackBy    time.Time
	giveUp   time.Time
	sayAt    time.Time
	trouble  string // the last error of the ledger, for people
}

// NewState begins, or goes on with what an earlier guard of this pod saved.
func NewState(c Conf, saved *Saved) State {
	s := State{conf: c, conns: map[Conn]proc{}}
	if saved != nil {
		s.Saved = *saved
	}
	if s.Reports == nil {
		s.Reports = map[string]Report{}
	}
	if c.Refusal != "" {
		s.Phase = Refused
	}
	return s
}

func (s State) clone() State {
	s.conns = maps.Clone(s.conns)
	s.Reports = maps.Clone(s.Reports)
	s.Running = slices.Clone(s.Running)
	s.Started = slices.Clone(s.Started)
	return s
}

// anyLive says whether a counted process may be working now, connected or expected.
func (s State) anyLive() bool {
	for _, p := range s.conns {
		if p.live() {
			return true
		}
	}
	return len(s.Running) > 0
}

// anyCounted says whether a counted process is connected, also one that waits.
func (s State) anyCounted() bool {
	for _, p := range s.conns {
		if p.counted() {
			return true
		}
	}
	return false
}

// allReported says whether every worker ended and nobody runs. Init containers end
// before workers start, so a report of theirs is not awaited.
func (s State) allReported() bool {
	if s.anyLive() {
		return false
	}
	for _, name := range s.conf.Containers {
		if _, ok := s.Reports[name]; !ok {
			return false
		}
	}
	return true
}
