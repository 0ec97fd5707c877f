package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shared is the one server of a test binary.
var shared struct {
	sync.Mutex
	server *Server
	err    error
}

// Main runs the tests and stops the server that they used. Call it from TestMain as
// its last statement.
func Main(m *testing.M) {
	m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		if err := shared.server.Stop(context.Background(), Immediate); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// Shared is the server of this test binary, started by the first call.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		// max_prepared_transactions is on because attackers may use PREPARE TRANSACTION.
		shared.server, shared.err = Start(context.Background(), Options{
			NoSync:   true,
			Settings: map[string]string{"max_prepared_transactions": "10"},
		})
	}
	if shared.err != nil {
		Unavailable(t, shared.err)
	}
	return shared.server
}

// Unavailable ends a test that cannot have its Postgres: skipped where Postgres is not
// installed, failed in CI and on any other error.
func Unavailable(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	t.Fatal(err)
}

// Database creates a fresh database and gives the URL of its owner, an ordinary role
// of the same name. Both are dropped when the test ends.
func Database(t testing.TB) (ownerURL string) {
	t.Helper()
	return Shared(t).NewDatabase(t)
}

// NewDatabase is Database on this server.
func (s *Server) NewDatabase(t testing.TB) (ownerURL string) {
	t.Helper()
	name := "t_" + random(6)
	ownerURL = s.Login(t, name, name)
	s.Exec(t, "postgres", "CREATE DATABASE "+name+" OWNER "+name)
	t.Cleanup(func() { s.Exec(t, "postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return ownerURL
}

// Login creates a login role without any rights and gives its URL for the database.
// The role is dropped when the test ends; what it was granted in a database of
// NewDatabase goes with that database.
func (s *Server) Login(t testing.TB, role, database string) string {
	t.Helper()
	password := random(12)
	id := pgx.Identifier{role}.Sanitize()
	s.Exec(t, "postgres", "CREATE ROLE "+id+" LOGIN PASSWORD '"+password+"'")
	t.Cleanup(func() { s.Exec(t, "postgres", "DROP ROLE IF EXISTS "+id) })
	u, err := url.Parse(s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, password)
	return u.String()
}

// Login creates a login role on the shared server for the database of ownerURL.
func Login(t testing.TB, ownerURL string) (role, roleURL string) {
	t.Helper()
	u, err := url.Parse(ownerURL)
	if err != nil {
		t.Fatal(err)
	}
	role = "r_" + random(6)
	s := Shared(t)
	database := u.Path[1:]
	roleURL = s.Login(t, role, database)
	// Runs before the role is dropped; the database may be gone by then.
	t.Cleanup(func() { s.Exec(t, database, "DROP OWNED BY "+role) })
	return role, roleURL
}

// Exec runs SQL as the superuser, statement by statement.
func (s *Server) Exec(t testing.TB, database string, sql ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, s.SocketURL(database))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	for _, q := range sql {
		if _, err := c.Exec(ctx, q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}
