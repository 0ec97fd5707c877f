package bugs_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// world is what a check plays with: sessions, a ledger, and the client under test. The
// first thing that is not as it must be is kept in err, and nothing is done after it.
type world struct {
	url, super string // as the owner, and as the superuser of the server
	owner      *pgx.Conn
	a, b, c    *pgx.Conn // as the owner
	root       *pgx.Conn // as the superuser
	ledger     *ledger.Ledger
	client     client

	ctx     context.Context
	windows int
	err     error
}

// violation is something that the protocol forbids and that was seen.
type violation string

func (v violation) Error() string { return string(v) }

func newWorld(t *testing.T) *world {
	t.Helper()
	owner := rig.Database(t)
	u, err := url.Parse(owner)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{url: owner, super: postgres.Shared(t).URL(u.Path[1:]), owner: rig.Session(t, owner), ledger: rig.Ledger(t, owner), client: product}
	t.Cleanup(w.close)
	rig.Exec(t, w.owner, "SELECT onceguard.grant_job('postgres', '*')")
	return w
}

// check runs one check.
func (w *world) check(ctx context.Context, run func(*world)) error {
	w.err, w.ctx = nil, ctx
	w.a, w.b, w.c = w.session(w.a, w.url), w.session(w.b, w.url), w.session(w.c, w.url)
	w.root = w.session(w.root, w.super)
	if w.err == nil {
		run(w)
	}
	return w.err
}

// session is c as good as new.
func (w *world) session(c *pgx.Conn, url string) *pgx.Conn {
	if c != nil && !c.IsClosed() {
		if _, err := c.Exec(w.ctx, "ROLLBACK"); err == nil {
			if _, err := c.Exec(w.ctx, "DISCARD ALL"); err == nil {
				_ = c.DeallocateAll(w.ctx)
				return c
			}
		}
		_ = c.Close(w.ctx)
	}
	c, err := pgx.Connect(w.ctx, url)
	w.note(err)
	return c
}

// close ends the sessions.
func (w *world) close() {
	for _, c := range []*pgx.Conn{w.a, w.b, w.c, w.root} {
		if c != nil {
			_ = c.Close(context.Background())
		}
	}
}

// attempt is a new attempt at a window of a job that nobody knows.
func (w *world) attempt() claim.Attempt {
	w.windows++
	return rig.Attempt(fmt.Sprintf("bugs/%d", w.windows), 0)
}

// later is a new attempt at a later window of the same job.
func later(a claim.Attempt) claim.Attempt {
	b := rig.Again(a.Window)
	b.Window.Start = a.Window.Start.Add(time.Hour)
	return b
}

// want demands that something is so.
func (w *world) want(what, got, want string) {
	if w.err == nil && got != want {
		w.err = violation(fmt.Sprintf("%s: %s, not %s", what, got, want))
	}
}

// say runs SQL and gives its one value as text, or the SQLSTATE that it was refused with.
func (w *world) say(c *pgx.Conn, sql string, args ...any) string {
	if w.err != nil {
		return ""
	}
	word, err := ask(c, sql, args...)
	w.note(err)
	return word
}

func (w *world) note(err error) {
	if w.err == nil && err != nil {
		w.err = err
	}
}

// ask is say for another goroutine. An error is no answer of the protocol: the bug has
// broken the SQL, or the check is wrong.
func ask(c *pgx.Conn, sql string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		return refused(sql, err)
	}
	word := ""
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			rows.Close()
			return "", err
		}
		if len(values) > 0 {
			word = fmt.Sprint(values[0])
		}
	}
	if rows.Err() != nil {
		return refused(sql, rows.Err())
	}
	if word == "" {
		return rows.CommandTag().String(), nil
	}
	return word, nil
}

// refused tells a refusal from SQL that does not work.
func refused(sql string, err error) (string, error) {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok && errors.Is(err, context.DeadlineExceeded):
		return "no answer", nil
	case !ok:
		return "", fmt.Errorf("%s: %w", sql, err)
	case strings.HasPrefix(pg.Code, "42"), strings.HasPrefix(pg.Code, "XX"), strings.HasPrefix(pg.Code, "P0"):
		return "", fmt.Errorf("%s: %w (%s)", sql, err, pg.Where)
	}
	return pg.Code, nil
}

// pending is a statement that may have to wait.
type pending struct {
	pid    uint32
	answer chan string
	err    error
}

// start runs SQL in another goroutine.
func (w *world) start(c *pgx.Conn, sql string, args ...any) *pending {
	p := &pending{pid: c.PgConn().PID(), answer: make(chan string, 1)}
	if w.err != nil {
		p.answer <- ""
		return p
	}
	go func() {
		word, err := ask(c, sql, args...)
		p.err = err
		p.answer <- word
	}()
	return p
}

// settled waits until the statement waits for a lock or has its answer.
func (w *world) settled(p *pending) {
	for end := time.Now().Add(rig.Patience); w.err == nil && len(p.answer) == 0; time.Sleep(time.Millisecond) {
		if w.say(w.owner, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'", int(p.pid)) == "Lock" {
			return
		}
		if time.Now().After(end) {
			w.err = errors.New("the statement neither waits nor answers")
		}
	}
}

// end gives the answer of a statement that was started.
func (w *world) end(p *pending) string {
	word := <-p.answer
	w.note(p.err)
	return word
}

// The functions of the ledger, by SQL.

const claimSQL = "SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, $3, '1 hour'"

// claim asks under terms, SQL like "overlap => 'wait'".
func (w *world) claim(c *pgx.Conn, a claim.Attempt, terms ...string) string {
	return w.say(c, claimText(terms...), rig.Args(a)...)
}

func claimText(terms ...string) string {
	return strings.Join(append([]string{claimSQL}, terms...), ", ") + ")"
}

// run is a claim that must be given the window.
func (w *world) run(a claim.Attempt, reason string, terms ...string) {
	w.want("the claim", w.claim(w.owner, a, terms...), "run "+reason)
}

func (w *world) heartbeat(c *pgx.Conn, a claim.Attempt) string {
	return w.say(c, "SELECT onceguard.heartbeat($1, $2, $3, '1 hour')", rig.Args(a)...)
}

func (w *world) release(a claim.Attempt, outcome string) string {
	return w.say(w.owner, "SELECT coalesce(onceguard.release($1, $2, $3, $4), 'nothing')", append(rig.Args(a), outcome)...)
}

func (w *world) resolve(c *pgx.Conn, a claim.Attempt, next uuid.UUID) string {
	return w.say(c, "SELECT onceguard.resolve($1, $2, $3, $4)", append(rig.Args(a), next.String())...)
}

// begin opens a business transaction with an effect in it.
func (w *world) begin(c *pgx.Conn, a claim.Attempt) {
	w.say(c, "BEGIN")
	w.want("begin", w.say(c, rig.BeginSQL, rig.Args(a)...), done)
	w.say(c, "SET LOCAL idle_in_transaction_session_timeout = 0")
	w.want("the effect", w.say(c, rig.EffectSQL, rig.Args(a)...), "INSERT 0 1")
}

// done is what a function without a value answers.
const done = "SELECT 1"

func (w *world) complete(c *pgx.Conn, a claim.Attempt) string {
	return w.say(c, rig.CompleteSQL, rig.Args(a)...)
}

func (w *world) commit(c *pgx.Conn) string { return w.say(c, "COMMIT") }

// works is a whole business transaction that must succeed.
func (w *world) works(c *pgx.Conn, a claim.Attempt) {
	w.begin(c, a)
	w.want("complete", w.complete(c, a), done)
	w.want("COMMIT", w.commit(c), "COMMIT")
}

// age ends the lease of a window, as time would.
func (w *world) age(a claim.Attempt) {
	w.want("ending the lease", w.say(w.owner, "UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 second' WHERE job_name = $1 AND window_start = $2",
		a.Window.JobName, a.Window.Start), "UPDATE 1")
}

// takeover ends the lease of a and gives its window to another attempt.
func (w *world) takeover(a claim.Attempt) (heir claim.Attempt) {
	heir = rig.Again(a.Window)
	w.age(a)
	w.run(heir, "takeover")
	return heir
}

// effects demands how often the business of a window was done.
func (w *world) effects(a claim.Attempt, n string) {
	w.want("effects", w.say(w.owner, "SELECT count(*) FROM effect WHERE job_name = $1 AND window_start = $2", a.Window.JobName, a.Window.Start), n)
}

// stored demands the status of a window, and its reason if it has one.
func (w *world) stored(a claim.Attempt, status string) {
	w.want("the window", w.say(w.owner, "SELECT status || coalesce(' ' || reason, '') FROM onceguard.job_execution WHERE job_name = $1 AND window_start = $2", a.Window.JobName, a.Window.Start), status)
}

const checkpointSQL = "SELECT onceguard.checkpoint($1, $2, $3, $4, '{}')"

// piece runs a business transaction up to its checkpoint, which must answer want.
func (w *world) piece(c *pgx.Conn, a claim.Attempt, follows int, want string) {
	w.begin(c, a)
	w.want("the checkpoint", w.say(c, checkpointSQL, append(rig.Args(a), follows)...), want)
}

// prune must come as far as reached.
func (w *world) prune(job string, upto, reached time.Time) {
	w.want("prune reaches its end", w.say(w.owner, "SELECT onceguard.prune($1, $2) = $3", job, upto, reached), "true")
}
