package commit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Copy says where rows in CSV go.
type Copy struct {
	Table     string   // "table" or "schema.table", as it is written: no folding to lower case
	Columns   []string // in the order of the rows; none: all of the table
	Header    bool     // the first line names columns and is left out
	Null      string   // what stands for NULL when it is not in quotes; "" as in CSV
	Delimiter string   // one character of one byte; "" is a comma
}

// Stream is a body that is read while it comes.
type Stream interface {
	io.Reader
	// Interrupt ends a Read that is waiting, and those to come.
	Interrupt()
}

// validate names the parameter that is wrong.
func (p Copy) validate() error {
	parts := strings.Split(p.Table, ".")
	switch {
	case p.Table == "":
		return invalid("table is missing; say ?table=TABLE or ?table=SCHEMA.TABLE")
	case len(parts) > 2 || parts[0] == "" || parts[len(parts)-1] == "":
		return invalid("table is %q; it must be TABLE or SCHEMA.TABLE", shorten(p.Table))
	case len(p.Delimiter) > 1 || p.Delimiter != "" && strings.Contains("\r\n\"\x00", p.Delimiter):
		return invalid("delimiter is %q; it must be one character of one byte, not a quote or the end of a line", shorten(p.Delimiter))
	case strings.ContainsAny(p.Null, "\r\n\x00"):
		return invalid("null is %q; it must not have an end of line or a NUL character", shorten(p.Null))
	}
	for _, name := range append(parts, p.Columns...) {
		switch {
		case name == "":
			return invalid("columns has an empty name; say ?columns=a,b, or leave it out for all columns")
		case strings.ContainsRune(name, 0):
			return invalid("the name %q has a NUL character, which Postgres does not take", shorten(name))
		}
	}
	return nil
}

// sql is the COPY command.
func (p Copy) sql() string {
	var b strings.Builder
	b.WriteString("COPY ")
	for i, part := range strings.Split(p.Table, ".") {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(name(part))
	}
	for i, column := range p.Columns {
		b.WriteString(map[bool]string{true: " (", false: ", "}[i == 0] + name(column))
	}
	if len(p.Columns) > 0 {
		b.WriteByte(')')
	}
	b.WriteString(" FROM STDIN WITH (FORMAT csv, ENCODING 'UTF8', NULL " + literal(p.Null))
	if p.Delimiter != "" {
		b.WriteString(", DELIMITER " + literal(p.Delimiter))
	}
	if p.Header {
		b.WriteString(", HEADER true")
	}
	return b.String() + ")"
}

// name quotes an identifier.
func name(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// literal quotes a string, whatever standard_conforming_strings is.
func literal(s string) string {
	return " E'" + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s) + "'"
}

// Copy streams rows into a table and gives how many there were. No more of them is in
// memory than a network buffer. A stream that breaks off ends the transaction.
func (c *Committer) Copy(ctx context.Context, id string, p Copy, rows Stream) (n int64, err error) {
	if err := p.validate(); err != nil {
		return 0, err
	}
	err = c.with(ctx, id, func(run context.Context, s *session) error {
		n, err = s.copy(run, p, rows, c.limits.Idle)
		return err
	})
	return n, err
}

func (s *session) copy(run context.Context, p Copy, rows Stream, idle time.Duration) (int64, error) {
	in := &source{rows: rows, patience: idle}
	stop := context.AfterFunc(run, func() {
		// A client that leaves breaks its rows off; HTTP tells it from nothing else that does.
		in.over.Store(s.run.Err() != nil)
		rows.Interrupt()
	})
	defer stop()
	s.conn.Frontend().SetMaxBodyLen(maxMessage)
	tag, err := s.conn.CopyFrom(run, in, p.sql())
	if err != nil { // pgx may have left a Read behind
		in.over.Store(run.Err() == nil || s.run.Err() != nil)
		rows.Interrupt()
	}
	broken := in.wait()
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch _, huge := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); {
	case err == nil && s.conn.TxStatus() != 'T':
		return 0, newError(Forbidden, nil, "a trigger ended the transaction; nothing is committed")
	case err == nil:
		return tag.RowsAffected(), nil
	case s.run.Err() != nil:
		return 0, gaveUp(run)
	case broken != nil && (!answered || pg.Code == cancelled):
		return 0, newError(Invalid, err, "the rows %s; nothing is committed", broken)
	case run.Err() != nil:
		return 0, gaveUp(run)
	case huge:
		return 0, newError(TooLarge, err, "COPY: a message takes more than %d bytes; nothing is committed", maxMessage)
	}
	return 0, ofStatement(err).of("COPY")
}

// source remembers why reading ended, and knows whether a Read is under way.
type source struct {
	rows     Stream
	patience time.Duration // for each Read
	over     atomic.Bool   // nobody wants more rows
	mu       sync.Mutex
	lines    lines
	err      error
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	stalled := time.AfterFunc(s.patience, s.rows.Interrupt)
	n, err := s.rows.Read(p)
	switch late := !stalled.Stop(); {
	case err == nil, errors.Is(err, io.EOF):
	case s.over.Load():
		err = errOver
	case late:
		err = fmt.Errorf("broke off: nothing came for %s", s.patience)
	default:
		err = fmt.Errorf("broke off: %w", err)
	}
	if s.lines.marked(p[:n], errors.Is(err, io.EOF)) {
		n, err = 0, fmt.Errorf(`have \. alone in line %d, where Postgres would stop reading and leave out the rest; write "\." in quotes if it is a value, or leave the line out`, s.lines.before+1)
	}
	s.err = err
	return n, err
}

var errOver = errors.New("the COPY is over")

// wait waits for a Read that is under way, the last one, and gives what was wrong with the
// rows, nil when nothing was.
func (s *source) wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = errOver
	if errors.Is(err, io.EOF) || errors.Is(err, errOver) {
		return nil
	}
	return err
}

// lines looks for the end-of-data mark of Postgres up to 17: a line that is \. alone, and
// not within quotes. What stands behind it would be lost without a word.
type lines struct {
	before int  // lines that are over
	column int  // 0 at the beginning of a line, 1 behind \, 2 behind \., 3 anywhere else
	quoted bool // a quote in quotes is written twice, so each one changes this
	last   byte
}

// marked goes on with the next bytes, or with the end of all.
func (l *lines) marked(p []byte, end bool) bool {
	for _, c := range p {
		newline := c == '\n' || c == '\r'
		switch {
		case newline && !l.quoted && l.column == 2:
			return true
		case newline:
			if c == '\r' || l.last != '\r' {
				l.before++
			}
			if !l.quoted {
				l.column = 0
			}
		case l.column == 0 && c == '\\':
			l.column = 1
		case l.column == 1 && c == '.':
			l.column = 2
		default:
			l.column = 3
			if c == '"' {
				l.quoted = !l.quoted
			}
		}
		l.last = c
	}
	return end && l.column == 2
}
