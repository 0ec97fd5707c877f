package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

// post asks the local endpoint for a commit and gives the status; 0 when it cannot be asked.
func post(t *testing.T, at paths, body string) (status int, answer string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(at.state, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ Token string }
	if err := json.Unmarshal(b, &state); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", at.apis)
	}}}
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, "http://guard/v1/commit", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+state.Token)
	res, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, _ = io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// session is a connection of the worker's own.
func session(t *testing.T, url string, statements ...string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	for _, s := range statements {
		if _, err := c.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return c
}

func transactional() contract.GuardConfig {
	c := testConfig()
	c.Completion = contract.CompletionTransaction
	return c
}

const recorded = `SELECT state || ' ' || coalesce(last_outcome, '-') FROM onceguard.windows`

// A worker may commit with its own driver; its exit 0 is then a success, although the
// guard has not seen the commit.
func TestWorkerCommitsWithItsOwnDriver(t *testing.T) {
	_, url := ownServer(t)
	s := startPod(t, transactional(), testPaths(t, url), "a").hello("main", wire.KindWorker, 0)
	call := "('shop/order-sync', '2026-11-30T13:18:00Z', '" + s.hears(wire.TypeRun).Env[contract.EnvExecutionID] + "')"
	session(t, url, "BEGIN", "SELECT onceguard.begin"+call, "CREATE TABLE book (n int)", "SELECT onceguard.complete"+call, "COMMIT")
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("exit 0 after a commit became %d: %s", ack.Code, ack.Message)
	}
	if got := query[string](t, url, recorded); got != "done completed" {
		t.Error(got)
	}
}

// The guard is killed at COMMIT. Its successor holds the attempt; the worker asks again,
// hears that it is done, and its exit 0 is a success.
func TestGuardKilledAtCommit(t *testing.T) {
	_, url := ownServer(t)
	at := testPaths(t, url)
	cmd, _ := startSidecar(t, transactional(), at)
	hello := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}
	speak(t, at.execSocket, hello).hears(wire.TypeRun)
	c := session(t, url, `CREATE TABLE book (n int)`,
		`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`,
		`SELECT pg_advisory_lock(1)`)
	const body = `{"statements":[{"sql":"INSERT INTO book VALUES (1)"}]}`
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		post(t, at, body)
	}()
	eventually(t, "COMMIT", func() error {
		if query[int](t, url, `SELECT count(*)::int FROM pg_stat_activity WHERE wait_event = 'advisory'`) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	<-asked
	if _, err := c.Exec(t.Context(), "SELECT pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}

	startSidecar(t, transactional(), at)
	hello.PID = 77
	s := speak(t, at.execSocket, hello)
	eventually(t, "a final answer", func() error {
		status, answer := post(t, at, body)
		if status == http.StatusOK && strings.Contains(answer, `"replayed":true`) {
			return nil
		}
		if status != http.StatusServiceUnavailable && status != 0 {
			t.Fatalf("%d %s", status, answer)
		}
		return errors.New(answer)
	})
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("exit 0 after a commit became %d: %s", ack.Code, ack.Message)
	}
	if got := query[string](t, url, `SELECT count(*) || ' ' || (`+recorded+`) FROM book`); got != "1 done completed" {
		t.Error(got)
	}
}

// A restarted guard that does not know yet whether it still holds the window asks the
// worker for patience; 412 would stop it.
func TestCommitWhileAdopting(t *testing.T) {
	_, url := ownServer(t)
	at := testPaths(t, url)
	cmd, _ := startSidecar(t, transactional(), at)
	hello := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}
	speak(t, at.execSocket, hello).hears(wire.TypeRun)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	c := session(t, url, "BEGIN", "SELECT FROM onceguard.job_lease FOR UPDATE") // heartbeats wait
	startSidecar(t, transactional(), at)
	hello.PID = 77
	s := speak(t, at.execSocket, hello)
	s.hears(wire.TypeWait)
	if status, answer := post(t, at, `{}`); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, answer)
	}
	if _, err := c.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	s.hears(wire.TypeTrust)
	if status, answer := post(t, at, `{}`); status != http.StatusOK {
		t.Errorf("%d %s", status, answer)
	}
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("%+v", ack)
	}
}

// A sidecar whose log nobody reads any more works on.
func TestBrokenLogDoesNotEndTheGuard(t *testing.T) {
	at := testPaths(t, migrated(t))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	defer func() { _ = w.Close() }()
	startSidecarTo(t, testConfig(), at, w)
	s := speak(t, at.execSocket, wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker})
	s.hears(wire.TypeRun)
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("%+v", ack)
	}
}

func TestPlannedInstants(t *testing.T) {
	for value, cure := range map[string]string{
		"2026-11-30T13:18:00.5Z": "whole seconds", "2026-11-30T13:18:00.000000001Z": "whole seconds", "today": "RFC 3339",
		"2026-11-30T13:18:00Z": "", "2026-11-30T13:18:00.000Z": "", "2026-11-30T14:18:00+01:00": "",
	} {
		_, err := parse([]string{"--job", "shop/a", "--window-start", value, "--", "true"}, windowStart, io.Discard)
		if (err == nil) != (cure == "") || err != nil && !strings.Contains(err.Error(), cure) {
			t.Errorf("%s: %v", value, err)
		}
	}
}
