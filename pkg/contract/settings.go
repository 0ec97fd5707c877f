package contract

import (
	"encoding/json"
	"fmt"
	"time"
)

// ConfigVersion is the version of Settings and GuardConfig written by this build.
const ConfigVersion = 1

// Duration is a time.Duration that is text like "30s" in JSON.
type Duration time.Duration

// MarshalJSON writes the duration as Go's text form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads Go's text form.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration must be text like \"30s\": %w", err)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// Completion says what completes a window.
type Completion string

// What completes a window.
const (
	CompletionExitCode    Completion = "exit-code"   // exit 0 of every wrapped container
	CompletionTransaction Completion = "transaction" // only a commit through the ledger; exit 0 without one is a failure
)

// Busy says what a pod does while a live attempt holds the same window.
type Busy string

// What to do while the window is held.
const (
	BusyWait Busy = "wait" // wait for the outcome
	BusySkip Busy = "skip" // exit 0 without running
	BusyFail Busy = "fail" // exit 75
)

// Overlap says what a window does while another window of its job runs.
type Overlap string

// What to do while another window runs.
const (
	OverlapAllow   Overlap = "allow"   // run beside it
	OverlapSkip    Overlap = "skip"    // the window is closed without running
	OverlapWait    Overlap = "wait"    // wait until it has ended
	OverlapReplace Overlap = "replace" // ask an older window to stop, run when it has
)

// Order says in which order windows run.
type Order string

// In which order windows run.
const (
	OrderAny    Order = "any"
	OrderSerial Order = "serial" // a window waits until all earlier ones are closed
)

// OnCrash says what a crash of the worker means.
type OnCrash string

// What a crash means.
const (
	OnCrashRetry OnCrash = "retry"
	OnCrashHold  OnCrash = "hold" // the window waits for a person's decision
)

// Manual says which window a manual Job means.
type Manual string

// What a manual Job means.
const (
	ManualWindow   Manual = "window"   // the newest due window since guarding began
	ManualSeparate Manual = "separate" // a run of its own, keyed by the Job's UID
	ManualRefuse   Manual = "refuse"   // nothing: exit 78
)

// CatchUp says what becomes of windows that no Job came for.
type CatchUp string

// What is run later.
const (
	CatchUpNone   CatchUp = "none"   // they are recorded as missed; in Settings it is empty
	CatchUpLatest CatchUp = "latest" // only the newest due window; older ones are superseded
	CatchUpAll    CatchUp = "all"    // each one, oldest first
)

// SuspendedWindows says what becomes of windows that passed while the CronJob was suspended.
type SuspendedWindows string

// What becomes of them.
const (
	SuspendedSkip    SuspendedWindows = "skip"     // they are recorded as skipped; in Settings it is empty
	SuspendedCatchUp SuspendedWindows = "catch-up" // they are missed, like others
)

// DST says which windows there are when a zone's clocks are moved.
type DST string

// Which windows there are.
const (
	DSTKubernetes DST = "kubernetes" // 01:30 twice, 02:30 not at all; in Settings it is empty
	DSTOnce       DST = "once"       // each civil time once, see window.Schedule
)

// Settings are the validated wishes of a CronJob's annotations together with what
// a Job must know of its CronJob. The webhook stamps them on the Job template.
type Settings struct {
	Version    int    `json:"version"`
	CronJob    string `json:"cronJob"`
	CronJobUID string `json:"cronJobUID,omitempty"` // empty at CREATE, when the CronJob has none yet
	// JobName is the logical identity "<namespace>/<name>", with "<cluster>:" before it
	// where clusters must not share.
	JobName  string `json:"jobName"`
	Ledger   string `json:"ledger"`
	Schedule string `json:"schedule"`
	TimeZone string `json:"timeZone,omitempty"`
	// Since is the first whole second after guarding began, or after the last edit of what
	// says which windows there are (job name, ledger, schedule, zone, rule for DST): a window
	// of that very instant was met by an unguarded Job.
	Since time.Time `json:"since"`
	// OrderedSince is the same for the order serial: it begins anew also with the order
	// itself and with an edit of the indexes, since earlier windows lack theirs.
	OrderedSince time.Time `json:"orderedSince,omitzero"`
	// Refusal, when not empty, says why these settings cannot be used: each Job that
	// carries them exits ExitRefused with it. It is for what could not be refused at
	// apply, such as a CronJob annotated before the installation.
	Refusal string `json:"refusal,omitempty"`
	// Indexed: each index of the Job is a piece of the window of its own.
	Indexed     bool  `json:"indexed,omitempty"`
	Completions int32 `json:"completions,omitempty"` // of an Indexed Job

	// InitContainers and Containers are the names to wrap, in the template's order.
	InitContainers []string            `json:"initContainers,omitempty"`
	Containers     []string            `json:"containers"`
	Commands       map[string][]string `json:"commands,omitempty"`
	After          string              `json:"after,omitempty"`

	Completion   Completion `json:"completion"`
	Busy         Busy       `json:"busy"`
	Manual       Manual     `json:"manual"`
	StartTimeout Duration   `json:"startTimeout"`
	LedgerWait   Duration   `json:"ledgerWait,omitempty"` // 0: until the next window
	Lease        Duration   `json:"lease"`

	// For the windows engine; without CatchUp all five are empty.
	CatchUp          CatchUp          `json:"catchUp,omitempty"`
	CatchUpLimit     int              `json:"catchUpLimit,omitempty"`
	CatchUpAge       Duration         `json:"catchUpAge,omitempty"`
	CatchUpParallel  int              `json:"catchUpParallel,omitempty"`
	SuspendedWindows SuspendedWindows `json:"suspendedWindows,omitempty"`

	Policies
}

// Trigger says what started a run.
type Trigger string

// What started a run.
const (
	TriggerScheduled Trigger = "scheduled"
	TriggerManual    Trigger = "manual"
	TriggerCatchUp   Trigger = "catch-up" // a Job that the windows engine made
)

// Source says how a window was derived; it is recorded with the row.
type Source string

// How a window was derived.
const (
	SourceTimestamp Source = "timestamp" // the Job's scheduled-timestamp annotation
	SourceName      Source = "name"      // the minute suffix of the Job's name
	SourceManual    Source = "manual"    // the newest due window, for a manual Job
	SourceSeparate  Source = "separate"  // a manual run of its own
	SourceDeclared  Source = "declared"  // onceguard.dev/window-start, or the command line
	SourceSchedule  Source = "schedule"  // the schedule and the start, without Kubernetes
)

// GuardConfig is what the injected guard is told. It holds no secret.
type GuardConfig struct {
	Version     int       `json:"version"`
	JobName     string    `json:"jobName"`
	WindowStart time.Time `json:"windowStart"`        // zero when Refusal is set and no window is known
	WindowEnd   time.Time `json:"windowEnd,omitzero"` // the next nominal instant; zero when unknown
	Trigger     Trigger   `json:"trigger"`
	Source      Source    `json:"source"`
	Schedule    string    `json:"schedule,omitempty"`
	TimeZone    string    `json:"timeZone,omitempty"`
	// Refusal, when not empty, is a permanent refusal for people to read: nothing is
	// claimed, every wrapped container prints it and exits ExitRefused.
	Refusal string `json:"refusal,omitempty"`

	Namespace string `json:"namespace"`
	Job       string `json:"job"` // name of the Kubernetes Job
	JobUID    string `json:"jobUID"`
	Ledger    string `json:"ledger"`
	Secret    string `json:"secret"` // name of the ledger's Secret, for messages
	SecretKey string `json:"secretKey"`
	// InitContainers and Containers are the names of the wrapped containers; the
	// attempt ends when each of them has reported.
	InitContainers []string `json:"initContainers,omitempty"`
	Containers     []string `json:"containers"`
	// Probed are the wrapped containers with a liveness or startup probe: restarted in
	// place, such a one must not wait, since its probe would kill it.
	Probed []string `json:"probed,omitempty"`
	// RestartInPlace is true under restartPolicy OnFailure.
	RestartInPlace bool `json:"restartInPlace,omitempty"`
	HostNetwork    bool `json:"hostNetwork,omitempty"` // no loopback port, only the socket
	// Grace is the pod's time between TERM and KILL; a worker that the guard itself stops
	// gets as long while the lease is held. Zero: 30 s.
	Grace Duration `json:"grace,omitempty"`

	Completion   Completion `json:"completion"`
	Busy         Busy       `json:"busy"`
	StartTimeout Duration   `json:"startTimeout"`
	LedgerWait   Duration   `json:"ledgerWait"`
	Lease        Duration   `json:"lease"`
	LogLanguage  string     `json:"logLanguage,omitempty"` // en (default) or zh

	Policies
	// Since and Previous are for the order serial: Settings.OrderedSince, and the nominal
	// instant before WindowStart; zero when unknown.
	Since    time.Time `json:"since,omitzero"`
	Previous time.Time `json:"previous,omitzero"`
	// Repeats is the window whose civil time this one repeats under DSTOnce; zero for all
	// others. Such a window does not run.
	Repeats time.Time `json:"repeats,omitzero"`
	// Asked is when a person made a Job of source manual: what was closed before is
	// reopened, what is decided afterwards stands. Zero otherwise.
	Asked time.Time `json:"asked,omitzero"`
}
