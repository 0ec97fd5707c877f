package postgres

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler starts PgBouncer in transaction mode with two server connections before the
// shared server and gives the URL that leads through it to roleURL's database. It is
// stopped when the test ends. Without PgBouncer the test ends as by
// Unavailable.
func Pooler(t testing.TB, roleURL string) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if bin = "/usr/sbin/pgbouncer"; !executable(bin) {
			Unavailable(t, fmt.Errorf("pgbouncer %w: apt-get install pgbouncer", ErrMissing))
		}
	}
	s := Shared(t)
	u, err := url.Parse(roleURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "onceguard-pgbouncer-") //nolint:usetesting // pgbouncer runs as another user, who cannot enter t.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s/users
pool_mode = transaction
default_pool_size = 2
logfile = %s/log
`, s.st.Listen, s.st.Port, port, dir, dir)
	users := fmt.Sprintf("%q %q\n", u.User.Username(), password)
	for name, text := range map[string]string{"ini": config, "users": users} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // a test's password, for another user
			t.Fatal(err)
		}
	}
	if s.user != nil {
		if err := os.Chown(dir, s.user.uid, s.user.gid); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bin, filepath.Join(dir, "ini"))
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, cleanEnv(), s.user.attributes()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	for {
		c, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			_ = c.Close(ctx)
			return u.String()
		}
		if ctx.Err() != nil {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("pgbouncer does not answer: %v\n%s", err, tail(text))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
