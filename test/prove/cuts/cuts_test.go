package cuts_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
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
	// atMost is how often cuts are made that must show something. Each of them shows it by
	// itself: the place of the cut decides. More than once is for what a busy machine hides.
	atMost = 20
)

// cut is one trial: an operation, and where it is broken and how.
type cut struct {
	op    operation
	at    pgproxy.Message
	fault pgproxy.Fault
}

func (c cut) String() string { return fmt.Sprintf("%s, %s %q", c.op.name, c.fault, c.at) }

// silent says whether the client must give up by itself.
func silent(k pgproxy.Kind) bool {
	return k == pgproxy.Silence || k == pgproxy.CutServer || k == pgproxy.Delay
}

// cuts are the trials at one message. In the short form both sides are cut off at every
// message once, before or after it; the other faults happen at some.
//
// patient: the client would wait long for an answer.
func cuts(op operation, m pgproxy.Message, patient bool, random *rand.Rand) (all []cut) {
	side := random.IntN(2) == 0
	for _, k := range []pgproxy.Kind{pgproxy.Cut, pgproxy.CutClient, pgproxy.CutServer, pgproxy.Silence, pgproxy.Delay} {
		for _, after := range []bool{false, true} {
			some := random.IntN(40) == 0 && !(silent(k) && patient)
			if prove.Long() || k == pgproxy.Cut && after == side || k != pgproxy.Cut && some {
				all = append(all, cut{op, m, pgproxy.Fault{Kind: k, After: after}})
			}
		}
	}
	return all
}

// record gives the messages of an undisturbed operation, and demands that they are the
// same twice in a row: a question that a busy machine has answered late is asked again.
func record(t *testing.T, w *worker, op operation) []pgproxy.Message {
	t.Helper()
	var last []pgproxy.Message
	for range 10 {
		seen, _, err := w.trial(t.Context(), op, nil, false)
		if err != nil {
			t.Fatalf("%s, undisturbed: %v", op.name, err)
		}
		// Both directions of a connection pass side by side.
		slices.SortStableFunc(seen, func(a, b pgproxy.Message) int {
			return cmp.Or(a.Conn-b.Conn, strings.Compare(string(a.Direction), string(b.Direction)), a.Index-b.Index)
		})
		if slices.Equal(last, seen) {
			return seen
		}
		last = seen
	}
	t.Fatalf("%s: the messages differ from run to run, the last were\n%v", op.name, last)
	return nil
}

func crew(t *testing.T, sslmode string) []*worker {
	t.Helper()
	owner := bed(t)
	var all []*worker
	for n := range parallel {
		all = append(all, newWorker(t, owner, n, sslmode))
	}
	return all
}

// A connection is cut at every message of every operation. Each cut must have been
// reached, and no answer may be untrue.
func TestProveCutAtEveryMessage(t *testing.T) {
	workers := crew(t, "disable")
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
	reached, violations := try(t, workers, tasks)
	prove.Report(t, "a connection that breaks at any protocol message fools nobody",
		"%d operations with %d messages, %d cuts, %d of the client only, %d of the server only, %d silences, %d delays, %d of %d reached, %d violations",
		len(operations), boundaries, reached[pgproxy.Cut], reached[pgproxy.CutClient], reached[pgproxy.CutServer], reached[pgproxy.Silence], reached[pgproxy.Delay],
		sum(reached), len(tasks), violations)
}

func sum(reached map[pgproxy.Kind]int) (n int) {
	for _, k := range reached {
		n += k
	}
	return n
}

// try makes the trials, and counts by kind those whose fault was reached.
func try(t *testing.T, workers []*worker, tasks []cut) (reached map[pgproxy.Kind]int, violations int) {
	t.Helper()
	var mu sync.Mutex
	reached = map[pgproxy.Kind]int{}
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
	return reached, violations
}

// Inside TLS it is the same, and the connection may break in its first exchange too.
func TestProveCutInsideTLS(t *testing.T) {
	workers := crew(t, "require")
	var tasks []cut
	for _, op := range operations {
		if !prove.Long() && op.name != "claim, connecting" {
			continue
		}
		for _, m := range record(t, workers[0], op) {
			for _, k := range []pgproxy.Kind{pgproxy.Cut, pgproxy.CutClient} {
				tasks = append(tasks, cut{op, m, pgproxy.Fault{Kind: k}})
			}
		}
	}
	reached, violations := try(t, workers, tasks)
	prove.Report(t, "nor does one inside TLS", "%d of %d cuts reached, %d violations", sum(reached), len(tasks), violations)
}

// The repeated question is cut as well, up to three times, wherever it is then.
func TestProveCutsInARow(t *testing.T) {
	workers := crew(t, "disable")
	random := rand.New(rand.NewPCG(prove.Seed(t), 1))
	sequences := make([][]pgproxy.Message, len(operations))
	for i, op := range operations {
		sequences[i] = record(t, workers[0], op)
	}
	type row struct {
		op     operation
		first  pgproxy.Message
		faults []pgproxy.Fault
		gaps   []int // messages between a fault and the next
	}
	draw := func() row {
		n := random.IntN(len(operations))
		r := row{op: operations[n], first: sequences[n][random.IntN(len(sequences[n]))]}
		for range 2 + random.IntN(2) {
			kind := []pgproxy.Kind{pgproxy.Cut, pgproxy.CutClient}[random.IntN(2)]
			r.faults = append(r.faults, pgproxy.Fault{Kind: kind, After: random.IntN(2) == 0})
			r.gaps = append(r.gaps, 1+random.IntN(60))
		}
		return r
	}
	var mu sync.Mutex
	happened, violations := map[int]int{}, 0
	trial := func(w *worker, r row) {
		_, fired, err := w.trial(t.Context(), r.op, inARow(r.first.Point, r.faults, r.gaps), false)
		mu.Lock()
		defer mu.Unlock()
		happened[len(fired)]++
		if err != nil {
			violations++
			t.Errorf("%s, %v at %q, after %v messages: %v; fired %q", r.op.name, r.faults, r.first, r.gaps, err, fired)
		}
	}
	trials := 0
	// Of a hundred some forty are cut twice and some thirty three times.
	for trials == 0 || trials < 1000 && violations == 0 && (happened[2] == 0 || happened[3] == 0) {
		tasks := make([]row, prove.Times(80, 2000))
		for i := range tasks {
			tasks[i] = draw()
		}
		each(workers, tasks, trial)
		trials += len(tasks)
	}
	if happened[2] == 0 || happened[3] == 0 {
		t.Errorf("cuts in a row: %v", happened)
	}
	prove.Report(t, "nor does one that breaks again while it is asked what happened",
		"%d trials, %d with two cuts, %d with three, %d violations", trials, happened[2], happened[3], violations)
}

// inARow is the rule of the first fault at a point and each other one so many messages
// after the one before.
func inARow(first pgproxy.Point, faults []pgproxy.Fault, gaps []int) pgproxy.Rule {
	next, left := 0, 0
	return func(m pgproxy.Message) pgproxy.Fault {
		left--
		if next == len(faults) || next == 0 && m.Point != first || next > 0 && left > 0 {
			return pgproxy.Fault{}
		}
		left = gaps[next]
		next++
		return faults[next-1]
	}
}
