package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/logs"
	"github.com/onceguard/onceguard/pkg/wire"
	"github.com/onceguard/onceguard/test/postgres"
)

// soon bounds every wait of a test; nothing is measured by it.
const soon = 60 * time.Second

var windowStart = time.Date(2026, 11, 30, 13, 18, 0, 0, time.UTC)

// testPod is a guard under test with the paths it uses.
type testPod struct {
	t     *testing.T
	paths paths
	log   *buffer
	stop  func() // SIGTERM, and wait until the guard has left
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func testConfig() contract.GuardConfig {
	return contract.GuardConfig{
		Version: contract.ConfigVersion, JobName: "shop/order-sync", WindowStart: windowStart, WindowEnd: windowStart.Add(time.Minute),
		Trigger: contract.TriggerScheduled, Source: contract.SourceTimestamp,
		Namespace: "shop", Job: "order-sync-1", JobUID: "j1", Ledger: "default", Secret: "onceguard-ledger-default", SecretKey: "url",
		Containers: []string{"main"}, Completion: contract.CompletionExitCode, Busy: contract.BusyWait,
		StartTimeout: contract.Duration(5 * time.Minute), Lease: contract.Duration(30 * time.Second), LedgerWait: contract.Duration(soon),
	}
}

// testPaths makes the directories of a pod whose Secret holds url, "" for none.
func testPaths(t *testing.T, url string) paths {
	t.Helper()
	dir, err := os.MkdirTemp("", "pod") //nolint:usetesting // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := paths{state: filepath.Join(dir, "state"), ledger: filepath.Join(dir, "ledger"), execSocket: filepath.Join(dir, "exec.sock"), apis: filepath.Join(dir, "api.sock")}
	for _, d := range []string{p.state, p.ledger} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if url != "" {
		writeFile(t, filepath.Join(p.ledger, "url"), url)
	}
	return p
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startPod runs a guard in this process.
func startPod(t *testing.T, config contract.GuardConfig, at paths, name string) *testPod {
	t.Helper()
	log := &buffer{}
	env := func(k string) string {
		return map[string]string{contract.EnvPodName: name, contract.EnvPodUID: "uid-" + name}[k]
	}
	o, err := pod{
		config: config, origin: originOf(config, env), name: "shop/" + name,
		source: secretFile(config, at.ledger), paths: at, log: logs.New(log, zapcore.DebugLevel),
	}.open()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() {
		defer close(left)
		o.serve(ctx)
	}()
	p := &testPod{t: t, paths: at, log: log, stop: sync.OnceFunc(func() {
		cancel()
		select {
		case <-left:
		case <-time.After(soon):
			t.Error("the guard did not leave")
		}
	})}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, log)
		}
	})
	return p
}

// speaker is a wrapper as the guard sees it.
type speaker struct {
	t    *testing.T
	conn net.Conn
	r    *wire.Reader
}

func (p *testPod) hello(container string, kind wire.Kind, pid int) *speaker {
	p.t.Helper()
	return speak(p.t, p.paths.execSocket, wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: container, Kind: kind, PID: pid})
}

func speak(t *testing.T, socket string, hello wire.Message) *speaker {
	t.Helper()
	var conn net.Conn
	eventually(t, "the guard's socket", func() (err error) {
		conn, err = net.Dial("unix", socket)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	s := &speaker{t: t, conn: conn, r: wire.NewReader(conn)}
	s.say(hello)
	return s
}

func (s *speaker) say(m wire.Message) {
	s.t.Helper()
	b, err := m.Encode()
	if err == nil {
		_, err = s.conn.Write(b)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// hears reads on until a message of that type comes, over waits and trusts.
func (s *speaker) hears(want wire.Type) wire.Message {
	s.t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(soon))
	for {
		m, err := s.r.Read()
		if err != nil {
			s.t.Fatalf("waiting for %s: %v", want, err)
		}
		if m.Type == want && (want != wire.TypeWait || m.Message != "") { // with a reason, when it waits
			return m
		}
		if m.Type != wire.TypeWait && m.Type != wire.TypeTrust {
			s.t.Fatalf("heard %+v, want %s", m, want)
		}
	}
}

// exits reports an exit and gives the acknowledged code.
func (s *speaker) exits(code int) wire.Message {
	s.t.Helper()
	s.say(wire.Message{Type: wire.TypeExit, Code: code})
	return s.hears(wire.TypeAck)
}

func (s *speaker) vanishes() { _ = s.conn.Close() }

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// query reads one value as the ledger's owner.
func query[T any](t *testing.T, url, sql string, args ...any) (v T) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// sidecarMain is the real sidecar at paths of a test: sidecar DIR.
func sidecarMain() {
	dir := os.Args[1]
	os.Exit(sidecar(context.Background(), environment(os.Environ()), paths{
		state: filepath.Join(dir, "state"), ledger: filepath.Join(dir, "ledger"),
		execSocket: filepath.Join(dir, "exec.sock"), apis: filepath.Join(dir, "api.sock"),
	}, os.Stderr))
}

// startSidecar runs a guard as a process of its own, to be killed.
func startSidecar(t *testing.T, config contract.GuardConfig, at paths) (cmd *exec.Cmd, log *buffer) {
	t.Helper()
	log = &buffer{}
	cmd = startSidecarTo(t, config, at, log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the sidecar:\n%s", log)
		}
	})
	return cmd, log
}

func startSidecarTo(t *testing.T, config contract.GuardConfig, at paths, stderr io.Writer) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{
		Path: binary, Args: []string{"sidecar-in", filepath.Dir(at.state)}, Stderr: stderr,
		Env: []string{contract.EnvConfig + "=" + string(b), contract.EnvPodName + "=order-sync-a", contract.EnvPodUID + "=u1", "GORACE=atexit_sleep_ms=0"},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func password(t *testing.T, url string) string {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return c.Password
}

// ownServer is a Postgres that a test may stop.
func ownServer(t *testing.T) (*postgres.Server, string) {
	t.Helper()
	s, err := postgres.Start(t.Context(), postgres.Options{NoSync: true})
	if err != nil {
		postgres.Unavailable(t, err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), postgres.Immediate) })
	return s, migratedAt(t, s.NewDatabase(t))
}
