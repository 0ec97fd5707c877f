package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/window"
)

// MostWindows is how many windows one call of Backfill or Answers takes.
const MostWindows = 10_000

// Reprocess says which windows that have an execution a backfill runs again.
type Reprocess string

// Each also does what the one before it does.
const (
	ReprocessNone      Reprocess = "none"      // none but those that were skipped, and not by a person
	ReprocessFailed    Reprocess = "failed"    // what failed, is exhausted or held, or a person cancelled
	ReprocessCompleted Reprocess = "completed" // what is completed, with a new generation
)

// Backfilled counts the windows of a backfill by what became of them.
type Backfilled struct {
	Planned int // they will be run, those too that were planned before
	Done    int // closed well, and left so
	Running int // a worker runs them now
	Kept    int // they failed, are exhausted, held or cancelled, and are left so
}

// Backfill plans due windows of a job to be run, oldest first, by the windows engine. A
// window stays as it is until its Job is made; only then its execution is opened again, and
// a former completion kept with the decision. Asked again with the same who and why it plans
// nothing twice: it can be resumed. jobName is without index and separate run.
//
// ErrState: the engine knows no CronJob that could run them. ErrPruned: some are older than
// the pruned history; the text says how many.
func Backfill(ctx context.Context, db DB, jobName string, windows []time.Time, reprocess Reprocess, who, why string) (Backfilled, error) {
	return BackfillBy(ctx, db, jobName, "", windows, reprocess, who, why)
}

// BackfillBy is Backfill where several CronJobs share the job: Jobs of the one with this UID
// run the windows, so they must be instants of its schedule. Empty: of the one that the
// engine has looked at last.
func BackfillBy(ctx context.Context, db DB, jobName, cronJobUID string, windows []time.Time, reprocess Reprocess, who, why string) (b Backfilled, err error) {
	err = db.QueryRow(ctx, "SELECT planned, done, running, kept FROM onceguard.backfill($1, $2, $3, $4, $5, nullif($6, ''))", jobName, windows, string(reprocess), who, why, cronJobUID).
		Scan(&b.Planned, &b.Done, &b.Running, &b.Kept)
	return b, translate("backfill of "+jobName, err)
}

// CancelBackfill takes back what is planned from first to last, what the engine planned too,
// and gives how many windows that were. What a worker runs now stays planned. What the engine
// planned, or a Job was made for, is cancelled, unless it was done before and not tried since:
// then it is done as before. What a person planned, and no Job was made for, stays as it was.
func CancelBackfill(ctx context.Context, db DB, jobName string, first, last time.Time, who, why string) (cancelled int, err error) {
	return CancelBackfillBy(ctx, db, jobName, "", first, last, who, why)
}

// CancelBackfillBy is CancelBackfill of what the CronJob with this UID is to run. Empty: any.
func CancelBackfillBy(ctx context.Context, db DB, jobName, cronJobUID string, first, last time.Time, who, why string) (cancelled int, err error) {
	err = db.QueryRow(ctx, "SELECT onceguard.cancel_backfill($1, $2, $3, $4, $5, nullif($6, ''))", jobName, first, last, who, why, cronJobUID).Scan(&cancelled)
	return cancelled, translate("cancel of the backfill of "+jobName, err)
}

// Release lets a window that is held after a crash be tried again, from its checkpoint on.
// It is refused with ErrState when the window is not held.
func Release(ctx context.Context, db DB, w window.Window, who, why string) error {
	var nothing any
	err := db.QueryRow(ctx, "SELECT onceguard.unhold($1, $2, $3, $4)", w.JobName, w.Start, who, why).Scan(&nothing)
	return translate("release of "+w.String(), err)
}

// Kind says what has answered for a window.
type Kind string

// The kinds, in the order in which they go before each other.
const (
	ByExecution Kind = "execution"
	ByPruning   Kind = "pruned" // it is older than the job's watermark
	ByPlan      Kind = "plan"   // it will be run
	ByGap       Kind = "gap"
	ByNone      Kind = "none" // nobody has: it is not judged yet, or not due
)

// Answer is what became of a window.
type Answer struct {
	Window time.Time
	Kind   Kind
	// Status is that of the execution (as in audit.Window), or the disposition.Status of the
	// gap; Reason belongs to it.
	Status   string
	Reason   string
	Rule     disposition.Rule // of a gap
	Evidence string           // of a gap
	Planned  bool             // also where an execution answers
	CronJob  string           // namespace/name, of the plan or the gap
}

// Querier is what of a connection or pool Answers needs.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Answers gives what became of windows of a job, in their order; of an Indexed Job the index
// that is least closed answers. A login with grant_audit may ask.
func Answers(ctx context.Context, db Querier, jobName string, windows []time.Time) ([]Answer, error) {
	what := fmt.Sprintf("answers for %d windows of %s", len(windows), jobName)
	rows, err := db.Query(ctx, `SELECT window_start, kind, coalesce(status, ''), coalesce(reason, ''), coalesce(rule, ''), coalesce(evidence, ''), planned, coalesce(cron_job, '')
		FROM onceguard.answers($1, $2)`, jobName, windows)
	if err != nil {
		return nil, translate(what, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Answer, err error) {
		err = row.Scan(&a.Window, &a.Kind, &a.Status, &a.Reason, &a.Rule, &a.Evidence, &a.Planned, &a.CronJob)
		a.Window = a.Window.UTC()
		return a, err
	})
	return all, translate(what, err)
}
