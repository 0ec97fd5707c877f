package postgres_test

import (
	"context"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/test/postgres"
)

// examples/role.sql does what it says, when it is run again too.
func TestExampleRoleSQL(t *testing.T) {
	s, err := postgres.Start(t.Context(), postgres.Options{NoSync: true}) // shop_jobs is a name of the whole server
	if err != nil {
		postgres.Unavailable(t, err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), postgres.Immediate) })
	bin, err := postgres.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	owner, err := url.Parse(s.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	database := owner.Path[1:]
	for range 2 {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "psql"), "-X", "-q", s.SocketURL(database), "-f", "../../examples/role.sql").CombinedOutput()
		if err != nil {
			t.Fatalf("psql: %v\n%s", err, out)
		}
	}
	s.Exec(t, database, "ALTER ROLE shop_jobs PASSWORD 'x'")
	conn := func(u *url.URL) *pgx.Conn {
		c, err := pgx.Connect(t.Context(), u.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	login := *owner
	login.User = url.UserPassword("shop_jobs", "x")
	worker := conn(&login)
	for sql, allowed := range map[string]bool{
		"UPDATE balance SET units = units + 10 WHERE account = 'daily-credit'": true,
		"INSERT INTO booking VALUES ('daily-credit', now(), 10)":               true,
		"DELETE FROM booking":              false,
		"CREATE TABLE mine ()":             false,
		"DROP TABLE balance":               false,
		"INSERT INTO balance VALUES ('x')": false,
	} {
		if _, err := worker.Exec(t.Context(), sql); (err == nil) != allowed {
			t.Errorf("%s: %v, allowed: %v", sql, err, allowed)
		}
	}
	// The business owns its tables, not the administrator who ran the file.
	if _, err := conn(owner).Exec(t.Context(), "ALTER TABLE booking ADD note text"); err != nil {
		t.Error(err)
	}
}
