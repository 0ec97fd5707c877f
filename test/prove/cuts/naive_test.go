package cuts_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

// naive is a worker without a fence: effect and a row that says "done" in one
// transaction, done again when an error came back.
type naive struct {
	w    *worker
	conn *pgx.Conn
	a    claim.Attempt
	// resend: after an error at COMMIT only COMMIT is sent again, over a new connection.
	resend bool
	sent   bool
}

func (n *naive) ask(ctx context.Context) (bool, error) {
	if n.conn.IsClosed() {
		c, err := pgx.Connect(ctx, n.w.url)
		if err != nil {
			return false, nil //nolint:nilerr // it asks again
		}
		n.conn = c
	}
	job, at := n.a.Window.JobName, n.a.Window.Start
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{sql: "BEGIN"},
		{`INSERT INTO effect VALUES ($1, $2, 1)`, []any{job, at}},
		{`INSERT INTO naive VALUES ($1, $2, true) ON CONFLICT (job, at) DO UPDATE SET done = true`, []any{job, at}},
		{sql: "COMMIT"},
	} {
		commit := s.sql == "COMMIT"
		if n.resend && n.sent && !commit {
			continue
		}
		n.sent = n.sent || commit
		if _, err := n.conn.Exec(ctx, s.sql, s.args...); err != nil {
			_ = n.conn.Close(ctx)
			return false, nil //nolint:nilerr // it asks again
		}
	}
	return true, nil
}

// naively is a naive worker as an operation; effects takes down how many there are when
// it believes to be done.
func naively(resend bool, effects func(int)) operation {
	return operation{name: "naive", warm: 1, prepare: func(ctx context.Context, w *worker) (client, error) {
		c, err := pgx.Connect(ctx, w.url)
		n := &naive{w: w, conn: c, a: w.fresh(), resend: resend}
		return client{
			ask:   n.ask,
			holds: always,
			done: func(ctx context.Context) error {
				r, err := w.row(ctx, n.a)
				effects(r.effects)
				_ = n.conn.Close(ctx)
				return err
			},
		}, err
	}}
}

// The power of the proof: without the fence the very same cuts show effects twice when
// the transaction is tried again, and none when COMMIT is.
func TestProveCutsFindNaiveClients(t *testing.T) {
	workers := crew(t, "disable")
	for _, c := range []struct {
		name   string
		resend bool
	}{{"retry on error", false}, {"COMMIT sent again", true}} {
		var mu sync.Mutex
		found := map[int]int{} // trials by how often their effect is there
		op := naively(c.resend, func(n int) {
			mu.Lock()
			defer mu.Unlock()
			found[n]++
		})
		var tasks []cut
		for _, m := range record(t, workers[0], op) {
			tasks = append(tasks, cut{op, m, pgproxy.Fault{Kind: pgproxy.Cut}}, cut{op, m, pgproxy.Fault{Kind: pgproxy.Cut, After: true}})
		}
		harm, made := 2, 0
		if c.resend {
			harm = 0
		}
		// A cut behind COMMIT, or before it, does harm every time.
		for made < atMost*len(tasks) && found[harm] == 0 && !t.Failed() {
			each(workers, tasks, func(w *worker, k cut) {
				if _, _, err := w.trial(t.Context(), op, pgproxy.At(k.at.Point, k.fault), false); err != nil {
					t.Errorf("%s: %v", k, err)
				}
			})
			made += len(tasks)
		}
		if found[harm] == 0 {
			t.Errorf("%s: effects by how often they are there: %v; the proof is blind", c.name, found)
		}
		prove.Report(t, "the same cuts show what a client without the fence does ("+c.name+")",
			"%d cuts: %d times the effect is there twice, %d times never though success was reported", made, found[2], found[0])
	}
}

// reader finds out by reading what became of a COMMIT, instead of fencing it.
type reader struct {
	*ledger.Ledger
	release func()
}

func (r reader) Resolve(ctx context.Context, a claim.Attempt, _ uuid.UUID) (claim.Resolution, error) {
	defer r.release()
	s, err := r.Stored(ctx, a.Window)
	switch {
	case err != nil:
		return "", err
	case s.Status == claim.Completed && s.ExecutionID == a.ExecutionID:
		return claim.ResolvedCommitted, nil
	}
	return claim.ResolvedNotCommitted, nil
}

// The same for the answers: a commit that is looked up instead of resolved is denied, and
// there afterwards, when COMMIT reaches the server late.
func TestProveCutsFindAReader(t *testing.T) {
	workers := crew(t, "disable")
	op := operation{name: "commit, read", own: true, prepare: func(ctx context.Context, w *worker) (client, error) {
		s, err := newAskerOf(ctx, w, reader{w.ledger, w.proxy.Release})
		if err != nil {
			return client{}, err
		}
		return s.oneShot(closing)
	}}
	var tasks []cut
	for _, m := range record(t, workers[0], op) {
		tasks = append(tasks, cut{op, m, pgproxy.Fault{Kind: pgproxy.CutClient}})
	}
	var mu sync.Mutex
	found, made := 0, 0
	// COMMIT reaches the server after the look, always: the proxy keeps it until then.
	for ; found == 0 && made < atMost*len(tasks); made += len(tasks) {
		each(workers, tasks, func(w *worker, c cut) {
			_, _, err := w.trial(t.Context(), op, pgproxy.At(c.at.Point, c.fault), false)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				return
			}
			found++
			t.Logf("found: %s: %v", c, err)
		})
	}
	if found == 0 {
		t.Error("the proof is blind")
	}
	prove.Report(t, "the same cuts show what reading instead of resolving does", "%d cuts, %d untrue answers", made, found)
}
