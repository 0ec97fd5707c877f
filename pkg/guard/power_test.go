package guard

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onceguard/onceguard/test/prove"
)

// mutants are bugs that somebody could write: each breaks one promise.
var mutants = []struct{ name, file, was, is string }{
	{
		"trust is counted from the answer, not from the question", "hold.go",
		"m.trust = sent.Add(", "m.trust = m.now.Add(",
	},
	{
		"workers are stopped when the trust ends, not a grace earlier", "hold.go",
		"return m.trust.Add(-m.conf.grace())", "return m.trust",
	},
	{
		"a heartbeat that finds the lease lost renews it", "hold.go",
		"case e.Trouble != nil || e.Beat == claim.BeatLost:", "case e.Trouble != nil:",
	},
	{
		"who lost the window asks for it at once, while its workers run", "hold.go",
		"m.stopAll(m.say(TextLost, m.conf.Window), m.graceLeft(), false, nil)", "m.acquire()",
	},
	{
		"the workers end before the completion is written", "hold.go",
		"m.settle(Ending{Complete: true})", "m.ackAll()\n\tm.settle(Ending{Complete: true})",
	},
	{
		"a failure is written while other workers run", "hold.go",
		"if m.anyLive() {\n\t\t// The lease is kept", "if false {\n\t\t// The lease is kept",
	},
	{
		"a worker's failure is overlooked", "hold.go",
		"case r.Code != 0 && name == \"\":", "case r.Code < 0 && name == \"\":",
	},
	{
		"exit 0 completes a window that only a transaction may complete", "hold.go",
		"if m.conf.Completion == contract.CompletionTransaction {", "if false {",
	},
	{
		"exit 0 stands though it could not be recorded", "settle.go",
		"r.Ack, r.Said = code, why", "r.Said = why",
	},
	{
		"what is saved is written after what relies on it", "machine.go",
		"m.out = slices.Insert(m.out, 0, Effect(Save{}))", "m.out = append(m.out, Effect(Save{}))",
	},
	{
		"a connection that broke is no crash", "machine.go",
		"delete(m.conns, e.Conn)\n\tif p.live() {", "delete(m.conns, e.Conn)\n\tif false {",
	},
	{
		"a process that has not come back is taken for dead at once", "due.go",
		"if m.now.Before(m.expectBy) {\n\t\treturn", "if false {\n\t\treturn",
	},
}

// The histories must find each of these: a simulation that sees no bug proves nothing. A
// mutant is the package with one line changed; in the short form some are tried.
func TestProveRandomHistoriesHavePower(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the package again for each mutant")
	}
	seed := prove.Seed(t)
	chosen := slices.Clone(mutants)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:prove.Times(2, len(mutants))]
	for _, m := range chosen {
		t.Run(m.name, func(t *testing.T) {
			source, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(source), m.was) != 1 {
				t.Fatalf("%s does not have %q once; say what has to be changed now", m.file, m.was)
			}
			dir := t.TempDir()
			name, err := filepath.Abs(m.file)
			if err != nil {
				t.Fatal(err)
			}
			mutant := filepath.Join(dir, m.file)
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{name: mutant}})
			if err != nil {
				t.Fatal(err)
			}
			for file, content := range map[string][]byte{mutant: []byte(strings.Replace(string(source), m.was, m.is, 1)), filepath.Join(dir, "overlay"): overlay} {
				if err := os.WriteFile(file, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", filepath.Join(dir, "overlay"), "-count=1", "-vet=off", "-short", "-run", "^TestProveRandomHistories$", ".")
			cmd.Env = append(os.Environ(), "ONCEGUARD_SEED="+strconv.FormatUint(seed, 10), historyVariable+"=")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Error("no history found it")
			} else if !strings.Contains(string(out), brokenPromise) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	prove.Report(t, "random histories find bugs of the guard", "%d of %d mutants tried, each found", len(chosen), len(mutants))
}
