package inject

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"pgregory.net/rapid"

	"github.com/onceguard/onceguard/pkg/contract"
)

// drawnPod is a pod as another party may have written it, with fields that no API
// version of ours knows.
func drawnPod(t *rapid.T) (map[string]any, *metav1.PartialObjectMetadata) {
	boolean := func(name string) bool { return rapid.Bool().Draw(t, name) }
	restricted := boolean("restricted")
	container := func(name string) map[string]any {
		c := map[string]any{"name": name, "image": "i", "future-" + name: map[string]any{"x": []any{1.0, nil}}}
		if boolean("command") {
			c["command"] = []any{"sh", "-c", "$(X) $$"}
		}
		if boolean("args") {
			c["args"] = []any{"7"}
		}
		if boolean("mounts") {
			c["volumeMounts"] = []any{map[string]any{"name": "data", "mountPath": "/data", "futureMount": true}}
		}
		if boolean("preStop") && !strings.HasPrefix(name, "init") {
			c["lifecycle"] = map[string]any{"preStop": map[string]any{"exec": map[string]any{"command": []any{"bye"}}, "future": 1.0}}
		}
		if boolean("liveness") && !strings.HasPrefix(name, "init") {
			c["livenessProbe"] = map[string]any{"exec": map[string]any{"command": []any{"ok"}}}
		}
		if boolean("message path") {
			c["terminationMessagePath"] = "/dev/other"
		}
		if restricted {
			c["securityContext"] = map[string]any{
				"allowPrivilegeEscalation": false, "runAsNonRoot": true,
				"capabilities": map[string]any{"drop": []any{"ALL"}}, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
			}
		}
		return c
	}
	spec := map[string]any{
		"restartPolicy": rapid.SampledFrom([]string{"Never", "OnFailure"}).Draw(t, "restartPolicy"),
		"futureSpec":    "kept", "volumes": []any{map[string]any{"name": "data", "futureVolume": map[string]any{}}},
	}
	if boolean("no volumes") {
		delete(spec, "volumes")
	}
	var inits, workers []any
	s := contract.Settings{
		Version: 1, CronJob: "sync", JobName: "shop/sync", Ledger: "default", Schedule: "*/5 * * * *", TimeZone: "Etc/UTC",
		Completion: "exit-code", Busy: "wait", Manual: "window", StartTimeout: contract.Duration(time.Minute), Lease: contract.Duration(time.Minute), Commands: map[string][]string{},
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "inits") {
		c := container(fmt.Sprintf("init%d", i))
		if boolean("sidecar") {
			c["restartPolicy"] = "Always"
		} else if boolean("stamped init") {
			s.InitContainers = append(s.InitContainers, c["name"].(string))
		}
		inits = append(inits, c)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "workers") {
		c := container(fmt.Sprintf("c%d", i))
		if boolean("stamped") {
			s.Containers = append(s.Containers, c["name"].(string))
			if c["command"] == nil && boolean("command annotation") {
				s.Commands[c["name"].(string)] = []string{"/x"}
			}
		}
		workers = append(workers, c)
	}
	if len(inits) > 0 {
		spec["initContainers"] = inits
	}
	spec["containers"] = workers
	s.Indexed = boolean("indexed")
	s.Order = rapid.SampledFrom([]contract.Order{"", contract.OrderAny, contract.OrderSerial}).Draw(t, "order")
	metadata := map[string]any{"generateName": "sync-"}
	if boolean("index") {
		metadata["annotations"] = map[string]any{contract.AnnotationIndex: "7"}
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	annotations := map[string]string{contract.AnnotationScheduledTimestamp: "2025-06-01T10:00:00Z"}
	if boolean("config") {
		annotations[contract.AnnotationConfig] = string(text)
	}
	job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sync-29146200", UID: "u", Annotations: annotations, CreationTimestamp: metav1.NewTime(noon)}}
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "futureTop": 1.0}, job
}

func TestInjectionHoldsForAnyPod(t *testing.T) {
	restricted, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(raw []byte) bool {
		var pod corev1.Pod
		if json.Unmarshal(raw, &pod) != nil {
			return false
		}
		for _, r := range restricted.EvaluatePod(psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
			if !r.Allowed {
				return false
			}
		}
		return true
	}
	rapid.Check(t, func(rt *rapid.T) {
		pod, job := drawnPod(rt)
		raw, err := json.Marshal(pod)
		if err != nil {
			rt.Fatal(err)
		}
		in := Pod{Object: raw, Namespace: "shop", Job: job, Now: noon}
		out, err := guard().PatchPod(in)
		if err != nil {
			rt.Fatal(err)
		}
		result := apply(t, raw, out.Ops)

		again := in
		again.Object = result
		second, err := guard().PatchPod(again)
		if err != nil || len(second.Ops) != 0 || !reflect.DeepEqual(second.Config, out.Config) {
			rt.Fatalf("a second injection differs: %v %v", second.Ops, err)
		}
		if allowed(raw) && !allowed(result) {
			rt.Fatalf("a restricted pod is no longer restricted: %s", result)
		}
		var after map[string]any
		if err := json.Unmarshal(result, &after); err != nil {
			rt.Fatal(err)
		}
		checkGuarded(rt, after, out.Config)
		if got, want := stripped(after), stripped(pod); !reflect.DeepEqual(got, want) {
			rt.Fatalf("something else changed:\n got %v\nwant %v", got, want)
		}
	})
}

func list(spec map[string]any, key string) []any { l, _ := spec[key].([]any); return l }

func checkGuarded(t *rapid.T, pod map[string]any, config contract.GuardConfig) {
	spec := pod["spec"].(map[string]any)
	guardAt := slices.IndexFunc(list(spec, "initContainers"), func(c any) bool { return c.(map[string]any)["name"] == contract.ContainerGuard })
	if guardAt < 0 {
		t.Fatal("no guard")
	}
	for _, part := range []string{"initContainers", "containers"} {
		names := config.Containers
		if part == "initContainers" {
			names = config.InitContainers
		}
		for _, name := range names {
			i := slices.IndexFunc(list(spec, part), func(c any) bool { return c.(map[string]any)["name"] == name })
			if i < 0 {
				t.Fatalf("%s is counted, but not there", name)
			}
			if part == "initContainers" && i < guardAt {
				t.Fatalf("%s starts before the guard", name)
			}
			argv := list(spec, part)[i].(map[string]any)["command"].([]any)
			if argv[0] != contract.PathExec || argv[1] != "--container="+name || argv[len(argv)-1] == "--" {
				t.Fatalf("%s runs %v", name, argv)
			}
		}
	}
	if len(config.Containers) == 0 {
		t.Fatal("nothing is wrapped")
	}
	inits := list(spec, "initContainers")
	if last := inits[len(inits)-1].(map[string]any)["name"]; (last == contract.ContainerClaim) != (len(config.Probed) > 0) {
		t.Fatalf("probed %v, but the last init container is %s", config.Probed, last)
	}
}

// stripped takes everything away that an injection may add.
func stripped(pod map[string]any) map[string]any {
	text, _ := json.Marshal(pod)
	var out map[string]any
	_ = json.Unmarshal(text, &out)
	spec := out["spec"].(map[string]any)
	ours := func(o any) bool { return strings.HasPrefix(o.(map[string]any)["name"].(string), "onceguard") }
	drop := func(m map[string]any, key string) {
		if l := slices.DeleteFunc(slices.Clone(list(m, key)), ours); len(l) > 0 {
			m[key] = l
		} else {
			delete(m, key)
		}
	}
	drop(spec, "volumes")
	drop(spec, "initContainers")
	for _, c := range slices.Concat(list(spec, "initContainers"), list(spec, "containers")) {
		c := c.(map[string]any)
		drop(c, "volumeMounts")
		delete(c, "command")
		if l, ok := c["lifecycle"].(map[string]any); ok {
			delete(l["preStop"].(map[string]any), "exec")
		}
	}
	return out
}

// What another webhook undid between two calls is mended, and nothing is wrapped twice.
func TestReinvocationMends(t *testing.T) {
	docs := documents(t, "testdata/pods/rich.in.yaml")
	var job metav1.PartialObjectMetadata
	if err := json.Unmarshal(docs[0], &job); err != nil {
		t.Fatal(err)
	}
	in := Pod{Object: docs[1], Namespace: "shop", Job: &job, Now: noon}
	first, err := guard().PatchPod(in)
	if err != nil {
		t.Fatal(err)
	}
	done := apply(t, in.Object, first.Ops)
	for name, damage := range map[string]string{
		"restartPolicy stripped": `[{"op":"remove","path":"/spec/initContainers/1/restartPolicy"}]`,
		"command put back":       `[{"op":"replace","path":"/spec/containers/0/command","value":["/bin/work"]}]`,
		"config forged":          `[{"op":"replace","path":"/spec/initContainers/1/env/0/value","value":"{}"}]`,
		"mount removed":          `[{"op":"remove","path":"/spec/containers/0/volumeMounts"}]`,
		"claim removed":          `[{"op":"remove","path":"/spec/initContainers/4"}]`,
		"init container behind":  `[{"op":"add","path":"/spec/initContainers/-","value":{"name":"proxy-of-a-mesh","restartPolicy":"Always"}}]`,
		"volume removed":         `[{"op":"remove","path":"/spec/volumes/2"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			var ops []Op
			if err := json.Unmarshal([]byte(damage), &ops); err != nil {
				t.Fatal(err)
			}
			damaged := in
			damaged.Object = apply(t, done, ops)
			mend, err := guard().PatchPod(damaged)
			if err != nil || len(mend.Ops) == 0 || len(mend.Ops) > 2 {
				t.Fatalf("got %v %v", mend.Ops, err)
			}
			again := in
			again.Object = apply(t, damaged.Object, mend.Ops)
			if rest, err := guard().PatchPod(again); err != nil || len(rest.Ops) != 0 {
				t.Errorf("not mended: %v %v", rest.Ops, err)
			}
		})
	}
}

func FuzzPatchCronJob(f *testing.F) {
	for _, file := range []string{"create-bad", "un-annotate", "unchanged-bad-value"} {
		t := &testing.T{}
		for _, doc := range documents(t, "testdata/cronjobs/"+file+".in.yaml") {
			f.Add(doc, doc)
		}
	}
	f.Fuzz(func(t *testing.T, object, old []byte) {
		in := CronJob{Object: object, OldObject: old, Namespace: "shop", Now: noon}
		out, err := PatchCronJob(in)
		if err != nil || len(out.Problems) > 0 {
			return
		}
		in.Object = apply(t, object, out.Ops)
		if second, err := PatchCronJob(in); err != nil || len(second.Ops) != 0 {
			t.Fatalf("a second stamping is not empty: %v %v", second.Ops, err)
		}
	})
}
