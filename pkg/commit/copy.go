package commit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
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
	stop := context.AfterFunc(run, rows.Interrupt)
	defer stop()
	s.conn.Frontend().SetMaxBodyLen(maxMessage)
	tag, err := s.conn.CopyFrom(run, in, p.sql())
	if err != nil {
		rows.Interrupt() // pgx may have left a Read behind
	}
	broken := in.wait()
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch _, huge := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); {
	case err == nil && s.conn.TxStatus() != 'T':
		return 0, newError(Forbidden, nil, "a trigger ended the transaction; nothing is committed")
	case err == nil:
		return tag.RowsAffected(), nil
	case run.Err() != nil:
		return 0, gaveUp(run)
	case huge:
		return 0, newError(TooLarge, err, "COPY: a message takes more than %d bytes; nothing is committed", maxMessage)
	case broken != nil && (!answered || pg.Code == cancelled):
		return 0, newError(Invalid, err, "the rows broke off: %s; nothing is committed", broken)
	}
	return 0, ofStatement(err).of("COPY")
}

// source remembers why reading ended, and knows whether a Read is under way.
type source struct {
	rows     Stream
	patience time.Duration // for each Read
	mu       sync.Mutex
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
	if !stalled.Stop() && err != nil {
		err = fmt.Errorf("nothing came for %s", s.patience)
	}
	s.err = err
	return n, err
}

var errOver = errors.New("the COPY is over")

// wait waits for a Read that is under way, the last one, and gives why the rows broke off,
// nil when they did not.
func (s *source) wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = errOver
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
