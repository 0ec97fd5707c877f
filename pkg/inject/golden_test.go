package inject

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/onceguard/onceguard/pkg/contract"
)

var update = flag.Bool("update", false, "write the golden files anew")

func guard() Guard {
	return Guard{
		Image: "registry.example/onceguard-guard:1", PullPolicy: "IfNotPresent", Resources: DefaultResources(),
		LedgerSecretPrefix: contract.LedgerSecretPrefix, LogLanguage: "en",
	}
}

var noon = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

// golden compares got with the file, as structure; -update writes it.
func golden(t *testing.T, file string, got any) {
	t.Helper()
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, text) {
		t.Errorf("%s differs; run with -update and review the difference. Got:\n%s", file, text)
	}
}

func apply(t testing.TB, raw []byte, ops []Op) []byte {
	t.Helper()
	if len(ops) == 0 {
		return raw
	}
	text, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		t.Fatal(err)
	}
	out, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("the patch does not apply: %v\n%s", err, text)
	}
	return out
}

// documents reads the YAML documents of a file as JSON.
func documents(t *testing.T, file string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for _, part := range strings.Split(string(text), "\n---\n") {
		raw, err := yaml.YAMLToJSON([]byte(part))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw)
	}
	return out
}

func inputs(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/" + dir + "/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no input files", err)
	}
	return files
}

// Each input is the Job's metadata, then the pod, then the Job's spec where needed.
func TestPodGolden(t *testing.T) {
	for _, file := range inputs(t, "pods") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			docs := documents(t, file)
			var job metav1.PartialObjectMetadata
			if err := json.Unmarshal(docs[0], &job); err != nil {
				t.Fatal(err)
			}
			in := Pod{Object: docs[1], Namespace: "shop", Now: noon}
			if job.Name != "" {
				in.Job = &job
			}
			if len(docs) > 2 {
				spec, err := decode[batchv1.JobSpec](docs[2])
				if err != nil {
					t.Fatal(err)
				}
				in.JobSpec = &spec
			}
			g := guard()
			if job.Labels["test/pull-secret"] != "" {
				g.PullSecrets = []string{job.Labels["test/pull-secret"]}
			}
			out, err := g.PatchPod(in)
			if err != nil {
				golden(t, strings.Replace(file, ".in.", ".out.", 1), map[string]any{"impossible": err.Error()})
				return
			}
			result := apply(t, in.Object, out.Ops)
			var after any
			if err := json.Unmarshal(result, &after); err != nil {
				t.Fatal(err)
			}
			golden(t, strings.Replace(file, ".in.", ".out.", 1), map[string]any{"ops": out.Ops, "config": out.Config, "pod": after})

			again := in
			again.Object = result
			if second, err := g.PatchPod(again); err != nil || len(second.Ops) != 0 {
				t.Errorf("a second injection is not empty: %v %v", second.Ops, err)
			}
		})
	}
}

// Each input is the CronJob, then, for an update, the CronJob as it was.
func TestCronJobGolden(t *testing.T) {
	for _, file := range inputs(t, "cronjobs") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			docs := documents(t, file)
			in := CronJob{Object: docs[0], Namespace: "shop", Now: noon}
			if len(docs) > 1 {
				in.OldObject = docs[1]
			}
			out, err := PatchCronJob(in)
			if err != nil {
				t.Fatal(err)
			}
			result := apply(t, in.Object, out.Ops)
			var after any
			if err := json.Unmarshal(result, &after); err != nil {
				t.Fatal(err)
			}
			problems := []string{}
			for _, p := range out.Problems {
				problems = append(problems, p.Error())
			}
			golden(t, strings.Replace(file, ".in.", ".out.", 1), map[string]any{"ops": out.Ops, "problems": problems, "warnings": out.Warnings, "cronjob": after})

			again := in
			again.Object = result
			if second, err := PatchCronJob(again); err != nil || len(second.Ops) != 0 {
				t.Errorf("a second stamping is not empty: %v %v", second.Ops, err)
			}
		})
	}
}
