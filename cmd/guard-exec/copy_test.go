package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// serves answers the commits of a transaction one after the other, and the rest as a
// guard does; an empty answer breaks the connection.
func serves(t *testing.T, commits ...string) (env []string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		status, body := http.StatusOK, "{}"
		switch {
		case r.URL.Path == "/v1/tx":
			status, body = http.StatusCreated, `{"id":"1"}`
		case strings.HasSuffix(r.URL.Path, "/copy"):
			body = `{"rows":2}`
		case strings.HasSuffix(r.URL.Path, "/commit"):
			if n++; n > len(commits) {
				t.Errorf("commit asked for %d times", n)
				return
			}
			code := commits[n-1]
			body = `{"error":{"code":"` + code + `"}}`
			status = map[string]int{
				"in_flight": 409, "checkpoint_conflict": 409, "transaction_ended": 410, "unknown_transaction": 404, "fence_lost": 412,
				"unknown_outcome": 503, "not_committed": 503, "ledger_unavailable": 503, "commit_failed": 400, "done": 200,
			}[code]
			if code == "" {
				panic(http.ErrAbortHandler)
			}
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if n != len(commits) {
			t.Errorf("commit asked for %d times, want %d", n, len(commits))
		}
	})
	return []string{contract.EnvSocket + "=" + socket, contract.EnvToken + "=t"}
}

// What a commit of rows ends with: only an open outcome is asked for again, and what the
// next attempt can do is 75.
func TestExitOfCopy(t *testing.T) {
	for answers, want := range map[string]int{
		"done": 0, "in_flight done": 0, "unknown_outcome done": 0, " done": 0,
		"ledger_unavailable": 75, "not_committed": 75, "transaction_ended": 75, " unknown_transaction": 75, "fence_lost": 75,
		"commit_failed": 1, "checkpoint_conflict": 1,
	} {
		t.Run(answers, func(t *testing.T) {
			env := serves(t, strings.Split(answers, " ")...)
			var out bytes.Buffer
			got, err := copyRows(t.Context(), []string{"--table", "t", "--timeout", "1m"}, env, strings.NewReader("1\n2\n"), &out)
			if got != want || err != nil {
				t.Errorf("exit %d, want %d: %s %v", got, want, out.String(), err)
			}
		})
	}
}

func TestAFileThatSaysAKeyTwice(t *testing.T) {
	for file, want := range map[string]string{
		`{"complete":false,"checkpoint":1,"complete":true}`: "complete", `{"a":{"a":1},"b":[{"a":1,"a":2}]}`: "", `{}`: "",
	} {
		err := fields{}.add("-", strings.NewReader(file))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), `"`+want+`" stands twice`) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
