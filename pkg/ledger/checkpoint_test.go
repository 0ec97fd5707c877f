package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
)

func checkpoint(ctx context.Context, c *pgx.Conn, a claim.Attempt, expected int) error {
	_, err := c.Exec(ctx, "SELECT onceguard.checkpoint($1, $2, $3, $4, '{\"row\": 1}')", a.Window.JobName, a.Window.Start, a.ExecutionID.String(), expected)
	return err
}

// A long job in pieces: each commits with its checkpoint, the next attempt goes on from
// the last one, and the window is completed once.
func TestCheckpointAndResume(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	for seq := range 3 {
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "piece")
		if err := checkpoint(ctx, c, w.a, seq); err != nil {
			t.Fatal(err)
		}
		exec(t, c, "COMMIT")
	}
	b := w.takeover(t)
	s, err := w.l.Stored(ctx, w.a.Window)
	if err != nil || s.Checkpoint.Seq != 3 || string(s.Checkpoint.Data) != `{"row": 1}` || s.Checkpoint.RequestDigest != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if seq, err := w.l.Checkpoint(ctx, b, 3, json.RawMessage(`[4]`), "d4"); err != nil || seq != 4 {
		t.Fatal(seq, err)
	}
	if _, err := w.l.Checkpoint(ctx, b, 3, json.RawMessage(`[4]`), "d4"); !errors.Is(err, ledger.ErrCheckpoint) {
		t.Fatal(err) // a lost answer: the last one's digest tells whose it is
	}
	if s, err := w.l.Stored(ctx, w.a.Window); err != nil || s.Checkpoint.RequestDigest != "d4" || string(s.Checkpoint.Data) != "[4]" {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := w.l.Checkpoint(ctx, w.a, 4, json.RawMessage(`1`), ""); !errors.Is(err, ledger.ErrFenced) {
		t.Fatal(err)
	}
	// The last piece may come with the completion.
	c := session(t, w.url)
	begin(t, c, b)
	effect(t, c, "piece")
	if err := checkpoint(ctx, c, b, 4); err != nil {
		t.Fatal(err)
	}
	if err := complete(ctx, c, b); err != nil {
		t.Fatal(err)
	}
	exec(t, c, "COMMIT")
	if w.effects(t) != 4 || w.status(t) != "completed" {
		t.Fatal(w.effects(t), w.status(t))
	}
	if n := value[int](t, w.owner, "SELECT checkpoint_seq FROM onceguard.windows"); n != 5 {
		t.Fatal(n)
	}
	if _, err := w.l.Checkpoint(ctx, b, 5, json.RawMessage(`1`), ""); !errors.Is(err, ledger.ErrCompleted) {
		t.Fatal(err)
	}
}

// What is no checkpoint is refused, and nothing of its transaction is kept.
func TestCheckpointRefused(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	id := []any{w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String()}
	for name, c := range map[string]struct{ sql, code string }{
		"no data":             {"SELECT onceguard.checkpoint($1, $2, $3, 0, NULL)", "22023"},
		"no number":           {"SELECT onceguard.checkpoint($1, $2, $3, NULL, '1')", "22023"},
		"a number below zero": {"SELECT onceguard.checkpoint($1, $2, $3, -1, '1')", "22023"},
		"too large":           {"SELECT onceguard.checkpoint($1, $2, $3, 0, to_jsonb(repeat('x', 1048576)))", "22023"},
		"a gap":               {"SELECT onceguard.checkpoint($1, $2, $3, 1, '1')", "OG007"},
		"another window":      {"SELECT onceguard.checkpoint($1, $2::timestamptz + interval '1 hour', $3, 0, '1')", "OG006"},
		"after complete":      {"SELECT onceguard.complete($1, $2, $3), onceguard.checkpoint($1, $2, $3, 0, '1')", "OG002"},
	} {
		conn := session(t, w.url)
		begin(t, conn, w.a)
		effect(t, conn, name)
		_, err := conn.Exec(ctx, c.sql, id...)
		t.Log(name, err)
		wantCode(t, err, c.code)
		exec(t, conn, "ROLLBACK")
	}
	c := session(t, w.url)
	wantCode(t, checkpoint(ctx, c, w.a, 0), "OG006") // without begin
	begin(t, c, w.a)
	effect(t, c, "undone")
	exec(t, c, "SAVEPOINT s")
	if err := checkpoint(ctx, c, w.a, 0); err != nil {
		t.Fatal(err)
	}
	exec(t, c, "ROLLBACK TO s")
	_, err := c.Exec(ctx, "COMMIT")
	wantCode(t, err, "OG006")
	if n := w.effects(t); n != 0 {
		t.Fatal(n)
	}
}

// A zombie's piece never commits beside the heir's work: the takeover waits out a commit
// in flight, and a zombie that comes later fails, whatever its snapshot is. With the
// checkpoint only reading the fence the same zombie commits.
func TestCheckpointOfAZombie(t *testing.T) {
	ctx := t.Context()
	t.Run("the takeover waits for a piece that is committing", func(t *testing.T) {
		w := newWorld(t)
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "piece")
		if err := checkpoint(ctx, c, w.a, 0); err != nil {
			t.Fatal(err)
		}
		exec(t, c, "SET CONSTRAINTS ALL IMMEDIATE") // the barrier has judged
		age(t, w.owner, w.a)
		w.asks(t, request(later(w.a, 0)), claim.Wait, claim.Committing)
		exec(t, c, "COMMIT")
		w.asks(t, request(later(w.a, 0)), claim.Run, claim.Takeover)
		if s, err := w.l.Stored(ctx, w.a.Window); err != nil || s.Checkpoint.Seq != 1 {
			t.Fatalf("the heir does not see the piece: %+v, %v", s, err)
		}
	})
	zombie := func(t *testing.T, w *world, isolation string) error {
		c := session(t, w.url)
		exec(t, c, "BEGIN ISOLATION LEVEL "+isolation)
		exec(t, c, ledger.BeginSQL, w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
		effect(t, c, "zombie")
		w.takeover(t)
		if err := checkpoint(ctx, c, w.a, 0); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "COMMIT")
		return err
	}
	for isolation, code := range map[string]string{"READ COMMITTED": "OG001", "REPEATABLE READ": "40001", "SERIALIZABLE": "40001"} {
		t.Run(isolation, func(t *testing.T) {
			w := newWorld(t)
			wantCode(t, zombie(t, w, isolation), code)
			if w.effects(t) != 0 {
				t.Fatal("its piece is kept")
			}
		})
	}
	t.Run("without the change of the row", func(t *testing.T) {
		w := newWorld(t)
		source := value[string](t, w.owner, "SELECT pg_get_functiondef('onceguard.checkpoint'::regproc)")
		from := strings.Index(source, "UPDATE onceguard.job_execution t")
		to := strings.Index(source, "AND t.execution_id = checkpoint.execution_id")
		exec(t, w.owner, source[:from]+`PERFORM FROM onceguard.job_execution t
			WHERE t.job_name = checkpoint.job_name AND t.window_start = checkpoint.window_start `+source[to:])
		mutate(t, w.owner, "barrier", "AND t.done_xid = pg_current_xact_id()", "AND t.status = 'running'")
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "zombie")
		if err := checkpoint(ctx, c, w.a, 0); err != nil {
			t.Fatal(err)
		}
		exec(t, c, "SET CONSTRAINTS ALL IMMEDIATE")
		w.takeover(t)
		if s, err := w.l.Stored(ctx, w.a.Window); err != nil || s.Checkpoint.Seq != 0 {
			t.Fatal(s, err)
		}
		if _, err := c.Exec(ctx, "COMMIT"); err != nil || w.effects(t) != 1 {
			t.Fatalf("%v: the test would not notice a checkpoint that only reads the fence", err)
		}
	})
}

// An unknown COMMIT of a piece: resolve takes the id away, and then the last checkpoint
// says for ever whether it was committed.
func TestResolveOfAPiece(t *testing.T) {
	ctx := t.Context()
	for _, committed := range []bool{true, false} {
		w := newWorld(t)
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "piece")
		if _, err := c.Exec(ctx, "SELECT onceguard.checkpoint($1, $2, $3, 0, '1', 'mine')", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String()); err != nil {
			t.Fatal(err)
		}
		if r, err := w.l.Resolve(ctx, w.a, uuid.New()); err != nil || r != claim.ResolvedPending {
			t.Fatal(r, err)
		}
		want := 0
		if committed {
			exec(t, c, "COMMIT")
			want = 1
		} else {
			exec(t, c, "ROLLBACK")
		}
		if r, err := w.l.Resolve(ctx, w.a, uuid.New()); err != nil || r != claim.ResolvedNotCommitted {
			t.Fatal(r, err)
		}
		s, err := w.l.Stored(ctx, w.a.Window)
		if err != nil || s.Checkpoint.Seq != want || (s.Checkpoint.RequestDigest == "mine") != committed || w.effects(t) != want {
			t.Fatalf("committed %v: %+v, %v", committed, s, err)
		}
		exec(t, c, "BEGIN")
		_, err = c.Exec(ctx, ledger.BeginSQL, w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
		wantCode(t, err, "OG001")
	}
}
