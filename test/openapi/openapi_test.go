// Package openapi_test holds the endpoint's OpenAPI document against the handlers: it is
// valid, and every answer that it promises is given, as it says.
package openapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/localapi"
)

const (
	token   = "t0ken"
	maxBody = 1 << 12
	id      = "4b0a4a0e-6f0c-4b57-9d1c-0c9c9b8f7a10"
)

// committer answers everything with answer, or fails with err.
type committer struct {
	answer commit.Answer
	check  claim.Checkpoint
	err    error // errPanic: panics
}

var errPanic = &commit.Error{Code: "panic"}

func (c committer) fail() error {
	if errors.Is(c.err, errPanic) {
		panic("as asked")
	}
	return c.err
}

func (c committer) Commit(context.Context, commit.Request) (commit.Answer, error) {
	return c.answer, c.fail()
}

func (c committer) Checkpoint(context.Context) (claim.Checkpoint, error) { return c.check, c.fail() }

func (c committer) Open(context.Context) (commit.Transaction, error) {
	return commit.Transaction{ID: id, Idle: 1500 * time.Millisecond}, c.fail()
}

func (c committer) Query(context.Context, string, commit.Statement) (commit.Rows, error) {
	return c.answer.Statements[0], c.fail()
}

func (c committer) Copy(_ context.Context, _ string, _ commit.Copy, rows commit.Stream) (int64, error) {
	n, _ := io.Copy(io.Discard, rows)
	return n, c.fail()
}

func (c committer) Finish(context.Context, string, commit.Closing) (commit.Answer, error) {
	return c.answer, c.fail()
}

func (c committer) Drop(context.Context, string) error { return c.fail() }

var (
	one   = int64(1)
	text  = "10"
	index = 2
	did   = commit.Rows{Tag: "SELECT 1", RowsAffected: 1, Columns: []string{"a", "b"}, Rows: [][]*string{{&text, nil}}}
	// answers are what a commit may answer.
	answers = []commit.Answer{
		{Completed: true, Statements: []commit.Rows{did, {Tag: "UPDATE 0"}}, Result: json.RawMessage(`{"a":[1,null]}`), Processed: &one},
		{Completed: true, Statements: []commit.Rows{{Tag: "SELECT 0", Columns: []string{}, Rows: [][]*string{}}}, Replayed: true, Result: json.RawMessage(`null`)},
		{Statements: []commit.Rows{did}, CheckpointSeq: 4},
	}
	checkpoints = []claim.Checkpoint{{}, {Seq: 3, Data: json.RawMessage(`{"after":"m"}`)}, {Seq: 4, Data: json.RawMessage(`"x"`)}}
	windows     = []localapi.Window{
		{JobName: "shop/x", WindowStart: time.Unix(1e9, 0).UTC(), State: "claiming"},
		{JobName: "shop/x#3", WindowStart: time.Unix(1e9, 0).UTC(), WindowEnd: new(time.Unix(2e9, 0).UTC()), Trigger: "manual", State: "held", Committed: true, ExecutionID: id, Attempt: 2, FencingToken: 1 << 40, IdempotencyKey: "k", Message: "m"},
	}
)

// document is the document as it is served, without a token.
func document(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	w := httptest.NewRecorder()
	handler(committer{}, windows[0]).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	doc, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil // whatever the address
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return doc, router
}

func handler(c committer, w localapi.Window) http.Handler {
	return localapi.Handler(localapi.Options{
		Token: token, MaxBody: maxBody, Log: zap.NewNop(), Committer: c,
		Window: func() localapi.Window {
			if errors.Is(c.err, errPanic) && w.Attempt == 2 { // attemptLog asks too, and must not be what panics first
				panic("as asked")
			}
			return w
		},
	})
}

func TestTheDocumentIsValid(t *testing.T) {
	doc, _ := document(t)
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// request makes a request of an operation: its own example, or the body given.
func request(t *testing.T, method, path string, o *openapi3.Operation, body []byte) *http.Request {
	t.Helper()
	target := strings.ReplaceAll(path, "{id}", id)
	var query []string
	for _, p := range o.Parameters {
		switch v := p.Value.Example.(type) {
		case string:
			query = append(query, p.Value.Name+"="+v)
		case []any:
			var all []string
			for _, e := range v {
				all = append(all, e.(string))
			}
			query = append(query, p.Value.Name+"="+strings.Join(all, ","))
		}
	}
	if query != nil {
		target += "?" + strings.Join(query, "&")
	}
	r := httptest.NewRequest(method, target, bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	if o.RequestBody != nil {
		for kind := range o.RequestBody.Value.Content {
			r.Header.Set("Content-Type", kind)
		}
	}
	return r
}

// bodies are the examples of what is sent.
func bodies(t *testing.T, o *openapi3.Operation) (all [][]byte) {
	t.Helper()
	if o.RequestBody == nil {
		return [][]byte{nil}
	}
	for _, media := range o.RequestBody.Value.Content {
		if s, is := media.Example.(string); is {
			all = append(all, []byte(s))
		}
		for _, e := range media.Examples {
			b, err := json.Marshal(e.Value.Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no example of a request", o.OperationID)
	}
	return all
}

// checked sends the request and holds the answer against the document.
func checked(t *testing.T, router routers.Router, h http.Handler, r *http.Request, sent []byte) (status int, code string) {
	t.Helper()
	route, params, err := router.FindRoute(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	input := &openapi3filter.RequestValidationInput{
		Request: r.Clone(t.Context()), PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	input.Request.Body = io.NopCloser(bytes.NewReader(sent))
	if len(sent) <= maxBody {
		if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	answer := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: w.Code, Header: w.Result().Header, Options: input.Options}
	answer.SetBodyBytes(w.Body.Bytes())
	if err := openapi3filter.ValidateResponse(t.Context(), answer); err != nil {
		t.Errorf("%s %s answered %d %s: %v", r.Method, r.URL, w.Code, w.Body, err)
	}
	var f struct{ Error struct{ Code string } }
	_ = json.Unmarshal(w.Body.Bytes(), &f) // 204 has none
	return w.Code, f.Error.Code
}

func TestEverySuccessIsAsDocumented(t *testing.T) {
	doc, router := document(t)
	for path, item := range doc.Paths.Map() {
		for method, o := range item.Operations() {
			for _, body := range bodies(t, o) {
				for i, answer := range answers {
					h := handler(committer{answer: answer, check: checkpoints[i]}, windows[i%len(windows)])
					status, _ := checked(t, router, h, request(t, method, path, o, body), body)
					if status < 200 || status > 299 {
						t.Errorf("%s %s %s answered %d", method, path, body, status)
					}
				}
			}
		}
	}
}

// documented gives the codes of each status.
func documented(o *openapi3.Operation) map[string]int {
	codes := map[string]int{}
	for status, r := range o.Responses.Map() {
		media := r.Value.Content["application/json"]
		if media == nil || status < "400" {
			continue
		}
		for _, part := range media.Schema.Value.AllOf {
			if e := part.Value.Properties["error"]; part.Ref == "" && e != nil {
				for _, code := range e.Value.Properties["code"].Value.Enum {
					codes[code.(string)] = int(status[0]-'0')*100 + int(status[1]-'0')*10 + int(status[2]-'0')
				}
			}
		}
	}
	return codes
}

// Every failure that the document promises can be had, with its status and its shape.
func TestEveryFailureIsAsDocumented(t *testing.T) {
	doc, router := document(t)
	for path, item := range doc.Paths.Map() {
		for method, o := range item.Operations() {
			for code, want := range documented(o) {
				sent := bodies(t, o)[0]
				c, w := committer{answer: answers[0]}, windows[0]
				switch code {
				case "internal":
					if path == "/healthz" || path == "/openapi.json" {
						continue // nothing of it can be made to fail
					}
					c.err, w.Attempt = errPanic, map[bool]int{true: 2}[path == "/v1/window"]
				case "too_large":
					sent = []byte(`{"pad":"` + strings.Repeat("x", maxBody) + `"}`)
				default:
					c.err = &commit.Error{Code: commit.Code(code), Message: "m", SQLState: "22P02", Position: 7, Statement: &index}
				}
				r := request(t, method, path, o, sent)
				if code == "unauthorized" {
					r.Header.Del("Authorization")
				}
				if status, got := checked(t, router, handler(c, w), r, sent); status != want || got != code {
					t.Errorf("%s %s: %s should be %d, was %d %s", method, path, code, want, status, got)
				}
			}
		}
	}
}

// The power of these tests: an answer that is not documented is noticed.
func TestUndocumentedAnswersAreNoticed(t *testing.T) {
	doc, router := document(t)
	o := doc.Paths.Find("/v1/window").Get
	for name, body := range map[string]string{
		"a field too many": `{"job_name":"a","window_start":"2026-11-30T09:00:00Z","state":"held","committed":true,"more":1}`,
		"a field too few":  `{"job_name":"a"}`,
	} {
		r := request(t, http.MethodGet, "/v1/window", o, nil)
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Fatal(err)
		}
		answer := &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
			Status:                 http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		}
		answer.SetBodyBytes([]byte(body))
		if openapi3filter.ValidateResponse(t.Context(), answer) == nil {
			t.Error(name, "passed")
		}
	}
	if got := slices.Sorted(maps.Keys(documented(doc.Paths.Find("/v1/checkpoint").Get))); !slices.Equal(got, []string{"internal", "ledger_unavailable", "unauthorized"}) {
		t.Error(got) // how the tests read the document
	}
}
