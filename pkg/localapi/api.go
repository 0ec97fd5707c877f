// Package localapi is the endpoint that a worker talks to: HTTP/1.1 with JSON on a Unix
// socket and, where the pod has a network of its own, on a loopback port. Every request
// below /v1 carries the pod's bearer token.
//
//	GET    /v1/window           the window and the attempt of this pod
//	POST   /v1/commit           statements and their end in one transaction (package commit)
//	GET    /v1/checkpoint       how far the window's work has come
//	PUT    /v1/checkpoint       a piece without statements
//	POST   /v1/tx               an interactive transaction, one at a time
//	POST   /v1/tx/{id}/query    one statement of it
//	POST   /v1/tx/{id}/copy     rows in CSV, as a stream
//	POST   /v1/tx/{id}/commit   its end
//	DELETE /v1/tx/{id}          nothing of it
//	GET    /healthz             no token; 200 while the guard lives
//	GET    /openapi.json        no token; OpenAPI 3, checked against all this
//
// Every error is {"error":{"code","message","statement","sqlstate","position"}}; which
// status a code has is one table (statuses).
package localapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/logs"
)

// DefaultMaxBody is how many bytes of a request are read when Options does not say.
const DefaultMaxBody = 1 << 20

// Committer makes commits; see package commit.
type Committer interface {
	Commit(ctx context.Context, r commit.Request) (commit.Answer, error)
	Checkpoint(ctx context.Context) (claim.Checkpoint, error)
	Open(ctx context.Context) (commit.Transaction, error)
	Query(ctx context.Context, id string, q commit.Statement) (commit.Rows, error)
	Copy(ctx context.Context, id string, to commit.Copy, rows commit.Stream) (int64, error)
	Finish(ctx context.Context, id string, end commit.Closing) (commit.Answer, error)
	Drop(ctx context.Context, id string) error
}

// Options of the endpoint.
type Options struct {
	Token     string // the pod's
	Window    func() Window
	Committer Committer
	MaxBody   int64 // 0: DefaultMaxBody
	Log       *zap.Logger
}

// Window is the answer to GET /v1/window.
type Window struct {
	JobName        string     `json:"job_name"`
	WindowStart    time.Time  `json:"window_start"`
	WindowEnd      *time.Time `json:"window_end,omitempty"` // the next nominal instant; absent when unknown
	Trigger        string     `json:"trigger,omitempty"`
	State          string     `json:"state"` // as the guard stands: held means that a commit may be made
	Committed      bool       `json:"committed"`
	ExecutionID    string     `json:"execution_id,omitempty"`
	Attempt        int        `json:"attempt,omitempty"`
	FencingToken   int64      `json:"fencing_token,omitempty"`
	IdempotencyKey string     `json:"idempotency_key,omitempty"`
	Message        string     `json:"message,omitempty"`
}

// failure is the body of every error.
type failure struct {
	Error problem `json:"error"`
}

type problem struct {
	Code      commit.Code `json:"code"`
	Message   string      `json:"message"`
	Statement *int        `json:"statement,omitempty"` // index from 0
	SQLState  string      `json:"sqlstate,omitempty"`
	Position  int         `json:"position,omitempty"` // character of the statement, from 1
}

// Codes of the endpoint itself.
const (
	codeUnauthorized commit.Code = "unauthorized"
	codeNotFound     commit.Code = "not_found"
	codeMethod       commit.Code = "method_not_allowed"
	codeTooLarge     commit.Code = "too_large"
	codeInternal     commit.Code = "internal"
)

// statuses is the whole mapping from what happened to HTTP.
var statuses = map[commit.Code]int{
	commit.Invalid:       http.StatusBadRequest,
	commit.Failed:        http.StatusBadRequest,
	commit.Unexpected:    http.StatusBadRequest,
	commit.Forbidden:     http.StatusBadRequest,
	commit.TooLarge:      http.StatusBadRequest, // 413 is about a body; here it is the answer that would be too large
	commit.TooLong:       http.StatusBadRequest,
	commit.Refused:       http.StatusBadRequest,
	commit.InFlight:      http.StatusConflict,
	commit.Conflict:      http.StatusConflict,
	commit.Unknown:       http.StatusNotFound,
	commit.Ended:         http.StatusGone,
	commit.NoAttempt:     http.StatusPreconditionFailed,
	commit.FenceLost:     http.StatusPreconditionFailed,
	commit.Closed:        http.StatusPreconditionFailed,
	commit.OtherPayload:  http.StatusUnprocessableEntity,
	commit.OtherRequest:  http.StatusUnprocessableEntity,
	commit.UnknownResult: http.StatusServiceUnavailable,
	commit.NotCommitted:  http.StatusServiceUnavailable,
	commit.Unavailable:   http.StatusServiceUnavailable,
	codeUnauthorized:     http.StatusUnauthorized,
	codeNotFound:         http.StatusNotFound,
	codeMethod:           http.StatusMethodNotAllowed,
	codeTooLarge:         http.StatusRequestEntityTooLarge,
	codeInternal:         http.StatusInternalServerError,
}

// maxBodies is how many requests with a body in memory are read and served at once; one
// more waits for bodyWait. Of commits only one is made at a time anyway.
const (
	maxBodies = 4
	bodyWait  = 10 * time.Second
)

type api struct {
	o      Options
	bodies chan struct{} // a place for each
	wait   time.Duration // bodyWait; less in tests
}

// Handler gives the endpoint.
func Handler(o Options) http.Handler {
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	return api{o, make(chan struct{}, maxBodies), bodyWait}.routes()
}

func (a api) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(a.recovered)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, problem{Code: codeNotFound, Message: "there is nothing at " + r.URL.Path + "; see GET /v1/window and POST /v1/commit, GET|PUT /v1/checkpoint, POST /v1/tx"})
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, problem{Code: codeMethod, Message: r.Method + " is not a method of " + r.URL.Path})
	})
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	r.Get("/openapi.json", a.document)
	r.Route("/v1", func(r chi.Router) {
		r.Use(a.authorised)
		few := r.With(a.few)
		r.Get("/window", a.window)
		few.Post("/commit", a.commit)
		r.Get("/checkpoint", a.checkpoint)
		few.Put("/checkpoint", a.putCheckpoint)
		few.Post("/tx", a.open)
		few.Post("/tx/{id}/query", a.query)
		r.Post("/tx/{id}/copy", a.copy)
		few.Post("/tx/{id}/commit", a.finish)
		r.Delete("/tx/{id}", a.drop)
	})
	return r
}

// authorised compares the bearer token in constant time, whatever its length.
func (a api) authorised(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(a.o.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			a.fail(w, problem{Code: codeUnauthorized, Message: `send the header "Authorization: Bearer $ONCEGUARD_TOKEN"`})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// few bounds the memory of bodies, however many a worker leaves open.
func (a api) few(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		full := time.NewTimer(a.wait)
		defer full.Stop()
		select {
		case a.bodies <- struct{}{}:
			defer func() { <-a.bodies }()
			next.ServeHTTP(w, r)
		case <-full.C:
			w.Header().Set("Connection", "close") // the body is not read
			a.failf(w, commit.InFlight, "%d other requests of this pod are being read or served; wait for them and ask again", maxBodies)
		case <-r.Context().Done():
		}
	})
}

// recovered keeps a panic to its request.
func (a api) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				a.o.Log.Error("a request panicked", zap.Any("panic", p), zap.String("path", r.URL.Path), zap.StackSkip("stack", 1))
				a.fail(w, problem{Code: codeInternal, Message: "internal error; ask again, a commit is never made twice"})
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func (a api) window(w http.ResponseWriter, _ *http.Request) {
	a.answer(w, http.StatusOK, a.o.Window())
}

// attemptLog names the attempt in each line, while there is one.
func (a api) attemptLog() *zap.Logger {
	w := a.o.Window()
	if w.Attempt == 0 {
		return a.o.Log
	}
	return a.o.Log.With(zap.String(logs.FieldExecutionID, w.ExecutionID), zap.Int(logs.FieldAttempt, w.Attempt))
}

// refuse answers with an error of package commit.
func (a api) refuse(w http.ResponseWriter, log *zap.Logger, err error) {
	e, ok := errors.AsType[*commit.Error](err)
	if !ok {
		log.Error("a commit failed in an unforeseen way", zap.Error(err))
		a.failf(w, codeInternal, "internal error; ask again, a commit is never made twice")
		return
	}
	// What Postgres says about a statement may repeat its arguments, so the log has the
	// place only.
	fields := []zap.Field{zap.String("code", string(e.Code))}
	if e.Statement != nil {
		fields = append(fields, zap.Int("statement", *e.Statement))
	}
	if e.SQLState != "" {
		fields = append(fields, zap.String("sqlstate", e.SQLState))
	}
	log.Warn("refused a commit", fields...)
	a.fail(w, problem{Code: e.Code, Message: e.Message, Statement: e.Statement, SQLState: e.SQLState, Position: e.Position})
}

func (a api) failf(w http.ResponseWriter, c commit.Code, format string, args ...any) {
	a.fail(w, problem{Code: c, Message: fmt.Sprintf(format, args...)})
}

func (a api) fail(w http.ResponseWriter, p problem) {
	status, ok := statuses[p.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	a.answer(w, status, failure{p})
}

func (a api) answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		a.o.Log.Error("an answer could not be written", zap.Error(err))
		http.Error(w, `{"error":{"code":"internal","message":"internal error"}}`, http.StatusInternalServerError)
		return
	}
	b = append(b, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b))) // also of a long one: not every client knows chunks
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that does not read its answer is left.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	_, _ = w.Write(b) // the client may be gone; the ledger has the truth
}
