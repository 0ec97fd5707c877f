package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/window"
)

// Ten guards with leases of 60 ms fight for the same windows; every third of them
// stands still beyond its lease in the middle of its business transaction, some let
// their attempt fail, some lose the answer to COMMIT. In the end each window has one
// effect, made by the attempt that completed it.
func TestStress(t *testing.T) {
	windows, guards := int64(120), 10
	if testing.Short() {
		windows = 30
	}
	url := database(t)
	owner := session(t, url)
	exec(t, owner, "CREATE TABLE effect (id bigserial, job_name text, window_start timestamptz, execution_id uuid)")
	var current, takeovers, fenced atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var g sync.WaitGroup
	for k := range guards {
		l := open(t, url)
		c := session(t, url)
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(k)))
			for current.Load() < windows && ctx.Err() == nil {
				n := current.Load()
				a := claim.Attempt{Window: window.Window{JobName: fmt.Sprintf("stress/%d", n%2), Start: noon.Add(time.Duration(n) * time.Minute)}, ExecutionID: uuid.New()}
				r := request(a)
				r.Lease = 60 * time.Millisecond
				got, err := l.Claim(ctx, r)
				switch {
				case err != nil:
					t.Error(err)
					return
				case got.Verdict == claim.Skip:
					current.CompareAndSwap(n, n+1)
					continue
				case got.Verdict == claim.Wait:
					time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
					continue
				case got.Reason == claim.Takeover:
					takeovers.Add(1)
				}
				if rnd.IntN(6) == 0 {
					if _, err := l.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed}); err != nil {
						t.Error(err)
					}
					continue
				}
				if c.IsClosed() { // the server ended a transaction that idled too long
					if c, err = pgx.Connect(ctx, url); err != nil {
						t.Error(err)
						return
					}
				}
				err = business(ctx, c, a, k%3 == 0, rnd)
				if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "OG001" || pg.Code == "OG002") {
					fenced.Add(1)
				} else if ok && pg.Code != "25P03" {
					t.Errorf("%v", err)
				}
				if rnd.IntN(4) == 0 {
					if _, err := l.Resolve(ctx, a, uuid.New()); err != nil {
						t.Error(err)
					}
				}
			}
			_ = c.Close(context.Background())
		})
	}
	g.Wait()
	t.Logf("%d takeovers, %d stale commits refused", takeovers.Load(), fenced.Load())
	if current.Load() < windows {
		t.Fatalf("%d of %d windows completed", current.Load(), windows)
	}
	for what, query := range map[string]string{
		"windows with two effects": "SELECT count(*) FROM (SELECT FROM effect GROUP BY job_name, window_start HAVING count(*) > 1) x",
		"effects of another attempt than the completing one": `SELECT count(*) FROM effect f LEFT JOIN onceguard.job_execution e
			ON e.job_name = f.job_name AND e.window_start = f.window_start AND e.status = 'completed' AND e.execution_id = f.execution_id WHERE e.job_name IS NULL`,
		"completed windows without effect": `SELECT count(*) FROM onceguard.job_execution e LEFT JOIN effect f USING (job_name, window_start)
			WHERE e.status = 'completed' AND f.id IS NULL`,
		"armed rows left": "SELECT count(*) FROM onceguard.armed",
	} {
		if n := value[int](t, owner, query); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	if done := value[int64](t, owner, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed'"); done < windows {
		t.Errorf("%d completed rows for %d windows", done, windows)
	}
}

// business is one transaction; a slow one is busy beyond its lease.
func business(ctx context.Context, c *pgx.Conn, a claim.Attempt, slow bool, rnd *rand.Rand) error {
	args := []any{a.Window.JobName, a.Window.Start, a.ExecutionID.String()}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, "SELECT onceguard.begin($1, $2, $3)", args...); err != nil {
		return err
	}
	if slow && rnd.IntN(2) == 0 {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.07)"); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, "INSERT INTO effect (job_name, window_start, execution_id) VALUES ($1, $2, $3)", args...); err != nil {
		return err
	}
	if slow && rnd.IntN(2) == 0 {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.07)"); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, completeSQL, args...); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
