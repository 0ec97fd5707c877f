package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

// programs are what scripts call; each is this test binary under another name.
var programs = map[string]func(){"guard": main, "post": postMain, "code": codeMain, "sidecar-in": sidecarMain, "guard-at": atMain}

func TestMain(m *testing.M) {
	if program, ok := programs[filepath.Base(os.Args[0])]; ok {
		program()
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // not a second at the end of each program
	postgres.Main(m)
}

// postMain is a worker's HTTP client: post BODY sends BODY to /v1/commit, prints the
// answer and fails unless it is 200.
func postMain() {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", os.Getenv(contract.EnvSocket))
	}}}
	req, err := http.NewRequest(http.MethodPost, "http://guard/v1/commit", strings.NewReader(os.Args[1]))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv(contract.EnvToken))
	res, err := client.Do(req)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(os.Stdout, res.Body)
	if res.StatusCode != http.StatusOK {
		os.Exit(1)
	}
}

// codeMain: code N COMMAND… succeeds if COMMAND exits with N.
func codeMain() {
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if got := cmd.ProcessState.ExitCode(); strconv.Itoa(got) != os.Args[1] {
		fmt.Fprintf(os.Stderr, "exit code %d, want %s\n", got, os.Args[1])
		os.Exit(1)
	}
}

// migrated gives the URL of a fresh database with a ledger and a table of business.
func migrated(t testing.TB) string {
	t.Helper()
	return migratedAt(t, postgres.Database(t))
}

func migratedAt(t testing.TB, url string) string {
	t.Helper()
	if _, _, err := migrate.Up(t.Context(), url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	return url
}

func TestScripts(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			tb, ok := e.T().(testing.TB)
			if !ok {
				return errors.New("not a testing.TB")
			}
			url := migrated(tb)
			bin := filepath.Join(e.WorkDir, "bin")
			err := errors.Join(os.Mkdir(bin, 0o700), os.WriteFile(filepath.Join(e.WorkDir, "url"), []byte(url+"\n"), 0o600))
			for name := range programs {
				err = errors.Join(err, os.Symlink(binary, filepath.Join(bin, name)))
			}
			e.Setenv("PATH", bin+":"+e.Getenv("PATH"))
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			e.Setenv("W", "2026-11-30T13:18:00Z")
			return err
		},
	})
}
