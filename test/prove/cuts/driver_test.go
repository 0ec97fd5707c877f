package cuts_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// driver is a worker that commits by begin and complete over its own connection. As long
// as COMMIT was not sent it begins again with its execution_id. Afterwards it finds out
// what came of it, by resolve or as the guard does for a worker that exits: it releases
// the attempt, and claims the window again if it is not done.
type driver struct {
	w        *worker
	conn     *pgx.Conn
	a        claim.Attempt
	next     uuid.UUID // the execution_id after this one
	attempts int
	resolves bool
	released bool
	told     told
	unknown  bool // COMMIT was sent
}

func resolvingDriver(ctx context.Context, w *worker) (client, error) {
	return driving(ctx, w, true)
}

func releasedDriver(ctx context.Context, w *worker) (client, error) {
	return driving(ctx, w, false)
}

func driving(ctx context.Context, w *worker, resolves bool) (client, error) {
	a, err := w.claimed(ctx)
	if err != nil {
		return client{}, err
	}
	d := &driver{w: w, a: a, next: uuid.New(), attempts: 1, resolves: resolves, told: nothing}
	d.conn, err = pgx.Connect(ctx, w.url)
	return client{
		ask:   d.ask,
		holds: func(ctx context.Context) error { return w.holds(ctx, d.a, d.told, false) },
		done: func(ctx context.Context) error {
			if err := d.conn.Close(ctx); err != nil && !d.conn.IsClosed() {
				return err
			}
			return w.completed(ctx, d.a, d.attempts, 1)
		},
	}, err
}

func (d *driver) ask(ctx context.Context) (bool, error) {
	switch {
	case d.unknown && d.resolves:
		return d.resolve(ctx)
	case d.unknown:
		return d.release(ctx)
	}
	d.told = denied
	if d.conn.IsClosed() {
		c, err := pgx.Connect(ctx, d.w.url)
		if err != nil {
			return false, nil
		}
		d.conn = c
	}
	sent, err := d.transaction(ctx)
	if err == nil {
		d.told = committed
		return true, nil
	}
	defer func() { _ = d.conn.Close(ctx) }()
	if pg, answered := errors.AsType[*pgconn.PgError](err); answered {
		if kind := ledger.Translate(err); !errors.Is(kind, ledger.ErrUnavailable) {
			return false, fmt.Errorf("refused by %s: %w", pg.Code, err)
		}
		return false, nil
	}
	if d.unknown = sent; sent {
		d.told = nothing
	}
	return false, nil
}

// transaction says whether COMMIT may have reached the server.
func (d *driver) transaction(ctx context.Context) (sent bool, err error) {
	tx, err := d.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return false, err
	}
	job, at, id := d.a.Window.JobName, d.a.Window.Start, d.a.ExecutionID.String()
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{`SELECT onceguard.begin($1, $2, $3)`, []any{job, at, id}},
		{`INSERT INTO effect VALUES ($1, $2, 1)`, []any{job, at}},
		{`SELECT onceguard.complete($1, $2, $3)`, []any{job, at, id}},
	} {
		if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
			return false, err
		}
	}
	err = tx.Commit(ctx)
	return !pgconn.SafeToRetry(err) && !errors.Is(err, pgx.ErrTxCommitRollback), err
}

func (d *driver) resolve(ctx context.Context) (bool, error) {
	got, err := d.w.ledger.Resolve(ctx, d.a, d.next)
	if again, err := unanswered(err); again || err != nil {
		return false, err
	}
	switch got {
	case claim.ResolvedCommitted:
		d.told = committed
		return true, nil
	case claim.ResolvedNotCommitted:
		d.told, d.unknown = denied, false
		d.a.ExecutionID, d.next = d.next, uuid.New()
	case claim.ResolvedLost:
		return false, errors.New("resolved as lost, and nobody took over")
	case claim.ResolvedPending:
	}
	return false, nil
}

// release is the guard after its worker has ended.
func (d *driver) release(ctx context.Context) (bool, error) {
	if !d.released {
		got, err := d.w.ledger.Release(ctx, d.a, claim.End{Outcome: claim.OutcomeUncommitted})
		if again, err := unanswered(err); again || err != nil {
			return false, err
		}
		switch got { //nolint:exhaustive // all others are violations
		case claim.OutcomeCompleted:
			d.told = committed
			return true, nil
		case claim.OutcomeUncommitted:
			d.released, d.told = true, denied
		default:
			return false, fmt.Errorf("released as %q", got)
		}
	}
	next := claim.Attempt{Window: d.a.Window, ExecutionID: d.next}
	got, err := d.w.ledger.Claim(ctx, request(next))
	if again, err := unanswered(err); again || err != nil {
		return false, err
	}
	if got.Verdict != claim.Run || got.Reason != claim.Retry && got.Reason != claim.Adopted {
		return false, fmt.Errorf("claim after the release: %+v", got)
	}
	d.a, d.next, d.attempts, d.released, d.unknown = next, uuid.New(), d.attempts+1, false, false
	return false, nil
}
