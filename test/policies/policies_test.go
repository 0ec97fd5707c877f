//go:build e2e

// Package policies shows on a real API server what the chart's admission policies
// let through and what they deny. They are what holds while the webhook is away.
package policies

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/test/bed"
)

// account is the webhook's own; the tests act in its name.
const account = "system:serviceaccount:" + bed.Namespace + ":onceguard-webhook"

const namespace = "policies"

var cluster *bed.Bed

func TestMain(m *testing.M) { os.Exit(setUp(m)) }

func setUp(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err := func() (err error) {
		if cluster, err = bed.Open("../.."); err != nil {
			return err
		}
		// The engine's ledger need not be there: the tests act in the engine's name.
		if err = cluster.Install(ctx, "engine.ledgers[0].name=default", "engine.ledgers[0].secretName=nowhere"); err != nil {
			return err
		}
		// That of a run before this one takes its pods' grace period to end.
		return bed.Wait(ctx, 2*time.Minute, "a fresh namespace "+namespace, func(ctx context.Context) (bool, error) {
			_, err := cluster.Kubectl(ctx, "create", "namespace", namespace)
			return err == nil, err
		})
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "policies:", err)
		return 1
	}
	defer func() { _, _ = cluster.Kubectl(context.Background(), "delete", "namespace", namespace, "--wait=false") }()
	return m.Run()
}

const cronJob = `
apiVersion: batch/v1
kind: CronJob
metadata:
  name: %s
  namespace: %s
  labels: {team: books}
  annotations: {note: "yes"%s}
spec:
  schedule: "0 0 29 2 *"
  jobTemplate:
    metadata: {labels: {team: books}}
    spec:
      template:
        metadata: {annotations: {note: "yes"}}
        spec:
          restartPolicy: Never
          containers: [{name: worker, image: "worker:none", imagePullPolicy: Never, command: [sh, -c, "true"]}]
`

func apply(t *testing.T, manifest string) (string, error) {
	t.Helper()
	return cluster.Apply(t.Context(), manifest)
}

// denied wants an error that came from a policy, with words for the person who reads it.
func denied(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("was not denied")
		return
	}
	for _, w := range append(words, "ValidatingAdmissionPolicy") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in: %v", w, err)
		}
	}
}

// The right to patch CronJobs is the right to run anything as anybody: the webhook's
// account has it for our own marks only.
func TestTheWebhooksAccountMayOnlySetItsMarks(t *testing.T) {
	if _, err := apply(t, fmt.Sprintf(cronJob, "marks", namespace, "")); err != nil {
		t.Fatal(err)
	}
	const (
		stamp = `{"spec":{"jobTemplate":{"metadata":{"labels":{"onceguard.dev/guard":"enabled"},"annotations":{"onceguard.dev/config":"{}"}},"spec":{"template":{"metadata":{"labels":{"onceguard.dev/guard":"enabled"}}}}}}}`
		clear = `{"spec":{"jobTemplate":{"metadata":{"labels":{"onceguard.dev/guard":null},"annotations":null},"spec":{"template":{"metadata":{"labels":null}}}}}}`
	)
	for _, c := range []struct {
		name  string
		patch string
		may   bool
	}{
		{"stamps", stamp, true},
		{"takes the stamp away", clear, true},
		{"wishes on people's behalf", `{"metadata":{"annotations":{"onceguard.dev/lease":"1h"}}}`, false},
		{"turns the guard on", `{"metadata":{"annotations":{"onceguard.dev/guard":"enabled"}}}`, false},
		{"labels the CronJob", `{"metadata":{"labels":{"onceguard.dev/guard":"enabled"}}}`, false},
		{"sets another mark on the Job template", `{"spec":{"jobTemplate":{"metadata":{"annotations":{"onceguard.dev/job-name":"x"}}}}}`, false},
		{"sets a mark on the pod template", `{"spec":{"jobTemplate":{"spec":{"template":{"metadata":{"annotations":{"onceguard.dev/window-start":"x"}}}}}}}`, false},
		{"adds a label to the Job template", `{"spec":{"jobTemplate":{"metadata":{"labels":{"x":"y"}}}}}`, false},
		{"changes one", `{"spec":{"jobTemplate":{"metadata":{"labels":{"team":"x"}}}}}`, false},
		{"removes one", `{"spec":{"jobTemplate":{"metadata":{"labels":{"team":null}}}}}`, false},
		{"changes a pod annotation", `{"spec":{"jobTemplate":{"spec":{"template":{"metadata":{"annotations":{"note":"x"}}}}}}}`, false},
		{"names the pods", `{"spec":{"jobTemplate":{"spec":{"template":{"metadata":{"name":"x"}}}}}}`, false},
		{"changes an annotation of the CronJob", `{"metadata":{"annotations":{"note":"x"}}}`, false},
		{"removes a label of the CronJob", `{"metadata":{"labels":{"team":null}}}`, false},
		{"sets a finalizer", `{"metadata":{"finalizers":["example.com/x"]}}`, false},
		{"sets an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"1"}]}}`, false},
		{"suspends", `{"spec":{"suspend":true}}`, false},
		{"changes the schedule", `{"spec":{"schedule":"1 * * * *"}}`, false},
		{"sets a zone", `{"spec":{"timeZone":"Etc/UTC"}}`, false},
		{"changes the Job", `{"spec":{"jobTemplate":{"spec":{"backoffLimit":0}}}}`, false},
		{"changes the image", `{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"worker","image":"evil:1"}]}}}}}}`, false},
		{"takes the host's network", `{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"hostNetwork":true}}}}}}`, false},
		{"chooses the account", `{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}}}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			patch := func(as ...string) error {
				args := append([]string{"-n", namespace, "patch", "cronjob", "marks", "--type", "merge", "--dry-run=server", "-p", c.patch}, as...)
				_, err := cluster.Kubectl(t.Context(), args...)
				return err
			}
			if err := patch("--as", account); c.may && err != nil {
				t.Error(err)
			} else if !c.may {
				denied(t, err, "Onceguard's webhook may")
				// The same patch is sound: it is the account that may not.
				if err := patch(); err != nil {
					t.Errorf("the administrator may not either: %v", err)
				}
			}
		})
	}
	// Two policies refuse this one, and the API server names either.
	_, err := cluster.Kubectl(t.Context(), "-n", namespace, "patch", "cronjob", "marks", "--type", "merge", "--dry-run=server", "--as", account,
		"-p", `{"spec":{"jobTemplate":{"metadata":{"labels":{"onceguard.dev/guard":"x"}}}}}`)
	denied(t, err, "ValidatingAdmissionPolicy 'onceguard-")
}

func TestAskingWhereNobodyAnswersIsRefused(t *testing.T) {
	const ask = `, onceguard.dev/guard: enabled`
	for _, excluded := range []string{"kube-system", bed.Namespace} {
		_, err := apply(t, fmt.Sprintf(cronJob, "asks", excluded, ask))
		denied(t, err, "CronJob "+excluded+"/asks", "not active in namespace "+excluded, "remove the annotation")
		if _, err := apply(t, fmt.Sprintf(cronJob, "asks-not", excluded, "")); err != nil {
			t.Errorf("a CronJob that does not ask: %v", err)
		}
		_, err = cluster.Kubectl(t.Context(), "-n", excluded, "annotate", "cronjob", "asks-not", "onceguard.dev/guard=enabled")
		denied(t, err, "not active in namespace "+excluded)
		if _, err := cluster.Kubectl(t.Context(), "-n", excluded, "delete", "cronjob", "asks-not"); err != nil {
			t.Error(err)
		}
	}
}

// Without the webhook's configuration nothing is injected, and nothing runs unguarded.
func TestALabelledPodWithoutTheGuardIsDenied(t *testing.T) {
	configs := cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := configs.Get(t.Context(), bed.Release, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := configs.Delete(t.Context(), bed.Release, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		config.ResourceVersion, config.UID = "", ""
		if _, err := configs.Create(context.Background(), config, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: ` + namespace + `, labels: {%s}}
spec:
  initContainers: [%s]
  containers: [{name: worker, image: "worker:none", imagePullPolicy: Never, command: [%s]}]
`
	const (
		label   = `onceguard.dev/guard: enabled`
		sidecar = `{name: onceguard, image: "guard:none", imagePullPolicy: Never, restartPolicy: Always}`
		wrapped = `/onceguard/guard-exec, --, sh`
	)
	// The API server may still call the webhook for a moment.
	err = bed.Wait(t.Context(), time.Minute, "the webhook is called no more", func(context.Context) (bool, error) {
		_, err := apply(t, fmt.Sprintf(pod, "plain", label, "", "sh"))
		return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"), err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = apply(t, fmt.Sprintf(pod, "plain", label, "", "sh"))
	denied(t, err, `no native sidecar "onceguard"`, "remove the annotation")
	_, err = apply(t, fmt.Sprintf(pod, "plain", `onceguard.dev/guard: "true"`, "", "sh"))
	denied(t, err, `no native sidecar "onceguard"`)
	_, err = apply(t, fmt.Sprintf(pod, "stripped", label, `{name: onceguard, image: "guard:none", imagePullPolicy: Never}`, wrapped))
	denied(t, err, "restartPolicy")
	_, err = apply(t, fmt.Sprintf(pod, "unwrapped", label, sidecar, "sh"))
	denied(t, err, "none of its containers runs under /onceguard/guard-exec")

	for name, manifest := range map[string]string{
		"guarded":                    fmt.Sprintf(pod, "guarded", label, sidecar, wrapped),
		"wrapped once more":          fmt.Sprintf(pod, "wrapped", label, sidecar, "/vault/env, "+wrapped),
		"not labelled, not our case": fmt.Sprintf(pod, "other", "", "", "sh"),
	} {
		if _, err := apply(t, manifest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	_, err = apply(t, fmt.Sprintf(cronJob, "asks", namespace, `, onceguard.dev/guard: enabled`))
	denied(t, err, "its webhook configuration was removed")
}

const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: ` + namespace + `, annotations: {%s}, labels: {%s}}
spec:
  suspend: true
  template:
    metadata: {annotations: {%s}, labels: {%s}}
    spec:
      restartPolicy: Never
      containers: [{name: worker, image: "worker:none", imagePullPolicy: Never, command: [sh, -c, "true"]}]
`

const wish, yes = "onceguard.dev/guard: enabled", `onceguard.dev/guard: "true"`

// A wish that nobody would hear is answered when it is applied.
func TestAWishInTheWrongPlaceIsWarnedOf(t *testing.T) {
	const barePod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: ` + namespace + `, annotations: {%s}}
spec:
  containers: [{name: worker, image: "worker:none", imagePullPolicy: Never, command: [sh]}]
`
	in := func(template, labels, podAnnotations string) string { // a CronJob that mentions us somewhere
		m := fmt.Sprintf(cronJob, "mentions", namespace, "")
		m = strings.Replace(m, "  labels: {team: books}\n", "  labels: {team: books"+labels+"}\n", 1)
		m = strings.Replace(m, "metadata: {labels: {team: books}}", "metadata: {labels: {team: books}, annotations: {"+template+"}}", 1)
		return strings.Replace(m, `metadata: {annotations: {note: "yes"}}`, `metadata: {annotations: {note: "yes"`+podAnnotations+`}}`, 1)
	}
	for _, c := range []struct{ name, manifest, warns string }{
		{"annotation on the Job template", in(wish, "", ""), "CronJob policies/mentions mentions onceguard.dev/ but is not guarded: it runs WITHOUT the guard"},
		{"label on the CronJob", in("", ", "+wish, ""), "the annotation onceguard.dev/guard=enabled on the CronJob itself"},
		{"annotation on the pod template", in("", "", ", "+wish), "it runs WITHOUT the guard"},
		{"a misspelt annotation", fmt.Sprintf(cronJob, "mentions", namespace, `, onceguard.dev/guards: enabled`), "it runs WITHOUT the guard"},
		{"nothing", in("", "", ""), ""},
		{"the annotation in its place", fmt.Sprintf(cronJob, "mentions", namespace, ", "+wish), ""},
		{"annotation on a Job", fmt.Sprintf(job, "mentions", wish, "", "", ""), "Job policies/mentions mentions onceguard.dev/ but is not guarded"},
		{"label on a Job", fmt.Sprintf(job, "mentions", "", wish, "", ""), "label onceguard.dev/guard=enabled on its pod template"},
		{"annotation on a Job's pod template", fmt.Sprintf(job, "mentions", "", "", wish, ""), "it runs WITHOUT the guard"},
		{"a guarded Job", fmt.Sprintf(job, "mentions", "onceguard.dev/job-name: load", "", "", wish), ""},
		{"a guarded Job with some containers", fmt.Sprintf(job, "mentions", "onceguard.dev/containers: worker", "", "", wish), "they run even when the window is skipped"},
		{"a Job", fmt.Sprintf(job, "mentions", "", "", "", ""), ""},
		{"annotation on a pod", fmt.Sprintf(barePod, "mentions", wish), "Pod policies/mentions is annotated with onceguard.dev/guard but is not guarded"},
		{"a pod", fmt.Sprintf(barePod, "mentions", ""), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			said, err := cluster.Run(t.Context(), c.manifest, "kubectl", "apply", "--dry-run=server", "-f", "-")
			if err != nil {
				t.Fatal(err)
			}
			if warned := strings.Contains(said, "onceguard-hints"); warned != (c.warns != "") || !strings.Contains(said, c.warns) {
				t.Errorf("want a warning %q, got %s", c.warns, said)
			}
		})
	}
}

// The label with another value is no request for the guard, nor a way around it.
func TestTheLabelHasOneValue(t *testing.T) {
	labelled := func(template, podLabels string) string {
		m := strings.Replace(fmt.Sprintf(cronJob, "labelled", namespace, ""), "metadata: {labels: {team: books}}", "metadata: {labels: {"+template+"}}", 1)
		return strings.Replace(m, `metadata: {annotations: {note: "yes"}}`, `metadata: {labels: {`+podLabels+`}}`, 1)
	}
	for name, manifest := range map[string]string{
		"pod template of a Job":     fmt.Sprintf(job, "labelled", "", "", "", yes),
		"pod template of a CronJob": labelled("", yes),
		"Job template":              labelled(yes, ""),
	} {
		_, err := cluster.Run(t.Context(), manifest, "kubectl", "apply", "--dry-run=server", "-f", "-")
		if denied(t, err, `has the value "true"; the one accepted value is "enabled"`); t.Failed() {
			t.Fatal(name)
		}
	}
	// With the annotation the webhook mends it.
	mended := strings.Replace(labelled("", yes), `note: "yes"}`, `note: "yes", `+wish+`}`, 1)
	if _, err := cluster.Run(t.Context(), mended, "kubectl", "apply", "--dry-run=server", "-f", "-"); err != nil {
		t.Error(err)
	}
	// A Job that is there already with such a label: its pods fail with the reason.
	pod, err := cluster.Run(t.Context(), `{apiVersion: v1, kind: Pod, metadata: {name: labelled, namespace: `+namespace+`, labels: {`+yes+`}},
spec: {restartPolicy: Never, containers: [{name: worker, image: "worker:none", imagePullPolicy: Never, command: [sh]}]}}`, "kubectl", "apply", "--dry-run=server", "-o", "yaml", "-f", "-")
	if err != nil || !strings.Contains(pod, "the one accepted value is") || !strings.Contains(pod, "name: onceguard") {
		t.Errorf("want a pod with a guard that refuses, got %v %s", err, pod)
	}
}

// The rules' expressions are checked by the API server against the types it knows.
func TestPoliciesHaveNoTypeErrors(t *testing.T) {
	for _, name := range []string{"pods", "cronjobs", "labels", "hints", "self", "engine"} {
		err := bed.Wait(t.Context(), time.Minute, "policy "+name+" is checked", func(ctx context.Context) (bool, error) {
			p, err := cluster.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, bed.Release+"-"+name, metav1.GetOptions{})
			if err != nil || p.Status.ObservedGeneration != p.Generation {
				return false, err
			}
			if p.Status.TypeChecking != nil && len(p.Status.TypeChecking.ExpressionWarnings) > 0 {
				t.Errorf("%s: %+v", name, p.Status.TypeChecking.ExpressionWarnings)
			}
			return true, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
