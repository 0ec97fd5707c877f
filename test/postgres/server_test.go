package postgres_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

func count(t *testing.T, url string) (n int, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close(ctx) }()
	return n, c.QueryRow(ctx, "SELECT count(*) FROM kept").Scan(&n)
}

// A server that is killed and restarted has what was committed before, in every mode,
// and Stop leaves nothing of a temporary one.
func TestServerSurvivesRestarts(t *testing.T) {
	s, err := postgres.Start(t.Context(), postgres.Options{})
	if err != nil {
		postgres.Unavailable(t, err)
	}
	defer func() { _ = s.Stop(context.Background(), postgres.Immediate) }()
	s.Exec(t, "postgres", "CREATE TABLE kept (n int)")
	want := 0
	for _, mode := range []postgres.Mode{postgres.Fast, postgres.Immediate, postgres.Killed} {
		s.Exec(t, "postgres", "INSERT INTO kept VALUES (1)")
		want++
		if err := s.Kill(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := count(t, s.URL("postgres")); err == nil {
			t.Fatalf("mode %v: the server still answers", mode)
		}
		if err := s.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		if n, err := count(t, s.URL("postgres")); err != nil || n != want {
			t.Fatalf("mode %v: %d rows, %v; want %d", mode, n, err, want)
		}
	}
	if err := s.Stop(t.Context(), postgres.Fast); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Log()); !os.IsNotExist(err) {
		t.Fatalf("the temporary directory is still there: %v", err)
	}
}

// Each test has a database of its own, owned by an ordinary role.
func TestDatabasesAreApart(t *testing.T) {
	a, b := postgres.Database(t), postgres.Database(t)
	ctx := t.Context()
	for _, url := range []string{a, b} {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		var super bool
		if err := c.QueryRow(ctx, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user").Scan(&super); err != nil || super {
			t.Fatalf("superuser %v, %v", super, err)
		}
		if _, err := c.Exec(ctx, "CREATE SCHEMA mine; CREATE TABLE mine.t ()"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close(ctx)
	}
}
