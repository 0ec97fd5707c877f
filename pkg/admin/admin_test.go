package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func ask(t *testing.T, c *pgx.Conn, w window.Window, more string) (answer string) {
	t.Helper()
	if err := c.QueryRow(t.Context(), "SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, gen_random_uuid(), '1 hour'"+more+")", w.JobName, w.Start).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

var (
	job   = "shop/a"
	start = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
)

func at(hours int) window.Window {
	return window.Window{JobName: job, Start: start.Add(time.Duration(hours) * time.Hour)}
}

func TestDecisions(t *testing.T) {
	ctx := t.Context()
	url := postgres.Database(t)
	c := connect(t, url)
	if err := admin.Cancel(ctx, c, at(0), "alice", "holiday"); !errors.Is(err, admin.ErrSchema) {
		t.Fatal(err)
	}
	if _, _, err := migrate.Up(ctx, url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Rerun(ctx, c, at(0), "alice", "because"); !errors.Is(err, admin.ErrNotFound) || !strings.Contains(err.Error(), job) {
		t.Fatal(err)
	}
	if err := admin.Cancel(ctx, c, at(0), "alice", "holiday"); err != nil { // nobody has claimed it yet
		t.Fatal(err)
	}
	if got := ask(t, c, at(0), ""); got != "skip cancelled" {
		t.Fatal(got)
	}
	if err := admin.Cancel(ctx, c, at(0), "alice", "holiday"); !errors.Is(err, admin.ErrState) || !strings.Contains(err.Error(), "skipped") {
		t.Fatal(err)
	}
	if g, err := admin.Rerun(ctx, c, at(0), "bob", "no holiday"); err != nil || g != 1 {
		t.Fatal(g, err)
	}
	if got := ask(t, c, at(0), ", start_deadline => '1 s', overlap => 'skip'"); got != "run retry" {
		t.Fatal(got)
	}
	for _, err := range []error{
		admin.Cancel(ctx, c, at(0), "alice", "stop"),
		func() error { _, err := admin.Rerun(ctx, c, at(0), "alice", "again"); return err }(),
	} {
		if !errors.Is(err, admin.ErrState) || !strings.Contains(err.Error(), "running") || !strings.Contains(err.Error(), "Delete its pod") {
			t.Fatal(err)
		}
	}
	for _, who := range [][2]string{{"", "why"}, {"who", " "}} {
		if _, err := admin.Rerun(ctx, c, at(0), who[0], who[1]); !errors.Is(err, admin.ErrInvalid) || !strings.Contains(err.Error(), "who and why") {
			t.Fatal(err)
		}
	}
	// Nothing that was refused is recorded.
	var story string
	if err := c.QueryRow(ctx, "SELECT string_agg(what || ' ' || who || ' ' || coalesce(before ->> 'status', '-'), ', ' ORDER BY decided_at) FROM onceguard.decisions").Scan(&story); err != nil || story != "cancel alice -, rerun bob skipped" {
		t.Fatal(story, err)
	}

	role, roleURL := postgres.Login(t, url)
	if err := migrate.GrantJob(ctx, url, role, "*"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Prune(ctx, connect(t, roleURL), job, start); !errors.Is(err, admin.ErrForbidden) {
		t.Fatal(err)
	}
}

// Pruning closes old windows for ever and deletes what is kept of them, and stops before
// one that may still run.
func TestPrune(t *testing.T) {
	ctx := t.Context()
	url := postgres.Database(t)
	c := connect(t, url)
	if _, _, err := migrate.Up(ctx, url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Prune(ctx, c, job, start); !errors.Is(err, admin.ErrNotFound) {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		job  string
		upto time.Time
	}{{job + "#1", start}, {job, time.Now().Add(time.Hour)}} {
		if _, err := admin.Prune(ctx, c, bad.job, bad.upto); !errors.Is(err, admin.ErrInvalid) {
			t.Fatal(err)
		}
	}
	// More windows than one call deletes, under three names, and a neighbour's.
	const hours = 6000
	if _, err := c.Exec(ctx, `INSERT INTO onceguard.job (name) VALUES ('shop/a'), ('shop/a-b');
		INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, completed_at)
		SELECT n, '2024-01-01T00:00Z'::timestamptz + h * interval '1 hour', 'completed', gen_random_uuid(), 1, 1, clock_timestamp()
		FROM generate_series(0, 5999) h, unnest('{shop/a,shop/a#0,shop/a@u}'::text[]) n;
		INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, completed_at)
		VALUES ('shop/a-b', '2024-01-01T00:00Z', 'completed', gen_random_uuid(), 1, 1, clock_timestamp());
		UPDATE onceguard.job_execution SET status = 'held', execution_id = NULL, completed_at = NULL WHERE job_name = 'shop/a#0' AND window_start = '2024-01-01T00:00Z'::timestamptz + 5500 * interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	end := start.Add(hours * time.Hour)
	came, err := admin.Prune(ctx, c, job, end)
	if err != nil || !came.Equal(start.Add(5500*time.Hour)) {
		t.Fatal(came, err)
	}
	if got := ask(t, c, at(10), ""); got != "skip closed" {
		t.Fatal(got)
	}
	if err := admin.Cancel(ctx, c, at(10), "alice", "too late"); !errors.Is(err, admin.ErrPruned) {
		t.Fatal(err)
	}
	if err := admin.Cancel(ctx, c, window.Window{JobName: job + "#0", Start: came}, "alice", "let it be"); err != nil {
		t.Fatal(err)
	}
	if came, err = admin.Prune(ctx, c, job, end); err != nil || !came.Equal(end) {
		t.Fatal(came, err)
	}
	if came, err = admin.Prune(ctx, c, job, start); err != nil || !came.Equal(end) { // it only grows
		t.Fatal(came, err)
	}
	var left string
	if err := c.QueryRow(ctx, "SELECT string_agg(job_name, ',') FROM onceguard.job_execution").Scan(&left); err != nil || left != "shop/a-b" {
		t.Fatal(left, err)
	}
}
