package ledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/pgurl"
)

// errNoCancel answers pgx when it wants to send a cancel request during a COMMIT.
var errNoCancel = errors.New("no cancel request while a COMMIT is in flight")

// Conn is one connection to the ledger's database. Beside what pgconn offers it can
// promise not to disturb a COMMIT, and keeps the server's warnings.
type Conn struct {
	*pgconn.PgConn
	explicit bool // every transaction needs its BEGIN

	mu         sync.Mutex
	committing bool
	warnings   []*pgconn.Notice
}

// Committing says that the next statement is COMMIT. From here on a context that ends
// abandons the socket without a cancel request: that request could end the wait for a
// synchronous standby early, and a failover would then lose a commit that was seen.
func (c *Conn) Committing() { c.setCommitting(true) }

// Committed ends what Committing began; call it when COMMIT was answered.
func (c *Conn) Committed() { c.setCommitting(false) }

func (c *Conn) setCommitting(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = on
}

// TakeWarnings gives the WARNINGs received since the last call. One that comes with the
// answer to COMMIT means that the commit is not safe yet ("canceling wait for
// synchronous replication") or that there was none ("no transaction in progress"): it
// must be treated as unknown, never as success.
func (c *Conn) TakeWarnings() []*pgconn.Notice {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.warnings
	c.warnings = nil
	return w
}

func (c *Conn) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized != "WARNING" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.warnings) < 16 { // SQL of a worker may warn without end
		c.warnings = append(c.warnings, n)
	}
}

// dial opens a connection to the URL.
func dial(ctx context.Context, url, application string) (*Conn, error) {
	cfg, err := pgurl.Parse(url, application)
	if err != nil {
		return nil, err
	}
	c := &Conn{}
	connect := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c.mu.Lock()
		refuse := c.committing
		c.mu.Unlock()
		if refuse {
			return nil, errNoCancel
		}
		return connect(ctx, network, addr)
	}
	cfg.OnNotice = c.notice
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()
	if c.PgConn, err = pgconn.ConnectConfig(ctx, &cfg.Config); err != nil {
		return nil, pgurl.Reason(err)
	}
	return c, nil
}

// Isolation begins every transaction of ours, whatever the role's or the database's
// default is.
const Isolation = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

// call is one statement with text arguments; nil is NULL.
type call struct {
	sql  string
	args [][]byte
}

// transaction runs calls between BEGIN and COMMIT in one round trip and gives the first
// row of the last call. An error leaves the connection usable or closed.
func (c *Conn) transaction(ctx context.Context, calls ...call) ([][]byte, error) {
	var b pgconn.Batch
	b.ExecParams(Isolation, nil, nil, nil, nil)
	for _, k := range calls {
		b.ExecParams(k.sql, k.args, nil, nil, nil)
	}
	b.ExecParams("COMMIT", nil, nil, nil, nil)
	c.Committing() // the COMMIT is in the same message
	c.TakeWarnings()
	results, err := c.ExecBatch(ctx, &b).ReadAll()
	if c.IsClosed() {
		return nil, err // committing stays on: pgx is about to try its cancel request
	}
	c.Committed()
	if err != nil {
		if _, rerr := c.Exec(ctx, "ROLLBACK").ReadAll(); rerr != nil {
			_ = c.Close(ctx)
		}
		return nil, err
	}
	if len(results) != len(calls)+2 || results[len(results)-1].CommandTag.String() != "COMMIT" {
		return nil, errors.New("the server did not answer COMMIT")
	}
	rows := results[len(calls)].Rows
	if len(rows) == 0 {
		return nil, nil
	}
	return rows[0], nil
}

// notAsIs are the refusals of a transaction that is not as Isolation makes it: OG008 by
// claim; read-only, also on a standby; serialization.
var notAsIs = []string{"OG008", "25006", "40001"}

// statement runs one call as a transaction of its own without BEGIN and COMMIT, which are
// a fifth of the server's work for a claim that is refused. It is for functions that do
// the same, or refuse, in a transaction of any kind: refused, they are called again
// between BEGIN and COMMIT, and on this connection always from then on.
func (c *Conn) statement(ctx context.Context, k call) ([][]byte, error) {
	if !c.explicit {
		c.Committing() // by the same message
		c.TakeWarnings()
		r := c.ExecParams(ctx, k.sql, k.args, nil, nil, nil).Read()
		if c.IsClosed() {
			return nil, r.Err
		}
		c.Committed()
		pg, refused := errors.AsType[*pgconn.PgError](r.Err)
		switch {
		case refused && slices.Contains(notAsIs, pg.Code):
			c.explicit = true
		case r.Err != nil || len(r.Rows) == 0:
			return nil, r.Err
		default:
			return r.Rows[0], nil
		}
	}
	return c.transaction(ctx, k)
}

// Arguments of the functions, in the text form that does not depend on any setting.

func text(s string) []byte { return []byte(clean(s)) }

func optional(s string) []byte {
	if s == "" {
		return nil
	}
	return text(s)
}

// clean drops what Postgres cannot store in text.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

func instant(t time.Time) []byte { return []byte(t.UTC().Format(time.RFC3339Nano)) }

// moment is instant with NULL for the zero time.
func moment(t time.Time) []byte {
	if t.IsZero() {
		return nil
	}
	return instant(t)
}

func truth(b bool) []byte { return strconv.AppendBool(nil, b) }

func term(d time.Duration) []byte {
	return []byte(strconv.FormatInt(d.Microseconds(), 10) + " microseconds")
}

// identity is what every function begins with.
func identity(a claim.Attempt, more ...[]byte) [][]byte {
	return append([][]byte{text(a.Window.JobName), instant(a.Window.Start), []byte(a.ExecutionID.String())}, more...)
}

// micros is the SQL that brings an instant back as microseconds since 1970.
func micros(column string) string {
	return "(extract(epoch FROM " + column + ") * 1000000)::bigint"
}

// row reads the columns of one row from left to right; the first error is kept.
type row struct {
	values [][]byte
	at     int
	err    error
}

func (r *row) next() []byte {
	if r.at >= len(r.values) {
		if r.err == nil {
			r.err = fmt.Errorf("the ledger answered %d columns, more were expected", len(r.values))
		}
		return nil
	}
	r.at++
	return r.values[r.at-1]
}

func (r *row) string() string { return string(r.next()) }

func (r *row) int64() (n int64) {
	v := r.next()
	if v == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	r.keep(err)
	return n
}

func (r *row) uuid() (id uuid.UUID) {
	v := r.next()
	if v == nil {
		return uuid.Nil
	}
	id, err := uuid.ParseBytes(v)
	r.keep(err)
	return id
}

func (r *row) instant() time.Time {
	if r.at < len(r.values) && r.values[r.at] == nil {
		r.at++
		return time.Time{}
	}
	return time.UnixMicro(r.int64()).UTC()
}

func (r *row) keep(err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("the ledger's answer: %w", err)
	}
}
