package disposition

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

// mutants are bugs that somebody could write: each breaks one rule of the decision.
var mutants = []struct{ name, file, was, is string }{
	{
		"overlap closes a window at once, though Forbid may start it late", "cause.go",
		"if (w.Before(d.settled) || d.isExpired(w)) &&", "if (w.Before(d.settled) || d.isExpired(w) || g.Reason == Overlap) &&",
	},
	{
		"a window is closed as soon as it is due", "cause.go",
		"if (w.Before(d.settled) || d.isExpired(w)) &&", "if (!w.After(d.settled) || d.isExpired(w)) &&",
	},
	{
		"windows before Since are judged", "decide.go",
		"d.from = latest(v.State.JudgedBefore, d.settings.Since, v.ClosedBefore)", "d.from = latest(v.State.JudgedBefore, v.ClosedBefore)",
	},
	{
		"what a person has planned is planned again", "judge.go",
		"if how == wanted && planned {", "if how == wanted && planned && p.By == \"\" {",
	},
	{
		"a window that ran may be called missed", "judge.go",
		"if _, ran := d.executions[key]; ran {", "if e, ran := d.executions[key]; ran && e.Closed {",
	},
	{
		"a Job is made while the one before is not seen yet", "plan.go",
		"return false, !seen && d.Now.Before(p.MadeAt.Add(Grace))", "return true, false",
	},
	{
		"as many Jobs at a time as there are plans", "plan.go",
		"max(0, max(1, d.settings.CatchUpParallel)-running)", "len(ready)",
	},
	{
		"Jobs are made while it is suspended", "plan.go",
		"if d.CronJob.Suspended || !d.known {", "if !d.known {",
	},
	{
		"the newest plan comes first", "plan.go",
		"d.makes = append(d.makes, p.WindowStart)", "d.makes = append(d.makes, ready[len(ready)-1].WindowStart)\n\t\tready = ready[:len(ready)-1]",
	},
	{
		"Jobs are made for a plan for ever", "plan.go",
		"case p.Made >= MakeLimit:", "case p.Made < 0:",
	},
	{
		"the limit is not kept", "plan.go",
		"case tooMany && (d.isJudged(w) || w.Before(d.few)):", "case false:",
	},
	{
		"windows that are open are forgotten", "exhaust.go",
		"open = append(open, e.WindowStart)", "_ = e",
	},
	{
		"a failed window whose Job tries again is exhausted", "exhaust.go",
		"slices.ContainsFunc(jobs, func(j Job) bool { return !j.Ended })", "false",
	},
	{
		"a window whose Job failed is planned and closed", "exhaust.go",
		"if p, planned := d.planned[w.Unix()]; planned && !(d.ours(p) && triedBy(p, e)) {", "if _, planned := d.planned[w.Unix()]; planned {",
	},
	{
		"what is late is judged for good", "judge.go",
		"if (how == young || how == late) && d.stopped.IsZero() {", "if how == young && d.stopped.IsZero() {",
	},
	{
		"the newest windows are judged before they are late", "judge.go",
		"if (how == young || how == late) && d.stopped.IsZero() {", "if how == late && d.stopped.IsZero() {",
	},
	{
		"a suspension is not remembered", "decide.go",
		"case v.CronJob.Suspended && !lasts:", "case false && !lasts:",
	},
	{
		"a suspension never ends", "decide.go",
		"case !v.CronJob.Suspended && lasts:", "case false:",
	},
	{
		"Jobs of the engine count for Forbid", "cause.go",
		"if !j.CatchUp && !j.ByHand && b.To.After(b.From) {", "if !j.ByHand && b.To.After(b.From) {",
	},
	{
		"what kept a window is forgotten when it is gone", "cause.go",
		"known && unseen(g.Reason) && !unseen(before.Reason) {", "known && unseen(g.Reason) && !unseen(before.Reason) && false {",
	},
	{
		"windows that are caught up are called missed", "judge.go",
		"return wanted, g\n}", "return gone, g\n}",
	},
}

// The histories must find each of these: a simulation that sees no bug proves nothing. A
// mutant is the package with one line changed; in the short form some are tried.
func TestProveDispositionsHavePower(t *testing.T) {
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
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", filepath.Join(dir, "overlay"), "-count=1", "-vet=off", "-short", "-run", "^TestProveDispositions$", ".")
			cmd.Env = append(os.Environ(), "ONCEGUARD_SEED="+strconv.FormatUint(seed, 10), historyVariable+"=", stopVariable+"=1", "ONCEGUARD_PROVE=long")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Error("no history found it")
			} else if !strings.Contains(string(out), brokenPromise) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	prove.Report(t, "the histories find bugs of the decision", "%d of %d mutants tried, each found", len(chosen), len(mutants))
}
