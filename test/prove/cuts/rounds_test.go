package cuts_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

// Over a connection that is open, each question to the ledger is one round trip and a
// commit is two: see pgproxy.RoundTrips for what is counted. A third one fails here.
func TestProveRoundTrips(t *testing.T) {
	w := newWorker(t, bed(t), 0, "disable")
	want := map[string]int{
		"claim": 1, "claim, connecting": 1, "heartbeat": 1, "complete": 1, "release": 1,
		"resolve of a commit": 1, "resolve of none": 1, "record_skip": 1, "commit": 2,
	}
	counted := 0
	for _, op := range operations {
		most, gate := want[op.name]
		if !gate {
			continue
		}
		counted++
		seen := record(t, w, op)
		got, connections := pgproxy.RoundTrips(seen), seen[len(seen)-1].Conn+1
		if got > most || connections != 1 {
			t.Errorf("%s: %d round trips over %d connections, want %d over 1:\n%v", op.name, got, connections, most, seen)
		}
	}
	single(t, w)
	if counted != len(want) {
		t.Errorf("only %d of %d operations were counted", counted, len(want))
	}
	prove.Report(t, "claim, heartbeat, begin and complete take one round trip, a commit two",
		"%d operations of the ledger counted, connecting not counted", counted)
}

// single counts the calls that a driver of the worker's own makes one by one.
func single(t *testing.T, w *worker) {
	t.Helper()
	ctx := t.Context()
	a, err := w.claimed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgconn.Connect(ctx, w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	for _, s := range []struct {
		sql  string
		args [][]byte
	}{
		{ledger.Isolation, nil},
		{ledger.BeginSQL, ledger.BeginArgs(a)},
		{ledger.CompleteSQL, ledger.CompleteArgs(a, claim.Completion{})},
		{"COMMIT", nil},
	} {
		w.proxy.Watch(nil)
		if err := c.ExecParams(ctx, s.sql, s.args, nil, nil, nil).Read().Err; err != nil {
			t.Fatal(err)
		}
		if n := pgproxy.RoundTrips(w.proxy.Seen()); n != 1 {
			t.Errorf("%s: %d round trips", s.sql, n)
		}
	}
	if err := w.completed(ctx, a, 1, 0); err != nil {
		t.Error(err)
	}
}
