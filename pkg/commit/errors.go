package commit

import (
	"fmt"
)

// Code says why a commit was not made; it is part of the local endpoint's answers.
type Code string

// The codes.
const (
	Invalid       Code = "invalid_request"    // the request itself
	Failed        Code = "statement_failed"   // Postgres refused a statement; nothing is committed
	Unexpected    Code = "unexpected_rows"    // expect_rows was not met; nothing is committed
	Forbidden     Code = "forbidden_command"  // a statement that would end or escape the transaction
	TooLarge      Code = "too_many_rows"      // the rows asked for do not fit into an answer
	Refused       Code = "commit_failed"      // Postgres refused COMMIT, e.g. a deferred constraint
	InFlight      Code = "in_flight"          // another commit of this pod is under way
	NoAttempt     Code = "no_attempt"         // this pod holds no attempt now
	FenceLost     Code = "fence_lost"         // the attempt lost its window: the worker should stop
	Closed        Code = "closed"             // the window is closed for good
	OtherPayload  Code = "other_payload"      // the window was completed with another payload
	OtherRequest  Code = "other_request"      // the window was completed by another request
	UnknownResult Code = "unknown_outcome"    // ask again with the same request: it is found out first
	NotCommitted  Code = "not_committed"      // certainly not; the same request may be sent again
	Unavailable   Code = "ledger_unavailable" // nothing was committed; ask again
)

// Error is why a commit was not made.
type Error struct {
	Code      Code
	Message   string // one sentence without secrets
	Statement *int   // index of the statement it is about
	SQLState  string
	Position  int // in the statement, in characters from 1; 0 when unknown
	Err       error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

func (e *Error) Unwrap() error { return e.Err }

// at names the statement.
func (e *Error) at(index int) *Error {
	e.Statement = &index
	return e
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: Invalid, Message: fmt.Sprintf(format, args...)}
}

func newError(c Code, err error, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...), Err: err}
}
