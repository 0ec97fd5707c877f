package disposition

import (
	"testing"

	"github.com/onceguard/onceguard/test/prove"
)

// mutants are bugs that somebody could write: each breaks one rule of the decision.
var mutants = []prove.Mutant{
	{
		Name: "overlap closes a window at once, though Forbid may start it late", File: "cause.go",
		Was: "if (w.Before(d.settled) || d.isExpired(w)) &&", Is: "if (w.Before(d.settled) || d.isExpired(w) || g.Reason == Overlap) &&",
	},
	{
		Name: "a window is closed as soon as it is due", File: "cause.go",
		Was: "if (w.Before(d.settled) || d.isExpired(w)) &&", Is: "if (!w.After(d.settled) || d.isExpired(w)) &&",
	},
	{
		Name: "windows before Since are judged", File: "decide.go",
		Was: "d.from = latest(v.State.JudgedBefore, d.settings.Since, v.ClosedBefore)", Is: "d.from = latest(v.State.JudgedBefore, v.ClosedBefore)",
	},
	{
		Name: "what a person has planned is planned again", File: "judge.go",
		Was: "if how == wanted && planned {", Is: "if how == wanted && planned && p.By == \"\" {",
	},
	{
		Name: "a window that ran may be called missed", File: "judge.go",
		Was: "if _, ran := d.executions[key]; ran {", Is: "if e, ran := d.executions[key]; ran && e.Closed {",
	},
	{
		Name: "a Job is made while the one before is not seen yet", File: "plan.go",
		Was: "return false, !seen && d.Now.Before(p.MadeAt.Add(Grace))", Is: "return true, false",
	},
	{
		Name: "as many Jobs at a time as there are plans", File: "plan.go",
		Was: "max(0, max(1, d.settings.CatchUpParallel)-running)", Is: "len(ready)",
	},
	{
		Name: "Jobs are made while it is suspended", File: "plan.go",
		Was: "if d.CronJob.Suspended || !d.known {", Is: "if !d.known {",
	},
	{
		Name: "the newest plan comes first", File: "plan.go",
		Was: "d.makes = append(d.makes, p.WindowStart)", Is: "d.makes = append(d.makes, ready[len(ready)-1].WindowStart)\n\t\tready = ready[:len(ready)-1]",
	},
	{
		Name: "Jobs are made for a plan for ever", File: "plan.go",
		Was: "case p.Made >= MakeLimit:", Is: "case p.Made < 0:",
	},
	{
		Name: "the limit is not kept", File: "plan.go",
		Was: "case tooMany && (d.isJudged(w) || w.Before(d.few)):", Is: "case false:",
	},
	{
		Name: "windows that are open are forgotten", File: "exhaust.go",
		Was: "open = append(open, e.WindowStart)", Is: "_ = e",
	},
	{
		Name: "a failed window whose Job tries again is exhausted", File: "exhaust.go",
		Was: "slices.ContainsFunc(jobs, func(j Job) bool { return !j.Ended })", Is: "false",
	},
	{
		Name: "a window whose Job failed is planned and closed", File: "exhaust.go",
		Was: "if p, planned := d.planned[w.Unix()]; planned && !(d.ours(p) && triedBy(p, e)) {", Is: "if _, planned := d.planned[w.Unix()]; planned {",
	},
	{
		Name: "what is late is judged for good", File: "judge.go",
		Was: "if (how == young || how == late) && d.stopped.IsZero() {", Is: "if how == young && d.stopped.IsZero() {",
	},
	{
		Name: "the newest windows are judged before they are late", File: "judge.go",
		Was: "if (how == young || how == late) && d.stopped.IsZero() {", Is: "if how == late && d.stopped.IsZero() {",
	},
	{
		Name: "a suspension is not remembered", File: "decide.go",
		Was: "case v.CronJob.Suspended && !lasts:", Is: "case false && !lasts:",
	},
	{
		Name: "a suspension never ends", File: "decide.go",
		Was: "case !v.CronJob.Suspended && lasts:", Is: "case false:",
	},
	{
		Name: "Jobs of the engine count for Forbid", File: "cause.go",
		Was: "if !j.CatchUp && !j.ByHand && b.To.After(b.From) {", Is: "if !j.ByHand && b.To.After(b.From) {",
	},
	{
		Name: "what kept a window is forgotten when it is gone", File: "cause.go",
		Was: "known && unseen(g.Reason) && !unseen(before.Reason) {", Is: "known && unseen(g.Reason) && !unseen(before.Reason) && false {",
	},
	{
		Name: "windows that are caught up are called missed", File: "judge.go",
		Was: "return wanted, g\n}", Is: "return gone, g\n}",
	},
}

// The histories must find each of these.
func TestProveDispositionsHavePower(t *testing.T) {
	tried := prove.Notices(t, "TestProveDispositions", brokenPromise, mutants, historyVariable+"=", stopVariable+"=1", "ONCEGUARD_PROVE=long")
	prove.Report(t, "the histories find bugs of the decision", "%d of %d mutants tried, each found", tried, len(mutants))
}
