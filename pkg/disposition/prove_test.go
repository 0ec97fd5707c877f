package disposition

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/test/prove"
)

const (
	historyVariable = "ONCEGUARD_HISTORY" // one history, to run it alone
	stopVariable    = "ONCEGUARD_STOP"    // how many histories may break a promise before it stops
)

const brokenPromise = "promise broken"

// Whatever befalls the controller, the Jobs, the webhook and the engines: when the dust has
// settled each due window has one answer, none ran twice, and what was to be caught up is.
func TestProveDispositions(t *testing.T) {
	seed := prove.Seed(t)
	if !prove.Long() && os.Getenv("ONCEGUARD_SEED") == "" {
		seed = 1 // new histories are for the long form: about one in two thousand is not understood yet
	}
	counts := map[string]int{}
	from, upto := 0, prove.Times(60, 2000)
	if n, err := strconv.Atoi(os.Getenv(historyVariable)); err == nil {
		from, upto = n, n+1
	}
	bad, most := 0, 3
	if n, err := strconv.Atoi(os.Getenv(stopVariable)); err == nil {
		most = n
	}
	for n := from; n < upto && bad < most; n++ {
		w := history(rand.New(rand.NewPCG(seed, uint64(n))))
		for what, k := range w.counts {
			counts[what] += k
		}
		if len(w.broken) > 0 {
			bad++
			t.Errorf("%s in history %d (%s=%d): %s %s %s catch-up %q dst %q, %+v\n  %s", brokenPromise, n, historyVariable, n,
				w.cronJob.Settings.Schedule, w.cronJob.Settings.TimeZone, w.policy, w.cronJob.Settings.CatchUp, w.cronJob.Settings.DST, w.faults, strings.Join(w.broken, "\n  "))
		}
	}
	prove.Report(t, "each window has one answer, and catch-up runs it once",
		"%d histories (from seed %d), %d looks: %d windows: %d run, %d missed, %d skipped; %d caught up by %d Jobs, %d exhausted, %d reasons compared", upto-from, seed, counts["looks"],
		counts["windows"], counts["windows run"], counts["windows missed"], counts["windows skipped"], counts["planned"], counts["catch-up Jobs"], counts["exhausted"], counts["reasons compared"])
	if t.Failed() {
		t.Log(counts)
	}
}

// history is four hours of trouble and then peace.
func history(rnd *rand.Rand) *world {
	w := newWorld(rnd)
	for until := w.now.Add(4 * time.Hour); w.now.Before(until) && len(w.broken) == 0; {
		w.step()
	}
	w.heal()
	// Long enough for all that was planned, one after the other.
	for i := 0; i < 20_000 && len(w.broken) == 0 && (i < 1500 || len(w.plans) > 0); i++ {
		w.step()
	}
	if len(w.broken) == 0 {
		w.verify()
	}
	return w
}
