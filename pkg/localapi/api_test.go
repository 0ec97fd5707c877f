package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/logs"
)

const token = "canary-token"

// committer answers commits; what a test does not ask for is nil.
type committer struct {
	Committer
	commit func(context.Context, commit.Request) (commit.Answer, error)
}

func (f committer) Commit(ctx context.Context, r commit.Request) (commit.Answer, error) {
	return f.commit(ctx, r)
}

func handler(f func(context.Context, commit.Request) (commit.Answer, error), log *zap.Logger) http.Handler {
	return Handler(Options{
		Token: token, MaxBody: 1 << 10, Committer: committer{commit: f}, Log: log,
		Window: func() Window {
			return Window{JobName: "shop/order-sync", WindowStart: time.Date(2026, 11, 30, 13, 18, 0, 0, time.UTC), State: "held", ExecutionID: "e-1", Attempt: 3}
		},
	})
}

func ask(t *testing.T, h http.Handler, method, path, auth, body string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, _ := io.ReadAll(w.Result().Body)
	if !json.Valid(b) || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s %s: not JSON: %s", method, path, b)
	}
	return w.Result(), string(b)
}

func TestRoutes(t *testing.T) {
	h := handler(func(_ context.Context, r commit.Request) (commit.Answer, error) {
		n := int64(3)
		return commit.Answer{Completed: true, Result: r.Result, Processed: &n}, nil
	}, zap.NewNop())
	const bearer = "Bearer " + token
	for _, c := range []struct {
		method, path, auth, body string
		status                   int
		has                      string
	}{
		{"GET", "/healthz", "", "", 200, `"ok"`},
		{"GET", "/v1/window", bearer, "", 200, `"job_name":"shop/order-sync","window_start":"2026-11-30T13:18:00Z"`},
		{"GET", "/v1/window", "bearer " + token, "", 200, "held"},
		{"GET", "/v1/window", "", "", 401, "ONCEGUARD_TOKEN"},
		{"GET", "/v1/window", "Bearer", "", 401, "unauthorized"},
		{"GET", "/v1/window", "Bearer " + token + "x", "", 401, "unauthorized"},
		{"GET", "/v1/window", "Basic " + token, "", 401, "unauthorized"},
		{"POST", "/v1/commit", "", "{}", 401, "unauthorized"},
		{"POST", "/v1/commit", bearer, `{"result":{"a":1}}`, 200, `{"committed":true,"completed":true,"replayed":false,"result":{"a":1},"processed":3}`},
		{"POST", "/v1/commit", bearer, `{"resut":1}`, 400, `unknown field \"resut\"`},
		{"POST", "/v1/commit", bearer, `{"payload":"` + strings.Repeat("x", 2000) + `"}`, 413, "more than 1024 bytes"},
		{"GET", "/v1/commit", bearer, "", 405, "GET is not a method"},
		{"POST", "/v1/nothing", bearer, "", 404, "/v1/nothing"},
	} {
		res, body := ask(t, h, c.method, c.path, c.auth, c.body)
		if res.StatusCode != c.status || !strings.Contains(body, c.has) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.path, res.StatusCode, body, c.status, c.has)
		}
	}
}

func TestEveryRefusalHasItsStatus(t *testing.T) {
	index := 2
	for code, status := range map[commit.Code]int{
		commit.Invalid: 400, commit.Failed: 400, commit.Unexpected: 400, commit.Forbidden: 400, commit.TooLarge: 400, commit.Refused: 400,
		commit.InFlight: 409, commit.NoAttempt: 412, commit.FenceLost: 412, commit.Closed: 412,
		commit.TooLong: 400, commit.Conflict: 409, commit.Unknown: 404, commit.Ended: 410,
		commit.OtherPayload: 422, commit.OtherRequest: 422,
		commit.UnknownResult: 503, commit.NotCommitted: 503, commit.Unavailable: 503,
	} {
		var log bytes.Buffer
		h := handler(func(context.Context, commit.Request) (commit.Answer, error) {
			return commit.Answer{}, &commit.Error{Code: code, Message: "value canary-argument", Statement: &index, SQLState: "22P02", Position: 7}
		}, logs.New(&log, zapcore.DebugLevel))
		res, body := ask(t, h, "POST", "/v1/commit", "Bearer "+token, "{}")
		want := `{"error":{"code":"` + string(code) + `","message":"value canary-argument","statement":2,"sqlstate":"22P02","position":7}}`
		if res.StatusCode != status || strings.TrimSpace(body) != want {
			t.Errorf("%s: %d %s", code, res.StatusCode, body)
		}
		if strings.Contains(log.String(), "canary") || !strings.Contains(log.String(), "22P02") {
			t.Errorf("log %s", log.String())
		}
		saysAttempt(t, log.String(), "refused a commit")
	}
}

// Each line about a commit names the attempt that asked for it.
func saysAttempt(t *testing.T, line, msg string) {
	t.Helper()
	var got struct {
		Msg         string `json:"msg"`
		ExecutionID string `json:"execution_id"`
		Attempt     int    `json:"attempt"`
	}
	if err := json.Unmarshal([]byte(line), &got); err != nil || got.Msg != msg || got.ExecutionID != "e-1" || got.Attempt != 3 {
		t.Errorf("log %s", line)
	}
}

func TestAnAnsweredCommitIsLogged(t *testing.T) {
	var log bytes.Buffer
	h := handler(func(context.Context, commit.Request) (commit.Answer, error) { return commit.Answer{}, nil }, logs.New(&log, zapcore.DebugLevel))
	ask(t, h, "POST", "/v1/commit", "Bearer "+token, "{}")
	saysAttempt(t, log.String(), "answered a commit")
}

func TestAPanicStaysInItsRequest(t *testing.T) {
	h := handler(func(context.Context, commit.Request) (commit.Answer, error) { panic("oh") }, zap.NewNop())
	if res, body := ask(t, h, "POST", "/v1/commit", "Bearer "+token, "{}"); res.StatusCode != 500 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	h = handler(func(context.Context, commit.Request) (commit.Answer, error) {
		return commit.Answer{}, errors.New("odd")
	}, zap.NewNop())
	if res, body := ask(t, h, "POST", "/v1/commit", "Bearer "+token, "{}"); res.StatusCode != 500 || strings.Contains(body, "odd") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

func TestSocketIsOpenToEveryUserAndReplacesAnOldOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	for range 2 { // the second one finds what a killed guard left
		l, err := ListenSocket(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("%v %v", info.Mode(), err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
	}
}

func TestLoopbackPortIsKeptAndOutsideTheEphemeralRange(t *testing.T) {
	l, port, err := ListenLoopback(0)
	if err != nil {
		t.Fatal(err)
	}
	if port < lowestPort || port >= firstEphemeral() {
		t.Errorf("port %d", port)
	}
	if _, _, err := ListenLoopback(port); err == nil {
		t.Error("a taken port was given twice")
	}
	_ = l.Close()
	l, again, err := ListenLoopback(port)
	if err != nil || again != port {
		t.Fatalf("%d %v", again, err)
	}
	_ = l.Close()
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := ListenSocket(filepath.Join(t.TempDir(), "api.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, handler(nil, zap.NewNop()), zap.NewNop(), l)
	}()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.Addr().String())
	}}}
	res, err := client.Get("http://guard/healthz")
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
	cancel()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}
