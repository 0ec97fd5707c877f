package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
	"github.com/onceguard/onceguard/test/postgres"
)

const outcomes = `SELECT coalesce(string_agg(coalesce(outcome, 'open'), ' ' ORDER BY attempt), '') FROM onceguard.job_attempt`

func TestEightGuardsOfOneWindowRunItOnce(t *testing.T) {
	url := migrated(t)
	verdicts := make(chan wire.Type, 8)
	var speakers []*speaker
	for i := range 8 {
		p := startPod(t, testConfig(), testPaths(t, url), fmt.Sprintf("order-sync-%d", i))
		speakers = append(speakers, p.hello("main", wire.KindWorker, 0))
	}
	for _, s := range speakers {
		go func() {
			for {
				m, err := s.r.Read()
				if err != nil {
					verdicts <- wire.Type(err.Error())
					return
				}
				switch m.Type {
				case wire.TypeRun:
					b, _ := wire.Message{Type: wire.TypeExit, Code: 0}.Encode()
					_, _ = s.conn.Write(b)
				case wire.TypeAck, wire.TypeSkip, wire.TypeRefuse, wire.TypeStop:
					verdicts <- m.Type
					return
				}
			}
		}()
	}
	got := map[wire.Type]int{}
	for range 8 {
		select {
		case v := <-verdicts:
			got[v]++
		case <-time.After(soon):
			t.Fatalf("only %v after %s", got, soon)
		}
	}
	if got[wire.TypeAck] != 1 || got[wire.TypeSkip] != 7 {
		t.Errorf("verdicts %v, want one run and seven skips", got)
	}
	if n := query[int](t, url, `SELECT count(*) FROM onceguard.job_skip`); n != 7 {
		t.Errorf("%d duplicates are recorded, want 7", n)
	}
	if o := query[string](t, url, outcomes); o != "completed" {
		t.Errorf("outcomes %q", o)
	}
}

func TestCrashFreesTheWindowAtOnce(t *testing.T) {
	url := migrated(t)
	config := testConfig()
	config.Lease = contract.Duration(time.Hour) // nothing but the release can free it within the test
	first := startPod(t, config, testPaths(t, url), "order-sync-a")
	worker := first.hello("main", wire.KindWorker, 0)
	worker.hears(wire.TypeRun)
	second := startPod(t, config, testPaths(t, url), "order-sync-b")
	next := second.hello("main", wire.KindWorker, 0)
	if m := next.hears(wire.TypeWait); !strings.Contains(m.Message, "attempt 1 of pod shop/order-sync-a") {
		t.Errorf("it does not say whom it waits for: %q", m.Message)
	}
	worker.vanishes()
	next.hears(wire.TypeRun)
	if m := next.exits(0); m.Code != 0 {
		t.Errorf("ack %+v", m)
	}
	if o := query[string](t, url, outcomes); o != "crashed completed" {
		t.Errorf("outcomes %q", o)
	}
}

func TestFailureFreesTheWindowBeforeTheContainerEnds(t *testing.T) {
	url := migrated(t)
	p := startPod(t, testConfig(), testPaths(t, url), "order-sync-a")
	worker := p.hello("main", wire.KindWorker, 0)
	worker.hears(wire.TypeRun)
	if m := worker.exits(42); m.Code != 42 {
		t.Errorf("ack %+v", m)
	}
	if got := query[string](t, url, `SELECT outcome || ' ' || exit_code FROM onceguard.job_attempt`); got != "failed 42" {
		t.Errorf("recorded %q", got)
	}
	// The container is restarted in place: a new attempt.
	again := p.hello("main", wire.KindWorker, 0)
	if run := again.hears(wire.TypeRun); run.Env[contract.EnvAttempt] != "2" {
		t.Errorf("environment %v", run.Env)
	}
	if m := again.exits(0); m.Code != 0 {
		t.Errorf("ack %+v", m)
	}
	// And once more, after the completion: nothing to do.
	p.hello("main", wire.KindWorker, 0).hears(wire.TypeSkip)
	if n := query[int](t, url, `SELECT count(*) FROM onceguard.job_skip`); n != 0 {
		t.Errorf("%d duplicates are recorded for a pod that did the work", n)
	}
}

func TestKilledGuardAdoptsItsAttempt(t *testing.T) {
	url := migrated(t)
	at := testPaths(t, url)
	first, _ := startSidecar(t, testConfig(), at)
	hello := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}
	run := speak(t, at.execSocket, hello).hears(wire.TypeRun)
	_ = first.Process.Kill()
	_ = first.Wait()

	second, _ := startSidecar(t, testConfig(), at)
	hello.PID = 42 // the worker ran on
	worker := speak(t, at.execSocket, hello)
	worker.hears(wire.TypeTrust)
	if id := query[uuid.UUID](t, url, `SELECT execution_id FROM onceguard.job_execution`); id.String() != run.Env[contract.EnvExecutionID] {
		t.Errorf("the attempt is now %s, it was %s", id, run.Env[contract.EnvExecutionID])
	}
	if m := worker.exits(0); m.Code != 0 {
		t.Errorf("ack %+v", m)
	}
	if o := query[string](t, url, outcomes); o != "completed" {
		t.Errorf("outcomes %q", o)
	}
	// It leaves with 0 after SIGTERM, since nobody is connected any more.
	worker.vanishes()
	_ = second.Process.Signal(syscall.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Errorf("the sidecar left with %v", err)
	}
}

func TestKilledGuardDoesNotInsertAVanishedRow(t *testing.T) {
	url := migrated(t)
	at := testPaths(t, url)
	first, _ := startSidecar(t, testConfig(), at)
	hello := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}
	speak(t, at.execSocket, hello).hears(wire.TypeRun)
	_ = first.Process.Kill()
	_ = first.Wait()
	query[int](t, url, `WITH l AS (DELETE FROM onceguard.job_lease RETURNING 1), a AS (DELETE FROM onceguard.job_attempt RETURNING 1),
		e AS (DELETE FROM onceguard.job_execution RETURNING 1) SELECT (SELECT count(*) FROM l) + (SELECT count(*) FROM a) + (SELECT count(*) FROM e)`)

	_, _ = startSidecar(t, testConfig(), at)
	hello.PID = 42
	worker := speak(t, at.execSocket, hello)
	worker.hears(wire.TypeStop)
	if n := query[int](t, url, `SELECT count(*) FROM onceguard.job_execution`); n != 0 {
		t.Error("the vanished row was inserted again while its worker ran")
	}
	if m := worker.exits(143); m.Code != contract.ExitRetry {
		t.Errorf("ack %+v", m)
	}
}

func TestKilledGuardAcknowledgesAnExitItKnows(t *testing.T) {
	url := migrated(t)
	at := testPaths(t, url)
	first, _ := startSidecar(t, testConfig(), at)
	hello := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}
	worker := speak(t, at.execSocket, hello)
	worker.hears(wire.TypeRun)
	worker.exits(0) // heard by us, but suppose that the wrapper did not
	_ = first.Process.Kill()
	_ = first.Wait()
	_, _ = startSidecar(t, testConfig(), at)
	hello.PID = 42
	if m := speak(t, at.execSocket, hello).exits(0); m.Code != 0 {
		t.Errorf("ack %+v", m)
	}
}

func TestLedgerAwayForLessThanTheLease(t *testing.T) {
	server, url := ownServer(t)
	p := startPod(t, testConfig(), testPaths(t, url), "order-sync-a")
	worker := p.hello("main", wire.KindWorker, 0)
	worker.hears(wire.TypeRun)
	if err := server.Restart(t.Context(), postgres.Immediate); err != nil {
		t.Fatal(err)
	}
	if m := worker.exits(0); m.Code != 0 {
		t.Errorf("ack %+v", m)
	}
	if o := query[string](t, url, outcomes); o != "completed" {
		t.Errorf("outcomes %q", o)
	}
}

func TestLedgerAwayForLongerThanTheLease(t *testing.T) {
	server, url := ownServer(t)
	config := testConfig()
	config.Lease = contract.Duration(2 * time.Second)
	p := startPod(t, config, testPaths(t, url), "order-sync-a")
	worker := p.hello("main", wire.KindWorker, 0)
	worker.hears(wire.TypeRun)
	if err := server.Kill(t.Context(), postgres.Immediate); err != nil {
		t.Fatal(err)
	}
	if m := worker.hears(wire.TypeStop); m.Message == "" {
		t.Error("stop without a reason")
	}
	// Exit 0 after the stop must not complete: it may be half of the work.
	if m := worker.exits(0); m.Code != contract.ExitRetry {
		t.Errorf("ack %+v", m)
	}
	if err := server.Restart(t.Context(), postgres.Immediate); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the outcome is reported when the ledger is back", func() error {
		if o := query[string](t, url, outcomes); o != "stopped" {
			return fmt.Errorf("outcomes %q", o)
		}
		return nil
	})
}

func TestLostLeaseStopsTheWorker(t *testing.T) {
	url := migrated(t)
	config := testConfig()
	config.Lease = contract.Duration(3 * time.Second)
	p := startPod(t, config, testPaths(t, url), "order-sync-a")
	worker := p.hello("main", wire.KindWorker, 0)
	worker.hears(wire.TypeRun)
	query[int](t, url, `WITH l AS (UPDATE onceguard.job_lease SET execution_id = gen_random_uuid() RETURNING 1) SELECT count(*) FROM l`)
	worker.hears(wire.TypeStop)
	if m := worker.exits(143); m.Code != contract.ExitRetry {
		t.Errorf("ack %+v", m)
	}
}

func TestWorkerThatNeverStartsGivesTheWindowBack(t *testing.T) {
	url := migrated(t)
	config := testConfig()
	config.StartTimeout = contract.Duration(time.Second)
	p := startPod(t, config, testPaths(t, url), "order-sync-a")
	eventually(t, "released", func() error {
		if o := query[string](t, url, outcomes); o != "not-started" {
			return fmt.Errorf("outcomes %q", o)
		}
		return nil
	})
	// Its image has come at last: claimed again.
	if run := p.hello("main", wire.KindWorker, 0).hears(wire.TypeRun); run.Env[contract.EnvAttempt] != "2" {
		t.Errorf("environment %v", run.Env)
	}
}

func TestMissingSecretIsNamedAndMended(t *testing.T) {
	url := migrated(t)
	at := testPaths(t, "")
	p := startPod(t, testConfig(), at, "order-sync-a")
	worker := p.hello("main", wire.KindWorker, 0)
	m := worker.hears(wire.TypeWait)
	for _, word := range []string{`"onceguard-ledger-default"`, `"shop"`, `"url"`, "kubectl -n shop create secret"} {
		if !strings.Contains(m.Message, word) {
			t.Errorf("no %s in %q", word, m.Message)
		}
	}
	writeFile(t, filepath.Join(at.ledger, "url"), url+"\n")
	worker.hears(wire.TypeRun)
}

func TestRefusalClaimsNothing(t *testing.T) {
	url := migrated(t)
	config := testConfig()
	config.Refusal = "the Job says no window; add onceguard.dev/window-start"
	p := startPod(t, config, testPaths(t, url), "order-sync-a")
	m := p.hello("main", wire.KindWorker, 0).hears(wire.TypeRefuse)
	if m.Code != contract.ExitRefused || m.Message != config.Refusal {
		t.Errorf("refused with %+v", m)
	}
	if n := query[int](t, url, `SELECT count(*) FROM onceguard.job_execution`); n != 0 {
		t.Error("a refused pod has claimed")
	}
}

func TestBrokenConfigurationRefusesAndDoesNotCrash(t *testing.T) {
	at := testPaths(t, "")
	config := testConfig()
	config.Busy = "maybe"
	startSidecar(t, config, at)
	m := speak(t, at.execSocket, wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}).hears(wire.TypeRefuse)
	if m.Code != contract.ExitRefused || !strings.Contains(m.Message, `busy is "maybe"; it must be`) {
		t.Errorf("refused with %+v", m)
	}
}

func TestNoMigrationIsExplained(t *testing.T) {
	url := postgres.Database(t)
	p := startPod(t, testConfig(), testPaths(t, url), "order-sync-a")
	if m := p.hello("main", wire.KindWorker, 0).hears(wire.TypeWait); !strings.Contains(m.Message, "migrate") {
		t.Errorf("no cure in %q", m.Message)
	}
}

// No output of any kind holds the password or the pod's token, also when the ledger
// refuses the login.
func TestNoSecretIsSaid(t *testing.T) {
	url := migrated(t)
	canary := "canary-5b1f77"
	wrong := strings.Replace(url, password(t, url), canary, 1)
	at := testPaths(t, wrong)
	p := startPod(t, testConfig(), at, "order-sync-a")
	worker := p.hello("main", wire.KindWorker, 0)
	m := worker.hears(wire.TypeWait)
	writeFile(t, filepath.Join(at.ledger, "url"), url)
	run := worker.hears(wire.TypeRun)
	worker.exits(0)
	p.stop()
	state, err := os.ReadFile(filepath.Join(at.state, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	said := m.Message + p.log.String() + fmt.Sprint(run.Env) + string(state)
	for _, secret := range []string{canary, password(t, url)} {
		if strings.Contains(said, secret) {
			t.Errorf("the password is in %s", said)
		}
	}
	if strings.Contains(p.log.String(), run.Env[contract.EnvToken]) {
		t.Error("the token is in the log")
	}
	if p.log.String() == "" {
		t.Error("nothing was logged, so nothing was tested")
	}
}
