package contract

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func subject(annotations map[string]string) Subject {
	return Subject{
		Namespace: "shop", Name: "sync", UID: "u", Annotations: annotations, Schedule: "* * * * *", TimeZone: "Etc/UTC",
		InitContainers: []Container{{Name: "certs", Command: true}, {Name: "proxy", Sidecar: true}, {Name: "prepare", Command: true}},
		Containers:     []Container{{Name: "main", Command: true}, {Name: "side", Command: true}},
	}
}

func TestDefaults(t *testing.T) {
	s, problems, warnings := ParseAnnotations(subject(map[string]string{AnnotationGuard: "enabled", "other.dev/lease": "x"}), "")
	want := Settings{
		Version: 1, CronJob: "sync", CronJobUID: "u", JobName: "shop/sync", Ledger: "default", Schedule: "* * * * *", TimeZone: "Etc/UTC",
		InitContainers: []string{"certs", "prepare"}, Containers: []string{"main", "side"},
		Completion: CompletionExitCode, Busy: BusyWait, Manual: ManualWindow,
		StartTimeout: Duration(5 * time.Minute), Lease: Duration(30 * time.Second),
		Policies: Policies{Overlap: OverlapAllow, Order: OrderAny, OnCrash: OnCrashRetry},
	}
	if !reflect.DeepEqual(s, want) || len(problems)+len(warnings) > 0 {
		t.Errorf("got %+v %v %v", s, problems, warnings)
	}
}

func TestGoodValues(t *testing.T) {
	for _, c := range []struct {
		key, value string
		check      func(Settings) bool
	}{
		{AnnotationJobName, "shared.sync", func(s Settings) bool { return s.JobName == "eu:shop/shared.sync" }},
		{AnnotationLedger, "books", func(s Settings) bool { return s.Ledger == "books" }},
		{AnnotationContainers, " side , main", func(s Settings) bool { return slices.Equal(s.Containers, []string{"main", "side"}) }},
		{AnnotationContainers, "side", func(s Settings) bool {
			return slices.Equal(s.Containers, []string{"side"}) && len(s.InitContainers) == 2
		}},
		{AnnotationAfter, "proxy", func(s Settings) bool {
			return s.After == "proxy" && slices.Equal(s.InitContainers, []string{"prepare"})
		}},
		{AnnotationCompletion, "transaction", func(s Settings) bool { return s.Completion == CompletionTransaction }},
		{AnnotationBusy, "fail", func(s Settings) bool { return s.Busy == BusyFail }},
		{AnnotationManual, "separate", func(s Settings) bool { return s.Manual == ManualSeparate }},
		{AnnotationStartTimeout, "10s", func(s Settings) bool { return s.StartTimeout == Duration(10*time.Second) }},
		{AnnotationLedgerWait, "168h", func(s Settings) bool { return s.LedgerWait == Duration(168*time.Hour) }},
		{AnnotationLease, "5s", func(s Settings) bool { return s.Lease == Duration(5*time.Second) }},
		{AnnotationOverlap, "replace", func(s Settings) bool { return s.Overlap == OverlapReplace }},
		{AnnotationOrder, "serial", func(s Settings) bool { return s.Order == OrderSerial }},
		{AnnotationStartDeadline, "90m", func(s Settings) bool { return s.StartDeadline == Duration(90*time.Minute) }},
		{AnnotationMaxAttempts, "3", func(s Settings) bool { return s.MaxAttempts == 3 }},
		{AnnotationOnCrash, "hold", func(s Settings) bool { return s.OnCrash == OnCrashHold }},
		// printf %s '{"day":"2026-11-30"}' | sha256sum
		{AnnotationPayload, `{"day":"2026-11-30"}`, func(s Settings) bool {
			return s.PayloadDigest == "sha256:0c474579000372890fe48b4a6dbe668e9fc9a59db2b486fadfb1c97dbee18639"
		}},
		{AnnotationPayload, strings.Repeat("x", MaxPayload), func(s Settings) bool { return len(s.PayloadDigest) == 71 }},
		{AnnotationLease, "1h", func(s Settings) bool { return s.Lease == Duration(time.Hour) }},
		{AnnotationCatchUp, "none", func(s Settings) bool { return s.CatchUp == "" && s.CatchUpLimit == 0 && s.Overlap == OverlapAllow }},
		{AnnotationCatchUp, "latest", func(s Settings) bool {
			return s.CatchUp == CatchUpLatest && s.CatchUpLimit == 100 && s.CatchUpAge == Duration(7*24*time.Hour) && s.CatchUpParallel == 1 &&
				s.SuspendedWindows == "" && s.Overlap == OverlapAllow
		}},
		{AnnotationCatchUp, "all", func(s Settings) bool {
			return s.CatchUp == CatchUpAll && s.SuspendedWindows == SuspendedCatchUp && s.Overlap == OverlapWait
		}},
		{AnnotationSuspendedWindows, "skip", func(s Settings) bool { return s.SuspendedWindows == "" }},
		{AnnotationDST, "kubernetes", func(s Settings) bool { return s.DST == "" }},
		{AnnotationDST, "once", func(s Settings) bool { return s.DST == DSTOnce }},
	} {
		s, problems, warnings := ParseAnnotations(subject(map[string]string{c.key: c.value}), "eu")
		if !c.check(s) || len(problems)+len(warnings) > 0 {
			t.Errorf("%s=%q: got %+v %v %v", c.key, c.value, s, problems, warnings)
		}
	}
}

func TestBadValuesNameKeyValueAndCure(t *testing.T) {
	for _, c := range []struct{ key, value, cure string }{
		{AnnotationGuard, "true", `"enabled"`},
		{AnnotationGuard, "", `"enabled"`},
		{AnnotationJobName, "a/b", "lower-case"},
		{AnnotationJobName, "a#1", "lower-case"},
		{AnnotationJobName, "", "lower-case"},
		{AnnotationLedger, "Books", "lower-case"},
		{AnnotationLedger, "a.b", "lower-case"},
		{AnnotationContainers, "main,,side", "separated by commas"},
		{AnnotationContainers, "mian", "the template has main, side"},
		{AnnotationContainers, "prepare", "is an init container"},
		{AnnotationContainers, "main,main", "twice"},
		{AnnotationAfter, "main", "certs, proxy, prepare"},
		{AnnotationCompletion, "exit", "exit-code, transaction"},
		{AnnotationBusy, "Wait", "wait, skip, fail"},
		{AnnotationManual, "no", "window, separate, refuse"},
		{AnnotationLease, "4999ms", "5s to 1h"},
		{AnnotationLease, "61m", "5s to 1h"},
		{AnnotationLease, "30", "5s to 1h"},
		{AnnotationLease, "-30s", "5s to 1h"},
		{AnnotationStartTimeout, "9s", "10s to 24h"},
		{AnnotationLedgerWait, "0s", "1s to 168h"},
		{AnnotationOverlap, "forbid", "allow, skip, wait, replace"},
		{AnnotationOrder, "ascending", "any, serial"},
		{AnnotationStartDeadline, "30", "1s to 8784h"},
		{AnnotationStartDeadline, "0s", "1s to 8784h"},
		{AnnotationStartDeadline, "367d", "1s to 8784h"},
		{AnnotationPayload, "", "1 to 65536 bytes"},
		{AnnotationPayload, strings.Repeat("x", MaxPayload+1), "1 to 65536 bytes"},
		{AnnotationMaxAttempts, "0", "1 to 1000000"},
		{AnnotationMaxAttempts, "+3", "1 to 1000000"},
		{AnnotationMaxAttempts, "3.0", "1 to 1000000"},
		{AnnotationMaxAttempts, "1000001", "1 to 1000000"},
		{AnnotationOnCrash, "stop", "retry, hold"},
		{AnnotationCatchUp, "true", "none, latest, all"},
		{AnnotationCatchUpLimit, "0", "1 to 10000"},
		{AnnotationCatchUpLimit, "10001", "1 to 10000"},
		{AnnotationCatchUpAge, "7d", "1m to 87840h"},
		{AnnotationCatchUpAge, "59s", "1m to 87840h"},
		{AnnotationCatchUpParallel, "51", "1 to 50"},
		{AnnotationSuspendedWindows, "run", "skip, catch-up"},
		{AnnotationDST, "twice", "kubernetes, once"},
		{AnnotationCommandPrefix + "main", "/bin/x", "JSON array"},
		{AnnotationCommandPrefix + "main", "[]", "JSON array"},
		{AnnotationCommandPrefix + "main", `[""]`, "JSON array"},
		{AnnotationCommandPrefix + "nobody", `["x"]`, "certs, proxy, prepare, main, side"},
		{Prefix + "complettion", "x", "nearest is onceguard.dev/completion"},
		{Prefix + "leese", "x", "nearest is onceguard.dev/lease"},
		{Prefix + "zzzzzzzzz", "x", "it knows after, busy"},
		{AnnotationConfig, "{}", "Onceguard itself writes it"},
		{AnnotationWindowStart, "x", "no CronJob owns"},
		{Prefix + strings.Repeat("long", 50), "x", "no such annotation"},
	} {
		s, problems, _ := ParseAnnotations(subject(map[string]string{c.key: c.value}), "")
		if len(problems) != 1 || problems[0].Field != c.key || problems[0].Value != c.value || !strings.Contains(problems[0].Error(), c.cure) {
			t.Errorf("%s=%q: got %v, want %q in it", c.key, c.value, problems, c.cure)
		}
		if clean, _, _ := ParseAnnotations(subject(nil), ""); !reflect.DeepEqual(s, clean) {
			t.Errorf("%s=%q left a trace: %+v", c.key, c.value, s)
		}
	}
}

// What Kubernetes does with Jobs is what is meant for windows, until somebody says otherwise.
func TestOverlapFollowsConcurrencyPolicy(t *testing.T) {
	for concurrency, want := range map[string]Overlap{"": OverlapAllow, "Allow": OverlapAllow, "Forbid": OverlapWait, "Replace": OverlapReplace} {
		of := subject(nil)
		of.Concurrency = concurrency
		if s, _, _ := ParseAnnotations(of, ""); s.Overlap != want {
			t.Errorf("%q: %s, want %s", concurrency, s.Overlap, want)
		}
		of.Annotations = map[string]string{AnnotationOverlap: "skip"}
		if s, _, _ := ParseAnnotations(of, ""); s.Overlap != OverlapSkip {
			t.Errorf("%q: the annotation is not heeded: %s", concurrency, s.Overlap)
		}
	}
}

// Bounds of catch-up, and what is chosen for it unless somebody chooses.
func TestCatchUp(t *testing.T) {
	s, problems, warnings := ParseAnnotations(subject(map[string]string{
		AnnotationCatchUp: "all", AnnotationCatchUpLimit: "10000", AnnotationCatchUpAge: "36h", AnnotationCatchUpParallel: "2",
		AnnotationSuspendedWindows: "skip", AnnotationOverlap: "allow",
	}), "")
	if s.CatchUpLimit != 10_000 || s.CatchUpAge != Duration(36*time.Hour) || s.CatchUpParallel != 2 || s.SuspendedWindows != "" || s.Overlap != OverlapAllow ||
		len(problems)+len(warnings) > 0 {
		t.Errorf("got %+v %v %v", s, problems, warnings)
	}
	for key, value := range map[string]string{
		AnnotationCatchUpLimit: "5", AnnotationCatchUpAge: "1h", AnnotationCatchUpParallel: "2", AnnotationSuspendedWindows: "catch-up",
	} {
		_, problems, warnings := ParseAnnotations(subject(map[string]string{key: value}), "")
		if len(problems) > 0 || len(warnings) != 1 || !strings.Contains(warnings[0], key+" has no effect") {
			t.Errorf("%s alone: %v %v", key, problems, warnings)
		}
	}
}

// What needs the windows of the schedule is refused where nobody can compute them.
func TestWindowsThatNobodyKnows(t *testing.T) {
	for _, c := range []struct{ schedule, zone, cure string }{
		{"@every 1h", "Etc/UTC", "@every"},
		{"* * * * *", "", "spec.timeZone"},
		{"", "", "only a CronJob has a schedule"},
	} {
		for key, value := range map[string]string{AnnotationCatchUp: "latest", AnnotationDST: "once"} {
			of := subject(map[string]string{key: value})
			of.Schedule, of.TimeZone = c.schedule, c.zone
			s, problems, _ := ParseAnnotations(of, "")
			if len(problems) != 1 || problems[0].Field != key || !strings.Contains(problems[0].Cure, c.cure) || s.CatchUp != "" || s.DST != "" {
				t.Errorf("%s of %q in %q: %v", key, c.schedule, c.zone, problems)
			}
		}
		for key, value := range map[string]string{AnnotationCatchUp: "none", AnnotationDST: "kubernetes"} {
			of := subject(map[string]string{key: value})
			of.Schedule, of.TimeZone = c.schedule, c.zone
			if _, problems, _ := ParseAnnotations(of, ""); len(problems) > 0 {
				t.Errorf("%s=%s of %q in %q: %v", key, value, c.schedule, c.zone, problems)
			}
		}
	}
	of := subject(map[string]string{AnnotationCatchUp: "all", AnnotationDST: "once"})
	of.Schedule, of.TimeZone = "CRON_TZ=Europe/Berlin 30 2 * * *", ""
	if _, problems, _ := ParseAnnotations(of, ""); len(problems) > 0 {
		t.Errorf("a zone in the schedule: %v", problems)
	}
}

// Bad since before, catch-up goes on as it was accepted, with all that belongs to it.
func TestKeepCatchUp(t *testing.T) {
	earlier, _, _ := ParseAnnotations(subject(map[string]string{AnnotationCatchUp: "all", AnnotationCatchUpLimit: "5"}), "")
	of := subject(map[string]string{AnnotationCatchUp: "everything", AnnotationCatchUpLimit: "5"})
	s, problems, _ := ParseAnnotations(of, "")
	if len(problems) != 1 {
		t.Fatal(problems)
	}
	if s.Keep(AnnotationCatchUp, earlier, of); !reflect.DeepEqual(s, earlier) {
		t.Errorf("got %+v", s)
	}
}

// A payload may be large and confidential: its text stands nowhere but in the annotation.
func TestABadPayloadIsNotRepeatedWhole(t *testing.T) {
	_, problems, _ := ParseAnnotations(subject(map[string]string{AnnotationPayload: strings.Repeat("x", MaxPayload+1)}), "")
	if len(problems) != 1 || len(problems[0].Error()) > 500 {
		t.Errorf("%d problems of %d bytes", len(problems), len(problems[0].Error()))
	}
}

func TestContainersWithoutCommand(t *testing.T) {
	of := subject(map[string]string{AnnotationCommandPrefix + "side": `["/bin/side"]`, AnnotationCommandPrefix + "main": `["x"]`})
	of.Containers[1].Command, of.InitContainers[0].Command = false, false
	s, problems, warnings := ParseAnnotations(of, "")
	if len(problems) != 1 || problems[0] != MissingCommand("initContainers", "certs") {
		t.Errorf("problems: %v", problems)
	}
	if !reflect.DeepEqual(s.Commands, map[string][]string{"side": {"/bin/side"}}) || len(warnings) != 1 {
		t.Errorf("got %v %v: a command of the container's own counts", s.Commands, warnings)
	}
}

func TestKeepTakesOverEverySetting(t *testing.T) {
	earlier := Settings{
		JobName: "a/b", Ledger: "l", Containers: []string{"side"}, InitContainers: []string{"prepare"}, Commands: map[string][]string{"c": {"x"}},
		After: "proxy", Completion: CompletionTransaction, Busy: BusyFail, Manual: ManualRefuse, StartTimeout: 1, LedgerWait: 2, Lease: 3,
		CatchUp: CatchUpAll, CatchUpLimit: 6, CatchUpAge: 7, CatchUpParallel: 8, SuspendedWindows: SuspendedCatchUp,
		Policies: Policies{Overlap: OverlapWait, Order: OrderSerial, StartDeadline: 4, PayloadDigest: "d", MaxAttempts: 5, OnCrash: OnCrashHold, DST: DSTOnce},
	}
	keep := func(s *Settings, of Subject) {
		for key := range known {
			s.Keep(key, earlier, of)
		}
		s.Keep(AnnotationCommandPrefix+"c", earlier, of)
		s.Keep("spec.something", earlier, of)
	}
	var s Settings
	if keep(&s, subject(nil)); !reflect.DeepEqual(s, earlier) {
		t.Errorf("got %+v", s)
	}
	// What the template has by now is wrapped, whatever the names were.
	of := subject(nil)
	of.InitContainers = append(of.InitContainers, Container{Name: "load", Command: true})
	of.Containers[1].Name = "renamed"
	now, _, _ := ParseAnnotations(of, "")
	if keep(&now, of); !slices.Equal(now.InitContainers, []string{"prepare", "load"}) || !slices.Equal(now.Containers, []string{"main", "renamed"}) {
		t.Errorf("got %+v", now)
	}
	of.InitContainers[1].Name = "another-proxy"
	now, _, _ = ParseAnnotations(of, "")
	if keep(&now, of); now.After != "proxy" || len(now.InitContainers) != 3 {
		t.Errorf("got %+v", now)
	}
}

func TestDecodeSettings(t *testing.T) {
	s, _, _ := ParseAnnotations(subject(nil), "")
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeSettings(string(text)); err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("got %+v %v", back, err)
	}
	for _, bad := range []string{"", "{}", `{"version":2}`, "[]"} {
		if _, err := DecodeSettings(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func FuzzParseAnnotations(f *testing.F) {
	for key := range known {
		f.Add(key, "enabled", "c")
	}
	f.Add(AnnotationCommandPrefix+"main", `["x"]`, "")
	f.Fuzz(func(t *testing.T, key, value, cluster string) {
		of := subject(map[string]string{key: value})
		s, problems, _ := ParseAnnotations(of, cluster)
		for _, p := range problems {
			if p.Field != key || p.Cure == "" {
				t.Errorf("problem %+v does not name %q", p, key)
			}
		}
		if len(s.Containers) == 0 || s.Lease < Duration(MinLease) || s.Lease > Duration(MaxLease) {
			t.Errorf("settings that nobody can use: %+v", s)
		}
	})
}
