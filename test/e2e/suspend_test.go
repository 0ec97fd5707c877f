//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// caught has what is missed caught up, and what passes under suspension too.
func caught(rule contract.CatchUp) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) {
		cj.Annotations[contract.AnnotationCatchUp] = string(rule)
		cj.Annotations[contract.AnnotationSuspendedWindows] = string(contract.SuspendedCatchUp)
	}
}

// Suspended over three windows of a minutely schedule and resumed: what has passed meanwhile
// is skipped, superseded or run, as the CronJob wishes. The newest one is always started, by
// the CronJob controller.
func TestSuspendedAndResumed(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	rows := []struct {
		name string
		edit func(*batchv1.CronJob)
		want string // of the windows that passed, but for the newest
	}{
		{"none", func(*batchv1.CronJob) {}, "skipped suspended"},
		{"skip", func(cj *batchv1.CronJob) {
			cj.Annotations[contract.AnnotationCatchUp], cj.Annotations[contract.AnnotationSuspendedWindows] = "all", "skip"
		}, "skipped suspended suspended"},
		{"latest", caught(contract.CatchUpLatest), "skipped superseded latest"},
		{"all", caught(contract.CatchUpAll), "done"},
	}
	var all []*batchv1.CronJob
	calm(t, time.Now())
	for _, row := range rows {
		all = append(all, w.cronJob(t, row.name, credit, live, row.edit))
	}
	first := minute(t, settingsOf(t, all[0]).Since, 1)
	for _, cj := range all {
		w.answered(t, time.Minute, w.ns+"/"+cj.Name, []time.Time{first})
	}
	calm(t, time.Now())
	for _, cj := range all {
		w.patch(t, cj.Name, suspending)
	}
	from := time.Now().UTC().Truncate(time.Minute).Add(time.Minute)
	newest := minute(t, from, 2)
	for _, cj := range all {
		w.patch(t, cj.Name, resuming)
	}
	for i, row := range rows {
		answers := w.answered(t, 3*time.Minute, w.ns+"/"+row.name, []time.Time{from, from.Add(time.Minute), newest})
		for n, a := range answers {
			want := row.want
			if n == 2 {
				want = "done"
			}
			if got := is(a); got != want {
				t.Errorf("%s, window %s: %s, want %s", row.name, a.Window, got, want)
			}
		}
		w.noFlood(t, all[i])
	}
	order := w.starts(t, w.ns+"/all")
	if i, j := slices.Index(order, from), slices.Index(order, from.Add(time.Minute)); i > j {
		t.Errorf("not the oldest first: %v", order)
	}
	w.accounted(t, "none", "skip", "latest", "all")
}
