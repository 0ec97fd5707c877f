package cuts_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

// parallel is how many workers make trials at the same time.
const parallel = 12

// cut is one trial: an operation, and where it is broken and how.
type cut struct {
	op    operation
	at    pgproxy.Message
	fault pgproxy.Fault
}

func (c cut) String() string { return fmt.Sprintf("%s, %s %q", c.op.name, c.fault, c.at) }

// kinds are the faults at every message; before and after it.
func kinds() []pgproxy.Kind {
	return []pgproxy.Kind{pgproxy.Cut, pgproxy.Silence}
}

func silent(k pgproxy.Kind) bool { return k != pgproxy.Cut }

func TestProveCutAtEveryMessage(t *testing.T) {
	ctx := t.Context()
	owner := bed(t)
	var workers []*worker
	for n := range parallel {
		workers = append(workers, newWorker(t, owner, n))
	}
	var tasks []cut
	boundaries := 0
	for _, op := range operations {
		seen, _, err := workers[0].trial(ctx, op, nil, false)
		if err != nil {
			t.Fatalf("%s, undisturbed: %v", op.name, err)
		}
		again, _, err := workers[0].trial(ctx, op, nil, false)
		if err != nil {
			t.Fatalf("%s, undisturbed: %v", op.name, err)
		}
		if a, b := byConnection(seen), byConnection(again); !slices.Equal(a, b) {
			t.Fatalf("%s: the messages differ between two runs:\n%v\n%v", op.name, a, b)
		}
		boundaries += len(seen)
		for _, m := range seen {
			for _, k := range kinds() {
				if silent(k) && op.stubborn != nil && op.stubborn(m) {
					continue
				}
				if !silent(k) || prove.Long() { // "before" is nearly "after" the one before
					tasks = append(tasks, cut{op, m, pgproxy.Fault{Kind: k}})
				}
				tasks = append(tasks, cut{op, m, pgproxy.Fault{Kind: k, After: true}})
			}
		}
	}
	var mu sync.Mutex
	reached := map[string]bool{}
	violations := 0
	each(workers, tasks, func(w *worker, c cut) {
		mu.Lock()
		enough := violations > 10
		mu.Unlock()
		if enough {
			return
		}
		_, fired, err := w.trial(ctx, c.op, pgproxy.At(c.at.Point, c.fault), silent(c.fault.Kind))
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			violations++
			t.Errorf("%s: %v", c, err)
		}
		if slices.Contains(fired, c.at) {
			reached[c.String()] = true
		} else if err == nil {
			t.Errorf("%s: not reached: %v", c, fired)
		}
	})
	prove.Report(t, "a connection cut at any protocol message fools nobody",
		"%d operations with %d messages, %d of %d cuts reached, %d violations", len(operations), boundaries, len(reached), len(tasks), violations)
}

// byConnection sorts what came by so that it can be compared: both directions of a
// connection pass side by side.
func byConnection(seen []pgproxy.Message) []string {
	var all []string
	for _, m := range seen {
		all = append(all, m.String())
	}
	slices.Sort(all)
	return all
}
