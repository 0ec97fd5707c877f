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
	"strings"
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

// Report says in one line what a claim was tested with; counts is a format. It is also
// appended to the file that ONCEGUARD_PROVE_REPORT names. A test that failed reports so.
func Report(t testing.TB, claim, counts string, args ...any) {
	t.Helper()
	n, _ := seed()
	word := "holds"
	if t.Failed() {
		word = "FAILS"
	}
	line := fmt.Sprintf("%s  %s: %s (seed %d)", word, claim, fmt.Sprintf(counts, args...), n)
	t.Log(line)
	path := os.Getenv("ONCEGUARD_PROVE_REPORT")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(strings.ReplaceAll(line, "\n", " ") + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		t.Fatal(err)
	}
}
