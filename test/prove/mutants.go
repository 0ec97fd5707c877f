package prove

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
)

// Mutant is a bug that somebody could write: the test's package with one place changed.
type Mutant struct{ Name, File, Was, Is string }

// Notices runs the proof, a test of the package under test, against mutants of that package,
// each of which must make it fail with the word broken: a proof that sees no bug proves
// nothing. In the short form some are tried; it gives how many. env is added for the proof.
func Notices(t *testing.T, proof, broken string, mutants []Mutant, env ...string) (tried int) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the package again for each mutant")
	}
	seed := Seed(t)
	chosen := slices.Clone(mutants)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:Times(2, len(mutants))]
	for _, m := range chosen {
		t.Run(m.Name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay(t, m), "-count=1", "-vet=off", "-short", "-run", "^"+proof+"$", ".")
			cmd.Env = slices.Concat(os.Environ(), []string{"ONCEGUARD_SEED=" + strconv.FormatUint(seed, 10)}, env)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Error("nothing found it")
			} else if !strings.Contains(string(out), broken) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	return len(chosen)
}

// overlay writes a mutant, and gives the file that puts it in the place of its source.
func overlay(t *testing.T, m Mutant) string {
	t.Helper()
	source, err := os.ReadFile(m.File)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), m.Was) != 1 {
		t.Fatalf("%s does not have %q once; say what has to be changed now", m.File, m.Was)
	}
	name, err := filepath.Abs(m.File)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mutant, list := filepath.Join(dir, m.File), filepath.Join(dir, "overlay")
	places, err := json.Marshal(map[string]any{"Replace": map[string]string{name: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{mutant: []byte(strings.Replace(string(source), m.Was, m.Is, 1)), list: places} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return list
}
