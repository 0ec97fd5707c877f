//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
)

// gapSays waits until the window's answer is a gap with that status and reason, whose
// evidence holds all words.
func (w *world) gapSays(t *testing.T, limit time.Duration, jobName string, at time.Time, want string, words ...string) {
	t.Helper()
	var last []admin.Answer
	defer func() {
		if t.Failed() {
			t.Logf("%s: %s", jobName, told(last))
		}
	}()
	eventually(t, limit, fmt.Sprintf("window %s of %s %s, with %q", stamp(at), jobName, want, words), func(ctx context.Context) (bool, error) {
		all, err := admin.Answers(ctx, w.ledger.DB, jobName, []time.Time{at})
		if err != nil {
			return false, err
		}
		last = all
		if all[0].Kind != admin.ByGap || is(all[0]) != want {
			return false, nil
		}
		for _, word := range words {
			if !strings.Contains(all[0].Evidence, word) {
				return false, nil
			}
		}
		return true, nil
	})
}

func template(edit func(*batchv1.JobSpec)) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { edit(&cj.Spec.JobTemplate.Spec) }
}

func endsAfter(seconds int64) func(*batchv1.CronJob) {
	return template(func(j *batchv1.JobSpec) { j.ActiveDeadlineSeconds = &seconds })
}

// prepared puts an init container before the guard.
func prepared(image string, command ...string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) {
		cj.Annotations[contract.AnnotationAfter] = "prepare"
		none := int64(0)
		p := podSpec(cj)
		p.TerminationGracePeriodSeconds = &none
		p.InitContainers = []corev1.Container{{Name: "prepare", Image: image, ImagePullPolicy: corev1.PullNever, Command: command}}
	}
}

const noSuchImage = "localhost/no-such-image:1"

// What keeps the Job of a window from claiming is seen while the window is late, and is the
// reason when it is missed.
func TestWhyAWindowDidNotRun(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	rows := []struct {
		name  string
		edits []func(*batchv1.CronJob)
		want  string
		words []string
	}{
		{"image", []func(*batchv1.CronJob){prepared(noSuchImage)}, "late image", []string{noSuchImage, "container prepare", "ErrImageNeverPull"}},
		{"image-ends", []func(*batchv1.CronJob){prepared(noSuchImage), endsAfter(75)}, "missed image", []string{noSuchImage, "DeadlineExceeded"}},
		{"node", []func(*batchv1.CronJob){func(cj *batchv1.CronJob) { podSpec(cj).NodeSelector = map[string]string{"no": "where"} }}, "late unschedulable", []string{"0/1 nodes are available"}},
		{"slow", []func(*batchv1.CronJob){prepared(cluster.WorkerImage, "sleep", "600"), endsAfter(20)}, "missed deadline-exceeded", []string{"was active longer than specified deadline"}},
	}
	calm(t, time.Now())
	var all []*batchv1.CronJob
	for _, row := range rows {
		all = append(all, w.cronJob(t, row.name, credit, append(row.edits, live)...))
	}
	// Without the worker's own image the guard has claimed already.
	worker := w.cronJob(t, "worker", credit, live, endsAfter(20), func(cj *batchv1.CronJob) {
		c := &podSpec(cj).Containers[0]
		c.Image, c.ImagePullPolicy = noSuchImage, corev1.PullNever
	})
	first := minute(t, settingsOf(t, all[0]).Since, 1)
	for i, row := range rows {
		w.gapSays(t, 4*time.Minute, w.ns+"/"+row.name, first, row.want, append(row.words, "Job "+row.name+"-")...)
		w.noFlood(t, all[i])
	}
	if a := w.answered(t, 3*time.Minute, w.ns+"/worker", []time.Time{first}); is(a[0]) != "exhausted" || a[0].Reason != "deadline-exceeded" {
		t.Errorf("without the worker's image: %s", told(a))
	}
	w.noFlood(t, worker)
	w.accounted(t, "image", "image-ends", "node", "slow", "worker")
	w.booked(t, 0, 0)
}

// A quota leaves no room for the Jobs of one CronJob, and a policy admits none of another,
// nor the pods of a third.
func TestRefusedByQuotaAndAdmission(t *testing.T) {
	t.Parallel()
	full, strict := judgedWorld(t), judgedWorld(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: full.ns, Name: "full"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/jobs.batch": resource.MustParse("0")}},
	}
	if _, err := full.Client.CoreV1().ResourceQuotas(full.ns).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the quota", func(ctx context.Context) (bool, error) {
		q, err := full.Client.CoreV1().ResourceQuotas(full.ns).Get(ctx, "full", metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) == 1, err
	})
	// It denies by label, whatever Onceguard is about to add.
	policy := fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations:
    - {expression: "object.metadata.?labels[?'refuse'].orValue('') != object.kind", message: "nothing like that in this house"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec:
  policyName: %[1]s
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
`, strict.ns)
	if _, err := strict.Apply(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := strict.Run(ctx, policy, "kubectl", "delete", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	refuse := func(where func(*batchv1.CronJob) *map[string]string, kind string) func(*batchv1.CronJob) {
		return func(cj *batchv1.CronJob) { *where(cj) = map[string]string{"refuse": kind} }
	}
	calm(t, time.Now())
	job := strict.cronJob(t, "job", credit, live, refuse(func(cj *batchv1.CronJob) *map[string]string { return &cj.Spec.JobTemplate.Labels }, "Job"))
	pod := strict.cronJob(t, "pod", credit, live, refuse(func(cj *batchv1.CronJob) *map[string]string { return &cj.Spec.JobTemplate.Spec.Template.Labels }, "Pod"))
	crowd := full.cronJob(t, "crowd", credit, live)
	first := minute(t, settingsOf(t, job).Since, 1)
	strict.gapSays(t, 4*time.Minute, strict.ns+"/pod", first, "late admission", "nothing like that in this house", "Job pod-")
	strict.gapSays(t, 4*time.Minute, strict.ns+"/job", first, "missed admission", "nothing like that in this house", "CronJob job")
	full.gapSays(t, 4*time.Minute, full.ns+"/crowd", first, "missed quota", "exceeded quota: full", "CronJob crowd")
	strict.noFlood(t, job)
	strict.noFlood(t, pod)
	full.noFlood(t, crowd)
	strict.accounted(t, "job", "pod")
	full.accounted(t, "crowd")
}

// Forbid, and a worker that takes longer than the period: the windows that were due
// meanwhile are missed because of that, but for the newest, which the controller starts
// late, when the worker has ended.
func TestAWorkerLongerThanItsPeriod(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	calm(t, time.Now())
	cj := w.cronJob(t, "long", "sleep 95; "+credit, live, func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent })
	s := settingsOf(t, cj)
	late := func() int {
		return w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE started_at > window_start + interval '20s'")
	}
	missed := func() int {
		return w.number(t, "SELECT coalesce(sum(windows), 0)::int FROM onceguard.job_gap WHERE status = 'missed'")
	}
	eventually(t, 8*time.Minute, "a window that runs late, and one that is missed", func(context.Context) (bool, error) {
		return late() > 0 && missed() > 0, nil
	})
	var last time.Time
	if err := w.ledger.DB.QueryRow(t.Context(), "SELECT last_window FROM onceguard.job_gap WHERE status = 'missed' ORDER BY 1 LIMIT 1").Scan(&last); err != nil {
		t.Fatal(err)
	}
	for _, a := range w.answered(t, 3*time.Minute, w.ns+"/long", due(t, s, last)) {
		switch got := is(a); got {
		case "done":
		case "missed overlap":
			demand(t, a.Evidence, "concurrencyPolicy Forbid: Job long-", " was running")
		default:
			t.Errorf("window %s: %s", a.Window, got)
		}
	}
	w.noFlood(t, cj)
	w.accounted(t, "long")
}
