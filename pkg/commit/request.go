package commit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Request is what a worker asks to be committed.
type Request struct {
	// Statements run in order, in one transaction. None is allowed: then only the window
	// is completed, or the checkpoint written.
	Statements []Statement `json:"statements,omitempty"`
	Closing
}

// Closing is how a transaction ends: with the completion of the window, or with a
// checkpoint, as one piece of a longer work.
type Closing struct {
	// Payload is what the window was about; its digest is kept, and the same window with
	// another payload is refused.
	Payload json.RawMessage `json:"payload,omitempty"`
	// Result is kept with the window and given to whoever asks again.
	Result json.RawMessage `json:"result,omitempty"`
	// Processed is how many things were done, for people.
	Processed *int64 `json:"processed,omitempty"`
	// Complete is false for a piece; it then has a Checkpoint and nothing of the above.
	Complete *bool `json:"complete,omitempty"`
	// Checkpoint is how far the work has come with this piece: any JSON but null.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// CheckpointSeq, when given, is the sequence that this piece goes on from; when another
	// one is stored, nothing is committed. 0: there must be none yet.
	CheckpointSeq *int `json:"checkpoint_seq,omitempty"`
}

// Statement is one statement of a request.
type Statement struct {
	SQL  string            `json:"sql"`
	Args []json.RawMessage `json:"args,omitempty"`
	// ExpectRows, when given, is how many rows the statement must affect or return; else
	// nothing is committed.
	ExpectRows *int64 `json:"expect_rows,omitempty"`
	// Returning asks for the statement's rows in the answer.
	Returning bool `json:"returning,omitempty"`
}

const (
	// maxStatements and maxArgs bound a request; Postgres takes 65535 arguments. maxAllArgs
	// are those of all statements: one of a byte takes two hundred in the guard, whose
	// memory is small.
	maxStatements = 10000
	maxArgs       = 65535
	maxAllArgs    = 100000
	// maxCheckpoint bounds a checkpoint in bytes, as the ledger does.
	maxCheckpoint = 1 << 20
)

// Parse reads a request. Its errors are *Error with the code Invalid, or Forbidden for a
// statement that would end the transaction, and name the field, or the statement by its index.
func Parse(body []byte) (r Request, err error) {
	if err := parse(body, "a commit request", "; to complete the window without statements send {}", &r); err != nil {
		return r, err
	}
	if len(r.Statements) > maxStatements {
		return r, invalid("statements has %d elements, at most %d are accepted; send them in pieces, or POST /v1/tx", len(r.Statements), maxStatements)
	}
	args := 0
	for i, s := range r.Statements {
		err := s.validate()
		if err == nil {
			err = s.control()
		}
		if args += len(s.Args); err == nil && args > maxAllArgs {
			err = invalid(".args: with these the request has %d arguments, at most %d are accepted; send it in pieces, or rows to POST /v1/tx/{id}/copy", args, maxAllArgs)
		}
		if err != nil {
			return r, err.of(fmt.Sprintf("statements[%d]", i)).at(i)
		}
	}
	return r, r.validate()
}

// ParseStatement reads one statement of an interactive transaction. One that would end it
// is refused by Query, and so ends it indeed, with nothing committed.
func ParseStatement(body []byte) (s Statement, err error) {
	if err := parse(body, "a statement", "", &s); err != nil {
		return s, err
	}
	if err := s.validate(); err != nil {
		return s, err.of("")
	}
	return s, nil
}

// ParseClosing reads how an interactive transaction ends.
func ParseClosing(body []byte) (c Closing, err error) {
	if err := parse(body, "the end of a transaction", "; to complete the window send {}", &c); err != nil {
		return c, err
	}
	return c, c.validate()
}

// ParseCheckpoint reads a checkpoint, {"data":…,"seq":…}, as a piece without statements.
func ParseCheckpoint(body []byte) (Request, error) {
	var p struct {
		Data json.RawMessage `json:"data"`
		Seq  *int            `json:"seq"`
	}
	if err := parse(body, "a checkpoint", `; send {"data":…}`, &p); err != nil {
		return Request{}, err
	}
	if isNull(p.Data) {
		return Request{}, invalid("data is missing or null; it is how far the work has come, any other JSON")
	}
	no := false
	r := Request{Closing: Closing{Complete: &no, Checkpoint: p.Data, CheckpointSeq: p.Seq}}
	return r, r.validate()
}

// parse reads a body into to, which becomes what.
func parse(body []byte, what, instead string, to any) error {
	if !utf8.Valid(body) {
		return invalid("the body is not UTF-8")
	}
	switch err := decode(body, to); {
	case errors.Is(err, errMore):
		return invalid("the body has more than one JSON value")
	case err != nil:
		return invalid("the body is not %s: %s", what, explain(err))
	case isNull(body):
		// To complete a window is said on purpose; null may be a variable that was not set.
		return invalid("the body is null%s", instead)
	}
	return nil
}

// explain names field and kind of value of a decoding error.
func explain(err error) string {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("field %q must be %s, not %s", t.Field, t.Type, strings.Fields(t.Value + " ?")[0])
	}
	if errors.Is(err, io.EOF) {
		return "it is empty"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// validate gives an error whose message goes on from the name of the statement.
func (s Statement) validate() *Error {
	switch {
	case strings.TrimSpace(s.SQL) == "":
		return invalid(".sql is empty")
	case strings.ContainsRune(s.SQL, 0):
		return invalid(".sql has a NUL character, which Postgres does not take")
	case len(s.Args) > maxArgs:
		return invalid(".args has %d elements, Postgres takes %d", len(s.Args), maxArgs)
	case s.ExpectRows != nil && *s.ExpectRows < 0:
		return invalid(".expect_rows is %d, it must not be negative", *s.ExpectRows)
	}
	if _, err := s.parameters(); err != nil {
		return invalid(".%s", err)
	}
	return nil
}

func (c Closing) validate() error {
	if c.Processed != nil && *c.Processed < 0 {
		return invalid("processed is %d, it must not be negative", *c.Processed)
	}
	if !c.piece() {
		switch {
		case !isNull(c.Checkpoint):
			return invalid("checkpoint is given, but the window is completed and nothing goes on from it; say complete: false, or leave checkpoint out")
		case c.CheckpointSeq != nil:
			return invalid("checkpoint_seq is given without a piece; say complete: false with a checkpoint, or leave it out")
		}
		return nil
	}
	switch {
	case isNull(c.Checkpoint):
		return invalid("complete is false, but checkpoint is missing or null; say how far the work has come, so that the next attempt goes on from there")
	case len(c.Checkpoint) > maxCheckpoint:
		return invalid("checkpoint has %d bytes, at most %d are kept; keep large things in a table of your own", len(c.Checkpoint), maxCheckpoint)
	case c.CheckpointSeq != nil && (*c.CheckpointSeq < 0 || *c.CheckpointSeq > maxSeq):
		return invalid("checkpoint_seq is %d; it must be the sequence of the stored checkpoint, 0 when there is none", *c.CheckpointSeq)
	case !isNull(c.Payload), !isNull(c.Result), c.Processed != nil:
		return invalid("payload, result and processed belong to the completion; with complete: false put what is to be kept into checkpoint")
	}
	return nil
}

// maxSeq keeps the next sequence within Postgres' int.
const maxSeq = 1<<31 - 2

// piece says whether the window goes on after this transaction.
func (c Closing) piece() bool { return c.Complete != nil && !*c.Complete }

// Digest names the request: equal for two requests that mean the same, whatever their
// white space, order of keys and escapes.
func (r Request) Digest() string {
	r.Closing = r.plain()
	return digest(r)
}

// digestIn names the closing of the interactive transaction id.
func (c Closing) digestIn(id string) string {
	return digest(struct {
		ID string `json:"tx"`
		Closing
	}{id, c.plain()})
}

// plain leaves out what says nothing.
func (c Closing) plain() Closing {
	if !c.piece() {
		c.Complete = nil
	}
	for _, field := range []*json.RawMessage{&c.Payload, &c.Result, &c.Checkpoint} {
		if isNull(*field) {
			*field = nil
		}
	}
	return c
}

// PayloadDigest names the payload, "" when there is none: a text as the annotation payload
// of a CronJob is named, anything else by its canonical JSON as a text.
func (c Closing) PayloadDigest() string {
	if isNull(c.Payload) {
		return ""
	}
	var text string
	if json.Unmarshal(c.Payload, &text) == nil {
		return contract.PayloadDigest(text)
	}
	return digest(c.Payload)
}

// digest is the SHA-256 of the canonical JSON of v.
func digest(v any) string {
	b, err := json.Marshal(v)
	if err == nil {
		b, err = canonical(b)
	}
	if err != nil {
		panic("commit: a request that was parsed cannot be written: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// canonical writes JSON with sorted keys, no white space and numbers as they stand.
func canonical(b []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}
