package commit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// Rows is what one statement did.
type Rows struct {
	Tag          string      `json:"tag"` // as Postgres says it: "INSERT 0 1"
	RowsAffected int64       `json:"rows_affected"`
	Columns      []string    `json:"columns,omitempty"` // with returning
	Rows         [][]*string `json:"rows,omitempty"`    // text form, null for NULL
}

// maxReturned bounds the rows of one answer in bytes.
const maxReturned = 1 << 20

// maxMessage bounds one message of the server, and so one row, whether it is asked for
// or not: the guard's memory is small, and one row may be a gigabyte.
const maxMessage = 2 * maxReturned

// commitWait bounds how long the answer to COMMIT is waited for; then the socket is
// left alone and the outcome resolved.
const commitWait = 30 * time.Second

// forbidden are the commands that would end the transaction, or outlive it in a session
// that a pooler gives to somebody else. They are told by their command tag, which
// no spelling can disguise, before COMMIT is sent. For those that end the transaction this
// is the second line: they are not sent at all (keyword.go).
var forbidden = []string{
	"BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE",
	"PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED",
	"SET", "RESET", "DISCARD ALL", "DISCARD PLANS", "DISCARD SEQUENCES", "DISCARD TEMP",
	"PREPARE", "EXECUTE", "DEALLOCATE", "DEALLOCATE ALL", "DECLARE CURSOR",
	"LISTEN", "UNLISTEN", "LOAD",
}

// preamble is how many results come before those of the statements: BEGIN and begin.
const preamble = 2

// transaction runs the request up to COMMIT and gives what its statements did. After an
// error nothing of it remains.
func transaction(ctx context.Context, conn *ledger.Conn, a claim.Attempt, r Request) ([]Rows, error) {
	var b pgconn.Batch
	b.ExecParams(ledger.Isolation, nil, nil, nil, nil)
	b.ExecParams(ledger.BeginSQL, ledger.BeginArgs(a), nil, nil, nil)
	for i, s := range r.Statements {
		if err := s.control(i); err != nil {
			return nil, err
		}
		args, err := s.arguments(i)
		if err != nil {
			return nil, err
		}
		b.ExecParams(s.SQL, args, nil, nil, nil)
	}
	c := claim.Completion{PayloadDigest: r.PayloadDigest(), RequestDigest: r.Digest(), Processed: r.Processed}
	if !isNull(r.Result) {
		c.Result = r.Result
	}
	b.ExecParams(ledger.CompleteSQL, ledger.CompleteArgs(a, c), nil, nil, nil)

	conn.Frontend().SetMaxBodyLen(maxMessage)
	m := conn.ExecBatch(ctx, &b)
	did := make([]Rows, 0, len(r.Statements))
	var refused error // by us; Postgres may still have a word
	left := maxReturned
	n := 0
	for ; m.NextResult(); n++ {
		index := n - preamble
		mine := index >= 0 && index < len(r.Statements)
		rows, err := read(m.ResultReader(), mine && r.Statements[index].Returning, &left)
		if mine && err == nil && refused == nil {
			refused = check(index, r.Statements[index], rows)
		}
		if errors.Is(err, errTooMuch) && refused == nil {
			refused = newError(TooLarge, err, "the rows of the statements take more than %d bytes; ask for less", maxReturned).at(index)
		}
		if mine {
			did = append(did, rows)
		}
		if err != nil && !errors.Is(err, errTooMuch) {
			break
		}
	}
	if err := m.Close(); err != nil {
		if _, huge := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); huge {
			return nil, newError(TooLarge, err, "a row of statements[%d] takes more than %d bytes; nothing is committed", n-preamble, maxMessage).at(n - preamble)
		}
		if ctx.Err() != nil {
			return nil, newError(Unavailable, err, "given up before COMMIT: %s; nothing is committed", context.Cause(ctx))
		}
		e := explainFailure(err, n-preamble, len(r.Statements))
		if e.Code == Forbidden && hasCode(refused, Forbidden) {
			return nil, refused // complete missed what a ROLLBACK took, and this knows which one
		}
		return nil, e
	}
	if refused != nil {
		return nil, refused
	}
	if n != preamble+len(r.Statements)+1 || conn.TxStatus() != 'T' {
		return nil, newError(Forbidden, nil, "a statement ended the transaction; leave BEGIN, COMMIT and ROLLBACK out")
	}
	return did, nil
}

// errTooMuch: more rows were asked for than an answer holds.
var errTooMuch = errors.New("too many rows")

// read reads one result and keeps its rows when they are wanted.
func read(rr *pgconn.ResultReader, wanted bool, left *int) (Rows, error) {
	var r Rows
	var full error
	if wanted {
		for _, f := range rr.FieldDescriptions() {
			r.Columns = append(r.Columns, f.Name)
		}
		r.Rows = [][]*string{}
	}
	for rr.NextRow() {
		if !wanted || full != nil {
			continue
		}
		row := make([]*string, len(rr.Values()))
		for i, v := range rr.Values() {
			*left -= len(v) + 4
			if v != nil {
				s := string(v)
				row[i] = &s
			}
		}
		if *left < 0 {
			full = errTooMuch
			continue
		}
		r.Rows = append(r.Rows, row)
	}
	tag, err := rr.Close()
	r.Tag, r.RowsAffected = tag.String(), tag.RowsAffected()
	if err != nil {
		return r, err
	}
	return r, full
}

// check judges what a statement did.
func check(index int, s Statement, did Rows) error {
	if slices.Contains(forbidden, did.Tag) {
		return newError(Forbidden, nil, "statements[%d] is %s; the endpoint owns the transaction and its settings", index, did.Tag).at(index)
	}
	if s.ExpectRows != nil && did.RowsAffected != *s.ExpectRows {
		return newError(Unexpected, nil, "statements[%d] was expected to affect %d rows and affected %d; nothing is committed",
			index, *s.ExpectRows, did.RowsAffected).at(index)
	}
	return nil
}

// explainFailure tells an error of the ledger from one of the worker's statements.
// index counts statements; below 0 it was BEGIN or begin, above them complete.
func explainFailure(err error, index, statements int) *Error {
	err = ledger.Translate(err)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	ours := index < 0 || index >= statements
	switch {
	case !answered:
		return newError(Unavailable, err, "the connection broke before COMMIT was sent: nothing is committed; ask again")
	case ours:
		if e := ofLedger(err); e != nil {
			return e
		}
		return newError(Invalid, err, "the ledger refused the completion: %s", pg.Message).state(pg)
	case errors.Is(err, ledger.ErrNotBegun):
		return newError(Forbidden, err, "statements[%d] fires the commit barrier early (SET CONSTRAINTS ALL IMMEDIATE) or calls the ledger itself; leave it out; nothing is committed", index).at(index).state(pg)
	case temporary(pg):
		return newError(Unavailable, err, "statements[%d]: %s; nothing is committed, ask again", index, pg.Message).at(index).state(pg)
	default:
		return newError(Failed, err, "statements[%d]: %s", index, pg.Message).at(index).state(pg)
	}
}

// ofLedger maps the ledger's own refusals.
func ofLedger(err error) *Error {
	switch {
	case errors.Is(err, ledger.ErrFenced):
		return newError(FenceLost, err, "this attempt no longer holds the window; the worker should stop")
	case errors.Is(err, ledger.ErrCompleted), errors.Is(err, ledger.ErrPayload):
		return newError(OtherRequest, err, "the window is completed already")
	case errors.Is(err, ledger.ErrClosed):
		return newError(Closed, err, "the window is closed; the worker should stop")
	case errors.Is(err, ledger.ErrNotBegun):
		return newError(Forbidden, err, "a statement ended or emptied the transaction (COMMIT, ROLLBACK, SET CONSTRAINTS ALL IMMEDIATE); nothing is committed")
	case errors.Is(err, ledger.ErrUnavailable), errors.Is(err, ledger.ErrConfig), errors.Is(err, ledger.ErrSchema), errors.Is(err, ledger.ErrNotGranted):
		return newError(Unavailable, err, "nothing is committed, ask again: %s", err)
	}
	return nil
}

// temporary says whether the very same statement may succeed later: the connection, a
// shutdown, too many connections, a conflict with another transaction.
func temporary(pg *pgconn.PgError) bool {
	if pg.Code == "08P01" { // the wrong number of arguments
		return false
	}
	for _, class := range []string{"08", "40", "53", "57P", "55P03", "58"} {
		if strings.HasPrefix(pg.Code, class) {
			return true
		}
	}
	return false
}

// state copies what Postgres says about the place of an error.
func (e *Error) state(pg *pgconn.PgError) *Error {
	e.SQLState, e.Position = pg.Code, int(pg.Position)
	return e
}

// errUnknown: COMMIT was sent and it is not known what became of it.
var errUnknown = errors.New("the outcome of COMMIT is not known")

// commit sends COMMIT. nil is certain success, errUnknown anything that is not certain,
// another error certain failure. Nothing but its own bound ends the wait.
func commit(ctx context.Context, conn *ledger.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitWait)
	defer cancel()
	conn.TakeWarnings()
	conn.Committing() // from here on no cancel request is sent
	results, err := conn.Exec(ctx, "COMMIT").ReadAll()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.SeverityUnlocalized == "ERROR" {
		// Any other code is the worker's: a deferred trigger of its own may miss a table.
		if e := ofLedger(ledger.Translate(err)); e != nil && strings.HasPrefix(pg.Code, "OG") {
			return e
		}
		if temporary(pg) {
			return newError(Unavailable, err, "at COMMIT: %s; nothing is committed, ask again", pg.Message).state(pg)
		}
		return newError(Refused, err, "at COMMIT: %s; nothing is committed", pg.Message).state(pg)
	}
	if err != nil {
		return errors.Join(errUnknown, err)
	}
	conn.Committed()
	if w := conn.TakeWarnings(); len(w) > 0 {
		// For instance "canceling wait for synchronous replication": the commit is there,
		// and a failover could lose it.
		return errUnknown
	}
	if len(results) != 1 || results[0].CommandTag.String() != "COMMIT" {
		return newError(Refused, nil, "Postgres rolled the transaction back; nothing is committed")
	}
	return nil
}
