package guard

import (
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

// Terms are the conditions under which a pod that was told c may run its window. A Job
// made by hand that means a scheduled window is a person's word: the window may be
// reopened if it was closed before the Job was made, neither its age nor its failures
// count, and while another window runs it waits instead of being closed. A run of its own
// never takes the place of a scheduled window: it waits. So does a window that is caught
// up; it was late when it was planned, so its age does not count.
func Terms(c contract.GuardConfig) claim.Terms {
	t := claim.Terms{
		Overlap: c.Overlap, StartDeadline: time.Duration(c.StartDeadline), PayloadDigest: c.PayloadDigest,
		MaxAttempts: c.MaxAttempts, HoldOnCrash: c.OnCrash == contract.OnCrashHold, Repeats: c.Repeats,
	}
	if c.Order == contract.OrderSerial {
		t.Serial, t.Since, t.Previous = true, c.Since, c.Previous
	}
	if c.Trigger == contract.TriggerCatchUp {
		t.StartDeadline = 0
		if t.Overlap != "" && t.Overlap != contract.OverlapAllow {
			t.Overlap = contract.OverlapWait
		}
		return t
	}
	switch c.Source {
	case contract.SourceManual:
		t.ReopenBefore, t.StartDeadline, t.MaxAttempts = c.Asked, 0, 0
		if t.Overlap == contract.OverlapSkip {
			t.Overlap = contract.OverlapWait
		}
	case contract.SourceSeparate:
		if t.Overlap == contract.OverlapSkip || t.Overlap == contract.OverlapReplace {
			t.Overlap = contract.OverlapWait
		}
	case contract.SourceTimestamp, contract.SourceName, contract.SourceDeclared, contract.SourceSchedule:
	}
	return t
}
