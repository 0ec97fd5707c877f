package guard

import (
	"testing"

	"github.com/onceguard/onceguard/test/prove"
)

// mutants are bugs that somebody could write: each breaks one promise.
var mutants = []prove.Mutant{
	{
		Name: "trust is counted from the answer, not from the question", File: "hold.go",
		Was: "m.trust = sent.Add(", Is: "m.trust = m.now.Add(",
	},
	{
		Name: "workers are stopped when the trust ends, not a grace earlier", File: "hold.go",
		Was: "return m.trust.Add(-m.conf.grace())", Is: "return m.trust",
	},
	{
		Name: "a heartbeat that finds the lease lost renews it", File: "hold.go",
		Was: "case e.Trouble != nil || e.Beat == claim.BeatLost:", Is: "case e.Trouble != nil:",
	},
	{
		Name: "who lost the window asks for it at once, while its workers run", File: "hold.go",
		Was: "m.stopAll(m.say(TextLost, m.conf.Window), m.graceLeft(), false, nil)", Is: "m.acquire()",
	},
	{
		Name: "the workers end before the completion is written", File: "hold.go",
		Was: "m.settle(Ending{Complete: true})", Is: "m.ackAll()\n\tm.settle(Ending{Complete: true})",
	},
	{
		Name: "a failure is written while other workers run", File: "hold.go",
		Was: "if m.anyLive() {\n\t\t// The lease is kept", Is: "if false {\n\t\t// The lease is kept",
	},
	{
		Name: "a worker's failure is overlooked", File: "hold.go",
		Was: "case r.Code != 0 && name == \"\":", Is: "case r.Code < 0 && name == \"\":",
	},
	{
		Name: "exit 0 completes a window that only a transaction may complete", File: "hold.go",
		Was: "if m.conf.Completion == contract.CompletionTransaction {", Is: "if false {",
	},
	{
		Name: "exit 0 stands though it could not be recorded", File: "settle.go",
		Was: "r.Ack, r.Said = code, why", Is: "r.Said = why",
	},
	{
		Name: "what is saved is written after what relies on it", File: "machine.go",
		Was: "m.out = slices.Insert(m.out, 0, Effect(Save{}))", Is: "m.out = append(m.out, Effect(Save{}))",
	},
	{
		Name: "a connection that broke is no crash", File: "machine.go",
		Was: "delete(m.conns, e.Conn)\n\tif p.live() {", Is: "delete(m.conns, e.Conn)\n\tif false {",
	},
	{
		Name: "a process that has not come back is taken for dead at once", File: "due.go",
		Was: "if m.now.Before(m.expectBy) {\n\t\treturn", Is: "if false {\n\t\treturn",
	},
}

// The histories must find each of these.
func TestProveRandomHistoriesHavePower(t *testing.T) {
	tried := prove.Notices(t, "TestProveRandomHistories", brokenPromise, mutants, historyVariable+"=")
	prove.Report(t, "random histories find bugs of the guard", "%d of %d mutants tried, each found", tried, len(mutants))
}
