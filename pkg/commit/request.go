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
)

// Request is what a worker asks to be committed.
type Request struct {
	// Statements run in order, in one transaction. None is allowed: then only the window
	// is completed.
	Statements []Statement `json:"statements,omitempty"`
	// Payload is what the window was about; its digest is kept, and the same window with
	// another payload is refused.
	Payload json.RawMessage `json:"payload,omitempty"`
	// Result is kept with the window and given to whoever asks again.
	Result json.RawMessage `json:"result,omitempty"`
	// Processed is how many things were done, for people.
	Processed *int64 `json:"processed,omitempty"`
	// Complete must be true when given: a commit completes the window.
	Complete *bool `json:"complete,omitempty"`
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
	// maxStatements and maxArgs bound a request; Postgres takes 65535 arguments.
	maxStatements = 10000
	maxArgs       = 65535
)

// Parse reads a request. Its errors are *Error with the code Invalid, or Forbidden for a
// statement that would end the transaction, and name the field, or the statement by its index.
func Parse(body []byte) (Request, error) {
	var r Request
	if !utf8.Valid(body) {
		return r, invalid("the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, invalid("the body is not a commit request: %s", explain(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, invalid("the body has more than one JSON value")
	}
	if isNull(body) {
		// To complete a window is said on purpose; null may be a variable that was not set.
		return r, invalid("the body is null; to complete the window without statements send {}")
	}
	return r, r.validate()
}

// explain names field and value of a decoding error.
func explain(err error) string {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("field %q must be %s, not %s", t.Field, t.Type, t.Value)
	}
	if errors.Is(err, io.EOF) {
		return "it is empty"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

func (r Request) validate() error {
	switch {
	case len(r.Statements) > maxStatements:
		return invalid("statements has %d elements, at most %d are accepted", len(r.Statements), maxStatements)
	case r.Complete != nil && !*r.Complete:
		return invalid("complete is false; a commit completes the window, so leave it out or say true")
	case r.Processed != nil && *r.Processed < 0:
		return invalid("processed is %d, it must not be negative", *r.Processed)
	}
	for i, s := range r.Statements {
		switch {
		case strings.TrimSpace(s.SQL) == "":
			return invalid("statements[%d].sql is empty", i).at(i)
		case strings.ContainsRune(s.SQL, 0):
			return invalid("statements[%d].sql has a NUL character, which Postgres does not take", i).at(i)
		case len(s.Args) > maxArgs:
			return invalid("statements[%d].args has %d elements, Postgres takes %d", i, len(s.Args), maxArgs).at(i)
		case s.ExpectRows != nil && *s.ExpectRows < 0:
			return invalid("statements[%d].expect_rows is %d, it must not be negative", i, *s.ExpectRows).at(i)
		}
		if err := s.control(i); err != nil {
			return err
		}
		if _, err := s.arguments(i); err != nil {
			return err
		}
	}
	return nil
}

// arguments gives the text of each argument, nil for NULL.
func (s Statement) arguments(index int) ([][]byte, error) {
	args := make([][]byte, len(s.Args))
	for i, raw := range s.Args {
		text, err := argument(raw)
		if err != nil {
			return nil, invalid("statements[%d].args[%d]: %s", index, i, err).at(index)
		}
		args[i] = text
	}
	return args, nil
}

// errNUL: Postgres has no text with that character.
var errNUL = errors.New("has a NUL character, which Postgres does not take")

func argument(raw json.RawMessage) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		if strings.ContainsRune(s, 0) {
			return nil, errNUL
		}
		return []byte(s), nil
	case '{', '[':
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	default: // number, true, false
		return raw, nil
	}
}

// Digest names the request: equal for two requests that mean the same, whatever their
// white space, order of keys and escapes.
func (r Request) Digest() string {
	r.Complete = nil // says nothing
	return digest(r)
}

// PayloadDigest names the payload, "" when there is none.
func (r Request) PayloadDigest() string {
	if isNull(r.Payload) {
		return ""
	}
	return digest(r.Payload)
}

func isNull(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
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
