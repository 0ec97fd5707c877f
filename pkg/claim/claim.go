// Package claim holds the words of the ledger protocol: what is asked, what is
// answered, and the rule that leads from one to the other. It computes only; the
// SQL functions of package ledger are the authority and must agree with it.
package claim

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// Status of an execution as stored. "Lease expired" is absent on purpose: it is a
// comparison with the database's clock, never a stored value that can go stale.
type Status string

// The stored states.
const (
	Running   Status = "running"   // an attempt has the window; its lease may have run out
	Completed Status = "completed" // committed together with the business writes; final
	Failed    Status = "failed"    // the attempt ended without completing; may be retried
	Exhausted Status = "exhausted" // closed: it has failed as often as it may
	Skipped   Status = "skipped"   // closed: it does not run; the stored reason says why
	Held      Status = "held"      // an attempt crashed, and a person is to decide
)

// Verdict answers "may I run?".
type Verdict string

// The verdicts.
const (
	Run    Verdict = "run"
	Skip   Verdict = "skip"
	Wait   Verdict = "wait"
	Refuse Verdict = "refuse" // a retry makes no sense, and it is no success either
)

// Reason explains a verdict; the value is the log value, the SQL value and the label.
type Reason string

// Reasons of the verdict run.
const (
	First    Reason = "first"    // no attempt before
	Retry    Reason = "retry"    // the last attempt failed or was released
	Takeover Reason = "takeover" // the last attempt's lease ran out; it was recorded lost
	Reopened Reason = "reopened" // the window was closed without being done, and a person asks for it
	Adopted  Reason = "adopted"  // the same execution_id asked again
)

// Reasons of the verdict skip. Those from DST on are stored with a Skipped window.
const (
	AlreadyCompleted Reason = "completed"  // a duplicate: the window is done
	Closed           Reason = "closed"     // older than the job's watermark
	DST              Reason = "dst"        // its civil time has been: the clocks were set back
	Late             Reason = "late"       // its start deadline passed before it ever ran
	Overlap          Reason = "overlap"    // another window of the job is running
	Superseded       Reason = "superseded" // a newer window took its place
	Cancelled        Reason = "cancelled"  // a person said that it shall not run
)

// Reasons of the verdict wait.
const (
	BusyHeld   Reason = "busy"       // a live attempt holds the window
	Committing Reason = "committing" // the row is locked: its transaction is committing
	FenceLost  Reason = "fence-lost" // this execution_id no longer holds the window
	Replacing  Reason = "replacing"  // an older window was asked to stop
	Order      Reason = "order"      // an earlier window is not closed
	// Overlap too: another window of the job is running.
)

// Reasons of the verdict refuse.
const (
	PayloadConflict Reason = "payload"   // the window belongs to another payload
	IsExhausted     Reason = "exhausted" // it has failed as often as it may
	IsHeld          Reason = "held"      // an attempt crashed, and a person is to decide
)

// Outcome is how an attempt ended.
type Outcome string

// The outcomes. An attempt without one is running, or dead and not yet taken over.
const (
	OutcomeCompleted   Outcome = "completed"
	OutcomeFailed      Outcome = "failed"      // a wrapped process ended with a code other than 0
	OutcomeCrashed     Outcome = "crashed"     // the wrapper vanished without a report (OOM kill, node)
	OutcomeStopped     Outcome = "stopped"     // ended by a signal from outside: pod deleted, deadline
	OutcomeLost        Outcome = "lost"        // the lease ran out; written by whoever took over
	OutcomeNotStarted  Outcome = "not-started" // no wrapped process came within the start timeout
	OutcomeUncommitted Outcome = "uncommitted" // exit 0 under completion=transaction without a commit
)

// Attempt names one try at a window: every write carries it. ExecutionID is the
// fence: random, made by the guard for each acquisition, persisted before the claim.
type Attempt struct {
	Window      window.Window
	ExecutionID uuid.UUID
}

// Request is one question to the ledger.
type Request struct {
	Attempt
	Lease  time.Duration
	Terms  Terms
	Origin Origin
}

// Terms are the conditions under which an attempt wants to run; the ledger judges them.
// The zero value has none: any window may run beside others, at any time, as often as
// it takes.
type Terms struct {
	Overlap contract.Overlap // while another window of the job runs; empty: allow
	// Serial: not before all earlier windows since Since are closed, and not while any other
	// window of this name runs. Previous is the nominal instant before this window, zero
	// when unknown: it must have a row, or be missed or skipped, so that a window that the
	// ledger has not heard of is waited for too.
	Serial   bool
	Since    time.Time
	Previous time.Time
	// StartDeadline after window_start, by the database's clock, a window that never ran
	// is closed as late, unless another was stopped for it. Zero: none.
	StartDeadline time.Duration
	PayloadDigest string // the window belongs to this payload; empty: to any
	MaxAttempts   int    // failures after which the window is closed as exhausted; zero: none
	HoldOnCrash   bool   // after a crash a person decides
	// ReopenBefore: a person asked at this instant, so a window that was closed as skipped or
	// exhausted before it runs. Zero: nobody asks. What was decided later stands.
	ReopenBefore time.Time
	// Repeats is the earlier window whose civil time this one has again, under a schedule
	// that means each civil time once: this one is closed unless it was tried, or somebody
	// asks for it. Zero: it repeats none.
	Repeats time.Time
}

// Origin says where an attempt comes from; it is recorded, never judged.
type Origin struct {
	Trigger   contract.Trigger `json:"trigger,omitempty"`
	Source    contract.Source  `json:"source,omitempty"`
	WindowEnd time.Time        `json:"windowEnd,omitzero"`
	Schedule  string           `json:"schedule,omitempty"`
	TimeZone  string           `json:"timeZone,omitempty"`
	DST       contract.DST     `json:"dst,omitempty"`
	Namespace string           `json:"namespace,omitempty"`
	Job       string           `json:"job,omitempty"`
	JobUID    string           `json:"jobUID,omitempty"`
	Pod       string           `json:"pod,omitempty"`
	PodUID    string           `json:"podUID,omitempty"`
	Node      string           `json:"node,omitempty"`
}

// Answer is the ledger's reply to a Request.
type Answer struct {
	Verdict      Verdict
	Reason       Reason
	Attempt      int   // number of the try, for people; with Run
	FencingToken int64 // grows with every acquisition, for other systems; with Run
	Generation   int   // part of the idempotency key; with Run
	// Holder describes who completed, closed or holds the window, or the other window
	// that is in the way; with Skip, Wait and Refuse.
	Holder Holder
}

// Holder is the attempt that completed or holds a window.
type Holder struct {
	Window        window.Window // the one asked for, or another that is in the way
	PayloadDigest string        // that the window belongs to
	ExecutionID   uuid.UUID
	Attempt       int
	Pod           string // "<namespace>/<pod>", empty without Kubernetes
	CompletedAt   time.Time
	LeaseExpires  time.Time // database time
}

// Beat is the answer to a heartbeat.
type Beat string

// Answers to a heartbeat.
const (
	BeatOK     Beat = "ok"
	BeatCancel Beat = "cancel" // still held, but the holder is asked to stop
	BeatLost   Beat = "lost"   // another attempt, or nobody, holds the window
)

// Completion is what an attempt stores with the completed window.
type Completion struct {
	PayloadDigest string
	RequestDigest string          // digest of the canonical commit request
	Result        json.RawMessage // replayed to whoever asks again
	Processed     *int64
}

// End reports an attempt that did not complete its window.
type End struct {
	Outcome  Outcome
	ExitCode *int   // as Kubernetes shows it: 128+n for a signal
	Message  string // at most 1024 characters are kept
}

// Resolution answers what became of an unknown COMMIT.
type Resolution string

// The resolutions.
const (
	ResolvedCommitted    Resolution = "committed"     // by this very execution_id
	ResolvedNotCommitted Resolution = "not-committed" // and it never will: the execution_id was replaced
	ResolvedPending      Resolution = "pending"       // the row is locked; ask again
	ResolvedLost         Resolution = "lost"          // another attempt holds or completed the window
)
