package guard

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
	"github.com/onceguard/onceguard/test/prove"
)

// historyVariable names one history of a run: with ONCEGUARD_SEED it is told again, step
// by step, and no other.
const historyVariable = "ONCEGUARD_HISTORY"

// brokenPromise is said of a history that the guard should not allow.
const brokenPromise = "breaks a promise"

// leastMoves and mostMoves are how much happens in one history. Most of what can go wrong
// needs few events in an unlucky order, so many short histories find more than few long ones.
const leastMoves, mostMoves = 8, 64

// The promises of the package hold in every history, whatever comes in which order.
// Each history is a function of the run's seed and its number.
func TestProveRandomHistories(t *testing.T) {
	seed := prove.Seed(t)
	if s := os.Getenv(historyVariable); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %q is not accepted: give the number of a history", historyVariable, s)
		}
		tell(t, seed, n)
		return
	}
	count := prove.Times(1_000_000, 5_000_000)
	if raceDetector || testing.Short() { // it finds nothing that depends on what it slows down
		count = prove.Times(10_000, 100_000)
	}
	seen, bad := simulate(seed, uint64(count))
	if bad != nil {
		tell(t, seed, *bad)
		t.Fatalf("history %d "+brokenPromise+"; repeat it alone with ONCEGUARD_SEED=%d %s=%d", *bad, seed, historyVariable, *bad)
	}
	for _, must := range mustMeet() {
		if seen[must] == 0 {
			t.Errorf("no history met %s %v: the harness is blind", must.kind, must.what)
		}
	}
	events := 0
	for p, n := range seen {
		if p.kind == "event" {
			events += n
		}
	}
	prove.Report(t, "the guard keeps its promises in random histories", "%d histories, %d events, each of %d kinds of event, fault and answer met", count, events, len(mustMeet()))
}

// A failure can be repeated from its seed only if a history is a function of it.
func TestAHistoryIsAFunctionOfItsSeed(t *testing.T) {
	seed := prove.Seed(t)
	for n := range uint64(50) {
		var told [2][]string
		for i := range told {
			w := newWorld(seed, n, coverage{})
			w.log = func(say string) { told[i] = append(told[i], say) }
			w.live()
		}
		if !slices.Equal(told[0], told[1]) {
			t.Fatalf("history %d went two ways", n)
		}
	}
}

// simulate lets count histories happen on all processors and stops at the first that
// breaks a promise.
func simulate(seed, count uint64) (seen coverage, bad *uint64) {
	// Short-lived garbage of a small heap: collecting it seldom is cheaper.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	var (
		next atomic.Uint64
		mu   sync.Mutex
		wait sync.WaitGroup
	)
	seen = coverage{}
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			met := coverage{}
			for {
				n := next.Add(1) - 1
				if n >= count {
					break
				}
				if newWorld(seed, n, met).live() {
					continue
				}
				next.Store(count) // the others may stop
				mu.Lock()
				if bad == nil || n < *bad {
					bad = &n
				}
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			for p, n := range met {
				seen[p] += n
			}
		})
	}
	wait.Wait()
	return seen, bad
}

// tell repeats one history and says every step of it.
func tell(t *testing.T, seed, n uint64) {
	t.Helper()
	w := newWorld(seed, n, coverage{})
	w.log = func(say string) { t.Log(say) }
	w.thorough = true
	w.live()
	for _, b := range w.broken {
		t.Error(b)
	}
}

// newWorld is a pod of a random kind before its history.
func newWorld(seed, n uint64, seen coverage) *world {
	rnd := rand.New(rand.NewPCG(seed, n))
	conf := testConf()
	conf.RestartInPlace = rnd.IntN(2) == 0
	conf.Busy = []contract.Busy{contract.BusyWait, contract.BusySkip, contract.BusyFail}[rnd.IntN(3)]
	if rnd.IntN(4) == 0 {
		conf.Probed = conf.Containers[:1]
	}
	if rnd.IntN(3) == 0 {
		conf.Completion = contract.CompletionTransaction
	}
	if rnd.IntN(2) == 0 {
		conf.Containers = conf.Containers[:1]
	}
	return &world{rnd: rnd, s: NewState(conf, nil), now: time.Unix(1_800_000_000, 0), procs: map[Conn]*simulated{}, seen: seen, thorough: n%8 == 0}
}

// live lets the history happen and says whether all promises held.
func (w *world) live() bool {
	w.take(Start{})
	for range leastMoves + w.rnd.IntN(1+w.rnd.IntN(mostMoves-leastMoves)) {
		if len(w.broken) > 0 || w.s.Phase == Left {
			break
		}
		w.move()
	}
	return len(w.broken) == 0
}

// told says an event or an effect with what its pointers point to.
func told(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T: %v", v, err)
	}
	return fmt.Sprintf("%T %s", v, b)
}

// errorf notes a broken promise.
func (w *world) errorf(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// coverage counts what happened. A blind harness proves nothing.
type coverage map[point]int

// point is something that can happen: an event, an answer of the ledger, a phase…
type point struct {
	kind string
	what any
}

func (c coverage) met(kind string, what any) { c[point{kind, what}]++ }

// mustMeet is what the histories of one run must have met, all of it.
func mustMeet() []point {
	var all []point
	add := func(kind string, whats ...any) {
		for _, w := range whats {
			all = append(all, point{kind, w})
		}
	}
	for _, e := range []Event{
		Start{},
		Tick{},
		Leave{},
		Hello{},
		Started{},
		Terminating{},
		Exited{},
		Broken{},
		Asked{},
		Beaten{},
		SkipRecorded{},
		Settled{},
		Committed{},
		Fenced{},
		Replacing{},
		Replaced{},
	} {
		add("event", reflect.TypeOf(e))
	}
	for _, e := range []Effect{Save{}, Ask{}, Heartbeat{}, RecordSkip{}, Settle{}, Send{}, Log{}, Quit{}} {
		add("effect", reflect.TypeOf(e))
	}
	add("phase", Idle, Claiming, Skipping, Adopting, Held, Stopping, Settling, Done, Left)
	add("restart in", Idle, Claiming, Skipping, Adopting, Held, Stopping, Settling, Done)
	add("fault", Away, Misset, Gone, Repeated)
	for verdict, all := range reasons {
		for _, reason := range all {
			add("answer", answered{verdict, reason})
		}
	}
	add("beat", claim.BeatOK, claim.BeatCancel, claim.BeatLost)
	add("settle", "complete", "found completed", claim.OutcomeFailed, claim.OutcomeCrashed, claim.OutcomeStopped, claim.OutcomeNotStarted,
		claim.OutcomeCompleted, claim.OutcomeUncommitted)
	add("message", wire.TypeRun, wire.TypeTrust, wire.TypeStop, wire.TypeAck, wire.TypeWait, wire.TypeSkip, wire.TypeRefuse)
	return all
}
