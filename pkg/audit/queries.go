package audit

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filter chooses windows; its zero value means all.
type Filter struct {
	// Namespace is that of the job's name, whatever cluster prefix is before it.
	Namespace string
	// Job is a job's name: without its namespace, with it, or with the cluster too.
	// The parts that name a manual run or an index may be left off.
	Job    string
	States []State
	// Since keeps windows that began at most so long ago, by the database's clock.
	Since time.Duration
	// Limit is the greatest number of windows given; 0 means all.
	Limit int
}

// page is how many rows one statement reads, so that nothing is held for long.
const page = 500

var (
	//go:embed windows.sql
	windowsSQL string
	//go:embed window.sql
	oneSQL string
	//go:embed jobs.sql
	jobsSQL string
)

// Windows gives the windows that f chooses, newest first, and whether there are more
// than its limit: those that were ever claimed or cancelled, and those that are planned.
func Windows(ctx context.Context, q Querier, f Filter) (found []Window, more bool, err error) {
	if !slices.Equal(f.States, []State{Planned}) {
		if found, more, err = claimed(ctx, q, f); err != nil {
			return nil, false, err
		}
	}
	if len(f.States) > 0 && !slices.Contains(f.States, Planned) {
		return found, more, nil
	}
	var limit *int // NULL is none
	if f.Limit > 0 {
		one := f.Limit + 1
		limit = &one
	}
	planned, err := collect[Plan](ctx, q, "read planned windows", unclaimedSQL, f.Namespace, f.Job, f.Since.Seconds(), limit)
	if err != nil {
		return nil, false, err
	}
	for _, p := range planned {
		w := Window{JobName: p.JobName, WindowStart: p.WindowStart, State: Planned, Planned: true, Generation: 1}
		if p.Reason != "" {
			reason := string(p.Reason)
			w.Reason = &reason
		}
		found = append(found, w)
	}
	slices.SortStableFunc(found, func(a, b Window) int {
		return cmp.Or(b.WindowStart.Compare(a.WindowStart), strings.Compare(a.JobName, b.JobName))
	})
	if f.Limit > 0 && len(found) > f.Limit {
		return found[:f.Limit], true, nil
	}
	return found, more, nil
}

// claimed are those that have a row.
func claimed(ctx context.Context, q Querier, f Filter) (found []Window, more bool, err error) {
	states := make([]string, 0, len(f.States))
	for _, s := range f.States {
		states = append(states, string(s))
	}
	var before *time.Time
	var after string
	for {
		n := page
		if f.Limit > 0 {
			n = min(page, f.Limit+1-len(found))
		}
		rows, err := collect[Window](ctx, q, "read windows", windowsSQL,
			f.Namespace, f.Job, states, f.Since.Seconds(), before, after, n)
		if err != nil {
			return nil, false, err
		}
		for i, w := range rows {
			rows[i].Planned = w.Planned && Opens(w.Reprocess, w.State, w.reason())
		}
		found = append(found, rows...)
		if f.Limit > 0 && len(found) > f.Limit {
			return found[:f.Limit], true, nil
		}
		if len(rows) < n {
			return found, false, nil
		}
		last := rows[len(rows)-1]
		before, after = &last.WindowStart, last.JobName
	}
}

// Story is everything that is kept of one window.
type Story struct {
	Window    Window     `json:"window"`
	Attempts  []Attempt  `json:"attempts"`            // oldest first
	Skips     []Skip     `json:"skips"`               // oldest first
	Decisions []Decision `json:"decisions,omitempty"` // oldest first
}

const (
	attemptsSQL = `SELECT attempt, outcome, exit_code, message, started_at, ended_at,
       extract(epoch FROM duration)::float8 AS duration_seconds,
       trigger, source, namespace, job, pod, node, generation, execution_id::text, fencing_token
FROM onceguard.attempts WHERE job_name = $1 AND window_start = $2
ORDER BY attempt DESC LIMIT $3`

	skipsSQL = `SELECT reason, skipped_at, trigger, namespace, job, pod, node
FROM onceguard.skips WHERE job_name = $1 AND window_start = $2
ORDER BY skipped_at DESC LIMIT $3`

	// A backfill is about a range of windows of the job as a whole, $4.
	decisionsSQL = `SELECT what, coalesce(reprocess, '') AS reprocess, who, why, login, decided_at, before, CASE WHEN last_window IS NOT NULL THEN window_start END AS first_window, last_window
FROM onceguard.decisions
WHERE (job_name = $1 AND window_start = $2) OR (job_name = $4 AND window_start <= $2 AND last_window >= $2)
ORDER BY decided_at DESC LIMIT $3`
)

// maxStory bounds the attempts, skips and decisions of a Story; the newest are kept.
const maxStory = 1000

// Tell gives the story of one window. jobName is the full name as in the record. The
// error is ErrNotFound when the window was never claimed, or was pruned; its skips and
// decisions are given even so.
func Tell(ctx context.Context, q Querier, jobName string, start time.Time) (Story, error) {
	what := fmt.Sprintf("read window %s of %s", start.UTC().Format(time.RFC3339), jobName)
	var s Story
	var err error
	if s.Skips, err = collect[Skip](ctx, q, what, skipsSQL, jobName, start, maxStory); err != nil {
		return Story{}, err
	}
	if s.Decisions, err = collect[Decision](ctx, q, what, decisionsSQL, jobName, start, maxStory, baseOf(jobName)); err != nil {
		return Story{}, err
	}
	slices.Reverse(s.Decisions)
	rows, err := collect[Window](ctx, q, what, oneSQL, jobName, start)
	if err != nil {
		return Story{}, err
	}
	slices.Reverse(s.Skips)
	if len(rows) == 0 {
		return s, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	s.Window = rows[0]
	s.Window.Planned = s.Window.Planned && Opens(s.Window.Reprocess, s.Window.State, s.Window.reason())
	if s.Attempts, err = collect[Attempt](ctx, q, what, attemptsSQL, jobName, start, maxStory); err != nil {
		return Story{}, err
	}
	slices.Reverse(s.Attempts)
	return s, nil
}

// baseOf is a job's name without index and separate run.
func baseOf(jobName string) string {
	if at := strings.IndexAny(jobName, "#@"); at >= 0 {
		return jobName[:at]
	}
	return jobName
}

// Job is one row of onceguard.jobs.
type Job struct {
	JobName               string     `db:"job_name" json:"job_name"`
	LatestWindow          *time.Time `db:"latest_window" json:"latest_window,omitempty"`
	LatestCompletedWindow *time.Time `db:"latest_completed_window" json:"latest_completed_window,omitempty"`
	// ClosedBefore is nil while no window is closed; windows before it never run.
	ClosedBefore *time.Time `db:"closed_before" json:"closed_before,omitempty"`
}

// Jobs gives the jobs that a Filter's Namespace and Job choose, by name, at most
// limit of them.
func Jobs(ctx context.Context, q Querier, namespace, job string, limit int) ([]Job, error) {
	return collect[Job](ctx, q, "read jobs", jobsSQL, namespace, job, limit)
}
