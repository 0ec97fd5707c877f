package main

import (
	"strings"
	"testing"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// A window that the windows engine has closed did not fail as often as max-attempts allows:
// its Job is over.
func TestWhyAWindowIsExhausted(t *testing.T) {
	for reason, want := range map[string]string{
		"exhausted":                          "as often as it may",
		string(disposition.DeadlineExceeded): "activeDeadlineSeconds",
		string(disposition.JobFailed):        "its Job has failed",
		string(disposition.JobGone):          "not there any more",
		string(disposition.Image):            "an image of its pod could not be pulled",
	} {
		if got := state(audit.Window{State: audit.Exhausted, Reason: &reason}); !strings.HasPrefix(got, "exhausted: ") || !strings.Contains(got, want) || strings.Contains(got, "claim") {
			t.Errorf("%s: %q", reason, got)
		}
	}
}
