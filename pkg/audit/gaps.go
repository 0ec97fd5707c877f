package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// Gap is one row of onceguard.gaps: a range of due windows that nobody has run. All
// instants are UTC. Windows of the range that have an execution are no part of it.
type Gap struct {
	JobName     string    `db:"job_name" json:"job_name"`
	CronJobUID  string    `db:"cron_job_uid" json:"cron_job_uid"`
	FirstWindow time.Time `db:"first_window" json:"first_window"`
	LastWindow  time.Time `db:"last_window" json:"last_window"`
	Windows     int64     `db:"windows" json:"windows"` // that had no execution when it was recorded
	// Taken is how many windows in the range have an execution or a plan now, whatever
	// schedule they were due by.
	Taken    int64              `db:"taken" json:"taken"`
	Status   disposition.Status `db:"status" json:"status"`
	Reason   disposition.Reason `db:"reason" json:"reason"`
	Rule     disposition.Rule   `db:"rule" json:"rule,omitempty"`
	Evidence string             `db:"evidence" json:"evidence,omitempty"`
	// Schedule and TimeZone are those that the windows were due by; DST is the CronJob's now.
	Schedule   string       `db:"schedule" json:"schedule,omitempty"`
	TimeZone   string       `db:"time_zone" json:"time_zone,omitempty"`
	DST        contract.DST `db:"dst" json:"dst,omitempty"`
	RecordedAt time.Time    `db:"recorded_at" json:"recorded_at"`
	UpdatedAt  time.Time    `db:"updated_at" json:"updated_at"`
}

// Plan is one row of onceguard.plans: a window that is to be run later.
type Plan struct {
	JobName     string    `db:"job_name" json:"job_name"`
	WindowStart time.Time `db:"window_start" json:"window_start"`
	CronJob     string    `db:"cron_job" json:"cron_job,omitempty"`
	// Reason is why it was missed; empty when a person planned it, who is PlannedBy.
	Reason    disposition.Reason `db:"reason" json:"reason,omitempty"`
	PlannedBy string             `db:"planned_by" json:"planned_by,omitempty"`
	Why       string             `db:"why" json:"why,omitempty"`
	// Reprocess is what a person's plan opens again when its Job is made: none (only what is
	// skipped), failed or completed. Empty when nothing is to be opened, or has been already.
	Reprocess string     `db:"reprocess" json:"reprocess,omitempty"`
	Made      int        `db:"made" json:"made"` // how many Jobs were made for it
	Job       string     `db:"job" json:"job,omitempty"`
	PlannedAt time.Time  `db:"planned_at" json:"planned_at"`
	MadeAt    *time.Time `db:"made_at" json:"made_at,omitempty"`
}

// Schedule is one row of onceguard.schedules: a CronJob as the windows engine knows it.
type Schedule struct {
	JobName    string           `db:"job_name" json:"job_name"`
	CronJobUID string           `db:"cron_job_uid" json:"cron_job_uid"`
	CronJob    string           `db:"cron_job" json:"cron_job"` // NAMESPACE/NAME
	Schedule   string           `db:"schedule" json:"schedule"`
	TimeZone   string           `db:"time_zone" json:"time_zone,omitempty"`
	DST        contract.DST     `db:"dst" json:"dst,omitempty"`
	CatchUp    contract.CatchUp `db:"catch_up" json:"catch_up,omitempty"`
	// Since is when guarding began, or the last edit of what says which windows there are.
	Since time.Time `db:"since" json:"since"`
	// JudgedBefore: each due window before it has its final answer.
	JudgedBefore *time.Time `db:"judged_before" json:"judged_before,omitempty"`
	// SuspendedSince is since when the CronJob is suspended, as far as was seen; nil when it is not.
	SuspendedSince *time.Time `db:"-" json:"suspended_since,omitempty"`
	Suspension     string     `db:"suspension" json:"-"` // SuspendedSince as it is kept
	// Note says what cannot be done for it, and why.
	Note     string     `db:"note" json:"note,omitempty"`
	LookedAt *time.Time `db:"looked_at" json:"looked_at,omitempty"` // when the engine last did
	GoneAt   *time.Time `db:"gone_at" json:"gone_at,omitempty"`     // when the CronJob was found deleted
}

func (g *Gap) instants() []*time.Time {
	return []*time.Time{&g.FirstWindow, &g.LastWindow, &g.RecordedAt, &g.UpdatedAt}
}

func (p *Plan) instants() []*time.Time { return []*time.Time{&p.WindowStart, &p.PlannedAt, p.MadeAt} }

func (s *Schedule) instants() []*time.Time {
	return []*time.Time{&s.Since, s.JudgedBefore, s.LookedAt, s.GoneAt}
}

// chosen is the choice of jobs by a Filter's Namespace ($1) and Job ($2), with job_name of
// the view that is called v.
const chosen = `($1::text = '' OR split_part(regexp_replace(v.job_name, '^[^:/]*:', ''), '/', 1) = $1)
  AND ($2::text = '' OR $2 IN (v.job_name, regexp_replace(v.job_name, '^[^:/]*:', ''), split_part(regexp_replace(v.job_name, '^[^:/]*:', ''), '/', 2)))`

// taken are the windows of a job, and of its indexes, between two instants that have an execution or a
// plan; '$' is the character after '#'.
const taken = `SELECT x.window_start FROM onceguard.windows x WHERE x.job_name = %[1]s AND x.window_start BETWEEN %[2]s AND %[3]s
    UNION SELECT x.window_start FROM onceguard.windows x
    WHERE x.job_name >= %[1]s || '#' AND x.job_name < %[1]s || '$' AND strpos(x.job_name, '@') = 0 AND x.window_start BETWEEN %[2]s AND %[3]s
    UNION SELECT x.window_start FROM onceguard.plans x WHERE x.job_name = %[1]s AND x.window_start BETWEEN %[2]s AND %[3]s`

var (
	takenSQL   = fmt.Sprintf(taken, "$1", "$2", "$3") + ` ORDER BY 1 LIMIT $4::int`
	gapColumns = `SELECT (SELECT count(*) FROM (` + fmt.Sprintf(taken, "v.job_name", "v.first_window", "v.last_window") + `) t) AS taken,
       v.job_name, v.cron_job_uid, v.first_window, v.last_window, v.windows, v.status, v.reason, coalesce(v.rule, '') AS rule,
       coalesce(v.evidence, '') AS evidence, coalesce(v.schedule, '') AS schedule, coalesce(v.time_zone, '') AS time_zone, coalesce(k.dst, '') AS dst,
       v.recorded_at, v.updated_at
FROM onceguard.gaps v LEFT JOIN onceguard.schedules k ON k.job_name = v.job_name AND k.cron_job_uid = v.cron_job_uid
`
	gapsSQL = gapColumns + `WHERE ` + chosen + `
  AND (NOT $3::bool OR v.status = 'late')
  AND (v.status = 'late' OR v.last_window >= CASE WHEN $4::float8 = 0 THEN '-infinity' ELSE statement_timestamp() - make_interval(secs => $4) END)
ORDER BY v.last_window DESC, v.job_name, v.cron_job_uid, v.first_window DESC
LIMIT $5::int`

	coverSQL = gapColumns + `WHERE v.job_name = $1 AND v.first_window <= $2 AND v.last_window >= $2
ORDER BY v.first_window, v.cron_job_uid
LIMIT $3::int`

	planColumns = `SELECT v.job_name, v.window_start, coalesce(v.cron_job, '') AS cron_job, coalesce(v.reason, '') AS reason, coalesce(v.planned_by, '') AS planned_by,
       coalesce(v.why, '') AS why, coalesce(v.reprocess, '') AS reprocess, v.made, coalesce(v.job, '') AS job, v.planned_at, v.made_at
FROM onceguard.plans v
`
	plansSQL = planColumns + `WHERE ` + chosen + `
ORDER BY v.window_start DESC, v.job_name
LIMIT $3::int`

	// Planned windows that have no row; '$' is the character after '#'.
	unclaimedSQL = planColumns + `WHERE ` + chosen + `
  AND v.window_start >= CASE WHEN $3::float8 = 0 THEN '-infinity' ELSE statement_timestamp() - make_interval(secs => $3) END
  AND NOT EXISTS (SELECT FROM onceguard.windows x WHERE x.job_name = v.job_name AND x.window_start = v.window_start)
  AND NOT EXISTS (SELECT FROM onceguard.windows x WHERE x.job_name >= v.job_name || '#' AND x.job_name < v.job_name || '$' AND x.window_start = v.window_start)
ORDER BY v.window_start DESC, v.job_name
LIMIT $4::int`

	planSQL = planColumns + `WHERE v.job_name = $1 AND v.window_start = $2`

	schedulesSQL = `SELECT v.job_name, v.cron_job_uid, v.cron_job, coalesce(v.schedule, '') AS schedule, coalesce(v.time_zone, '') AS time_zone, coalesce(v.dst, '') AS dst,
       coalesce(v.catch_up, '') AS catch_up, v.since, nullif(v.judged_before, '-infinity') AS judged_before,
       CASE WHEN (v.suspensions -> -1) ? 'to' THEN '' ELSE coalesce(v.suspensions -> -1 ->> 'from', '') END AS suspension,
       coalesce(v.note, '') AS note, v.looked_at, v.gone_at
FROM onceguard.schedules v
WHERE ` + chosen + `
ORDER BY v.job_name, v.gone_at DESC NULLS FIRST, v.cron_job, v.cron_job_uid
LIMIT $3::int`
)

// GapFilter chooses gaps; its zero value means all.
type GapFilter struct {
	Namespace, Job string        // as in Filter
	Late           bool          // only those that may still be run
	Since          time.Duration // only those that reach into so long before now, by the database's clock, and all late ones
	Limit          int           // the greatest number of gaps given; 0 means all
}

// Gaps gives the ranges that f chooses, newest first, and whether there are more than its
// limit.
func Gaps(ctx context.Context, q Querier, f GapFilter) (found []Gap, more bool, err error) {
	var limit *int
	if f.Limit > 0 {
		one := f.Limit + 1
		limit = &one
	}
	found, err = collect[Gap](ctx, q, "read gaps", gapsSQL, f.Namespace, f.Job, f.Late, f.Since.Seconds(), limit)
	if err != nil || limit == nil || len(found) <= f.Limit {
		return found, false, err
	}
	return found[:f.Limit], true, nil
}

// Taken gives the windows of a job and of its indexes that have an execution or a plan, from
// first to last, oldest first, at most limit of them.
func Taken(ctx context.Context, q Querier, jobName string, first, last time.Time, limit int) ([]time.Time, error) {
	return starts(ctx, q, "read windows of "+jobName, takenSQL, jobName, first, last, limit)
}

// Plans gives the planned windows of the jobs that namespace and job choose, newest first,
// at most limit of them.
func Plans(ctx context.Context, q Querier, namespace, job string, limit int) ([]Plan, error) {
	return collect[Plan](ctx, q, "read plans", plansSQL, namespace, job, limit)
}

// Schedules gives what the engine knows of the CronJobs of the jobs that namespace and job
// choose, by job, those that are gone last, at most limit of them.
func Schedules(ctx context.Context, q Querier, namespace, job string, limit int) ([]Schedule, error) {
	found, err := collect[Schedule](ctx, q, "read schedules", schedulesSQL, namespace, job, limit)
	for i, x := range found {
		if since, err := time.Parse(time.RFC3339, x.Suspension); err == nil && x.GoneAt == nil {
			since = since.UTC()
			found[i].SuspendedSince = &since
		}
	}
	return found, err
}

// Due is what is recorded of one window beside its execution.
type Due struct {
	Gaps []Gap // that cover it, of each CronJob of the job
	Plan *Plan // nil when it is not planned
}

// maxCover bounds the CronJobs of one job that are looked at.
const maxCover = 100

// DueOf gives what is recorded of a window beside its execution. jobName is the base, without
// index and separate run.
func DueOf(ctx context.Context, q Querier, jobName string, start time.Time) (Due, error) {
	what := "read what is due of " + jobName
	gaps, err := collect[Gap](ctx, q, what, coverSQL, jobName, start, maxCover)
	if err != nil {
		return Due{}, err
	}
	plans, err := collect[Plan](ctx, q, what, planSQL, jobName, start)
	if err != nil {
		return Due{}, err
	}
	d := Due{Gaps: gaps}
	if len(plans) > 0 {
		d.Plan = &plans[0]
	}
	return d, nil
}
