package commit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/ledger"
)

// Code says why a commit was not made; it is part of the local endpoint's answers.
type Code string

// The codes.
const (
	Invalid       Code = "invalid_request"     // the request itself
	Failed        Code = "statement_failed"    // Postgres refused a statement; nothing is committed
	Unexpected    Code = "unexpected_rows"     // expect_rows was not met; nothing is committed
	Forbidden     Code = "forbidden_command"   // a statement that would end or escape the transaction
	TooLarge      Code = "too_many_rows"       // the rows asked for do not fit into an answer
	TooLong       Code = "too_long"            // a statement took longer than it may; nothing is committed
	Refused       Code = "commit_failed"       // Postgres refused COMMIT, e.g. a deferred constraint
	InFlight      Code = "in_flight"           // another commit of this pod is under way, or a transaction is open
	Conflict      Code = "checkpoint_conflict" // another checkpoint is stored than the piece goes on from
	Unknown       Code = "unknown_transaction" // no interactive transaction has that id
	Ended         Code = "transaction_ended"   // the interactive transaction is over; nothing of it is committed
	NoAttempt     Code = "no_attempt"          // this pod holds no attempt now
	FenceLost     Code = "fence_lost"          // the attempt lost its window: the worker should stop
	Closed        Code = "closed"              // the window is closed for good
	OtherPayload  Code = "other_payload"       // the window was completed with another payload
	OtherRequest  Code = "other_request"       // the window was completed by another request
	UnknownResult Code = "unknown_outcome"     // ask again with the same request: it is found out first
	NotCommitted  Code = "not_committed"       // certainly not; the same request may be sent again
	Unavailable   Code = "ledger_unavailable"  // nothing was committed; ask again
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

// of puts the name of the statement in front of a message that goes on from it; "" for
// the only one.
func (e *Error) of(statement string) *Error {
	if statement == "" && !strings.HasPrefix(e.Message, ".") {
		statement = "the statement"
	}
	e.Message = strings.TrimPrefix(statement+e.Message, ".")
	return e
}

// state copies what Postgres says about the place of an error.
func (e *Error) state(pg *pgconn.PgError) *Error {
	e.SQLState, e.Position = pg.Code, int(pg.Position)
	return e
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: Invalid, Message: fmt.Sprintf(format, args...)}
}

func newError(c Code, err error, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...), Err: err}
}

func hasCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// ofStatement is an error of a worker's statement; its message goes on from the
// statement's name.
func ofStatement(err error) *Error {
	err = ledger.Translate(err)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case !answered:
		return newError(Unavailable, err, ": the connection broke before COMMIT was sent; nothing is committed, ask again")
	case errors.Is(err, ledger.ErrNotBegun):
		return newError(Forbidden, err, " fires the commit barrier early (SET CONSTRAINTS ALL IMMEDIATE) or calls the ledger itself; leave it out; nothing is committed").state(pg)
	case pg.Code == cancelled:
		return newError(TooLong, err, " took longer than a statement may, or somebody cancelled it: %s; nothing is committed; do the work in pieces", pg.Message).state(pg)
	case temporary(pg):
		return newError(Unavailable, err, ": %s; nothing is committed, ask again", described(pg)).state(pg)
	}
	return newError(Failed, err, ": %s", described(pg)).state(pg)
}

// cancelled is query_canceled: by statement_timeout, or by a person. A cancel request of
// ours is told before.
const cancelled = "57014"

// described is what Postgres says; for COPY that is the line, too.
func described(pg *pgconn.PgError) string {
	if strings.HasPrefix(pg.Where, "COPY ") {
		return pg.Message + " (" + pg.Where + ")"
	}
	return pg.Message
}

// ofLedger maps the ledger's own refusals, nil for anything else.
func ofLedger(err error) *Error {
	switch {
	case errors.Is(err, ledger.ErrFenced):
		return newError(FenceLost, err, "this attempt no longer holds the window; the worker should stop")
	case errors.Is(err, ledger.ErrPayload):
		return newError(OtherPayload, err, "%s; nothing is committed", said(err))
	case errors.Is(err, ledger.ErrCompleted):
		return newError(OtherRequest, err, "the window is completed already")
	case errors.Is(err, ledger.ErrCheckpoint):
		return newError(Conflict, err, "another checkpoint is stored than this piece goes on from; nothing is committed")
	case errors.Is(err, ledger.ErrClosed):
		return newError(Closed, err, "the window is closed; the worker should stop")
	case errors.Is(err, ledger.ErrNotBegun):
		return newError(Forbidden, err, "a statement ended or emptied the transaction (COMMIT, ROLLBACK, SET CONSTRAINTS ALL IMMEDIATE); nothing is committed")
	case errors.Is(err, ledger.ErrUnavailable), errors.Is(err, ledger.ErrConfig), errors.Is(err, ledger.ErrSchema), errors.Is(err, ledger.ErrNotGranted):
		return newError(Unavailable, err, "nothing is committed, ask again: %s", err)
	}
	return nil
}

// said is what Postgres says, without what our own packages put around it.
func said(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Message
	}
	return err.Error()
}

// temporary says whether the very same statement may succeed later: the connection, a
// shutdown, too many connections, a conflict with another transaction, a guard that stood
// still for so long that the server ended its session.
func temporary(pg *pgconn.PgError) bool {
	if pg.Code == "08P01" { // the wrong number of arguments
		return false
	}
	for _, class := range []string{"08", "25P03", "40", "53", "57P", "55P03", "58"} {
		if strings.HasPrefix(pg.Code, class) {
			return true
		}
	}
	return false
}
