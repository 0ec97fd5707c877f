package guard

import (
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

// Terms are the conditions under which a pod that was told c may run its window. A Job
// made by hand that means a scheduled window is a person's word: the window may be
// reopened, and neither its age nor its failures count.
func Terms(c contract.GuardConfig) claim.Terms {
	t := claim.Terms{
		Overlap: c.Overlap, StartDeadline: time.Duration(c.StartDeadline), PayloadDigest: c.PayloadDigest,
		MaxAttempts: c.MaxAttempts, HoldOnCrash: c.OnCrash == contract.OnCrashHold,
	}
	if c.Order == contract.OrderSerial {
		t.Serial, t.Since, t.Previous = true, c.Since, c.Previous
	}
	if c.Source == contract.SourceManual {
		t.Reopen, t.StartDeadline, t.MaxAttempts = true, 0, 0
	}
	return t
}
