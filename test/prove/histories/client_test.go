package histories_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// lease never ends by itself here: that it has run out is an operation of its own
// (doExpire), so that the model needs no clock.
const lease = time.Hour

// history is what was done to one window.
type history struct {
	window window.Window
	mu     sync.Mutex
	ops    []porcupine.Operation
	ids    map[uuid.UUID]int
}

// number gives an execution_id its number in this window, from 1.
func (h *history) number(id uuid.UUID) int {
	if id == uuid.Nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[id] == 0 {
		h.ids[id] = len(h.ids) + 1
	}
	return h.ids[id]
}

func (h *history) add(op porcupine.Operation) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	return len(h.ops)
}

// client is one guard with its worker. It remembers, for each window, the id that it
// believes in and the checkpoint it has last heard of.
type client struct {
	number int
	rnd    *rand.Rand
	url    string // through the proxy
	ledger *ledger.Ledger
	sql    *pgx.Conn // of its worker; nil when it broke
	direct *pgx.Conn // of the proof
	since  time.Time
	tally  *tally

	mine map[*history]*belief
	at   int // the window it was at
	stay int // for how many operations it stays there
}

type belief struct {
	id  uuid.UUID
	old uuid.UUID
	seq int
}

// tally counts what a run has seen.
type tally struct {
	operations, unknown, dropped, takeovers, fenced, commits, pieces atomic.Int64
}

// errDropped: what was asked certainly did not happen, and the error says nothing about
// the window.
var errDropped = errors.New("not done")

// step does one operation at a window and records it; n is how many it has then.
func (c *client) step(ctx context.Context, h *history) (n int) {
	b := c.mine[h]
	if b == nil {
		b = &belief{id: uuid.New()}
		c.mine[h] = b
	}
	q, ask := c.choose(h, b)
	call := time.Since(c.since)
	late := &call // a transaction begins to matter when COMMIT is sent
	r, err := ask(ctx, late)
	back := int64(time.Since(c.since))
	switch {
	case errors.Is(err, errDropped):
		c.tally.dropped.Add(1)
		return 0
	case err != nil:
		r, back = reply{unknown: true}, math.MaxInt64
		c.tally.unknown.Add(1)
	}
	c.tally.operations.Add(1)
	c.learn(b, q, r)
	return h.add(porcupine.Operation{ClientId: c.number, Input: q, Output: r, Call: int64(*late), Return: back})
}

type asking func(ctx context.Context, sent *time.Duration) (reply, error)

// choose draws an operation.
func (c *client) choose(h *history, b *belief) (question, asking) {
	a := claim.Attempt{Window: h.window, ExecutionID: b.id}
	q := question{id: h.number(b.id)}
	switch n := c.rnd.IntN(100); {
	case n < 24:
		if old := b.old; c.rnd.IntN(10) == 0 && old != uuid.Nil { // a restarted guard with a stale state
			a.ExecutionID, q.id = old, h.number(old)
		}
		q.verb = doClaim
		return q, func(ctx context.Context, _ *time.Duration) (reply, error) { return c.claim(ctx, a) }
	case n < 34:
		q.verb = doHeartbeat
		return q, func(ctx context.Context, _ *time.Duration) (reply, error) {
			beat, err := c.ledger.Heartbeat(ctx, a, lease)
			return reply{word: string(beat)}, certain(err)
		}
	case n < 52:
		q.verb = doComplete
		giveUp := c.rnd.IntN(4) > 0 // most workers roll back: else a window would not last
		return q, func(ctx context.Context, sent *time.Duration) (reply, error) {
			return c.business(ctx, a, sent, 0, giveUp, rig.CompleteSQL, rig.Args(a))
		}
	case n < 60:
		q.verb, q.seq = doCheckpoint, b.seq
		return q, func(ctx context.Context, sent *time.Duration) (reply, error) {
			return c.business(ctx, a, sent, b.seq+1, false, checkpointSQL, append(rig.Args(a), b.seq))
		}
	case n < 66:
		q.verb = doRelease
		return q, func(ctx context.Context, _ *time.Duration) (reply, error) {
			o, err := c.ledger.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed})
			return reply{word: string(o)}, certain(err)
		}
	case n < 74:
		next := uuid.New()
		q.verb, q.next = doResolve, h.number(next)
		// Persisted before it is asked, as the guard does: the id that follows is ours either way.
		b.old = b.id
		b.id = next
		return q, func(ctx context.Context, _ *time.Duration) (reply, error) {
			r, err := c.ledger.Resolve(ctx, a, next)
			return reply{word: string(r)}, certain(err)
		}
	case n < 84:
		q.verb = doRead
		return q, func(ctx context.Context, _ *time.Duration) (reply, error) {
			s, err := c.ledger.Stored(ctx, h.window)
			if err != nil {
				return reply{}, errDropped // a read that was not answered says nothing
			}
			return reply{word: string(s.Status), id: h.number(s.ExecutionID), attempt: s.Attempt, seq: s.Checkpoint.Seq}, nil
		}
	default:
		q.verb = doExpire
		return q, func(ctx context.Context, _ *time.Duration) (reply, error) {
			_, err := c.direct.Exec(ctx, `UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 hour'
				WHERE job_name = $1 AND window_start = $2 AND expires_at > clock_timestamp()`, h.window.JobName, h.window.Start)
			return reply{word: done}, err
		}
	}
}

const checkpointSQL = "SELECT onceguard.checkpoint($1, $2, $3, $4, '{}')"

// learn is what a client believes after an answer.
func (c *client) learn(b *belief, q question, r reply) {
	switch {
	case r.unknown:
	case q.verb == doClaim && r.attempt > 0:
		c.stay = 3 // it works at what it was given
		if r.word == word(claim.Run, claim.Takeover) {
			c.tally.takeovers.Add(1)
		}
	case q.verb == doClaim && r.word == word(claim.Wait, claim.FenceLost), q.verb == doRelease,
		r.word == fenced && c.rnd.IntN(2) == 0: // else a zombie that goes on
		b.old, b.id = b.id, uuid.New()
	case q.verb == doRead:
		b.seq = r.seq
	case r.word == done && q.verb == doComplete:
		c.tally.commits.Add(1)
	case r.word == done && q.verb == doCheckpoint:
		c.tally.pieces.Add(1)
		b.seq = r.seq
	}
	if r.word == fenced {
		c.tally.fenced.Add(1)
	}
}

func (c *client) claim(ctx context.Context, a claim.Attempt) (reply, error) {
	got, err := c.ledger.Claim(ctx, claim.Request{Attempt: a, Lease: lease})
	if err != nil {
		return reply{}, certain(err)
	}
	r := reply{word: word(got.Verdict, got.Reason), attempt: got.Attempt}
	if got.Reason == claim.BusyHeld {
		r.dead = time.Until(got.Holder.LeaseExpires) < 0 // an hour off either way
	}
	if n := int(got.FencingToken & (1<<40 - 1)); n != got.Attempt {
		r.attempt = -n // a token that does not grow with the attempt fits no model
	}
	return r, nil
}

// business is one transaction of a worker's own driver; it may stand still in it.
func (c *client) business(ctx context.Context, a claim.Attempt, sent *time.Duration, piece int, giveUp bool, last string, args []any) (reply, error) {
	if c.sql == nil || c.sql.IsClosed() {
		var err error
		if c.sql, err = pgx.Connect(ctx, c.url); err != nil {
			c.sql = nil
			return reply{}, errDropped
		}
	}
	tx, err := c.sql.Begin(ctx)
	if err != nil {
		return reply{}, errDropped
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, rig.BeginSQL, rig.Args(a)...); err != nil {
		return said(err)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, $2, $3, $4)", append(rig.Args(a), piece)...); err != nil {
		return said(err)
	}
	c.freeze()
	seq := 0
	if piece > 0 {
		err = tx.QueryRow(ctx, last, args...).Scan(&seq)
	} else {
		_, err = tx.Exec(ctx, last, args...)
	}
	if err != nil {
		return said(err)
	}
	c.freeze()
	if giveUp {
		return reply{}, errDropped
	}
	*sent = time.Since(c.since)
	if err := tx.Commit(ctx); err != nil {
		return reply{}, certain(err)
	}
	return reply{word: done, seq: seq}, nil
}

// freeze stands still in the middle of a transaction, now and then for long.
func (c *client) freeze() {
	switch n := c.rnd.IntN(40); {
	case n == 0:
		time.Sleep(120 * time.Millisecond)
	case n < 10:
		time.Sleep(time.Duration(c.rnd.IntN(12)) * time.Millisecond)
	}
}

// said is the answer of a statement before COMMIT: the ledger's refusal, or nothing.
func said(err error) (reply, error) {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == fenced || pg.Code == completed || pg.Code == outOfStep) {
		return reply{word: pg.Code}, nil
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && len(pg.Code) == 5 && pg.Code[:2] == "OG" {
		return reply{word: pg.Code}, nil // fits no model, and so is seen
	}
	return reply{}, errDropped
}

// certain tells an error after which nothing was done, because the server says so and
// lives on, from one that leaves it open.
func certain(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.SeverityUnlocalized == "ERROR" {
		if len(pg.Code) == 5 && pg.Code[:2] == "OG" {
			return err
		}
		return errDropped
	}
	return err
}
