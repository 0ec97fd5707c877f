package inject

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// Policies that do not do together what their names say are warned of, and only they.
func TestPolicyAdvice(t *testing.T) {
	const (
		overlap  = contract.AnnotationOverlap
		order    = contract.AnnotationOrder
		deadline = contract.AnnotationStartDeadline
		attempts = contract.AnnotationMaxAttempts
		crash    = contract.AnnotationOnCrash
		catchUp  = contract.AnnotationCatchUp
		parallel = contract.AnnotationCatchUpParallel
	)
	for _, c := range []struct {
		what        string
		concurrency string
		annotations map[string]string
		zone        string
		want        string // empty: no warning
	}{
		{"nothing chosen", "Forbid", nil, "Etc/UTC", ""},
		{"what Kubernetes does anyway", "Replace", map[string]string{overlap: "replace"}, "Etc/UTC", ""},
		{"wait under Allow", "Allow", map[string]string{overlap: "wait"}, "Etc/UTC", ""},
		{"wait under Forbid", "Forbid", map[string]string{overlap: "wait"}, "Etc/UTC", ""},
		{"skip under Forbid", "Forbid", map[string]string{overlap: "skip"}, "Etc/UTC", "its pod may still be ending"},
		{"replace under Forbid", "Forbid", map[string]string{overlap: "replace"}, "Etc/UTC", "under Forbid Kubernetes makes no Job"},
		{"wait under Replace", "Replace", map[string]string{overlap: "wait"}, "Etc/UTC", "under Replace Kubernetes deletes the running Job"},
		{"serial that catches up", "Allow", map[string]string{order: "serial", attempts: "2", catchUp: "all"}, "Etc/UTC", ""},
		{"serial that catches up under Forbid", "Forbid", map[string]string{order: "serial", attempts: "2", catchUp: "all"}, "Etc/UTC", ""},
		{"serial with gaps", "Allow", map[string]string{order: "serial", attempts: "2"}, "Etc/UTC", "go on without one that no Job came for"},
		{"serial with gaps but for the newest", "Allow", map[string]string{order: "serial", attempts: "2", catchUp: "latest"}, "Etc/UTC", "with onceguard.dev/catch-up=all it runs in its turn"},
		{"serial that waits anyway", "Allow", map[string]string{order: "serial", attempts: "2", catchUp: "all", overlap: "wait"}, "Etc/UTC", ""},
		{"serial under Forbid", "Forbid", map[string]string{order: "serial", attempts: "2"}, "Etc/UTC", "go on without it once it is recorded as missed"},
		{"serial under Replace", "Replace", map[string]string{order: "serial", attempts: "2"}, "Etc/UTC", "deletes the Job of a window that is not done"},
		{"serial without an end", "Allow", map[string]string{order: "serial", catchUp: "all"}, "Etc/UTC", "is closed only when the windows engine sees that"},
		{"serial whose Job gives up first", "Allow", map[string]string{order: "serial", catchUp: "all", attempts: "3"}, "Etc/UTC", "of at most spec.jobTemplate.spec.backoffLimit (2)"},
		{"serial without zone", "Allow", map[string]string{order: "serial", attempts: "2"}, "", "cannot be computed, so a window"},
		{"catch-up", "Allow", map[string]string{catchUp: "all"}, "Etc/UTC", ""},
		{"catch-up under Forbid", "Forbid", map[string]string{catchUp: "latest"}, "Etc/UTC", ""},
		{"catch-up under Replace", "Replace", map[string]string{catchUp: "all"}, "Etc/UTC", "by onceguard.dev/catch-up=all the deleted one may run again later"},
		{"catch-up that skips", "Allow", map[string]string{catchUp: "all", overlap: "skip"}, "Etc/UTC", "closes one of the two without running"},
		{"catch-up and what is late", "Allow", map[string]string{catchUp: "latest", deadline: "200s"}, "Etc/UTC", "a window whose Job comes later than 3m20s is closed as late"},
		{"several at a time that wait for each other", "Allow", map[string]string{catchUp: "all", parallel: "2"}, "Etc/UTC", "the Jobs wait for each other all the same"},
		{"several at a time", "Allow", map[string]string{catchUp: "all", parallel: "2", overlap: "allow"}, "Etc/UTC", ""},
		{"as many attempts as pods", "Allow", map[string]string{attempts: "3"}, "Etc/UTC", ""},
		{"more attempts than pods", "Allow", map[string]string{attempts: "4"}, "Etc/UTC", "more than the 3 pods"},
		{"deadline of Kubernetes first", "Allow", map[string]string{deadline: "200s"}, "Etc/UTC", ""},
		{"deadline of ours first", "Allow", map[string]string{deadline: "1m"}, "Etc/UTC", "after 1m0s are closed as late"},
		{"hold what leaves nothing", "Allow", map[string]string{crash: "hold", contract.AnnotationCompletion: "transaction"}, "Etc/UTC", "a retry is safe"},
		{"hold", "Allow", map[string]string{crash: "hold"}, "Etc/UTC", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			annotations := map[string]string{contract.AnnotationGuard: contract.Enabled}
			for k, v := range c.annotations {
				annotations[k] = v
			}
			starting := any(200)
			if c.annotations[order] == "serial" || c.annotations[catchUp] != "" {
				starting = nil
			}
			cronJob := map[string]any{
				"metadata": map[string]any{"name": "sync", "annotations": annotations},
				"spec": map[string]any{
					"schedule": "*/5 * * * *", "timeZone": c.zone, "concurrencyPolicy": c.concurrency, "startingDeadlineSeconds": starting,
					"jobTemplate": map[string]any{"spec": map[string]any{
						"backoffLimit": 2, "activeDeadlineSeconds": 60,
						"podFailurePolicy": map[string]any{"rules": []any{
							map[string]any{"action": "FailJob", "onExitCodes": map[string]any{"operator": "In", "values": []int{contract.ExitRefused}}},
							map[string]any{"action": "Ignore", "onExitCodes": map[string]any{"operator": "In", "values": []int{contract.ExitRetry}}},
						}},
						"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": []any{
							map[string]any{"name": "main", "image": "i", "command": []string{"work"}},
						}}},
					}},
				},
			}
			raw, err := json.Marshal(cronJob)
			if err != nil {
				t.Fatal(err)
			}
			out, err := PatchCronJob(CronJob{Object: raw, Namespace: "shop", Now: noon})
			if err != nil || len(out.Problems) > 0 {
				t.Fatal(out.Problems, err)
			}
			var warnings []string
			for _, w := range out.Warnings {
				if !strings.HasPrefix(w, "spec.timeZone is not set") {
					warnings = append(warnings, w)
				}
			}
			if c.want == "" && len(warnings) > 0 || c.want != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], c.want)) {
				t.Errorf("warned %q, want one with %q", warnings, c.want)
			}
		})
	}
}

// What leaves windows that nobody asks for is warned of when others wait for them, and
// under limits for each index a refusal must not end the others.
func TestJobAdvice(t *testing.T) {
	serial := map[string]string{contract.AnnotationGuard: contract.Enabled, contract.AnnotationOrder: "serial", contract.AnnotationMaxAttempts: "2", contract.AnnotationCatchUp: "all"}
	rule := func(action string, code int) map[string]any {
		return map[string]any{"action": action, "onExitCodes": map[string]any{"operator": "In", "values": []int{code}}}
	}
	for _, c := range []struct {
		what      string
		spec, job map[string]any
		want      string
	}{
		{"each index fails for itself", nil, map[string]any{"backoffLimitPerIndex": 2, "podFailurePolicy": map[string]any{"rules": []any{rule("FailIndex", 78), rule("Ignore", 75)}}}, ""},
		{"one index fails all", nil, map[string]any{"backoffLimitPerIndex": 2, "podFailurePolicy": map[string]any{"rules": []any{rule("FailJob", 78), rule("Ignore", 75)}}}, "In [78] FailIndex"},
		{"no limit for each index", nil, map[string]any{"podFailurePolicy": map[string]any{"rules": []any{rule("FailIndex", 78), rule("Ignore", 75)}}}, "In [78] FailJob"},
		{"success before all indexes", nil, map[string]any{"successPolicy": map[string]any{"rules": []any{map[string]any{"succeededCount": 1}}}}, "successPolicy"},
		{"suspended", map[string]any{"suspend": true}, nil, ""},
		{"a deadline of Kubernetes", map[string]any{"startingDeadlineSeconds": 100}, nil, ""},
		{"a deadline that Kubernetes itself may miss", map[string]any{"startingDeadlineSeconds": 5}, nil, "that Kubernetes could have started in time"},
	} {
		job := map[string]any{
			"backoffLimit": 2, "activeDeadlineSeconds": 60, "completionMode": "Indexed", "completions": 3, "parallelism": 3,
			"podFailurePolicy": map[string]any{"rules": []any{rule("FailJob", 78), rule("Ignore", 75)}},
			"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": []any{
				map[string]any{"name": "main", "image": "i", "command": []string{"work"}},
			}}},
		}
		maps.Copy(job, c.job)
		spec := map[string]any{"schedule": "*/5 * * * *", "timeZone": "Etc/UTC", "jobTemplate": map[string]any{"spec": job}}
		maps.Copy(spec, c.spec)
		raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "sync", "annotations": serial}, "spec": spec})
		if err != nil {
			t.Fatal(err)
		}
		out, err := PatchCronJob(CronJob{Object: raw, Namespace: "shop", Now: noon})
		if err != nil || len(out.Problems) > 0 {
			t.Fatal(out.Problems, err)
		}
		if w := out.Warnings; c.want == "" && len(w) > 0 || c.want != "" && (len(w) != 1 || !strings.Contains(w[0], c.want)) {
			t.Errorf("%s: warned %q, want one with %q", c.what, w, c.want)
		}
	}
}

// An edit that means other windows begins anew; any other edit does not.
func TestBegin(t *testing.T) {
	before, now := noon.Add(-time.Hour), noon.Add(time.Second)
	earlier := contract.Settings{
		Version: 1, JobName: "shop/sync", Ledger: "default", Schedule: "@hourly", TimeZone: "Etc/UTC", Indexed: true, Completions: 3,
		Since: before, OrderedSince: before, Policies: contract.Policies{Order: contract.OrderSerial},
	}
	for _, c := range []struct {
		what           string
		edit           func(earlier, s *contract.Settings)
		since, ordered time.Time
	}{
		{"first", func(e, _ *contract.Settings) { *e = contract.Settings{} }, now, now},
		{"nothing", func(_, _ *contract.Settings) {}, before, before},
		{"containers", func(_, s *contract.Settings) { s.Containers = []string{"other"} }, before, before},
		{"job name", func(_, s *contract.Settings) { s.JobName = "shop/other" }, now, now},
		{"ledger", func(_, s *contract.Settings) { s.Ledger = "other" }, now, now},
		{"schedule", func(_, s *contract.Settings) { s.Schedule = "@daily" }, now, now},
		{"zone", func(_, s *contract.Settings) { s.TimeZone = "Asia/Shanghai" }, now, now},
		{"rule for DST", func(_, s *contract.Settings) { s.DST = contract.DSTOnce }, now, now},
		{"catch-up", func(_, s *contract.Settings) { s.CatchUp = contract.CatchUpAll }, before, before},
		{"order turned on", func(e, _ *contract.Settings) { e.Order, e.OrderedSince = contract.OrderAny, time.Time{} }, before, now},
		{"order turned off", func(_, s *contract.Settings) { s.Order = contract.OrderAny }, before, time.Time{}},
		{"Indexed", func(e, _ *contract.Settings) { e.Indexed, e.Completions = false, 0 }, before, now},
		{"completions", func(_, s *contract.Settings) { s.Completions = 4 }, before, now},
	} {
		e, s := earlier, earlier
		s.Since, s.OrderedSince = time.Time{}, time.Time{}
		c.edit(&e, &s)
		if begin(&s, e, noon); !s.Since.Equal(c.since) || !s.OrderedSince.Equal(c.ordered) {
			t.Errorf("%s: since %s, ordered since %s; want %s and %s", c.what, s.Since, s.OrderedSince, c.since, c.ordered)
		}
	}
}

// The examples are accepted without a warning.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cronJobs := 0
	for _, file := range files {
		for _, doc := range documents(t, file) {
			var kind struct{ Kind string }
			if err := json.Unmarshal(doc, &kind); err != nil || kind.Kind != "CronJob" {
				continue
			}
			cronJobs++
			out, err := PatchCronJob(CronJob{Object: doc, Namespace: "shop", Now: noon})
			if err != nil || len(out.Problems) > 0 || len(out.Warnings) > 0 || len(out.Ops) == 0 {
				t.Errorf("%s: %v %q %v", file, out.Problems, out.Warnings, err)
			}
		}
	}
	if cronJobs < 5 {
		t.Errorf("%d CronJobs among the examples", cronJobs)
	}
}

// The default of overlap follows concurrencyPolicy, so an edit of it is stamped.
func TestConcurrencyPolicyIsStamped(t *testing.T) {
	docs := documents(t, "testdata/cronjobs/update-nothing.in.yaml")
	changed := apply(t, docs[0], []Op{{Op: "add", Path: "/spec/concurrencyPolicy", Value: "Replace"}})
	out, err := PatchCronJob(CronJob{Object: changed, OldObject: docs[0], Namespace: "shop", Now: noon})
	if err != nil || len(out.Ops) != 1 {
		t.Fatal(out.Ops, err)
	}
	s, err := contract.DecodeSettings(out.Ops[0].Value.(string))
	if err != nil || s.Overlap != contract.OverlapReplace {
		t.Errorf("%+v %v", s, err)
	}
}
