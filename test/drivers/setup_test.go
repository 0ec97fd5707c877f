// Package drivers_test runs the workers of examples/own-driver for real: each with its
// own driver against a private Postgres, by themselves and under guard run.
package drivers_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

// swallowGo is this binary's other name: see TestMain.
const swallowGo = "swallow"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == swallowGo {
		if err := swallow(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	postgres.Main(m)
}

// soon bounds every wait of a test; nothing is measured by it.
const soon = 60 * time.Second

const (
	job    = "shop/daily-credit"
	window = "2026-11-30T09:00:00Z"
)

// worker is one example.
type worker struct {
	credit  []string // the example
	swallow []string // one that catches the error of complete in a savepoint
	env     []string
	// asks: it finds out itself what became of a COMMIT whose answer was lost, and need not
	// be run again for that.
	asks bool
}

// workers are made by what is installed: a driver that is missing skips its tests on a
// laptop and fails them in CI.
var workers = map[string]func(t *testing.T) worker{
	"go": func(t *testing.T) worker {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(t.TempDir(), swallowGo)
		if err := os.Symlink(self, link); err != nil {
			t.Fatal(err)
		}
		return worker{credit: []string{built(t, "examples/own-driver/go")}, swallow: []string{link}, asks: true}
	},
	"python": func(t *testing.T) worker {
		for _, python := range []string{"python3", "/usr/bin/python3"} {
			if exec.CommandContext(t.Context(), python, "-c", "import psycopg").Run() == nil {
				return worker{credit: []string{python, example(t, "python/credit.py")}, swallow: []string{python, data(t, "swallow.py")}, asks: true}
			}
		}
		postgres.Unavailable(t, fmt.Errorf("psycopg 3 for Python %w: test/setup.sh drivers", postgres.ErrMissing))
		return worker{}
	},
	"node": func(t *testing.T) worker {
		modules, err := exec.CommandContext(t.Context(), "./node-modules.sh").Output()
		if err != nil {
			postgres.Unavailable(t, fmt.Errorf("node-postgres %w: test/setup.sh drivers: %w", postgres.ErrMissing, err))
		}
		return worker{
			credit: []string{"node", example(t, "node/credit.js")}, swallow: []string{"node", data(t, "swallow.js")},
			env: []string{"NODE_PATH=" + strings.TrimSpace(string(modules))}, asks: true,
		}
	},
	"psql": func(t *testing.T) worker {
		bin, err := postgres.Binaries()
		if err != nil {
			postgres.Unavailable(t, err)
		}
		psql := filepath.Join(bin, "psql")
		return worker{
			credit: []string{example(t, "psql/credit.sh")}, swallow: []string{psql, "-X", "-q", "-f", data(t, "swallow.sql")},
			env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")},
		}
	},
}

// each runs a test with every worker.
func each(t *testing.T, f func(t *testing.T, w worker)) {
	t.Helper()
	for name, find := range workers {
		t.Run(name, func(t *testing.T) { f(t, find(t)) })
	}
}

func example(t *testing.T, name string) string {
	t.Helper()
	return absolute(t, filepath.Join("../../examples/own-driver", name))
}

func data(t *testing.T, name string) string {
	t.Helper()
	return absolute(t, filepath.Join("testdata", name))
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var programs struct {
	sync.Mutex
	built map[string]string
}

// built gives the program of a directory below the root of the tree.
func built(t *testing.T, dir string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if p := programs.built[dir]; p != "" {
		return p
	}
	out, err := os.MkdirTemp("", "onceguard-drivers-") //nolint:usetesting // outlives the first test that asks
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(out, filepath.Base(dir))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", p, ".")
	cmd.Dir = filepath.Join("../..", dir)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", dir, err, text)
	}
	if programs.built == nil {
		programs.built = map[string]string{}
	}
	programs.built[dir] = p
	return p
}

// shop is a database with a ledger, the business tables and the login of its jobs.
type shop struct {
	t       *testing.T
	owner   *pgx.Conn
	watcher *pgx.Conn // a superuser's, who sees what sessions wait for
	url     string    // the login's
	urlFile string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	ownerURL := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), ownerURL, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	role, url := postgres.Login(t, ownerURL)
	if err := migrate.GrantJob(t.Context(), ownerURL, role, "shop/*"); err != nil {
		t.Fatal(err)
	}
	s := &shop{t: t, owner: connect(t, ownerURL), url: url, urlFile: filepath.Join(t.TempDir(), "url")}
	s.watcher = connect(t, postgres.Shared(t).SocketURL(s.owner.Config().Database))
	if err := os.WriteFile(s.urlFile, []byte(url), 0o600); err != nil {
		t.Fatal(err)
	}
	s.exec("CREATE TABLE balance (account text PRIMARY KEY, units bigint NOT NULL)",
		"CREATE TABLE booking (account text NOT NULL, window_start timestamptz NOT NULL, units bigint NOT NULL)",
		"INSERT INTO balance VALUES ('daily-credit', 0)",
		"GRANT SELECT, UPDATE ON balance TO "+role, "GRANT SELECT, INSERT ON booking TO "+role)
	return s
}

// clear makes the shop new again for a test: nothing booked, no window known.
func (s *shop) clear(t *testing.T) {
	t.Helper()
	s.t = t
	s.exec("TRUNCATE booking, onceguard.job, onceguard.job_execution, onceguard.job_lease, onceguard.job_attempt, onceguard.job_skip, onceguard.job_checkpoint",
		"UPDATE balance SET units = 0")
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

func (s *shop) exec(statements ...string) {
	s.t.Helper()
	for _, q := range statements {
		if _, err := s.owner.Exec(s.t.Context(), q); err != nil {
			s.t.Fatalf("%s: %v", q, err)
		}
	}
}

func (s *shop) value(sql string, args ...any) (v string) {
	s.t.Helper()
	if err := s.owner.QueryRow(s.t.Context(), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// is says what must be in the database: units of the business, and the window's status.
func (s *shop) is(want string) {
	s.t.Helper()
	got := s.value(`SELECT units || ' units, ' || (SELECT count(*) FROM booking) || ' bookings, ' || (SELECT coalesce(min(status), 'no row') FROM onceguard.job_execution) FROM balance`)
	if got != want {
		s.t.Errorf("there are %s, want %s", got, want)
	}
}

// claim gives the window to a new execution_id, as its login.
func (s *shop) claim() (execution string) {
	s.t.Helper()
	execution = uuid.NewString()
	c := connect(s.t, s.url)
	defer c.Close(context.Background())
	var verdict, reason string
	if err := c.QueryRow(s.t.Context(), `SELECT verdict, reason FROM onceguard.claim(job_name => $1, window_start => $2::text::timestamptz, execution_id => $3, lease => '1 hour', origin => '{}')`,
		job, window, execution).Scan(&verdict, &reason); err != nil || verdict != "run" {
		s.t.Fatalf("claim: %s %s %v", verdict, reason, err)
	}
	return execution
}

// expire ends the lease, so that the next claim takes the window over.
func (s *shop) expire() {
	s.t.Helper()
	if _, err := s.watcher.Exec(s.t.Context(), "UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 second'"); err != nil {
		s.t.Fatal(err)
	}
}

// waits until a session of the login waits for that kind of lock, and gives its pid.
func (s *shop) waits(event string) (pid int) {
	s.t.Helper()
	eventually(s.t, "a session that waits for "+event, func() bool {
		err := s.watcher.QueryRow(s.t.Context(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND usename = $1 AND wait_event = $2`, s.login(), event).Scan(&pid)
		return err == nil
	})
	return pid
}

// alone waits until the login has no session: what was under way is over.
func (s *shop) alone() {
	s.t.Helper()
	eventually(s.t, "the end of all sessions", func() bool {
		var n int
		err := s.watcher.QueryRow(s.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1`, s.login()).Scan(&n)
		return err == nil && n == 0
	})
}

func (s *shop) login() string {
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	return u.User.Username()
}

// lateTrigger makes COMMIT wait for the advisory lock 1.
func (s *shop) lateTrigger() {
	s.exec(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON booking DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
}

// process is a worker that runs, or the guard that runs it.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  string // a file: a pipe would be held open by a child that survives
	done chan struct{}
}

// start runs a worker by itself, at an address of its database, as execution.
func (s *shop) start(w worker, argv []string, at, execution string) *process {
	s.t.Helper()
	return s.run(argv, append(pgEnv(s.t, at, w.env), contract.EnvJobName+"="+job, contract.EnvWindowStart+"="+window, contract.EnvExecutionID+"="+execution))
}

// guarded runs a worker under guard run.
func (s *shop) guarded(w worker, argv ...string) *process {
	s.t.Helper()
	return s.run(append([]string{built(s.t, "cmd/guard"), "run", "--job", job, "--window-start", window, "--ledger-url-file", s.urlFile, "--completion", "transaction", "--"}, argv...), pgEnv(s.t, s.url, w.env))
}

// killable is guarded, and a function that kills the worker itself.
func (s *shop) killable(w worker, argv ...string) (p *process, kill func()) {
	s.t.Helper()
	pidFile := filepath.Join(s.t.TempDir(), "pid")
	p = s.guarded(w, append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, pidFile}, argv...)...)
	return p, func() {
		s.t.Helper()
		text, err := os.ReadFile(pidFile)
		if err != nil {
			s.t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *shop) run(argv, env []string) *process {
	s.t.Helper()
	log, err := os.CreateTemp(s.t.TempDir(), "log")
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	p := &process{t: s.t, cmd: exec.CommandContext(s.t.Context(), argv[0], argv[1:]...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code says it
	}()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // with its children
		<-p.done
	})
	return p
}

// exits waits for the end and checks the code.
func (p *process) exits(want int) string {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(soon):
		p.t.Fatalf("the worker goes on: %s", p.said())
	}
	said := p.said()
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.t.Errorf("exit %d, want %d: %s", got, want, said)
	}
	return said
}

func (p *process) said() string {
	p.t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// pgEnv is the environment of a worker: PG* for the database, and what it needs to run.
func pgEnv(t *testing.T, at string, more []string) []string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PGSSLMODE=disable",
		"PGHOST=" + u.Hostname(), "PGPORT=" + u.Port(), "PGDATABASE=" + u.Path[1:], "PGUSER=" + u.User.Username(), "PGPASSWORD=" + password,
	}, more...)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// swallow is the Go worker that catches an error within a savepoint and commits all the same.
func swallow(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT onceguard.begin($1, $2::text::timestamptz, $3)", os.Getenv(contract.EnvJobName), os.Getenv(contract.EnvWindowStart), os.Getenv(contract.EnvExecutionID)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE balance SET units = units + 10"); err != nil {
			return err
		}
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
			_, err := tx.Exec(ctx, "SELECT onceguard.complete($1, '2000-01-01', $2)", os.Getenv(contract.EnvJobName), os.Getenv(contract.EnvExecutionID))
			return err
		})
		if err == nil {
			return errors.New("complete worked for another window")
		}
		return nil
	})
}
