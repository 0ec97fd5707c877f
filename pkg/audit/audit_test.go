package audit

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

func ledger(t *testing.T) *pgx.Conn {
	t.Helper()
	url := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// fill adds hours [from, upto) to each of ten names, with an attempt and a skip for each
// window.
func fill(t *testing.T, c *pgx.Conn, from, upto int) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, completed_at)
		 SELECT 'shop/job-' || j, '2024-01-01T00:00Z'::timestamptz + h * interval '1 hour', 'completed', gen_random_uuid(), 1, 1, clock_timestamp()
		 FROM generate_series($1::int, $2::int - 1) h, generate_series(0, 9) j`,
		`INSERT INTO onceguard.job_attempt (job_name, window_start, attempt, execution_id, fencing_token, outcome)
		 SELECT e.job_name, e.window_start, 1, e.execution_id, 1, 'completed' FROM onceguard.job_execution e
		 WHERE e.window_start >= '2024-01-01T00:00Z'::timestamptz + $1::int * interval '1 hour' AND $2::int > 0`,
		`INSERT INTO onceguard.job_skip (job_name, window_start, skipper, reason)
		 SELECT e.job_name, e.window_start, 'a', 'completed' FROM onceguard.job_execution e
		 WHERE e.window_start >= '2024-01-01T00:00Z'::timestamptz + $1::int * interval '1 hour' AND $2::int > 0`,
	} {
		if _, err := c.Exec(t.Context(), sql, from, upto); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Exec(t.Context(), "VACUUM ANALYZE"); err != nil {
		t.Fatal(err)
	}
}

// pages gives how many pages a statement reads, in memory or not.
func pages(t *testing.T, c *pgx.Conn, sql string, args ...any) (n int) {
	t.Helper()
	var text string
	if err := c.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plan); err != nil || len(plan) != 1 {
		t.Fatal(err, text)
	}
	return plan[0].Plan.Hit + plan[0].Plan.Read
}

// What people ask costs the same however long the history is.
func TestCostDoesNotGrowWithTheHistory(t *testing.T) {
	c := ledger(t)
	window := time.Date(2024, 1, 5, 0, 0, 0, 0, time.UTC)
	const job = "shop/job-3"
	questions := map[string]func() int{
		"windows of all jobs": func() int { return pages(t, c, windowsSQL, "", "", []string{}, 0.0, nil, "", 6) },
		"windows of a job":    func() int { return pages(t, c, windowsSQL, "shop", "job-3", []string{}, 0.0, nil, "", 6) },
		"windows in a state":  func() int { return pages(t, c, windowsSQL, "", "", []string{"done"}, 0.0, nil, "", 6) },
		"a page further on":   func() int { return pages(t, c, windowsSQL, "", "", []string{}, 0.0, window, job, 6) },
		"recent failures": func() int {
			return pages(t, c, windowsSQL, "", "", []string{"failed", "lease ended"}, (24 * time.Hour).Seconds(), nil, "", 6)
		},
		"one window":     func() int { return pages(t, c, oneSQL, job, window) },
		"its attempts":   func() int { return pages(t, c, attemptsSQL, job, window, 10) },
		"its skips":      func() int { return pages(t, c, skipsSQL, job, window, 10) },
		"its decisions":  func() int { return pages(t, c, decisionsSQL, job, window, 10, job) },
		"how one stands": func() int { return pages(t, c, standingsSQL, job, []time.Time{window}) },
		"its gaps":       func() int { return pages(t, c, coverSQL, job, window, 10) },
		"planned ones":   func() int { return pages(t, c, unclaimedSQL, "", "", 0.0, 6) },
		"jobs":           func() int { return pages(t, c, jobsSQL, "", "", 100) },
		"a job by SQL":   func() int { return pages(t, c, "SELECT * FROM onceguard.jobs WHERE job_name = $1", job) },
		"the latest ones": func() int {
			return pages(t, c, "SELECT * FROM onceguard.windows WHERE job_name = $1 ORDER BY window_start DESC LIMIT 5", job)
		},
	}
	fill(t, c, 0, 300)
	before := map[string]int{}
	for name, ask := range questions {
		before[name] = ask()
	}
	fill(t, c, 300, 3000)
	for name, ask := range questions {
		// Ten times the rows make the trees of the keys a level deeper, and no more.
		if after := ask(); after > 2*before[name]+20 {
			t.Errorf("%s: %d pages, and %d with ten times the history", name, before[name], after)
		} else {
			t.Logf("%s: %d pages, then %d", name, before[name], after)
		}
	}
}

// A window that was cancelled in advance is not how the job stands.
func TestTheLatestWindowHasBegun(t *testing.T) {
	c := ledger(t)
	fill(t, c, 0, 3)
	const job = "shop/job-3"
	if _, err := c.Exec(t.Context(), "SELECT onceguard.cancel($1, clock_timestamp() + interval '1 day', 'ann', 'holiday')", job); err != nil {
		t.Fatal(err)
	}
	jobs, err := Jobs(t.Context(), c, "shop", "job-3", 2)
	want := time.Date(2024, 1, 1, 2, 0, 0, 0, time.UTC)
	if err != nil || len(jobs) != 1 || jobs[0].LatestWindow == nil || !jobs[0].LatestWindow.Equal(want) {
		t.Fatalf("%+v, %v", jobs, err)
	}
	if newest, _, err := Windows(t.Context(), c, Filter{Job: job, Limit: 1}); err != nil || len(newest) != 1 || newest[0].State != Skipped {
		t.Fatalf("%+v, %v", newest, err)
	}
}
