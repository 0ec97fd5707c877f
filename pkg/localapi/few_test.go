package localapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/commit"
)

// However many bodies a worker leaves open, a few are in memory; another one waits, and is
// told so in the end. What has no body goes on.
func TestFewBodiesAtOnce(t *testing.T) {
	made := func(context.Context, commit.Request) (commit.Answer, error) {
		return commit.Answer{Completed: true}, nil
	}
	a := api{Options{
		Token: token, MaxBody: 1 << 10, Committer: committer{commit: made}, Log: zap.NewNop(),
		Window: func() Window { return Window{} },
	}, make(chan struct{}, maxBodies), 10 * time.Millisecond}
	h := a.routes()
	var bodies []*io.PipeWriter
	answers := make(chan int)
	for range maxBodies {
		r, w := io.Pipe()
		bodies = append(bodies, w)
		go func() {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/commit", r)
			request.Header.Set("Authorization", "Bearer "+token)
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, request)
			answers <- answer.Code
		}()
		_, _ = io.WriteString(w, "{") // somebody reads it: it has its place
	}
	if res, body := ask(t, h, "POST", "/v1/commit", "Bearer "+token, "{}"); res.StatusCode != http.StatusConflict || !strings.Contains(body, "in_flight") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if res, body := ask(t, h, "GET", "/v1/window", "Bearer "+token, ""); res.StatusCode != http.StatusOK {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	for _, w := range bodies {
		_, _ = io.WriteString(w, "}")
		_ = w.Close()
		if status := <-answers; status != http.StatusOK {
			t.Error(status)
		}
	}
	if res, body := ask(t, h, "POST", "/v1/commit", "Bearer "+token, "{}"); res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d %s", res.StatusCode, body)
	}
}
