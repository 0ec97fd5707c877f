package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// ours runs one of our kinds by all clients for the span.
func (b *bench) ours(ctx context.Context, kind string) (rate float64, n int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	operations := make([]func() error, b.clients)
	for i := range operations {
		l := b.ledger()
		defer l.Close(context.WithoutCancel(ctx))
		if operations[i], err = b.operation(ctx, kind, l, i); err != nil {
			return 0, 0, err
		}
	}
	var count atomic.Int64
	var g sync.WaitGroup
	start := time.Now()
	for _, do := range operations {
		g.Go(func() {
			for time.Since(start) < b.span && ctx.Err() == nil {
				if err := do(); err != nil {
					cancel(err)
					return
				}
				count.Add(1)
			}
		})
	}
	g.Wait()
	took := time.Since(start)
	return float64(count.Load()) / took.Seconds(), count.Load(), context.Cause(ctx)
}

// operation prepares one client and gives what it repeats.
func (b *bench) operation(ctx context.Context, kind string, l *ledger.Ledger, client int) (func() error, error) {
	origin := claim.Origin{
		Trigger: "scheduled", Source: "timestamp", Namespace: "shop", Job: "order-sync-29410000",
		JobUID: uuid.NewString(), Pod: "order-sync-29410000-x7k2p", PodUID: uuid.NewString(), Node: "node-1",
		WindowEnd: time.Unix(60, 0), Schedule: "* * * * *", TimeZone: "Etc/UTC",
	}
	// A job of its own for each client, as at the top of the hour.
	next := func() claim.Request {
		w := window.Window{JobName: "bench/job-" + strconv.Itoa(client), Start: time.Unix(b.windows.Add(1)*60, 0)}
		return claim.Request{Attempt: claim.Attempt{Window: w, ExecutionID: uuid.New()}, Lease: 30 * time.Second, Origin: origin}
	}
	won := func(r claim.Request) error {
		got, err := l.Claim(ctx, r)
		if err == nil && got.Verdict != claim.Run {
			err = fmt.Errorf("claim of %s: %s, %s", r.Window, got.Verdict, got.Reason)
		}
		return err
	}
	switch kind {
	case "claim":
		return func() error { return won(next()) }, l.CheckSchema(ctx)
	case "refused":
		return func() error {
			r := next()
			r.Window = b.done
			got, err := l.Claim(ctx, r)
			if err == nil && got.Verdict != claim.Skip {
				err = fmt.Errorf("claim of a completed window: %s", got.Verdict)
			}
			return err
		}, l.CheckSchema(ctx)
	case "heartbeat":
		r := next()
		return func() error {
			beat, err := l.Heartbeat(ctx, r.Attempt, r.Lease)
			if err == nil && beat != claim.BeatOK {
				err = fmt.Errorf("heartbeat: %s", beat)
			}
			return err
		}, won(r)
	case "connect":
		return func() error {
			other := ledger.New(func(context.Context) (string, error) { return b.tcp, nil }, zap.NewNop())
			conn, err := other.Connect(ctx)
			if err == nil {
				err = conn.Close(ctx)
			}
			return err
		}, nil
	default:
		conn, err := l.Connect(ctx)
		if err != nil {
			return nil, err
		}
		return func() error {
			r := next()
			if err := won(r); err != nil {
				return err
			}
			return commit(ctx, conn, r.Attempt)
		}, l.CheckSchema(ctx)
	}
}

// commit is the business transaction in two round trips.
func commit(ctx context.Context, conn *ledger.Conn, a claim.Attempt) error {
	var b pgconn.Batch
	b.ExecParams(ledger.Isolation, nil, nil, nil, nil)
	b.ExecParams(ledger.BeginSQL, ledger.BeginArgs(a), nil, nil, nil)
	b.ExecParams("INSERT INTO booking VALUES ($1, $2)", [][]byte{strconv.AppendInt(nil, a.Window.Start.Unix(), 10), []byte("10")}, nil, nil, nil)
	b.ExecParams(ledger.CompleteSQL, ledger.CompleteArgs(a, claim.Completion{RequestDigest: "d"}), nil, nil, nil)
	if _, err := conn.ExecBatch(ctx, &b).ReadAll(); err != nil {
		return ledger.Translate(err)
	}
	_, err := conn.Exec(ctx, "COMMIT").ReadAll()
	return ledger.Translate(err)
}
