package admin

import (
	"context"
	"time"

	"github.com/onceguard/onceguard/pkg/window"
)

// Prospect is what a Prune would come to.
type Prospect struct {
	Windows int64 // whose record would be deleted
	// Stop is the window that pruning would not pass: it may still run, or is to, or its
	// worker is not gone. Nil: nothing is in the way.
	Stop *window.Window
	// Planned: it is to be run later; JobName is then the job's.
	Planned bool
}

// The same choice as the function prune makes; a test compares the two.
const prospectSQL = `WITH mine AS (
    SELECT e.job_name, e.window_start,
           e.status IN ('running', 'failed', 'held') OR coalesce(l.expires_at >= clock_timestamp(), false) AS open
    FROM onceguard.job_execution e
    LEFT JOIN onceguard.job_lease l ON l.job_name = e.job_name AND l.window_start = e.window_start
    WHERE e.job_name = ANY (onceguard.names_of($1, 'job_execution')) AND e.window_start < $2
), stop AS (
    SELECT m.job_name, m.window_start, false AS planned FROM mine m WHERE m.open
    UNION ALL
    (SELECT p.job_name, p.window_start, true FROM onceguard.job_plan p WHERE p.job_name = $1 AND p.window_start < $2
        AND p.window_start NOT IN (SELECT s.window_start FROM onceguard.shut_plans(ARRAY[$1]) s) ORDER BY p.window_start LIMIT 1)
    ORDER BY window_start, planned, job_name LIMIT 1
)
SELECT (SELECT count(*) FROM mine m WHERE m.window_start < coalesce(s.window_start, $2)), s.job_name, s.window_start, coalesce(s.planned, false)
FROM (SELECT) one LEFT JOIN stop s ON true`

// Prospects gives what Prune of the same job and instant would come to now. It changes
// nothing. A job that the record does not know has no windows.
func Prospects(ctx context.Context, db DB, jobName string, upto time.Time) (Prospect, error) {
	var found Prospect
	var job *string
	var start *time.Time
	if err := db.QueryRow(ctx, prospectSQL, jobName, upto).Scan(&found.Windows, &job, &start, &found.Planned); err != nil {
		return Prospect{}, translate("look before prune of "+jobName, err)
	}
	if job != nil && start != nil {
		found.Stop = &window.Window{JobName: *job, Start: start.UTC()}
	}
	return found, nil
}
