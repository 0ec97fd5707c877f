package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// world is a migrated database with a business table and a claimed window.
type world struct {
	url   string
	owner *pgx.Conn
	l     *ledger.Ledger
	a     claim.Attempt
}

func newWorld(t *testing.T) *world {
	t.Helper()
	url := database(t)
	w := &world{url: url, owner: session(t, url), l: open(t, url), a: attempt("shop/order-sync")}
	exec(t, w.owner, "CREATE TABLE balance (who text, units int)")
	mustRun(t, w.l, w.a, claim.First)
	return w
}

// again empties the world and claims its window anew.
func (w *world) again(t *testing.T) {
	t.Helper()
	empty(t, w.owner)
	exec(t, w.owner, "TRUNCATE balance")
	w.a = attempt("shop/order-sync")
	mustRun(t, w.l, w.a, claim.First)
}

func (w *world) effects(t *testing.T) int {
	t.Helper()
	return value[int](t, w.owner, "SELECT count(*) FROM balance")
}

func (w *world) status(t *testing.T) string {
	t.Helper()
	return value[string](t, w.owner, "SELECT status FROM onceguard.job_execution WHERE job_name = $1 AND window_start = $2", w.a.Window.JobName, w.a.Window.Start)
}

// begin, effect and complete are the steps of a business transaction by hand.
func begin(t *testing.T, c *pgx.Conn, a claim.Attempt) {
	t.Helper()
	exec(t, c, "BEGIN")
	exec(t, c, "SELECT onceguard.begin($1, $2, $3)", a.Window.JobName, a.Window.Start, a.ExecutionID.String())
}

func effect(t *testing.T, c *pgx.Conn, who string) {
	t.Helper()
	exec(t, c, "INSERT INTO balance VALUES ($1, 10)", who)
}

const completeSQL = "SELECT onceguard.complete($1, $2, $3)"

func complete(ctx context.Context, c *pgx.Conn, a claim.Attempt) error {
	_, err := c.Exec(ctx, completeSQL, a.Window.JobName, a.Window.Start, a.ExecutionID.String())
	return err
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != code {
		t.Fatalf("%v; want SQLSTATE %s", err, code)
	}
}

func (w *world) takeover(t *testing.T) claim.Attempt {
	t.Helper()
	age(t, w.owner, w.a)
	b := claim.Attempt{Window: w.a.Window, ExecutionID: attempt("").ExecutionID}
	mustRun(t, w.l, b, claim.Takeover)
	return b
}

func TestBarrier(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	// Each case is a business transaction that went wrong; none may leave an effect, and
	// the window must still be open.
	for name, attack := range map[string]func(t *testing.T, w *world, c *pgx.Conn){
		"forgotten complete": func(t *testing.T, w *world, c *pgx.Conn) {
			begin(t, c, w.a)
			effect(t, c, "a")
			_, err := c.Exec(ctx, "COMMIT")
			wantCode(t, err, "OG006")
		},
		"ROLLBACK AND CHAIN loses begin": func(t *testing.T, w *world, c *pgx.Conn) {
			begin(t, c, w.a)
			effect(t, c, "a")
			exec(t, c, "ROLLBACK AND CHAIN")
			effect(t, c, "b")
			wantCode(t, complete(ctx, c, w.a), "OG006")
			_, _ = c.Exec(ctx, "COMMIT")
		},
		"COMMIT AND CHAIN before complete": func(t *testing.T, w *world, c *pgx.Conn) {
			begin(t, c, w.a)
			effect(t, c, "a")
			_, err := c.Exec(ctx, "COMMIT AND CHAIN")
			wantCode(t, err, "OG006")
		},
		"ROLLBACK inside one pipeline": func(t *testing.T, w *world, c *pgx.Conn) {
			var b pgconn.Batch
			b.ExecParams("BEGIN", nil, nil, nil, nil)
			b.ExecParams(ledger.BeginSQL, ledger.BeginArgs(w.a), nil, nil, nil)
			b.ExecParams("INSERT INTO balance VALUES ('a', 10)", nil, nil, nil, nil)
			b.ExecParams("ROLLBACK", nil, nil, nil, nil)
			b.ExecParams("INSERT INTO balance VALUES ('b', 10)", nil, nil, nil, nil)
			b.ExecParams(ledger.CompleteSQL, ledger.CompleteArgs(w.a, claim.Completion{}), nil, nil, nil)
			b.ExecParams("COMMIT", nil, nil, nil, nil)
			_, err := c.PgConn().ExecBatch(ctx, &b).ReadAll()
			wantCode(t, err, "OG006")
		},
		"second transaction of the same attempt": func(t *testing.T, w *world, c *pgx.Conn) {
			// The first one completes honestly; its effect is taken out of the count.
			begin(t, c, w.a)
			d := session(t, w.url)
			begin(t, d, w.a)
			if err := complete(ctx, d, w.a); err != nil {
				t.Fatal(err)
			}
			exec(t, d, "COMMIT")
			effect(t, c, "a")
			_, err := c.Exec(ctx, "COMMIT")
			wantCode(t, err, "OG006")
			exec(t, w.owner, "UPDATE onceguard.job_execution SET status = 'running', completed_at = NULL")
		},
		"zombie swallows the error in a savepoint": func(t *testing.T, w *world, c *pgx.Conn) {
			begin(t, c, w.a)
			effect(t, c, "a")
			w.takeover(t)
			exec(t, c, "SAVEPOINT s")
			wantCode(t, complete(ctx, c, w.a), "OG001")
			exec(t, c, "ROLLBACK TO s")
			_, err := c.Exec(ctx, "COMMIT")
			wantCode(t, err, "OG006")
		},
		"begin undone with its savepoint": func(t *testing.T, w *world, c *pgx.Conn) {
			exec(t, c, "BEGIN")
			exec(t, c, "SAVEPOINT s")
			exec(t, c, "SELECT onceguard.begin($1, $2, $3)", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
			exec(t, c, "ROLLBACK TO s")
			effect(t, c, "a")
			wantCode(t, complete(ctx, c, w.a), "OG006")
			_, _ = c.Exec(ctx, "COMMIT")
		},
		"constraints made immediate before complete": func(t *testing.T, w *world, c *pgx.Conn) {
			begin(t, c, w.a)
			effect(t, c, "a")
			_, err := c.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE")
			wantCode(t, err, "OG006")
			_, _ = c.Exec(ctx, "COMMIT")
		},
		"complete without begin": func(t *testing.T, w *world, c *pgx.Conn) {
			exec(t, c, "BEGIN")
			effect(t, c, "a")
			wantCode(t, complete(ctx, c, w.a), "OG006")
			_, _ = c.Exec(ctx, "COMMIT")
		},
		"complete for another window": func(t *testing.T, w *world, c *pgx.Conn) {
			b := attempt("shop/other")
			mustRun(t, w.l, b, claim.First)
			begin(t, c, b)
			effect(t, c, "a")
			wantCode(t, complete(ctx, c, w.a), "OG006")
			_, _ = c.Exec(ctx, "COMMIT")
		},
		"two begins": func(t *testing.T, w *world, c *pgx.Conn) {
			begin(t, c, w.a)
			effect(t, c, "a")
			_, err := c.Exec(ctx, "SELECT onceguard.begin($1, $2, $3)", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
			wantCode(t, err, "OG006")
			_, _ = c.Exec(ctx, "COMMIT")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.again(t)
			attack(t, w, session(t, w.url))
			if n := w.effects(t); n != 0 {
				t.Fatalf("%d effects were committed", n)
			}
			if s := w.status(t); s != "running" {
				t.Fatalf("the window is %s", s)
			}
			if n := value[int](t, w.owner, "SELECT count(*) FROM onceguard.armed"); n != 0 {
				t.Fatalf("%d armed rows left", n)
			}
		})
	}
}

// The barrier holds for a superuser that calls itself a replica, too.
func TestBarrierIsAlwaysEnabled(t *testing.T) {
	w := newWorld(t)
	exec(t, w.owner, "SELECT onceguard.grant_job('postgres', '*')")
	c := session(t, superURL(t, w.url))
	exec(t, c, "SET session_replication_role = replica")
	begin(t, c, w.a)
	effect(t, c, "a")
	_, err := c.Exec(t.Context(), "COMMIT")
	wantCode(t, err, "OG006")
	if w.effects(t) != 0 {
		t.Fatal("committed")
	}
}

// What is honest must pass: savepoints, complete inside one, immediate constraints
// after complete, a rollback to a savepoint made after it.
func TestBarrierLetsHonestTransactionsPass(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	c := session(t, w.url)
	begin(t, c, w.a)
	exec(t, c, "SAVEPOINT a")
	effect(t, c, "undone")
	exec(t, c, "ROLLBACK TO a")
	effect(t, c, "kept")
	exec(t, c, "SAVEPOINT b")
	if err := complete(ctx, c, w.a); err != nil {
		t.Fatal(err)
	}
	exec(t, c, "RELEASE b")
	exec(t, c, "SAVEPOINT c")
	exec(t, c, "SET CONSTRAINTS ALL IMMEDIATE")
	exec(t, c, "ROLLBACK TO c")
	exec(t, c, "COMMIT")
	if w.effects(t) != 1 || w.status(t) != "completed" {
		t.Fatal(w.effects(t), w.status(t))
	}
}

// The fence is what stops the zombie: with its predicate taken out of complete() the
// same test sees the double effect.
func TestZombie(t *testing.T) {
	run := func(t *testing.T, w *world) (effects int, zombie error) {
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "zombie")
		b := w.takeover(t)
		d := session(t, w.url)
		begin(t, d, b)
		effect(t, d, "heir")
		if err := complete(t.Context(), d, b); err != nil {
			t.Fatal(err)
		}
		exec(t, d, "COMMIT")
		if zombie = complete(t.Context(), c, w.a); zombie == nil {
			_, zombie = c.Exec(t.Context(), "COMMIT")
		}
		return w.effects(t), zombie
	}
	t.Run("fenced", func(t *testing.T) {
		effects, zombie := run(t, newWorld(t))
		wantCode(t, zombie, "OG002")
		if effects != 1 {
			t.Fatalf("%d effects", effects)
		}
	})
	t.Run("without the fence", func(t *testing.T) {
		w := newWorld(t)
		exec(t, w.owner, `DO $do$ BEGIN EXECUTE replace(replace(pg_get_functiondef('onceguard.complete'::regproc),
			'AND t.execution_id = complete.execution_id AND t.status = ''running''', ''), '      ', ' '); END $do$`)
		exec(t, w.owner, `DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('onceguard.barrier'::regproc), 'AND t.execution_id = NEW.execution_id', ''); END $do$`)
		effects, zombie := run(t, w)
		if zombie != nil || effects != 2 {
			t.Fatalf("%v, %d effects: the test would not notice a missing fence", zombie, effects)
		}
	})
	t.Run("without the barrier", func(t *testing.T) {
		w := newWorld(t)
		exec(t, w.owner, "ALTER TABLE onceguard.armed DISABLE TRIGGER barrier")
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "a")
		exec(t, c, "COMMIT")
		if w.effects(t) != 1 {
			t.Fatal("the barrier's tests would not notice a missing barrier")
		}
	})
}
