// Package prove is what the proofs of the safety claims share: how long they run, the
// seed that repeats a run, and the one line in which each claim says what it has seen.
//
//	make prove                        the long form of every proof, one line a claim
//	ONCEGUARD_SEED=42 make prove      the same run again
//
// Without ONCEGUARD_PROVE=long the same tests run in a short form.
package prove

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// Long says whether the long form was asked for.
func Long() bool { return os.Getenv("ONCEGUARD_PROVE") == "long" }

// Times gives how often something is done: short in `make test`, long in `make prove`.
func Times(short, long int) int {
	if Long() {
		return long
	}
	return short
}

var seed = sync.OnceValues(func() (uint64, error) {
	if s := os.Getenv("ONCEGUARD_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("ONCEGUARD_SEED: %q is not accepted: give a whole number, like 42", s)
		}
		return n, nil
	}
	return uint64(rand.Uint32()), nil
})

// Seed gives the run's seed, and says it should the test fail.
func Seed(t testing.TB) uint64 {
	t.Helper()
	n, err := seed()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with ONCEGUARD_SEED=%d", n)
		}
	})
	return n
}

// Report says in one line what a claim was tested with; counts is a format. A test that
// failed reports so. test/prove.sh prints these lines.
func Report(t testing.TB, claim, counts string, args ...any) {
	t.Helper()
	n, _ := seed()
	word := "holds"
	if t.Failed() {
		word = "FAILS"
	}
	t.Logf("%s  %s: %s (seed %d)", word, claim, fmt.Sprintf(counts, args...), n)
}
