package gaps_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
	"github.com/onceguard/onceguard/pkg/migrate"
	windows "github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

const job = "shop/a"

var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func window(minutes int) windows.Window { return windows.Window{JobName: job, Start: at(minutes)} }

func at(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }

// book is a ledger with connections of its owner and of an engine.
type book struct {
	*testing.T
	owner, engine *pgx.Conn
	url, login    string // the owner's; the engine's
}

func open(t *testing.T) *book {
	t.Helper()
	b := &book{T: t, url: postgres.Database(t)}
	if _, _, err := migrate.Up(t.Context(), b.url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	role, url := postgres.Login(t, b.url)
	if err := migrate.GrantEngine(t.Context(), b.url, role); err != nil {
		t.Fatal(err)
	}
	b.login = url
	b.owner, b.engine = connect(t, b.url), connect(t, url)
	return b
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (b *book) exec(sql string, args ...any) {
	b.Helper()
	if _, err := b.owner.Exec(b.Context(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// text is what a query with one value answers.
func (b *book) text(sql string, args ...any) string {
	b.Helper()
	var s *string
	if err := b.owner.QueryRow(b.Context(), sql, args...).Scan(&s); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return ""
	}
	return *s
}

// execution brings a window to a state. "dead" is a running one whose lease has ended.
func (b *book) execution(name string, w time.Time, state string) {
	b.Helper()
	b.exec("SELECT onceguard.claim($1, $2, gen_random_uuid(), '1 hour')", name, w)
	id := b.holder(name, w)
	switch state {
	case "completed":
		b.finish(name, w)
	case "failed", "held", "exhausted", "skipped":
		b.exec("SELECT onceguard.release($1, $2, $3, 'failed')", name, w, id)
		if state != "failed" {
			b.exec("UPDATE onceguard.job_execution SET status = $3, reason = CASE $3 WHEN 'skipped' THEN 'late' ELSE $3 END WHERE job_name = $1 AND window_start = $2", name, w, state)
		}
	case "dead":
		b.exec("UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 minute' WHERE job_name = $1 AND window_start = $2", name, w)
	case "running":
	default:
		b.Fatal(state)
	}
}

// holder is the execution that has a window.
func (b *book) holder(name string, w time.Time) string {
	b.Helper()
	return b.text("SELECT execution_id::text FROM onceguard.job_lease WHERE job_name = $1 AND window_start = $2", name, w)
}

// finish completes a window that was claimed.
func (b *book) finish(name string, w time.Time) {
	b.Helper()
	id := b.holder(name, w)
	b.exec("DO $$ BEGIN PERFORM onceguard.begin('" + name + "', '" + w.Format(time.RFC3339) + "', '" + id + "'); PERFORM onceguard.complete('" + name + "', '" + w.Format(time.RFC3339) + "', '" + id + "'); END $$")
	b.exec("SELECT onceguard.release($1, $2, $3, 'completed')", name, w, id)
}

func schedule(uid string) gaps.Schedule {
	return gaps.Schedule{
		JobName: job, CronJobUID: uid, CronJob: job, Schedule: "* * * * *", TimeZone: "UTC", Since: start,
		State: disposition.State{JudgedBefore: start},
	}
}

// judged is a judgement that brings a CronJob from one minute to another.
func judged(uid string, from, to int, list ...disposition.Gap) gaps.Judgement {
	j := gaps.Judgement{Schedule: schedule(uid), From: at(from), Gaps: list}
	j.State.JudgedBefore = at(to)
	if len(list) > 0 {
		j.Before = list[0].First.Add(-time.Minute)
	}
	return j
}

func gap(from, to int, status disposition.Status, reason disposition.Reason) disposition.Gap {
	return disposition.Gap{First: at(from), Last: at(to), Windows: int64(to - from + 1), Status: status, Reason: reason}
}

func (b *book) judge(all ...gaps.Judgement) {
	b.Helper()
	if err := gaps.Judge(b.Context(), b.engine, all); err != nil {
		b.Fatal(err)
	}
}

func (b *book) look(a gaps.Ask) gaps.Seen {
	b.Helper()
	seen, err := gaps.Look(b.Context(), b.engine, []gaps.Ask{a})
	if err != nil {
		b.Fatal(err)
	}
	return seen[0]
}

// recorded gives the gaps of a CronJob in short: minutes, count, status and reason.
func (b *book) recorded(uid string) string {
	b.Helper()
	return b.text(`SELECT string_agg(format('%s-%s %s %s %s%s', ceil(extract(epoch FROM first_window - $2) / 60), floor(extract(epoch FROM last_window - $2) / 60), windows, status, reason,
		coalesce(' ' || rule, '')), ', ' ORDER BY first_window) FROM onceguard.gaps WHERE cron_job_uid = $1`, uid, start)
}

// answers gives the answers for the windows of some minutes in short.
func (b *book) answers(from, to int) string {
	b.Helper()
	var asked []time.Time
	for m := from; m <= to; m++ {
		asked = append(asked, at(m))
	}
	all, err := admin.Answers(b.Context(), b.engine, job, asked)
	if err != nil {
		b.Fatal(err)
	}
	s := ""
	for i, a := range all {
		if !a.Window.Equal(asked[i]) {
			b.Fatalf("the answer for %s is about %s", asked[i], a.Window)
		}
		s += " " + string(a.Kind)
		if a.Status != "" {
			s += ":" + a.Status
		}
	}
	return s[1:]
}
