//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// live lets the CronJob controller make its Jobs.
func live(cj *batchv1.CronJob) {
	no := false
	cj.Spec.Suspend = &no
}

// scheduled is a live CronJob with that schedule.
func scheduled(schedule string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) {
		live(cj)
		cj.Spec.Schedule = schedule
	}
}

// patch changes a CronJob.
func (w *world) patch(t *testing.T, name, patch string) {
	t.Helper()
	if _, err := w.Kubectl(t.Context(), "patch", "cronjob", name, "-n", w.ns, "--type=merge", "-p", patch); err != nil {
		t.Fatal(err)
	}
}

const (
	suspending = `{"spec":{"suspend":true}}`
	resuming   = `{"spec":{"suspend":false}}`
)

// settings are those that the webhook has stamped on a CronJob.
func (w *world) settings(t *testing.T, name string) contract.Settings {
	t.Helper()
	cj, err := w.Client.BatchV1().CronJobs(w.ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return settingsOf(t, cj)
}

func settingsOf(t *testing.T, cj *batchv1.CronJob) contract.Settings {
	t.Helper()
	s, err := contract.DecodeSettings(cj.Spec.JobTemplate.Annotations[contract.AnnotationConfig])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// due are the windows of settings from their Since, or the instant from, to upto.
func due(t *testing.T, s contract.Settings, upto time.Time) []time.Time {
	t.Helper()
	sched, err := window.ParseSchedule(s.Schedule, s.TimeZone)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(sched.With(s.DST).Due(s.Since.Add(-1), upto))
}

// minute waits until the n-th window of a minutely schedule after since is due, and a
// while has passed, so that nothing of what follows falls on the next one.
func minute(t *testing.T, since time.Time, n int) (at time.Time) {
	t.Helper()
	at = since.Truncate(time.Minute).Add(time.Duration(n) * time.Minute)
	calm(t, at.Add(5*time.Second))
	return at
}

// calm waits until an instant, and then until the next whole minute is far away.
func calm(t *testing.T, after time.Time) {
	t.Helper()
	eventually(t, time.Until(after)+2*time.Minute, "the middle of a minute", func(context.Context) (bool, error) {
		now := time.Now()
		return now.After(after) && now.Second() >= 5 && now.Second() < 40, nil
	})
}

// isFinal tells an answer that nothing is to follow.
func isFinal(a admin.Answer) bool {
	ends := []string{"missed", "skipped"} // of a gap
	if a.Kind == admin.ByExecution {
		ends = []string{"done", "skipped", "exhausted", "held"}
	}
	return slices.Contains(ends, a.Status) && !a.Planned
}

// answered waits until each of the windows has its final answer, and gives the answers.
func (w *world) answered(t *testing.T, limit time.Duration, jobName string, windows []time.Time) (all []admin.Answer) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s: %s", jobName, told(all))
		}
	}()
	eventually(t, limit, fmt.Sprintf("answers for %d windows of %s", len(windows), jobName), func(ctx context.Context) (bool, error) {
		var err error
		all, err = admin.Answers(ctx, w.ledger.DB, jobName, windows)
		return err == nil && len(all) == len(windows) && !slices.ContainsFunc(all, func(a admin.Answer) bool { return !isFinal(a) }), err
	})
	return all
}

// told writes answers for people, one a line.
func told(all []admin.Answer) string {
	var b strings.Builder
	for _, a := range all {
		fmt.Fprintf(&b, "\n  %s %s %s %s rule=%s planned=%v %q", a.Window.Format("15:04:05"), a.Kind, a.Status, a.Reason, a.Rule, a.Planned, a.Evidence)
	}
	return b.String()
}

// is tells an answer in the words of the tables below: the state of an execution, or status,
// reason and rule of a gap.
func is(a admin.Answer) string {
	if a.Kind == admin.ByGap {
		return strings.TrimSuffix(a.Status+" "+a.Reason+" "+string(a.Rule), " ")
	}
	return a.Status
}

// accounted demands, for a CronJob, that each window that was due since guarding began and
// is old enough has an answer; and for the world, that no window was doubled: each completed one
// has booked its ten units once. One statement each, so that what runs meanwhile does not
// matter.
func (w *world) accounted(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s := w.settings(t, name)
		// What is due for two windows and the grace is not young any more.
		windows := due(t, s, time.Now().Add(-2*time.Minute))
		if len(windows) == 0 {
			continue
		}
		all, err := admin.Answers(t.Context(), w.ledger.DB, s.JobName, windows)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a.Kind == admin.ByNone {
				t.Errorf("%s: nobody has answered for %s:%s", s.JobName, a.Window, told(all))
			}
		}
	}
	w.bookedOnce(t)
}

// bookedOnce demands that each completed window has booked once.
func (w *world) bookedOnce(t *testing.T) {
	t.Helper()
	if n := w.number(t, "SELECT units - 10 * (SELECT coalesce(sum(generation), 0) FROM onceguard.job_execution WHERE status = 'completed') FROM account"); n != 0 {
		t.Errorf("%d units more than the completed windows have booked", n)
	}
	if n := w.number(t, `SELECT count(*) FROM onceguard.job_gap a JOIN onceguard.job_gap b
		ON a.job_name = b.job_name AND a.cron_job_uid = b.cron_job_uid AND a.first_window < b.first_window AND a.last_window >= b.first_window`); n != 0 {
		t.Errorf("%d gaps overlap", n)
	}
}

// jobsOf gives the Jobs of a CronJob, made by whomever.
func (w *world) jobsOf(t *testing.T, cj *batchv1.CronJob) (jobs []batchv1.Job) {
	t.Helper()
	all, err := w.Client.BatchV1().Jobs(w.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range all.Items {
		if slices.ContainsFunc(j.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == cj.UID }) {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// eventsOn gives the Events on an object.
func (w *world) eventsOn(t *testing.T, kind, name string) []corev1.Event {
	t.Helper()
	list, err := w.Client.CoreV1().Events(w.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// noFlood demands of a CronJob that each of its windows has one Job at most, whoever made it,
// that the controller took none of them for a stranger, and that Onceguard said little.
func (w *world) noFlood(t *testing.T, cj *batchv1.CronJob) {
	t.Helper()
	of := map[string][]string{}
	for _, j := range w.jobsOf(t, cj) {
		at := j.Annotations[contract.AnnotationScheduledTimestamp]
		of[at] = append(of[at], j.Name)
	}
	for at, jobs := range of {
		if len(jobs) > 1 {
			t.Errorf("%s has %d Jobs: %v", at, len(jobs), jobs)
		}
	}
	said := 0
	for _, e := range w.eventsOn(t, "CronJob", cj.Name) {
		switch {
		case strings.HasPrefix(e.Reason, "Windows"):
			said++
		case e.Reason == "UnexpectedJob" || e.Reason == "MissingJob":
			t.Errorf("the controller says %s of %s: %s", e.Reason, cj.Name, e.Message)
		}
	}
	if said > 6 {
		t.Errorf("%d Events of ours on %s", said, cj.Name)
	}
}

// starts gives the windows of a job in the order in which their first attempt began.
func (w *world) starts(t *testing.T, jobName string) (list []time.Time) {
	t.Helper()
	rows, err := w.ledger.DB.Query(t.Context(), `SELECT window_start FROM onceguard.job_attempt WHERE job_name = $1 GROUP BY window_start ORDER BY min(started_at)`, jobName)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var at time.Time
		if err := rows.Scan(&at); err != nil {
			t.Fatal(err)
		}
		list = append(list, at.UTC())
	}
	return list
}

// demand demands words of an output.
func demand(t *testing.T, out string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(out, word) {
			t.Errorf("%q is missing:\n%s", word, out)
		}
	}
}

// deadline is startingDeadlineSeconds.
func deadline(seconds int64) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Spec.StartingDeadlineSeconds = &seconds }
}
