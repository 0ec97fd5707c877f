package cuts_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

const (
	// parallel is how many workers make trials at the same time.
	parallel = 12
	// tooMany violations end a proof.
	tooMany = 10
)

// cut is one trial: an operation, and where it is broken and how.
type cut struct {
	op    operation
	at    pgproxy.Message
	fault pgproxy.Fault
}

func (c cut) String() string { return fmt.Sprintf("%s, %s %q", c.op.name, c.fault, c.at) }

// silent says whether the client must give up by itself.
func silent(k pgproxy.Kind) bool { return k == pgproxy.Silence || k == pgproxy.CutServer }

// cuts are the trials at one message. In the short form the ends of both sides are cut
// before and after every message, and the other faults happen at one message in eight.
//
// patient: the client would wait long for an answer.
func cuts(op operation, m pgproxy.Message, patient bool, random *rand.Rand) (all []cut) {
	for _, k := range []pgproxy.Kind{pgproxy.Cut, pgproxy.CutClient, pgproxy.CutServer, pgproxy.Silence} {
		for _, after := range []bool{false, true} {
			if k == pgproxy.Cut || prove.Long() || random.IntN(16) == 0 && !(silent(k) && patient) {
				all = append(all, cut{op, m, pgproxy.Fault{Kind: k, After: after}})
			}
		}
	}
	return all
}

// record gives the messages of an undisturbed operation, and demands that they are always
// the same.
func record(t *testing.T, w *worker, op operation) []pgproxy.Message {
	t.Helper()
	var runs [2][]pgproxy.Message
	for i := range runs {
		seen, _, err := w.trial(t.Context(), op, nil, false)
		if err != nil {
			t.Fatalf("%s, undisturbed: %v", op.name, err)
		}
		// Both directions of a connection pass side by side.
		slices.SortStableFunc(seen, func(a, b pgproxy.Message) int {
			return cmp.Or(a.Conn-b.Conn, strings.Compare(string(a.Direction), string(b.Direction)), a.Index-b.Index)
		})
		runs[i] = seen
	}
	if !slices.Equal(runs[0], runs[1]) {
		t.Fatalf("%s: the messages differ between two runs:\n%v\n%v", op.name, runs[0], runs[1])
	}
	return runs[0]
}

func crew(t *testing.T, option ...func(*url.URL)) []*worker {
	t.Helper()
	owner := bed(t)
	var all []*worker
	for n := range parallel {
		all = append(all, newWorker(t, owner, n, option...))
	}
	return all
}

// A connection is cut at every message of every operation. Each cut must have been
// reached, and no answer may be untrue.
func TestProveCutAtEveryMessage(t *testing.T) {
	workers := crew(t)
	random := rand.New(rand.NewPCG(prove.Seed(t), 0))
	var tasks []cut
	boundaries := 0
	for _, op := range operations {
		seen := record(t, workers[0], op)
		boundaries += len(seen)
		for _, m := range seen {
			tasks = append(tasks, cuts(op, m, op.patient(seen, m), random)...)
		}
	}
	var mu sync.Mutex
	reached, violations := map[pgproxy.Kind]int{}, 0
	each(workers, tasks, func(w *worker, c cut) {
		mu.Lock()
		enough := violations >= tooMany
		mu.Unlock()
		if enough {
			return
		}
		_, fired, err := w.trial(t.Context(), c.op, pgproxy.At(c.at.Point, c.fault), silent(c.fault.Kind))
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			violations++
			t.Errorf("%s: %v", c, err)
		case !slices.Contains(fired, c.at):
			t.Errorf("%s: not reached: %v", c, fired)
		default:
			reached[c.fault.Kind]++
		}
	})
	prove.Report(t, "a connection that breaks at any protocol message fools nobody",
		"%d operations with %d messages, %d cuts, %d of the client only, %d of the server only, %d silences, all of %d reached, %d violations",
		len(operations), boundaries, reached[pgproxy.Cut], reached[pgproxy.CutClient], reached[pgproxy.CutServer], reached[pgproxy.Silence], len(tasks), violations)
}
