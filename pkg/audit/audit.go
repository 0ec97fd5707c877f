// Package audit reads the record: which windows there are, how they stand, what each
// attempt at them did and which pods found them done. It only reads, and only the
// documented views of the schema onceguard, so a login with
// onceguard.grant_audit is enough.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is what of a connection, pool or transaction is needed here.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

var (
	// ErrNoSchema says that the database has no ledger, or one too old for these queries.
	ErrNoSchema = errors.New("the database holds no ledger of this version (schema onceguard)")
	// ErrForbidden says that the login may not read the views.
	ErrForbidden = errors.New("the login may not read the record")
	// ErrNotFound says that the window was never claimed.
	ErrNotFound = errors.New("no such window in the record")
)

// State is how a window stands, as the view onceguard.windows says it.
type State string

// The states.
const (
	Done       State = "done"
	Running    State = "running"
	Failed     State = "failed"      // may be retried
	LeaseEnded State = "lease ended" // its holder died; the next claim takes over
	Held       State = "held"        // after a crash a person is to decide
	Exhausted  State = "exhausted"   // closed: it has failed as often as it may
	Skipped    State = "skipped"     // closed: it does not run; Reason says why
	Planned    State = "planned"     // nobody has claimed it, and it is to be run later
)

// States lists all states.
func States() []State {
	return []State{Done, Running, Failed, LeaseEnded, Held, Exhausted, Skipped, Planned}
}

// Window is one row of onceguard.windows. All instants are UTC.
type Window struct {
	JobName     string     `db:"job_name" json:"job_name"`
	WindowStart time.Time  `db:"window_start" json:"window_start"`
	WindowEnd   *time.Time `db:"window_end" json:"window_end,omitempty"`
	State       State      `db:"state" json:"state"`
	// Reason is why it is skipped (late, overlap, superseded, cancelled, dst), exhausted, held,
	// or "rerun": a person asked for it again. ClosedBy is the pod or person that closed it.
	Reason              *string    `db:"reason" json:"reason,omitempty"`
	ClosedBy            *string    `db:"closed_by" json:"closed_by,omitempty"`
	Attempts            int        `db:"attempts" json:"attempts"`
	DuplicatesPrevented int64      `db:"duplicates_prevented" json:"duplicates_prevented"`
	FirstStartedAt      *time.Time `db:"first_started_at" json:"first_started_at,omitempty"`
	StartedAt           *time.Time `db:"started_at" json:"started_at,omitempty"` // of the last attempt
	CompletedAt         *time.Time `db:"completed_at" json:"completed_at,omitempty"`
	// DurationSeconds of the last attempt: to its end, or to now while it runs.
	DurationSeconds *float64 `db:"duration_seconds" json:"duration_seconds,omitempty"`
	Processed       *int64   `db:"processed" json:"processed,omitempty"`
	// CheckpointSeq is how many pieces of its work are committed.
	CheckpointSeq int `db:"checkpoint_seq" json:"checkpoint_seq,omitempty"`
	// PayloadDigest is of the payload that the window belongs to.
	PayloadDigest *string `db:"payload_digest" json:"payload_digest,omitempty"`
	Trigger       *string `db:"trigger" json:"trigger,omitempty"`
	Source        *string `db:"source" json:"source,omitempty"`
	Namespace     *string `db:"namespace" json:"namespace,omitempty"`
	Job           *string `db:"job" json:"job,omitempty"`
	Pod           *string `db:"pod" json:"pod,omitempty"`
	Node          *string `db:"node" json:"node,omitempty"`
	LastOutcome   *string `db:"last_outcome" json:"last_outcome,omitempty"`
	LastExitCode  *int    `db:"last_exit_code" json:"last_exit_code,omitempty"`
	LastMessage   *string `db:"last_message" json:"last_message,omitempty"`
	// Planned: it is to be run later, whatever its state is; Reprocess is that of its Plan.
	Planned        bool       `db:"planned" json:"planned,omitempty"`
	Reprocess      string     `db:"reprocess" json:"-"`
	Schedule       *string    `db:"schedule" json:"schedule,omitempty"`
	TimeZone       *string    `db:"time_zone" json:"time_zone,omitempty"`
	DST            *string    `db:"dst" json:"dst,omitempty"` // the rule for moved clocks that it was due by
	Generation     int        `db:"generation" json:"generation"`
	ExecutionID    *string    `db:"execution_id" json:"execution_id,omitempty"`
	FencingToken   int64      `db:"fencing_token" json:"fencing_token"`
	LeaseExpiresAt *time.Time `db:"lease_expires_at" json:"lease_expires_at,omitempty"`
}

// Attempt is one row of onceguard.attempts. All instants are UTC.
type Attempt struct {
	Attempt         int        `db:"attempt" json:"attempt"`
	Outcome         string     `db:"outcome" json:"outcome"`
	ExitCode        *int       `db:"exit_code" json:"exit_code,omitempty"`
	Message         *string    `db:"message" json:"message,omitempty"`
	StartedAt       time.Time  `db:"started_at" json:"started_at"`
	EndedAt         *time.Time `db:"ended_at" json:"ended_at,omitempty"`
	DurationSeconds *float64   `db:"duration_seconds" json:"duration_seconds,omitempty"`
	Trigger         *string    `db:"trigger" json:"trigger,omitempty"`
	Source          *string    `db:"source" json:"source,omitempty"`
	Namespace       *string    `db:"namespace" json:"namespace,omitempty"`
	Job             *string    `db:"job" json:"job,omitempty"`
	Pod             *string    `db:"pod" json:"pod,omitempty"`
	Node            *string    `db:"node" json:"node,omitempty"`
	Generation      int        `db:"generation" json:"generation"`
	ExecutionID     string     `db:"execution_id" json:"execution_id"`
	FencingToken    int64      `db:"fencing_token" json:"fencing_token"`
}

// Decision is one row of onceguard.decisions: what a person decided about the window.
type Decision struct {
	What      string    `db:"what" json:"what"` // rerun, cancel, release, backfill or cancel-backfill
	Reprocess string    `db:"reprocess" json:"reprocess,omitempty"`
	Who       string    `db:"who" json:"who"`
	Why       string    `db:"why" json:"why"`
	Login     string    `db:"login" json:"login"` // of the database
	DecidedAt time.Time `db:"decided_at" json:"decided_at"`
	// Before is the row of the window as it stood, null when nobody had claimed it.
	Before json.RawMessage `db:"before" json:"before"`
	// FirstWindow and LastWindow are the range that a backfill, or its end, was about.
	FirstWindow *time.Time `db:"first_window" json:"first_window,omitempty"`
	LastWindow  *time.Time `db:"last_window" json:"last_window,omitempty"`
}

// Skip is one row of onceguard.skips: a pod that did not run. All instants are UTC.
type Skip struct {
	Reason    string    `db:"reason" json:"reason"` // as claim gave it: completed, closed, busy and so on
	SkippedAt time.Time `db:"skipped_at" json:"skipped_at"`
	Trigger   *string   `db:"trigger" json:"trigger,omitempty"`
	Namespace *string   `db:"namespace" json:"namespace,omitempty"`
	Job       *string   `db:"job" json:"job,omitempty"`
	Pod       *string   `db:"pod" json:"pod,omitempty"`
	Node      *string   `db:"node" json:"node,omitempty"`
}

func (w *Window) reason() string {
	if w.Reason == nil {
		return ""
	}
	return *w.Reason
}

func (w *Window) instants() []*time.Time {
	return []*time.Time{&w.WindowStart, w.WindowEnd, w.FirstStartedAt, w.StartedAt, w.CompletedAt, w.LeaseExpiresAt}
}

func (a *Attempt) instants() []*time.Time { return []*time.Time{&a.StartedAt, a.EndedAt} }

func (s *Skip) instants() []*time.Time { return []*time.Time{&s.SkippedAt} }

func (d *Decision) instants() []*time.Time {
	return []*time.Time{&d.DecidedAt, d.FirstWindow, d.LastWindow}
}

func (j *Job) instants() []*time.Time {
	return []*time.Time{j.LatestWindow, j.LatestCompletedWindow, j.ClosedBefore}
}

// collect runs a query and gives its rows with all instants in UTC, whatever the
// session's time zone is.
func collect[T any, P interface {
	*T
	instants() []*time.Time
}](ctx context.Context, q Querier, what, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, translate(what, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, translate(what, err)
	}
	for i := range found {
		for _, t := range P(&found[i]).instants() {
			if t != nil {
				*t = t.UTC()
			}
		}
	}
	return found, nil
}

// translate is the one place here that knows SQLSTATEs.
func translate(what string, err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		switch server.Code {
		case "3F000", "42P01", "42703", "42883": // schema, table, column or function unknown
			return fmt.Errorf("%s: %w: %s", what, ErrNoSchema, server.Message)
		case "42501":
			return fmt.Errorf("%s: %w: %s", what, ErrForbidden, server.Message)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
