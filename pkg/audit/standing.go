package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/disposition"
)

// Standing is how one window stands, in short.
type Standing struct {
	WindowStart time.Time `db:"window_start" json:"window_start"`
	// State is empty when nobody has claimed it, or one of its indexes has not: that may still come.
	State     State  `db:"state" json:"state"`
	Reason    string `db:"reason" json:"reason,omitempty"`
	Planned   bool   `db:"planned" json:"planned"` // and not closed since
	Made      int    `db:"made" json:"made"`       // how many Jobs were made for its plan
	Reprocess string `db:"reprocess" json:"reprocess,omitempty"`
	// Lacks: some of its indexes have claimed it, and others have not.
	Lacks bool `db:"lacks" json:"lacks,omitempty"`
}

func (s *Standing) instants() []*time.Time { return []*time.Time{&s.WindowStart} }

// Lane is how a window stands under one name by which it is claimed: the job's, or that of
// an index.
type Lane struct {
	JobName string `db:"job_name" json:"job_name"`
	State   State  `db:"state" json:"state"` // empty when it has not come
}

func (*Lane) instants() []*time.Time { return nil }

// laneNames are the names of a job ($1) that its windows may have: known, its own and those
// of indexes that have ever claimed, found by leaps; and due, the indexes that each window is
// to have: as many as the CronJob's Job has, as far as the engine knows it, else those that
// have ever claimed. '$' is the character after '#'.
const laneNames = `WITH RECURSIVE leaps AS (
    (SELECT v.job_name FROM onceguard.windows v WHERE v.job_name >= $1 || '#' AND v.job_name < $1 || '$' ORDER BY v.job_name LIMIT 1)
    UNION ALL
    SELECT (SELECT v.job_name FROM onceguard.windows v WHERE v.job_name > i.job_name AND v.job_name < $1 || '$' ORDER BY v.job_name LIMIT 1)
    FROM leaps i WHERE i.job_name IS NOT NULL
), claimed AS (
    SELECT i.job_name FROM leaps i WHERE strpos(i.job_name, '@') = 0
), spec AS (
    SELECT max(s.indexes) AS indexes FROM onceguard.schedules s WHERE s.job_name = $1 AND s.gone_at IS NULL
), due AS (
    SELECT $1 || '#' || i AS job_name FROM spec, generate_series(0, least(coalesce(spec.indexes, 0), 10000) - 1) i
    UNION ALL SELECT c.job_name FROM claimed c, spec WHERE spec.indexes IS NULL
), names AS MATERIALIZED (
    SELECT (SELECT coalesce(array_agg(c.job_name), '{}') FROM claimed c) || $1::text AS known, (SELECT coalesce(array_agg(d.job_name), '{}') FROM due d) AS due
)
`

// leastClosed orders states: of the windows of an Indexed Job the least that one of its
// indexes has come to is the answer, so that done is only what all are.
const leastClosed = `array_position(ARRAY['running', 'lease ended', 'failed', '', 'held', 'exhausted', 'skipped', 'done'], %s)`

var (
	standingsSQL = laneNames + `SELECT w.at AS window_start, CASE WHEN x.lacks AND ` + fmt.Sprintf(leastClosed, "x.state") + ` > ` + fmt.Sprintf(leastClosed, "''") + ` THEN '' ELSE coalesce(x.state, '') END AS state,
       coalesce(x.reason, '') AS reason, p.job_name IS NOT NULL AS planned, coalesce(p.made, 0) AS made, coalesce(p.reprocess, '') AS reprocess,
       coalesce(x.lacks, false) AS lacks
FROM names
CROSS JOIN unnest($2::timestamptz[]) WITH ORDINALITY w(at, n)
LEFT JOIN LATERAL (
    SELECT o.state, o.reason, o.indexes > 0 AND o.due < cardinality(names.due) AS lacks FROM (
        SELECT v.state, v.reason, v.job_name, count(*) FILTER (WHERE v.job_name <> $1) OVER () AS indexes, count(*) FILTER (WHERE v.job_name = ANY (names.due)) OVER () AS due
        FROM onceguard.windows v WHERE v.job_name = ANY (names.known) AND v.window_start = w.at) o
    ORDER BY ` + fmt.Sprintf(leastClosed, "o.state") + `, o.job_name LIMIT 1) x ON true
LEFT JOIN onceguard.plans p ON p.job_name = $1 AND p.window_start = w.at
ORDER BY w.n`

	lanesSQL = laneNames + `SELECT n.job_name, coalesce(v.state, '') AS state
FROM names
CROSS JOIN LATERAL (SELECT unnest(names.known) AS job_name UNION SELECT unnest(names.due)) n
LEFT JOIN onceguard.windows v ON v.job_name = n.job_name AND v.window_start = $2
WHERE v.job_name IS NOT NULL OR n.job_name = ANY (names.due)
ORDER BY ` + fmt.Sprintf(leastClosed, "coalesce(v.state, '')") + `, length(n.job_name), n.job_name`

	plannedSQL = `SELECT p.window_start FROM onceguard.plans p WHERE p.job_name = $1 AND p.window_start BETWEEN $2 AND $3 ORDER BY 1 LIMIT $4::int`

	doneBeforeSQL = `SELECT DISTINCT d.window_start FROM onceguard.decisions d
WHERE (d.job_name = $1 OR d.job_name >= $1 || '#' AND d.job_name < $1 || '$' AND strpos(d.job_name, '@') = 0)
  AND d.window_start = ANY ($2::timestamptz[]) AND d.before ->> 'status' = 'completed'
ORDER BY 1`
)

// Standings gives how windows of a job stand, in the order that they are given. jobName is
// the base; the indexes of an Indexed Job are parts of its windows.
func Standings(ctx context.Context, q Querier, jobName string, windows []time.Time) ([]Standing, error) {
	found, err := collect[Standing](ctx, q, "read how windows of "+jobName+" stand", standingsSQL, jobName, windows)
	for i, x := range found {
		found[i].Planned = x.Planned && Opens(x.Reprocess, x.State, x.Reason)
	}
	return found, err
}

// Lanes gives how one window stands under each name by which it is claimed, the least closed
// first: of an Indexed Job those of its indexes, also of those that have not come. Empty when
// nobody has claimed it and no index is known.
func Lanes(ctx context.Context, q Querier, jobName string, start time.Time) ([]Lane, error) {
	return collect[Lane](ctx, q, "read how the indexes of "+jobName+" stand", lanesSQL, jobName, start)
}

// Opens reports whether a plan with this Reprocess runs a window that stands so: it does
// not when the window is closed and stays so. Such a plan goes at the engine's next look.
func Opens(reprocess string, state State, reason string) bool {
	levels := []string{"none", "failed", "completed"}
	level := slices.Index(levels, reprocess)
	switch state {
	case Done:
		return level >= 2
	case Held, Exhausted:
		return level >= 1
	case Skipped:
		return level >= 1 || level == 0 && reason != string(disposition.Cancelled)
	case Running, Failed, LeaseEnded, Planned:
	}
	return true // it is not closed
}

// PlannedWindows gives the windows of a job that are planned from first to last, oldest
// first, at most limit of them.
func PlannedWindows(ctx context.Context, q Querier, jobName string, first, last time.Time, limit int) ([]time.Time, error) {
	return starts(ctx, q, "read plans of "+jobName, plannedSQL, jobName, first, last, limit)
}

// DoneBefore gives those of windows whose work, or that of an index, was done once before
// somebody opened them again.
func DoneBefore(ctx context.Context, q Querier, jobName string, windows []time.Time) ([]time.Time, error) {
	return starts(ctx, q, "read decisions about "+jobName, doneBeforeSQL, jobName, windows)
}

// instantRow is a row of one instant.
type instantRow struct {
	WindowStart time.Time `db:"window_start"`
}

func (r *instantRow) instants() []*time.Time { return []*time.Time{&r.WindowStart} }

func starts(ctx context.Context, q Querier, what, sql string, args ...any) ([]time.Time, error) {
	rows, err := collect[instantRow](ctx, q, what, sql, args...)
	found := make([]time.Time, 0, len(rows))
	for _, r := range rows {
		found = append(found, r.WindowStart)
	}
	return found, err
}
