// Package disposition decides what became of the windows of a CronJob that nobody has run:
// which may still come, which never will and why, and which are caught up. It computes
// only: what was seen is a parameter, and so is the clock.
//
// Every due window since guarding began has exactly one answer: its execution if it has
// one, else the gap that covers it. A gap never stops a window from running: a Job that
// comes after all runs, and its execution is the answer from then on. What is to run later
// is planned; of a planned window the engine makes a Job, and the plan goes when the window
// is closed.
package disposition

import (
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// Status is how the windows of a gap stand.
type Status string

// The states of a gap.
const (
	Late    Status = "late"    // due, and nothing has run it; it may still come
	Missed  Status = "missed"  // its Job never came or never ran it, and no other will come
	Skipped Status = "skipped" // it was not to run: suspended, superseded, or a rule for DST
)

// Reason says why no Job ran a window; the value is the SQL value, the label and the log value.
type Reason string

// The reasons.
const (
	Controller       Reason = "controller"        // no Job was made though nothing forbade it: the CronJob controller was late, or down
	StartDeadline    Reason = "start-deadline"    // as Controller, and startingDeadlineSeconds has passed
	Overlap          Reason = "overlap"           // concurrencyPolicy Forbid, and an earlier Job was running
	Suspended        Reason = "suspended"         // the CronJob was suspended
	Admission        Reason = "admission"         // the Job or its pods were refused at admission
	Quota            Reason = "quota"             // the Job or its pods exceeded a quota
	Image            Reason = "image"             // an image could not be pulled
	Unschedulable    Reason = "unschedulable"     // no node for the pod
	Starting         Reason = "starting"          // there is a Job, and nothing is wrong with it so far
	Waiting          Reason = "waiting"           // the pod's guard waits, for the ledger or for its turn
	DeadlineExceeded Reason = "deadline-exceeded" // activeDeadlineSeconds ended the Job before it could claim
	JobFailed        Reason = "job-failed"        // the Job failed in another way before it could claim
	JobGone          Reason = "job-gone"          // the Job was made, and deleted before it ran the window
	NewerWindow      Reason = "superseded"        // catch-up=latest, and a newer window is due
	ClockMoved       Reason = "dst"               // dst=once, and nobody is there to make the Job
	Cancelled        Reason = "cancelled"         // a person cancelled its catch-up
)

// Rule says why a missed window is not caught up.
type Rule string

// The rules.
const (
	NotAsked   Rule = ""            // catch-up=none, or it is not closed yet
	TooOld     Rule = "age"         // older than catch-up-age
	TooMany    Rule = "limit"       // not among the newest catch-up-limit windows
	WhileAway  Rule = "suspended"   // suspended-windows=skip
	OnlyLatest Rule = "latest"      // catch-up=latest, and a newer window is due
	GivenUp    Rule = "given-up"    // Jobs were made for it MakeLimit times, and none ran it
	Nameless   Rule = "no-job-name" // the CronJob's name leaves no room for the Job's
	Outside    Rule = "outside"     // planned before the schedule was edited, or older than the watermark
	Gone       Rule = "gone"        // its CronJob was deleted
)

// MakeLimit is how many Jobs are made for one planned window that vanish without a trace in
// the ledger.
const MakeLimit = 3

// Gap is a range of due windows that have no execution and share their answer. Windows with
// an execution may lie in it: they are not part of it.
type Gap struct {
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Windows int64     `json:"windows"` // how many of them had no execution when it was recorded
	Status  Status    `json:"status"`
	Reason  Reason    `json:"reason"`
	Rule    Rule      `json:"rule,omitempty"`
	// Evidence is a sentence about what was seen, at most 1024 bytes, with the names of the
	// objects; empty when there is nothing to add to the reason.
	Evidence string `json:"evidence,omitempty"`
}

// Span is an interval of time, From included, To not; To is zero while it lasts.
type Span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to,omitzero"`
}

// State is what the engine remembers of one CronJob: a row of job_schedule.
type State struct {
	// JudgedBefore: each due window before it has its final answer, but for those in Open.
	JudgedBefore time.Time `json:"judgedBefore"`
	// Open are windows before JudgedBefore that have an execution which is not closed.
	Open []time.Time `json:"open,omitempty"`
	// Suspensions are the intervals in which the CronJob was seen suspended, the oldest
	// first, as far as they reach behind JudgedBefore.
	Suspensions []Span `json:"suspensions,omitempty"`
	// Sights are Jobs of windows without an answer, as last seen: what a Job that has gone
	// would have told. Kept in memory only; without them the reason is poorer, and a Job that
	// is gone is noticed when the next window is due.
	Sights []Sight `json:"-"`
	// Recorded are the gaps at or after JudgedBefore, and what was seen of windows that are
	// not late yet, which is kept in memory only. Those that are not late stay as they are while
	// an older window is waited for.
	Recorded []Gap `json:"-"`
}

// Sight is what was last seen of the Jobs of a window.
type Sight struct {
	WindowStart time.Time
	Reason      Reason
	Evidence    string
	Gone        time.Time // since when there is no Job; zero while there is one
}

// Execution is a window's row in the ledger.
type Execution struct {
	WindowStart time.Time
	// Closed: completed, skipped, exhausted or held: no Job of its own is waited for.
	Closed bool
	Alive  bool // an attempt holds it, and its lease has not ended
	Failed bool // the last attempt has ended, or died, without closing it
	// Foreign: its last attempt was made by a Job of another CronJob, so what is seen here of
	// Jobs says nothing about it.
	Foreign bool
	// UpdatedAt is when it last changed, by the database's clock: of a dead attempt not before
	// its lease has ended.
	UpdatedAt time.Time
}

// Plan is a window that is to be run later.
type Plan struct {
	WindowStart time.Time
	Reason      Reason    // why it was missed; empty for what a person planned
	By          string    // who planned it: empty for the engine
	Made        int       // how many Jobs were made for it
	MadeAt      time.Time // when the last of them was, by the database's clock
	CronJobUID  string
}

// Job is what is seen of a Kubernetes Job that means a window of the CronJob.
type Job struct {
	WindowStart time.Time
	Name        string
	CatchUp     bool // made by the engine
	ByHand      bool // made by hand of its CronJob
	Created     time.Time
	Ended       bool
	EndedAt     time.Time // zero when it has not, or nobody knows
	Complete    bool
	// Reason and Evidence say what keeps it from running, or why it ended; Starting when
	// nothing is known.
	Reason   Reason
	Evidence string
}

// CronJob is what is seen of the CronJob itself.
type CronJob struct {
	Settings  contract.Settings
	Suspended bool
	// Seen are the intervals in which it was seen suspended since it is watched, the oldest
	// first; they may be known when State cannot be written. An empty one says that it was not
	// suspended then.
	Seen             []Span
	Forbid           bool           // concurrencyPolicy
	StartingDeadline *time.Duration // startingDeadlineSeconds
	LastScheduled    time.Time      // status.lastScheduleTime
	// Refused is what its Events say about Jobs that could not be made, empty for none;
	// RefusedReason is Admission or Quota.
	Refused       string
	RefusedReason Reason
	// RefusedAt is when that was last seen: it says nothing about later windows. Zero: now.
	RefusedAt time.Time
}

// View is all that a decision is made from.
type View struct {
	Now     time.Time
	CronJob CronJob
	State   State
	// ClosedBefore is the job's watermark: windows before it are closed for ever.
	ClosedBefore time.Time
	// Upto bounds what is judged: executions are known up to it. It is at most Now.
	Upto       time.Time
	Executions []Execution // from State.JudgedBefore to Upto, and those of State.Open; in order
	Plans      []Plan      // all of the job, in order
	Jobs       []Job       // all that mean windows of this CronJob, in order
}

// Decision is what to do about one CronJob.
type Decision struct {
	State State
	// Gaps replace those recorded at or after the former State.JudgedBefore.
	Gaps []Gap
	// Plans are windows to be planned.
	Plans []Plan
	// Unplan are planned windows that nothing is made for any more, with the gap that is
	// recorded instead.
	Unplan []Gap
	// Make are planned windows to make a Job for now, oldest first. A Job that was made for
	// such a window before has ended: it is to be deleted first, for its name is needed.
	Make []time.Time
	// Exhaust are windows whose Job has given up: they are closed.
	Exhaust []Gap
	// Next is when to look again, whatever happens; zero: not before something changes.
	Next time.Time
	// Note says what cannot be done for this CronJob and why, for people; empty when
	// everything can.
	Note string
}

// Schedule gives the schedule that the settings describe.
func (c CronJob) Schedule() (window.Schedule, error) {
	s, err := window.ParseSchedule(c.Settings.Schedule, c.Settings.TimeZone)
	if err != nil {
		return window.Schedule{}, err
	}
	return s.With(c.Settings.DST), nil
}
