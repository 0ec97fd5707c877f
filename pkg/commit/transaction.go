package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// aRow and aValue are what a row and a value take in the guard, however small.
const (
	aRow   = 32
	aValue = 20
)

// maxMessage bounds one message of the server, and so one row, whether it is asked for
// or not: the guard's memory is small, and one row may be a gigabyte.
const maxMessage = 2 * maxReturned

// commitWait bounds how long the answer to COMMIT is waited for; then the socket is
// left alone and the outcome resolved.
const commitWait = 30 * time.Second

// forbidden are the commands that would end the transaction, or outlive it in a session
// that a pooler gives to somebody else. What functions leave in a session (set_config,
// advisory locks, temporary tables) has no such tag, and may meet the next client of a
// pooler in transaction mode. They are told by their command tag, which
// no spelling can disguise, before COMMIT is sent. For those that end the transaction this
// is the second line: they are not sent at all (keyword.go).
var forbidden = []string{
	"BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE",
	"PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED",
	"SET", "RESET", "DISCARD ALL", "DISCARD PLANS", "DISCARD SEQUENCES", "DISCARD TEMP",
	"PREPARE", "EXECUTE", "DEALLOCATE", "DEALLOCATE ALL", "DECLARE CURSOR",
	"LISTEN", "UNLISTEN", "LOAD",
}

// call is a statement of ours with arguments in text form.
type call struct {
	sql  string
	args [][]byte
}

// boundSQL gives statements the longest time they may take, unless the session has a
// shorter one. A COPY whose guard is frozen is not idle, so nothing else would end it.
const boundSQL = `SELECT pg_catalog.set_config('statement_timeout', $1, true)
WHERE current_setting('statement_timeout')::interval NOT BETWEEN '1 ms' AND ($1 || ' ms')::interval`

// opening begins a transaction of the attempt.
func opening(a claim.Attempt, longest time.Duration) []call {
	return []call{
		{ledger.Isolation, nil},
		{boundSQL, [][]byte{strconv.AppendInt(nil, longest.Milliseconds(), 10)}},
		{ledger.BeginSQL, ledger.BeginArgs(a)},
	}
}

// nothing comes behind a statement that is sent alone: COPY FROM STDIN takes the end of a
// batch for rows to come, and waits, but not another command.
var nothing = call{sql: "SELECT"}

// batch is what is sent in one round trip. After an error nothing of the transaction
// remains, once its connection is closed.
type batch struct {
	head       []call // opening, or nothing
	statements []Statement
	tail       []call // the completion or the checkpoint, or nothing
	alone      bool   // the one statement is told without an index
}

// send sends the batch and gives what its statements did.
func (b batch) send(ctx context.Context, conn *ledger.Conn) ([]Rows, error) {
	var p pgconn.Batch
	for _, c := range b.head {
		p.ExecParams(c.sql, c.args, nil, nil, nil)
	}
	for i, s := range b.statements {
		args, err := s.parameters()
		if e := s.control(); e != nil {
			return nil, b.about(i, e)
		}
		if err != nil {
			return nil, b.about(i, invalid(".%s", err))
		}
		p.ExecParams(s.SQL, args.values, args.types, nil, nil)
	}
	for _, c := range b.tail {
		p.ExecParams(c.sql, c.args, nil, nil, nil)
	}

	conn.Frontend().SetMaxBodyLen(maxMessage)
	m := conn.ExecBatch(ctx, &p)
	did := make([]Rows, 0, len(b.statements))
	var refused *Error // by us; Postgres may still have a word
	left := maxReturned
	n := 0
	for ; m.NextResult(); n++ {
		i := n - len(b.head)
		mine := i >= 0 && i < len(b.statements)
		rows, err := read(m.ResultReader(), mine && b.statements[i].Returning, &left)
		if refused == nil && mine {
			switch {
			case errors.Is(err, errTooMuch):
				refused = b.about(i, newError(TooLarge, err, ": the rows to return take more than %d bytes, counting %d for each row and %d for each value; ask for less", maxReturned, aRow, aValue))
			case err == nil:
				refused = b.about(i, b.statements[i].check(rows))
			}
		}
		if mine {
			did = append(did, rows)
		}
		if err != nil && !errors.Is(err, errTooMuch) {
			break
		}
	}
	if err := m.Close(); err != nil {
		e := b.explain(ctx, err, n-len(b.head))
		if e.Code == Forbidden && refused != nil && refused.Code == Forbidden {
			return nil, refused // the tail missed what a ROLLBACK took, and this knows which one
		}
		return nil, e
	}
	if refused != nil {
		return nil, refused
	}
	if n != len(b.head)+len(b.statements)+len(b.tail) || conn.TxStatus() != 'T' {
		return nil, newError(Forbidden, nil, "a statement ended the transaction; leave BEGIN, COMMIT and ROLLBACK out; nothing is committed")
	}
	return did, nil
}

// about names the statement that an error is about; nil stays nil.
func (b batch) about(i int, e *Error) *Error {
	switch {
	case e == nil:
		return nil
	case b.alone:
		return e.of("")
	}
	return e.of(fmt.Sprintf("statements[%d]", i)).at(i)
}

// explain tells an error of the ledger from one of the worker's statements. i counts
// statements; below 0 it came before them, above them after.
func (b batch) explain(ctx context.Context, err error, i int) *Error {
	mine := i >= 0 && i < len(b.statements)
	if _, huge := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); huge && mine {
		return b.about(i, newError(TooLarge, err, ": a row takes more than %d bytes; nothing is committed", maxMessage))
	}
	if ctx.Err() != nil {
		return gaveUp(ctx)
	}
	if mine {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "08P01" && keyword(b.statements[i].SQL) == "COPY" {
			return b.about(i, newError(Failed, err, ": COPY gets no rows here; send them to POST /v1/tx/{id}/copy; nothing is committed").state(pg))
		}
		return b.about(i, ofStatement(err))
	}
	err = ledger.Translate(err)
	if e := ofLedger(err); e != nil {
		return e
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		what := "completion"
		if len(b.tail) > 0 && b.tail[0].sql == ledger.CheckpointSQL {
			what = "checkpoint (its bound is on the JSON as Postgres writes it, with a space behind each comma and colon)"
		}
		return newError(Invalid, err, "the ledger refused the %s: %s; nothing is committed", what, pg.Message).state(pg)
	}
	return newError(Unavailable, err, "the connection broke before COMMIT was sent: nothing is committed; ask again")
}

// gaveUp says why a context that has ended did; the cause may be an *Error itself.
func gaveUp(ctx context.Context) *Error {
	if e, ok := errors.AsType[*Error](context.Cause(ctx)); ok {
		return e
	}
	why := context.Cause(ctx)
	if errors.Is(why, context.Canceled) {
		why = errors.New("the client has left")
	}
	return newError(Unavailable, why, "given up before COMMIT: %s; nothing is committed", why)
}

// errTooMuch: more rows were asked for than an answer holds.
var errTooMuch = errors.New("too many rows")

// read reads one result and keeps its rows when they are wanted.
func read(rr *pgconn.ResultReader, wanted bool, left *int) (Rows, error) {
	var r Rows
	var full error
	if wanted {
		for _, f := range rr.FieldDescriptions() {
			*left -= len(f.Name) + aValue
			r.Columns = append(r.Columns, f.Name)
		}
		r.Rows = [][]*string{}
	}
	for rr.NextRow() {
		if !wanted || full != nil {
			continue
		}
		*left -= aRow
		for _, v := range rr.Values() {
			*left -= len(v) + aValue
		}
		if *left < 0 {
			full, r.Rows = errTooMuch, nil
			continue
		}
		row := make([]*string, len(rr.Values()))
		for i, v := range rr.Values() {
			if v != nil {
				s := string(v)
				row[i] = &s
			}
		}
		r.Rows = append(r.Rows, row)
	}
	tag, err := rr.Close()
	r.Tag, r.RowsAffected = tag.String(), tag.RowsAffected()
	if err == nil {
		err = full
	}
	return r, err
}

// check judges what a statement did, nil when it may be kept; see Error.of.
func (s Statement) check(did Rows) *Error {
	if s.Returning && keyword(s.SQL) == "COPY" {
		return newError(Failed, nil, " is COPY, whose rows are not part of an answer; use SELECT; nothing is committed")
	}
	if slices.Contains(forbidden, did.Tag) {
		return newError(Forbidden, nil, " is %s, which a commit request may not contain; the endpoint owns the transaction and its settings; nothing is committed", did.Tag)
	}
	if s.ExpectRows != nil && did.RowsAffected != *s.ExpectRows {
		return newError(Unexpected, nil, " was expected to affect %d rows and affected %d; nothing is committed", *s.ExpectRows, did.RowsAffected)
	}
	return nil
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
