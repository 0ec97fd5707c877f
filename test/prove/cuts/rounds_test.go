package cuts_test

import (
	"testing"

	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

// Over a connection that is open, each question to the ledger is one round trip and a
// commit is two: see pgproxy.RoundTrips for what is counted. A third one fails here.
func TestProveRoundTrips(t *testing.T) {
	w := newWorker(t, bed(t), 0)
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
	if counted != len(want) {
		t.Errorf("only %d of %d operations were counted", counted, len(want))
	}
	prove.Report(t, "claim and heartbeat take one round trip, a commit two",
		"%d operations of the ledger counted, connecting not counted", counted)
}
