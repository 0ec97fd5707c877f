//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/test/bed"
)

// raw is a CronJob without what the API server itself changes.
func (w *world) raw(t *testing.T, name string) map[string]any {
	t.Helper()
	out, err := w.Kubectl(t.Context(), "get", "cronjob", name, "-n", w.ns, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(out), &object); err != nil {
		t.Fatal(err)
	}
	meta := object["metadata"].(map[string]any)
	for _, k := range []string{"resourceVersion", "managedFields", "generation"} {
		delete(meta, k)
	}
	return object
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Annotating and un-annotating gives back the CronJob as it was.
func TestUnannotatingRestoresTheCronJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plain := unguarded(w.ns, "credit", credit)
	plain.Spec.JobTemplate.Labels = map[string]string{"mine": "stays"}
	if _, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), plain, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := text(t, w.raw(t, "credit"))
	if _, err := w.Kubectl(t.Context(), "annotate", "cronjob", "credit", "-n", w.ns, contract.AnnotationGuard+"="+contract.Enabled); err != nil {
		t.Fatal(err)
	}
	stamped := text(t, w.raw(t, "credit"))
	for _, word := range []string{contract.AnnotationConfig, `"onceguard.dev/guard": "enabled"`, `"mine": "stays"`} {
		if !strings.Contains(stamped, word) {
			t.Errorf("the annotated CronJob lacks %s:\n%s", word, stamped)
		}
	}
	if _, err := w.Kubectl(t.Context(), "annotate", "cronjob", "credit", "-n", w.ns, contract.AnnotationGuard+"-"); err != nil {
		t.Fatal(err)
	}
	if after := text(t, w.raw(t, "credit")); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// An unguarded CronJob, its Job and its pod are what they would be without us.
func TestAnUnguardedCronJobIsUntouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), unguarded(w.ns, "plain", script), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	job := w.job(t, cj, pastWindow(1), "plain")
	w.ends(t, job.Name, batchv1.JobComplete)
	pod := w.onlyPod(t, job.Name)
	pod.Status = corev1.PodStatus{}
	for what, object := range map[string]any{"CronJob": w.raw(t, "plain"), "pod": pod} {
		// The image's name is ours, since this is a test.
		if s := strings.ReplaceAll(text(t, object), cluster.WorkerImage, ""); strings.Contains(strings.ToLower(s), "onceguard") {
			t.Errorf("the %s speaks of us:\n%s", what, s)
		}
	}
	if got := w.number(t, "SELECT count(*) FROM onceguard.job_execution"); got != 0 {
		t.Errorf("%d windows of an unguarded CronJob", got)
	}
}

// Nothing runs unguarded while Onceguard is not installed: a labelled pod is denied by
// the policy that stays. A CronJob that is annotated meanwhile is stamped by the next
// installation.
func TestWhileOnceguardIsNotInstalled(t *testing.T) {
	w := newWorld(t)
	guarded := w.cronJob(t, "guarded", credit)
	if _, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), unguarded(w.ns, "early", credit), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer reinstall(t)
	if _, err := w.Run(t.Context(), "", "helm", "uninstall", bed.Release, "-n", bed.Namespace, "--wait"); err != nil {
		t.Fatal(err)
	}
	window := pastWindow(1)
	job := w.job(t, guarded, window, "guarded")
	w.event(t, "Job", job.Name, "FailedCreate", "onceguard")
	// The API server forgets the policy on CronJobs a moment after it is deleted.
	eventually(t, 30*time.Second, "an annotation", func(ctx context.Context) (bool, error) {
		_, err := w.Kubectl(ctx, "annotate", "cronjob", "early", "-n", w.ns, contract.AnnotationGuard+"="+contract.Enabled)
		return err == nil, err
	})
	w.booked(t, 0, 0)

	reinstall(t)
	eventually(t, 2*time.Minute, "the stamp", func(context.Context) (bool, error) {
		return strings.Contains(text(t, w.raw(t, "early")), contract.AnnotationConfig), nil
	})
	w.ends(t, job.Name, batchv1.JobComplete)
	early, err := w.Client.BatchV1().CronJobs(w.ns).Get(t.Context(), "early", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.ends(t, w.job(t, early, window, "early").Name, batchv1.JobComplete)
	w.booked(t, 20, 2)
}

// With the webhook's configuration deleted, by whomever, neither a guarded pod nor a new
// wish for the guard passes; and the webhook's pods serve again as soon as it is back.
func TestTheWebhookConfigurationIsDeleted(t *testing.T) {
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit)
	if _, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), unguarded(w.ns, "late", credit), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer reinstall(t)
	hooks := cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for _, name := range w.webhookConfigurations(t) {
		if err := hooks.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	job := w.job(t, cj, pastWindow(1), "credit")
	w.event(t, "Job", job.Name, "FailedCreate", "onceguard")
	out, err := w.Kubectl(t.Context(), "annotate", "cronjob", "late", "-n", w.ns, contract.AnnotationGuard+"="+contract.Enabled)
	if err == nil || !strings.Contains(out, "onceguard") {
		t.Errorf("annotating without the webhook: %s, %v", out, err)
	}
	w.booked(t, 0, 0)
	reinstall(t)
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// webhookConfigurations are that of CronJobs and pods, and that of the engine's Jobs.
func (w *world) webhookConfigurations(t *testing.T) []string {
	t.Helper()
	list, err := w.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=onceguard"})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%d webhook configurations, %v", len(list.Items), err)
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, c.Name)
	}
	return names
}

// reinstall brings everything back as the chart says, and waits until it serves.
func reinstall(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := cluster.Install(ctx, chartValues...); err != nil {
		t.Fatal(err)
	}
}

// The connection URL is in no environment, argument, spec or log, and the worker's
// namespace holds nothing of ours but the one Secret.
func TestTheSecretStaysInItsPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", `env; `+busy)
	job := w.job(t, cj, pastWindow(1), "credit")
	pod := w.running(t, job.Name)
	_, rest, _ := strings.Cut(w.ledger.GuardURL, ":")
	_, rest, _ = strings.Cut(rest, ":")
	password, _, _ := strings.Cut(rest, "@")
	seen := text(t, pod) +
		w.exec(t, pod.Name, "worker", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls -lR /onceguard /etc/onceguard 2>&1 || true")
	w.exec(t, pod.Name, "worker", "touch /tmp/go")
	w.ends(t, job.Name, batchv1.JobComplete)
	logs, err := w.Kubectl(t.Context(), "logs", "-n", w.ns, pod.Name, "--all-containers")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(seen+logs, password) {
		t.Error("the password was seen")
	}
	for _, kind := range []string{"serviceaccounts", "roles", "rolebindings", "configmaps"} {
		out, err := w.Kubectl(t.Context(), "get", kind, "-n", w.ns, "-o", "name")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out, "onceguard") {
			t.Errorf("%s of ours in the worker's namespace: %s", kind, out)
		}
	}
}
