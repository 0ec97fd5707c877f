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
// as COMMIT was not sent it begins again with its execution_id; afterwards it resolves.
type driver struct {
	w       *worker
	conn    *pgx.Conn
	a       claim.Attempt
	next    uuid.UUID // replaces the execution_id, should the transaction be fenced
	told    told
	unknown bool // COMMIT was sent
}

func driving(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	if err != nil {
		return client{}, err
	}
	d := &driver{w: w, a: a, next: uuid.New(), told: nothing}
	d.conn, err = pgx.Connect(ctx, w.url)
	return client{
		ask:   d.ask,
		holds: func(ctx context.Context) error { return w.holds(ctx, d.a, d.told) },
		done: func(ctx context.Context) error {
			if err := d.conn.Close(ctx); err != nil && !d.conn.IsClosed() {
				return err
			}
			return w.completed(ctx, d.a, 1)
		},
	}, err
}

func (d *driver) ask(ctx context.Context) (bool, error) {
	if d.unknown {
		return d.resolve(ctx)
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
