package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options of a server. The zero value is a server on 127.0.0.1 with a free port and
// a temporary directory that Stop removes.
type Options struct {
	// Dir holds the server's data and survives Stop; the next Start finds its
	// databases again. Empty: a temporary directory.
	Dir string
	// Listen is the TCP address; default 127.0.0.1. Port 0 takes a free one.
	Listen string
	Port   int
	// NetNS is a network namespace to listen in: a name (as of ip netns) or a path. It
	// needs root. The Unix socket is reachable from everywhere.
	NetNS string
	// NoSync turns fsync off: fast, and fine for tests that never cut the power.
	NoSync bool
	// Settings are added to the server's command line.
	Settings map[string]string
}

// Server is a running Postgres.
type Server struct {
	opts Options
	temp bool
	bin  string
	user *account // nil: as ourselves
	cmd  *exec.Cmd
	done chan struct{} // closed when the process of cmd has been reaped
	st   state
}

// state is what a later process must know to find the server again.
type state struct {
	PID      int    `json:"pid"`
	Listen   string `json:"listen"`
	Port     int    `json:"port"`
	Password string `json:"password"`
}

// Mode says how a server is stopped.
type Mode syscall.Signal

// The modes of Stop, Kill and Restart.
const (
	Fast      = Mode(syscall.SIGINT)  // sessions are ended, data is written
	Immediate = Mode(syscall.SIGQUIT) // as if the power failed; recovery at the next start
	Killed    = Mode(syscall.SIGKILL) // the postmaster vanishes, sessions notice it
)

const startTimeout = 60 * time.Second

// Start makes (or finds) the data directory and returns when the server answers.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin, err := Binaries()
	if err != nil {
		return nil, err
	}
	user, err := serverAccount()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, bin: bin, user: user}
	if s.opts.Dir == "" {
		removeAbandoned()
		if s.opts.Dir, err = os.MkdirTemp("", tempPrefix); err != nil {
			return nil, fmt.Errorf("directory for Postgres: %w", err)
		}
		s.temp = true
	}
	if err := s.start(ctx); err != nil {
		_ = s.Stop(context.WithoutCancel(ctx), Immediate)
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	return s.launch(ctx)
}

// prepare creates the directory and the cluster in it, once.
func (s *Server) prepare(ctx context.Context) error {
	dir := s.opts.Dir
	if len(s.socketFile(65535)) > 107 {
		return fmt.Errorf("directory for Postgres is too long for a Unix socket (107 bytes): %s", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("directory for Postgres: %w", err)
	}
	if s.user != nil {
		if err := os.Chown(dir, s.user.uid, s.user.gid); err != nil {
			return fmt.Errorf("directory for Postgres: %w", err)
		}
	}
	if s.temp {
		if err := os.WriteFile(filepath.Join(dir, ownerFile), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err == nil {
		if err := s.readState(); err != nil {
			return err
		}
		if s.opts.Listen != "" {
			s.st.Listen = s.opts.Listen
		}
		if s.opts.Port != 0 {
			s.st.Port = s.opts.Port
		}
		return nil
	}
	s.st.Listen, s.st.Port = s.opts.Listen, s.opts.Port
	if s.st.Listen == "" {
		s.st.Listen = "127.0.0.1"
	}
	if s.st.Port == 0 {
		var err error
		if s.st.Port, err = freePort(); err != nil {
			return err
		}
	}
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	s.st.Password = hex.EncodeToString(secret)
	pw := filepath.Join(dir, "password")
	if err := os.WriteFile(pw, []byte(s.st.Password), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(pw) }()
	if s.user != nil {
		if err := os.Chown(pw, s.user.uid, s.user.gid); err != nil {
			return err
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), "-D", s.data(), "-U", superuser,
		"--pwfile="+pw, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	initdb.Dir, initdb.Env = dir, cleanEnv()
	initdb.SysProcAttr = s.user.attributes()
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, tail(out))
	}
	if err := admitAll(filepath.Join(s.data(), "pg_hba.conf")); err != nil {
		return err
	}
	return s.writeState()
}

// admitAll lets clients of other addresses in, by password: initdb admits this host only,
// and pods are elsewhere.
func admitAll(hba string) error {
	f, err := os.OpenFile(hba, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("host all all all scram-sha-256\n")
	return errors.Join(err, f.Close())
}

// launch starts the postmaster and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	logName := filepath.Join(s.opts.Dir, "log")
	for {
		log, err := os.OpenFile(logName, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		cmd := s.command()
		cmd.Stdout, cmd.Stderr = log, log
		err = cmd.Start()
		_ = log.Close()
		if err != nil {
			return fmt.Errorf("postgres: %w", err)
		}
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		s.cmd, s.done, s.st.PID = cmd, done, cmd.Process.Pid
		if err := s.writeState(); err != nil {
			return err
		}
		err = s.ready(ctx)
		if err == nil {
			return nil
		}
		text, _ := os.ReadFile(logName)
		// After a SIGKILL the old sessions may still be leaving the shared memory.
		if ctx.Err() == nil && strings.Contains(tail(text), "shared memory block") {
			pause(ctx)
			continue
		}
		return fmt.Errorf("postgres in %s does not answer: %w\n%s", s.opts.Dir, err, tail(text))
	}
}

func (s *Server) command() *exec.Cmd {
	args := []string{
		filepath.Join(s.bin, "postgres"), "-D", s.data(), "-k", s.opts.Dir, "-p", strconv.Itoa(s.st.Port),
		"-c", "listen_addresses=" + s.st.Listen, "-c", "max_connections=200", "-c", "timezone=UTC",
		"-c", "log_line_prefix=%m [%p] %q%u@%d %a ",
	}
	if s.opts.NoSync {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	for k, v := range s.opts.Settings {
		args = append(args, "-c", k+"="+v)
	}
	attr := s.user.attributes()
	if s.opts.NetNS != "" {
		path := s.opts.NetNS
		if !strings.Contains(path, "/") {
			path = "/run/netns/" + path
		}
		enter := []string{"nsenter", "--net=" + path}
		if s.user != nil { // nsenter needs root to enter, and drops it afterwards
			enter = append(enter, "--setuid="+strconv.Itoa(s.user.uid), "--setgid="+strconv.Itoa(s.user.gid))
		}
		args = append(append(enter, "--"), args...)
		attr = &syscall.SysProcAttr{}
	}
	// A session of its own: Ctrl-C on the tests must not stop it before they clean up.
	attr.Setsid = true
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = s.opts.Dir, cleanEnv(), attr
	return cmd
}

func (s *Server) ready(ctx context.Context) error {
	for {
		c, err := pgx.Connect(ctx, s.SocketURL("postgres"))
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-s.done:
			return errors.New("it ended")
		case <-ctx.Done():
			return err
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// URL connects the superuser to a database by TCP.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.st.Password),
		Host: net.JoinHostPort(s.st.Listen, strconv.Itoa(s.st.Port)), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketURL connects the superuser to a database by the Unix socket, which also works
// from outside the server's network namespace.
func (s *Server) SocketURL(database string) string {
	q := url.Values{"host": {s.opts.Dir}, "port": {strconv.Itoa(s.st.Port)}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.st.Password), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// Address is where the server listens: "127.0.0.1:40123".
func (s *Server) Address() string {
	return net.JoinHostPort(s.st.Listen, strconv.Itoa(s.st.Port))
}

// Log is the path of the server's log.
func (s *Server) Log() string { return filepath.Join(s.opts.Dir, "log") }

// Kill ends the server and leaves its data, so that Restart can bring it back.
func (s *Server) Kill(ctx context.Context, mode Mode) error {
	if s.st.PID == 0 || !s.alive() {
		return nil
	}
	if err := syscall.Kill(s.st.PID, syscall.Signal(mode)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("postgres (pid %d): %w", s.st.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for s.alive() {
		if ctx.Err() != nil {
			return fmt.Errorf("postgres (pid %d) does not stop: %w", s.st.PID, ctx.Err())
		}
		pause(ctx)
	}
	return nil
}

// Restart starts a server that was stopped with Kill, or stops it first.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Kill(ctx, mode); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Stop ends the server and removes its directory if Start made a temporary one.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	err := s.Kill(ctx, mode)
	if s.temp {
		err = errors.Join(err, os.RemoveAll(s.opts.Dir))
	}
	return err
}

// Attach finds the server that another process started in dir; ok is false when none
// is running there.
func Attach(dir string) (s *Server, ok bool, err error) {
	s = &Server{opts: Options{Dir: dir}}
	if s.bin, err = Binaries(); err != nil {
		return nil, false, err
	}
	if s.user, err = serverAccount(); err != nil {
		return nil, false, err
	}
	if err := s.readState(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, false, nil
		}
		return nil, false, err
	}
	return s, s.alive(), nil
}

// alive reports whether the postmaster runs; the check of its command line keeps a
// reused pid from being taken for it.
func (s *Server) alive() bool {
	if s.cmd != nil && s.cmd.Process.Pid == s.st.PID {
		select {
		case <-s.done:
			return false
		default:
			return true
		}
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.st.PID))
	return err == nil && strings.Contains(string(cmdline), s.data())
}

func (s *Server) data() string { return filepath.Join(s.opts.Dir, "data") }

func (s *Server) socketFile(port int) string {
	return filepath.Join(s.opts.Dir, fmt.Sprintf(".s.PGSQL.%d", port))
}

func (s *Server) stateFile() string { return filepath.Join(s.opts.Dir, "server.json") }

func (s *Server) writeState() error {
	b, err := json.Marshal(s.st)
	if err != nil {
		return err
	}
	return os.WriteFile(s.stateFile(), b, 0o600) // it holds the superuser's password
}

func (s *Server) readState() error {
	b, err := os.ReadFile(s.stateFile())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &s.st); err != nil {
		return fmt.Errorf("%s: %w", s.stateFile(), err)
	}
	return nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Millisecond):
	}
}

func tail(b []byte) string {
	const most = 2000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return strings.TrimSpace(string(b))
}
