//go:build e2e

package e2e

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/bed"
)

// Bad annotations are refused at apply; the message names the key, the value and
// what is accepted.
func TestABadAnnotationIsRefusedAtApply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), unguarded(w.ns, "credit", credit), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ annotation, words string }{
		{"onceguard.dev/guard=yes", "enabled"},
		{"onceguard.dev/lease=soon", "30s"},
		{"onceguard.dev/lease=1ms", "lease"},
		{"onceguard.dev/busy=maybe", "skip"},
		{"onceguard.dev/containers=wroker", "worker"},
		{"onceguard.dev/leese=30s", "onceguard.dev/lease"},
		{"onceguard.dev/job-name=Bad Name", "job-name"},
	} {
		args := []string{"annotate", "cronjob", "credit", "-n", w.ns, "--overwrite", c.annotation}
		if !strings.HasPrefix(c.annotation, "onceguard.dev/guard=") {
			args = append(args, "onceguard.dev/guard=enabled")
		}
		out, err := w.Kubectl(t.Context(), args...)
		key, value, _ := strings.Cut(c.annotation, "=")
		if err == nil {
			t.Errorf("%s was accepted: %s", c.annotation, out)
			continue
		}
		for _, word := range []string{key, value, c.words} {
			if !strings.Contains(out, word) {
				t.Errorf("%s: the refusal does not say %q: %s", c.annotation, word, out)
			}
		}
	}
	out, err := w.Kubectl(t.Context(), "annotate", "cronjob", "credit", "-n", w.ns, "onceguard.dev/guard=enabled")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("what a person sees:\n%s", out)
}

// A container that names no command is refused with the cure, and the cure works.
func TestNoCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := unguarded(w.ns, "credit", credit)
	cj.Annotations = map[string]string{contract.AnnotationGuard: contract.Enabled}
	container := &cj.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	container.Args, container.Command = []string{"-c", credit}, nil
	_, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), cj, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), contract.AnnotationCommandPrefix+"worker") {
		t.Fatalf("without a command: %v", err)
	}
	cj.Annotations[contract.AnnotationCommandPrefix+"worker"] = `["sh"]`
	if cj, err = w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), cj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.ends(t, w.job(t, cj, pastWindow(1), "credit").Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// says waits until the worker's log, where everybody looks first, holds all words.
func (w *world) says(t *testing.T, job string, words ...string) {
	t.Helper()
	out := w.logs(t, "job/"+job, "worker", words...)
	t.Logf("kubectl logs says:\n%s", out)
}

// Nothing runs without the ledger; the log names the Secret, and a Secret that comes
// later is found.
func TestAMissingSecret(t *testing.T) {
	t.Parallel()
	w := bareWorld(t)
	if err := w.ledger.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	cj := w.cronJob(t, "credit", credit)
	job := w.job(t, cj, pastWindow(1), "credit")
	w.says(t, job.Name, "onceguard-ledger-default", w.ns, "url")
	if err := w.LedgerSecret(t.Context(), w.ledger); err != nil {
		t.Fatal(err)
	}
	w.ends(t, job.Name, batchv1.JobComplete)
	w.booked(t, 10, 1)
}

// A ledger that stays away ends the pod with 75 and its reason.
func TestALedgerThatStaysAway(t *testing.T) {
	secret := contract.LedgerSecretPrefix + contract.DefaultLedger
	for name, c := range map[string]struct {
		url   func(w *world) string
		words []string
	}{
		"wrong password": {func(w *world) string { return strings.Replace(w.ledger.GuardURL, ":", ":x", 2) }, []string{secret}},
		"no such server": {func(*world) string { return "postgres://u:canary-secret@127.0.0.1:1/x" }, []string{"127.0.0.1"}},
		"not a URL":      {func(*world) string { return "postgres://u:canary-secret@:/\x7f" }, []string{secret}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := bareWorld(t)
			if err := w.Secret(t.Context(), w.ns, secret, contract.LedgerKey, c.url(w)); err != nil {
				t.Fatal(err)
			}
			backoff := int32(0)
			cj := w.cronJob(t, "credit", credit, annotated(contract.AnnotationLedgerWait, "10s"),
				func(cj *batchv1.CronJob) { cj.Spec.JobTemplate.Spec.BackoffLimit = &backoff })
			job := w.job(t, cj, pastWindow(1), "credit")
			w.says(t, job.Name, c.words...)
			w.ends(t, job.Name, batchv1.JobFailed)
			end := terminated(w.onlyPod(t, job.Name), "worker")
			if end == nil || end.ExitCode != contract.ExitRetry || end.Message == "" {
				t.Errorf("the worker ended as %+v, want 75 and a reason", end)
			}
			w.event(t, "Job", job.Name, "WindowUnfinished", "")
			all, _ := w.Kubectl(t.Context(), "logs", "-n", w.ns, "job/"+job.Name, "--all-containers")
			if strings.Contains(all, "canary-secret") {
				t.Error("the password is in the log")
			}
		})
	}
}

// A database without the schema, and a role without the grant, say what to do.
func TestALedgerThatIsNotReady(t *testing.T) {
	t.Run("no schema", func(t *testing.T) {
		t.Parallel()
		w := bareWorld(t)
		if err := w.LedgerSecret(t.Context(), w.ledger); err != nil {
			t.Fatal(err)
		}
		cj := w.cronJob(t, "credit", credit)
		job := w.job(t, cj, pastWindow(1), "credit")
		w.says(t, job.Name, "migrat")
		if err := w.ledger.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.ends(t, job.Name, batchv1.JobComplete)
		w.booked(t, 10, 1)
	})
	t.Run("no grant", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		if err := w.ledger.Exec(t.Context(), "DELETE FROM onceguard.job_grant"); err != nil {
			t.Fatal(err)
		}
		cj := w.cronJob(t, "credit", credit)
		job := w.job(t, cj, pastWindow(1), "credit")
		w.says(t, job.Name, "grant_job('"+w.ledger.GuardRole+"', '"+w.ns+"/credit')")
		if err := migrate.GrantJob(t.Context(), w.ledger.OwnerURL, w.ledger.GuardRole, w.ns+"/credit"); err != nil {
			t.Fatal(err)
		}
		w.ends(t, job.Name, batchv1.JobComplete)
		w.booked(t, 10, 1)
	})
}

// A permanent refusal ends the Job with 78 and its reason; it never hangs.
func TestARefusalIsNotAHangingJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cj := w.cronJob(t, "credit", credit)
	window := pastWindow(1)
	liar := bed.ScheduledJob(cj, window, "credit-liar")
	liar.Name = "credit-liar-12345" // the name and the annotation disagree
	backoff := int32(0)
	liar.Spec.BackoffLimit = &backoff
	if _, err := w.Create(t.Context(), liar); err != nil {
		t.Fatal(err)
	}
	if message := w.refused(t, liar.Name); !strings.Contains(message, "12345") {
		t.Errorf("the refusal does not say what disagrees: %s", message)
	}
	w.ends(t, liar.Name, batchv1.JobFailed)
	w.booked(t, 0, 0)
}
