package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Bounds of a lease: three heartbeats and a reaction fit into the shortest; a crash
// nobody could report blocks its window for the longest.
const (
	shortestLease = time.Second
	longestLease  = 24 * time.Hour
)

// ParseConfig reads what the webhook told the guard (contract.EnvConfig). An error
// names the field, its value and the cure.
func ParseConfig(text string) (contract.GuardConfig, error) {
	var c contract.GuardConfig
	if strings.TrimSpace(text) == "" {
		return c, fmt.Errorf("%s is not set; the webhook sets it when it injects the guard", contract.EnvConfig)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	// A setting that this build does not know could be one that forbids to run.
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%s: %w; is the guard's image older than the webhook?", contract.EnvConfig, err)
	}
	return c, Validate(c)
}

// Validate checks a configuration as a whole. One with a refusal needs nothing else.
func Validate(c contract.GuardConfig) error {
	if c.Version != contract.ConfigVersion {
		return fmt.Errorf("version is %d, this guard knows %d; use the guard's image of the webhook's release", c.Version, contract.ConfigVersion)
	}
	if c.Refusal != "" {
		return nil
	}
	lease := time.Duration(c.Lease)
	switch {
	case c.JobName == "":
		return fmt.Errorf("jobName is empty; it must be <namespace>/<name>")
	case c.WindowStart.IsZero():
		return fmt.Errorf("windowStart is missing; it must be an RFC 3339 instant")
	case !c.WindowEnd.IsZero() && !c.WindowEnd.After(c.WindowStart):
		return fmt.Errorf("windowEnd %s is not after windowStart %s", c.WindowEnd.Format(time.RFC3339), c.WindowStart.Format(time.RFC3339))
	case len(c.Containers) == 0:
		return fmt.Errorf("containers is empty; at least one container must be guarded")
	case c.Completion != contract.CompletionExitCode && c.Completion != contract.CompletionTransaction:
		return fmt.Errorf("completion is %q; it must be %s or %s", c.Completion, contract.CompletionExitCode, contract.CompletionTransaction)
	case c.Busy != contract.BusyWait && c.Busy != contract.BusySkip && c.Busy != contract.BusyFail:
		return fmt.Errorf("busy is %q; it must be %s, %s or %s", c.Busy, contract.BusyWait, contract.BusySkip, contract.BusyFail)
	case !oneOf(c.Overlap, "", contract.OverlapAllow, contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace):
		return fmt.Errorf("overlap is %q; it must be allow, skip, wait or replace", c.Overlap)
	case !oneOf(c.Order, "", contract.OrderAny, contract.OrderSerial):
		return fmt.Errorf("order is %q; it must be any or serial", c.Order)
	case !oneOf(c.OnCrash, "", contract.OnCrashRetry, contract.OnCrashHold):
		return fmt.Errorf("onCrash is %q; it must be retry or hold", c.OnCrash)
	case c.StartDeadline < 0:
		return fmt.Errorf("startDeadline is %s; it must not be negative", time.Duration(c.StartDeadline))
	case c.MaxAttempts < 0:
		return fmt.Errorf("maxAttempts is %d; it must not be negative", c.MaxAttempts)
	case !c.Previous.IsZero() && !c.Previous.Before(c.WindowStart):
		return fmt.Errorf("previous %s is not before windowStart %s", c.Previous.Format(time.RFC3339), c.WindowStart.Format(time.RFC3339))
	case !oneOf(c.DST, "", contract.DSTKubernetes, contract.DSTOnce):
		return fmt.Errorf("dst is %q; it must be kubernetes or once", c.DST)
	case !c.Repeats.IsZero() && !c.Repeats.Before(c.WindowStart):
		return fmt.Errorf("repeats %s is not before windowStart %s", c.Repeats.Format(time.RFC3339), c.WindowStart.Format(time.RFC3339))
	case c.StartTimeout <= 0:
		return fmt.Errorf("startTimeout is %s; it must be positive", time.Duration(c.StartTimeout))
	case c.Grace < 0:
		return fmt.Errorf("grace is %s; it must not be negative", time.Duration(c.Grace))
	case c.LedgerWait < 0:
		return fmt.Errorf("ledgerWait is %s; it must not be negative", time.Duration(c.LedgerWait))
	case lease < shortestLease || lease > longestLease:
		return fmt.Errorf("lease is %s; it must be from %s to %s", lease, shortestLease, longestLease)
	case c.LogLanguage != "" && c.LogLanguage != "en" && c.LogLanguage != "zh":
		return fmt.Errorf("logLanguage is %q; it must be en or zh", c.LogLanguage)
	}
	return nil
}

func oneOf[T comparable](v T, accepted ...T) bool { return slices.Contains(accepted, v) }
