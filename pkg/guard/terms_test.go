package guard

import (
	"reflect"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

func TestTerms(t *testing.T) {
	since, previous := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 30, 13, 17, 0, 0, time.UTC)
	asked := time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)
	all := contract.Policies{
		Overlap: contract.OverlapReplace, Order: contract.OrderSerial, StartDeadline: contract.Duration(time.Hour),
		PayloadDigest: "sha256:a", MaxAttempts: 3, OnCrash: contract.OnCrashHold,
	}
	for _, c := range []struct {
		what     string
		source   contract.Source
		policies contract.Policies
		want     claim.Terms
	}{
		{"nothing wished, by a webhook that knows no policies", contract.SourceTimestamp, contract.Policies{}, claim.Terms{}},
		{
			"the defaults", contract.SourceTimestamp,
			contract.Policies{Overlap: contract.OverlapAllow, Order: contract.OrderAny, OnCrash: contract.OnCrashRetry},
			claim.Terms{Overlap: contract.OverlapAllow},
		},
		{"everything", contract.SourceTimestamp, all, claim.Terms{
			Overlap: contract.OverlapReplace, Serial: true, Since: since, Previous: previous, StartDeadline: time.Hour,
			PayloadDigest: "sha256:a", MaxAttempts: 3, HoldOnCrash: true,
		}},
		{"by its name", contract.SourceName, all, claim.Terms{
			Overlap: contract.OverlapReplace, Serial: true, Since: since, Previous: previous, StartDeadline: time.Hour,
			PayloadDigest: "sha256:a", MaxAttempts: 3, HoldOnCrash: true,
		}},
		{"a manual Job is a person's word", contract.SourceManual, all, claim.Terms{
			Overlap: contract.OverlapReplace, Serial: true, Since: since, Previous: previous,
			PayloadDigest: "sha256:a", HoldOnCrash: true, ReopenBefore: asked,
		}},
		{
			"a manual Job is not closed by what runs", contract.SourceManual,
			contract.Policies{Overlap: contract.OverlapSkip},
			claim.Terms{Overlap: contract.OverlapWait, ReopenBefore: asked},
		},
		{
			"a scheduled window is", contract.SourceName,
			contract.Policies{Overlap: contract.OverlapSkip},
			claim.Terms{Overlap: contract.OverlapSkip},
		},
		{
			"a run of its own neither", contract.SourceSeparate,
			contract.Policies{Overlap: contract.OverlapSkip},
			claim.Terms{Overlap: contract.OverlapWait},
		},
		{
			"a run of its own beside others, when they may", contract.SourceSeparate,
			contract.Policies{Overlap: contract.OverlapAllow},
			claim.Terms{Overlap: contract.OverlapAllow},
		},
		{"a run of its own stops nobody", contract.SourceSeparate, all, claim.Terms{
			Overlap: contract.OverlapWait, Serial: true, Since: since, Previous: previous, StartDeadline: time.Hour,
			PayloadDigest: "sha256:a", MaxAttempts: 3, HoldOnCrash: true,
		}},
		{"by a schedule without Kubernetes", contract.SourceSchedule, all, claim.Terms{
			Overlap: contract.OverlapReplace, Serial: true, Since: since, Previous: previous, StartDeadline: time.Hour,
			PayloadDigest: "sha256:a", MaxAttempts: 3, HoldOnCrash: true,
		}},
		{"instants are of use in order only", contract.SourceTimestamp, contract.Policies{Order: contract.OrderAny}, claim.Terms{}},
	} {
		got := Terms(contract.GuardConfig{Source: c.source, Policies: c.policies, Since: since, Previous: previous, Asked: asked})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.what, got, c.want)
		}
	}
}

// What is caught up is late by nature; it takes nobody's place and is not closed for one.
func TestTermsOfCatchUp(t *testing.T) {
	for overlap, want := range map[contract.Overlap]contract.Overlap{
		"": "", contract.OverlapAllow: contract.OverlapAllow, contract.OverlapWait: contract.OverlapWait,
		contract.OverlapSkip: contract.OverlapWait, contract.OverlapReplace: contract.OverlapWait,
	} {
		got := Terms(contract.GuardConfig{
			Source: contract.SourceTimestamp, Trigger: contract.TriggerCatchUp,
			Policies: contract.Policies{Overlap: overlap, StartDeadline: contract.Duration(time.Hour), MaxAttempts: 3, OnCrash: contract.OnCrashHold},
		})
		if !reflect.DeepEqual(got, claim.Terms{Overlap: want, MaxAttempts: 3, HoldOnCrash: true}) {
			t.Errorf("%q: %+v", overlap, got)
		}
	}
}

// The second occurrence of a civil time is told to the ledger, which closes it.
func TestTermsOfARepeat(t *testing.T) {
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC)
	if got := Terms(contract.GuardConfig{Source: contract.SourceTimestamp, Repeats: first}); !reflect.DeepEqual(got, claim.Terms{Repeats: first}) {
		t.Errorf("%+v", got)
	}
}

func TestPoliciesAreValidated(t *testing.T) {
	good := testConf().GuardConfig
	good.Version, good.WindowStart = contract.ConfigVersion, time.Date(2026, 11, 30, 13, 18, 0, 0, time.UTC)
	if err := Validate(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*contract.GuardConfig){
		`overlap is "forbid"; it must be allow, skip, wait or replace`:                 func(c *contract.GuardConfig) { c.Overlap = "forbid" },
		`order is "up"; it must be any or serial`:                                      func(c *contract.GuardConfig) { c.Order = "up" },
		`onCrash is "stop"; it must be retry or hold`:                                  func(c *contract.GuardConfig) { c.OnCrash = "stop" },
		`startDeadline is -1s; it must not be negative`:                                func(c *contract.GuardConfig) { c.StartDeadline = contract.Duration(-time.Second) },
		`maxAttempts is -1; it must not be negative`:                                   func(c *contract.GuardConfig) { c.MaxAttempts = -1 },
		`previous 2026-11-30T13:18:00Z is not before windowStart 2026-11-30T13:18:00Z`: func(c *contract.GuardConfig) { c.Previous = c.WindowStart },
		`dst is "twice"; it must be kubernetes or once`:                                func(c *contract.GuardConfig) { c.DST = "twice" },
		`repeats 2026-11-30T13:18:00Z is not before windowStart 2026-11-30T13:18:00Z`:  func(c *contract.GuardConfig) { c.Repeats = c.WindowStart },
	} {
		c := good
		change(&c)
		if err := Validate(c); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
