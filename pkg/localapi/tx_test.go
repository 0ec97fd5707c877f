package localapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
)

// whole is a Committer that says what it was asked.
type whole struct{ Committer }

func (whole) Commit(_ context.Context, r commit.Request) (commit.Answer, error) {
	return commit.Answer{CheckpointSeq: *r.CheckpointSeq + 1}, nil
}

func (whole) Checkpoint(context.Context) (claim.Checkpoint, error) { return claim.Checkpoint{}, nil }

func (whole) Open(context.Context) (commit.Transaction, error) {
	return commit.Transaction{ID: "t-1", Idle: 15 * time.Second}, nil
}

func (whole) Query(_ context.Context, id string, q commit.Statement) (commit.Rows, error) {
	return commit.Rows{Tag: id + " " + q.SQL, RowsAffected: int64(len(q.Args))}, nil
}

func (whole) Copy(_ context.Context, id string, to commit.Copy, rows commit.Stream) (int64, error) {
	b, err := io.ReadAll(rows)
	if err != nil {
		return 0, &commit.Error{Code: commit.Invalid, Message: err.Error()}
	}
	if id+to.Table+strings.Join(to.Columns, "|")+to.Null+to.Delimiter != `t-1s.ta|b\N;` || !to.Header {
		return 0, &commit.Error{Code: commit.Failed, Message: "unexpected"}
	}
	return int64(len(b)), nil
}

func (whole) Finish(_ context.Context, id string, end commit.Closing) (commit.Answer, error) {
	return commit.Answer{Completed: true, Result: end.Result, Replayed: id == "t-0"}, nil
}

func (whole) Drop(_ context.Context, id string) error {
	if id != "t-1" {
		return &commit.Error{Code: commit.Unknown, Message: "no transaction"}
	}
	return nil
}

func TestTransactionRoutes(t *testing.T) {
	h := Handler(Options{Token: token, MaxBody: 100, Committer: whole{}, Window: func() Window { return Window{} }, Log: zap.NewNop()})
	const bearer = "Bearer " + token
	long := strings.Repeat("1\n", 1000) // longer than a body may be: rows are no body
	const to = "/v1/tx/t-1/copy?table=s.t&columns=a,b&header=true&null=%5CN&delimiter=%3B"
	for _, c := range []struct {
		method, path, body string
		status             int
		has                string
	}{
		{"GET", "/v1/checkpoint", "", 200, `{"seq":0,"data":null}`},
		{"PUT", "/v1/checkpoint", `{"data":[1],"seq":4}`, 200, `{"committed":true,"completed":false,"replayed":false,"checkpoint_seq":5}`},
		{"PUT", "/v1/checkpoint", `{}`, 400, "data is missing"},
		{"POST", "/v1/tx", "", 201, `{"id":"t-1","idle_seconds":15}`},
		{"POST", "/v1/tx", " { }\n", 201, `"t-1"`},
		{"POST", "/v1/tx", `{"sql":"x"}`, 400, "takes no body"},
		{"POST", "/v1/tx/t-1/query", `{"sql":"SELECT $1","args":[1]}`, 200, `{"tag":"t-1 SELECT $1","rows_affected":1}`},
		{"POST", "/v1/tx/t-1/query", `{"sql":""}`, 400, `"sql is empty"`},
		{"POST", "/v1/tx/t-1/query", `{"sql":"` + strings.Repeat("x", 100) + `"}`, 413, "more than 100 bytes"},
		{"POST", to, long, 200, `{"rows":2000}`},
		{"POST", "/v1/tx/t-1/copy?tabel=t", "", 400, `\"tabel\" is not known`},
		{"POST", "/v1/tx/t-1/copy?table=a&table=b", "", 400, "2 times"},
		{"POST", "/v1/tx/t-1/copy?table=a&header=maybe", "", 400, "true or false"},
		{"POST", "/v1/tx/t-1/copy?table=a;b", "", 400, "cannot be read"},
		{"POST", "/v1/tx/t-1/commit", `{"result":1}`, 200, `{"committed":true,"completed":true,"replayed":false,"result":1}`},
		{"POST", "/v1/tx/t-0/commit", `{}`, 200, `"replayed":true`},
		{"POST", "/v1/tx/t-1/commit", `null`, 400, "null"},
		{"DELETE", "/v1/tx/t-2", "", 404, "unknown_transaction"},
		{"GET", "/v1/tx/t-1", "", 405, "not a method"},
	} {
		res, body := ask(t, h, c.method, c.path, bearer, c.body)
		if res.StatusCode != c.status || !strings.Contains(body, c.has) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.path, res.StatusCode, body, c.status, c.has)
		}
		if res, _ := ask(t, h, c.method, c.path, "", c.body); res.StatusCode != http.StatusUnauthorized && c.status != 405 {
			t.Errorf("%s %s without a token: %d", c.method, c.path, res.StatusCode)
		}
	}
	r := httptest.NewRequest("DELETE", "/v1/tx/t-1", nil)
	r.Header.Set("Authorization", bearer)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusNoContent || w.Body.Len() != 0 {
		t.Errorf("DELETE: %d %s", w.Code, w.Body)
	}
	r = httptest.NewRequest("POST", to, strings.NewReader("x"))
	r.Header.Set("Authorization", bearer)
	r.Header.Set("Content-Encoding", "gzip")
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "as they are") {
		t.Errorf("gzip: %d %s", w.Code, w.Body)
	}
}

// A Read of rows that waits for its client can be ended.
func TestAStreamIsInterrupted(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := stream{r.Body, http.NewResponseController(w)}
		if _, err := in.Read(make([]byte, 10)); err != nil {
			t.Error(err)
		}
		time.AfterFunc(10*time.Millisecond, in.Interrupt)
		if _, err := io.ReadAll(in); err == nil {
			t.Error("it ended in peace")
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: guard\r\nContent-Length: 100\r\n\r\n1\n2\n")
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 418" {
		t.Errorf("%q %v", answer, err)
	}
}
