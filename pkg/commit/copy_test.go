package commit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/logs"
)

// body is a stream that may break off or stall after its text.
type body struct {
	io.Reader
	after error // nil: it stalls until it is interrupted
	once  sync.Once
	over  chan struct{}
}

var errInterrupted = errors.New("interrupted")

func stream(text string, after error) *body {
	return &body{Reader: strings.NewReader(text), after: after, over: make(chan struct{})}
}

func (s *body) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n > 0 || !errors.Is(err, io.EOF) {
		return n, err
	}
	if s.after != nil {
		return 0, s.after
	}
	<-s.over
	return 0, errInterrupted
}

func (s *body) Interrupt() { s.once.Do(func() { close(s.over) }) }

func TestCopy(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE SCHEMA "odd""s"`)
	b.exec(`CREATE TABLE "odd""s"."Order's; DROP" ("A b" int, note text, "c""d" bool DEFAULT true)`)
	id := b.begun()
	for _, c := range []struct {
		to   Copy
		csv  string
		rows int64
	}{
		{Copy{Table: `odd"s.Order's; DROP`}, "1,\"a,\"\"b\"\"\nc\",t\r\n", 1},
		{Copy{Table: `odd"s.Order's; DROP`, Columns: []string{"note", "A b"}, Header: true}, "anything,at all\nx,2\ny,\n", 2},
		{Copy{Table: `odd"s.Order's; DROP`, Columns: []string{`c"d`, "note"}, Null: `\N'`, Delimiter: ";"}, "f;\\N'\nt;\"\\N'\"", 2},
		{Copy{Table: `odd"s.Order's; DROP`, Delimiter: "'", Columns: []string{"A b", "note"}}, "7'é", 1},
		{Copy{Table: "book"}, "", 0},
	} {
		n, err := b.Copy(t.Context(), id, c.to, stream(c.csv, io.EOF))
		if err != nil || n != c.rows {
			t.Fatalf("%+v: %d %v", c.to, n, err)
		}
	}
	if a, err := b.finish(id, `{"processed":6}`); err != nil || !a.Completed {
		t.Fatal(a, err)
	}
	want := "[1,a,\"b\"\nc,t][2,x,t][,y,t][,∅,f][,\\N',t][7,é,t]"
	if got := b.text(`SELECT string_agg(concat('[', "A b", ',', coalesce(note, '∅'), ',', "c""d", ']'), '' ORDER BY ctid) FROM "odd""s"."Order's; DROP"`); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A COPY that fails says where, ends the transaction and leaves nothing, in no log either.
func TestCopyThatFails(t *testing.T) {
	b := newBench(t)
	var log bytes.Buffer
	b.log = logs.New(&log, zapcore.DebugLevel)
	gone := errors.New("unexpected EOF")
	for _, c := range []struct {
		what string
		to   Copy
		rows Stream
		code Code
		word string
	}{
		{"bad value", Copy{Table: "book", Columns: []string{"n"}}, stream("1\n2\ncanary\n", io.EOF), Failed, "line 3"},
		{"extra column", Copy{Table: "book", Columns: []string{"n"}}, stream("1\n2,3\n", io.EOF), Failed, "line 2"},
		{"no such table", Copy{Table: "BOOK"}, stream("1", io.EOF), Failed, `"BOOK" does not exist`},
		{"no such column", Copy{Table: "book", Columns: []string{"m"}}, stream("1", io.EOF), Failed, `"m"`},
		{"constraint", Copy{Table: "parent"}, stream("1\n1\n", io.EOF), Failed, "parent_pkey"},
		{"broken off", Copy{Table: "book", Columns: []string{"n"}}, stream("1\n2\n", gone), Invalid, "the rows broke off: unexpected EOF"},
		{"broken off at once", Copy{Table: "book", Columns: []string{"n"}}, stream("", gone), Invalid, "broke off"},
		{"the end-of-data mark", Copy{Table: "book", Columns: []string{"note"}}, stream("a\n\\.\nb\nc\n", io.EOF), Invalid, `have \. alone in line 2`},
		{"bad value, then stalled", Copy{Table: "book", Columns: []string{"n"}}, stream(strings.Repeat("1\n", 1<<17)+"canary\n"+strings.Repeat("1\n", 1<<17), nil), Failed, "line 131073"},
	} {
		b.limits.Idle = soon
		if strings.Contains(c.what, "stalled") {
			b.limits.Idle = 2 * time.Second
		}
		id := b.begun()
		b.does(id, add)
		_, err := b.Copy(t.Context(), id, c.to, c.rows)
		if e := b.refusal(err, c.code); !strings.Contains(e.Message, c.word) {
			t.Errorf("%s: %s", c.what, e.Message)
		}
		b.over(id, "")
		if got := b.state(); got != "0 running" {
			t.Fatalf("%s: left %s", c.what, got)
		}
	}
	if strings.Contains(log.String(), "canary") {
		t.Error(log.String())
	}
	id := b.begun()
	for cure, to := range map[string]Copy{
		"table is missing": {}, "SCHEMA.TABLE": {Table: "a.b.c"}, "must be TABLE": {Table: ".b"}, "empty name": {Table: "book", Columns: []string{"n", ""}},
		"one character": {Table: "book", Delimiter: "ab"}, "not a quote": {Table: "book", Delimiter: `"`}, "end of line": {Table: "book", Null: "\n"}, "NUL": {Table: "a\x00"},
	} {
		_, err := b.Copy(t.Context(), id, to, stream("1", io.EOF))
		if e := b.refusal(err, Invalid); !strings.Contains(e.Message, cure) {
			t.Errorf("%+v: %s", to, e.Message)
		}
	}
	// Those were never sent.
	if n, err := b.Copy(t.Context(), id, Copy{Table: "book", Columns: []string{"n"}}, stream("1\n", io.EOF)); n != 1 || err != nil {
		t.Error(n, err)
	}
	if err := b.Drop(t.Context(), id); err != nil || b.state() != "0 running" {
		t.Error("COPY, then rolled back:", err, b.state())
	}
}

// Postgres up to 17 takes a line that is \. for the end of the rows, in CSV too, and drops
// the rest. Wherever the body is split the line is found, and nothing else is taken for it.
func TestTheEndOfDataMark(t *testing.T) {
	for csv, line := range map[string]int{
		"\\.": 1, "\\.\n": 1, "a\n\\.\nb\n": 2, "a\r\n\\.\r\nb": 2, "a\r\\.\rb": 2, "\"x\n\\.\n\"\n\\.\n": 4, "\"a\"\"\n\"\n\n\\.\n": 4,
		"\"\\.\"\n": 0, "\"x\n\\.\n\"\n": 0, "a\\.\n": 0, "\\.,1\n": 0, "\\..\n": 0, "\\\\.\n": 0, " \\.\n": 0, "1,\\.\n": 0, "\\\n.\n": 0, "": 0,
	} {
		for _, size := range []int{1, 2, 3, 64} {
			var l lines
			found := false
			for rest := csv; !found; {
				n := min(size, len(rest))
				found = l.marked([]byte(rest[:n]), n == len(rest))
				if rest = rest[n:]; rest == "" {
					break
				}
			}
			if got := map[bool]int{true: l.before + 1}[found]; got != line {
				t.Errorf("%q by %d bytes: line %d, want %d", csv, size, got, line)
			}
		}
	}
	b := newBench(t)
	id := b.begun()
	if n, err := b.Copy(t.Context(), id, Copy{Table: "book", Columns: []string{"note"}}, stream("a\n\"\\.\"\n\"b\n\\.\nc\"\n", io.EOF)); n != 3 || err != nil {
		t.Error("the cure:", n, err)
	}
}

// Rows that do not come keep nothing open: not for ever, not beyond the right to the
// window, and not beyond the client.
func TestCopyThatStalls(t *testing.T) {
	for _, c := range []struct {
		what, word string
		code       Code
		stop       func(b *bench, cancel func())
	}{
		{"for ever", "nothing came for 300ms", Invalid, func(b *bench, _ func()) {}},
		{"beyond the right", "lost its right", NoAttempt, func(b *bench, _ func()) { close(b.holder.lost) }},
		{"beyond the client", "broke off: interrupted", Invalid, func(_ *bench, cancel func()) { cancel() }},
		{"beyond DELETE", "on request", Ended, func(b *bench, _ func()) {
			if err := b.Drop(b.t.Context(), b.open.id); err != nil {
				b.t.Error(err)
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := newBench(t)
			if c.what == "for ever" {
				b.limits.Idle = 300 * time.Millisecond
			}
			id := b.begun()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := b.Copy(ctx, id, Copy{Table: "book", Columns: []string{"n"}}, stream("1\n2\n", nil))
				done <- err
			}()
			if c.what != "for ever" {
				b.eventually("COPY", func() bool {
					return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active' AND datname = current_database()`) != "0"
				})
			}
			c.stop(b, cancel)
			err := <-done
			if e := b.refusal(err, c.code); !strings.Contains(e.Message, c.word) {
				t.Error(e.Message)
			}
			b.over(id, c.word)
			if got := b.state(); got != "0 running" {
				t.Error(got)
			}
		})
	}
}

// COPY and a checkpoint: a long load in pieces.
func TestCopyInPieces(t *testing.T) {
	b := newBench(t)
	for n := 1; n <= 2; n++ {
		id := b.begun()
		if _, err := b.Copy(t.Context(), id, Copy{Table: "book", Columns: []string{"n"}}, stream("1\n2\n", io.EOF)); err != nil {
			t.Fatal(err)
		}
		if a, err := b.finish(id, `{"complete":false,"checkpoint":"file `+string(rune('0'+n))+`"}`); err != nil || a.CheckpointSeq != n {
			t.Fatal(a, err)
		}
	}
	b.must(`{}`)
	if got := b.state() + " " + b.stored(); got != `4 completed 2 "file 2"` {
		t.Error(got)
	}
}
