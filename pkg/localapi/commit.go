package localapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/commit"
)

// committed is the answer to a commit.
type committed struct {
	Committed     bool            `json:"committed"`
	Completed     bool            `json:"completed"` // the window; false for a piece
	Replayed      bool            `json:"replayed"`
	Statements    []commit.Rows   `json:"statements,omitempty"`
	Result        json.RawMessage `json:"result,omitempty"`
	Processed     *int64          `json:"processed,omitempty"`
	CheckpointSeq int             `json:"checkpoint_seq,omitempty"` // of a piece
}

// checkpoint is the answer to GET /v1/checkpoint.
type checkpoint struct {
	Seq  int             `json:"seq"`
	Data json.RawMessage `json:"data"`
}

func (a api) commit(w http.ResponseWriter, r *http.Request) {
	log := a.attemptLog() // of the attempt that asks, also when it is replaced meanwhile
	body, ok := a.read(w, r)
	if !ok {
		return
	}
	request, err := commit.Parse(body)
	a.make(w, r, log, request, err)
}

func (a api) putCheckpoint(w http.ResponseWriter, r *http.Request) {
	log := a.attemptLog()
	body, ok := a.read(w, r)
	if !ok {
		return
	}
	request, err := commit.ParseCheckpoint(body)
	a.make(w, r, log, request, err)
}

// make makes a commit, if the request could be read.
func (a api) make(w http.ResponseWriter, r *http.Request, log *zap.Logger, request commit.Request, err error) {
	start := time.Now()
	var answer commit.Answer
	if err == nil {
		answer, err = a.o.Committer.Commit(r.Context(), request)
	}
	if err != nil {
		a.refuse(w, log, err)
		return
	}
	a.made(w, log.With(zap.Int("statements", len(request.Statements)), zap.Duration("took", time.Since(start))), answer)
}

// made answers a commit that was made.
func (a api) made(w http.ResponseWriter, log *zap.Logger, answer commit.Answer) {
	fields := []zap.Field{zap.Bool("replayed", answer.Replayed), zap.Bool("completed", answer.Completed)}
	if answer.Processed != nil {
		fields = append(fields, zap.Int64("processed", *answer.Processed))
	}
	log.Info("answered a commit", fields...)
	a.answer(w, http.StatusOK, committed{
		Committed: true, Completed: answer.Completed, Replayed: answer.Replayed, Statements: answer.Statements,
		Result: answer.Result, Processed: answer.Processed, CheckpointSeq: answer.CheckpointSeq,
	})
}

func (a api) checkpoint(w http.ResponseWriter, r *http.Request) {
	c, err := a.o.Committer.Checkpoint(r.Context())
	if err != nil {
		a.refuse(w, a.attemptLog(), err)
		return
	}
	a.answer(w, http.StatusOK, checkpoint{c.Seq, c.Data})
}

// read reads the body; ok is false when that was answered already.
func (a api) read(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.o.MaxBody))
	if tooLarge, is := errors.AsType[*http.MaxBytesError](err); is {
		a.failf(w, codeTooLarge, "the body has more than %d bytes; send the work in pieces (complete: false), or rows to POST /v1/tx/{id}/copy", tooLarge.Limit)
		return nil, false
	}
	if err != nil {
		a.failf(w, commit.Invalid, "the body could not be read: %v", err)
		return nil, false
	}
	return body, true
}
