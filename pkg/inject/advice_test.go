package inject

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

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
		{"wait under Forbid", "Forbid", map[string]string{overlap: "wait"}, "Etc/UTC", "under Forbid Kubernetes makes no Job"},
		{"wait under Replace", "Replace", map[string]string{overlap: "wait"}, "Etc/UTC", "under Replace Kubernetes deletes the running Job"},
		{"serial", "Allow", map[string]string{order: "serial", attempts: "2"}, "Etc/UTC", ""},
		{"serial that waits anyway", "Allow", map[string]string{order: "serial", attempts: "2", overlap: "wait"}, "Etc/UTC", ""},
		{"serial that skips", "Allow", map[string]string{order: "serial", attempts: "2", overlap: "skip"}, "Etc/UTC", "so onceguard.dev/overlap=skip concerns only"},
		{"serial under Forbid", "Forbid", map[string]string{order: "serial", attempts: "2"}, "Etc/UTC", "all later ones then wait"},
		{"serial under Replace", "Replace", map[string]string{order: "serial", attempts: "2"}, "Etc/UTC", "deletes the Job of a window that is not done"},
		{"serial without an end", "Allow", map[string]string{order: "serial"}, "Etc/UTC", "is not closed by that"},
		{"serial whose Job gives up first", "Allow", map[string]string{order: "serial", attempts: "3"}, "Etc/UTC", "of at most spec.jobTemplate.spec.backoffLimit (2)"},
		{"serial without zone", "Allow", map[string]string{order: "serial", attempts: "2"}, "", "cannot be computed, so a window"},
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
			cronJob := map[string]any{
				"metadata": map[string]any{"name": "sync", "annotations": annotations},
				"spec": map[string]any{
					"schedule": "*/5 * * * *", "timeZone": c.zone, "concurrencyPolicy": c.concurrency, "startingDeadlineSeconds": 200,
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
