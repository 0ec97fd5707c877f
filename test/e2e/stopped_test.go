//go:build e2e

package e2e

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/test/bed"
)

// component stops or starts a part of the cluster's control plane, which only a cluster of
// our own allows.
func component(t *testing.T, verb, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := cluster.Run(ctx, "", "../../dist/cluster", verb, name); err != nil {
		t.Fatal(err)
	}
}

// The controllers stop for three windows, and the webhook is killed while the windows are
// caught up. The newest window is started late by the CronJob controller, if its deadline
// allows; of the others becomes what the CronJob wishes.
func TestTheControllersStop(t *testing.T) {
	if os.Getenv("ONCEGUARD_TEST_CLUSTER") == "" {
		t.Skip("the control plane is not ours to stop: this runs in the cluster of test/with-cluster.sh only")
	}
	w := judgedWorld(t)
	all, serial := annotated(contract.AnnotationCatchUp, "all"), annotated(contract.AnnotationOrder, "serial")
	rows := []struct {
		name  string
		edits []func(*batchv1.CronJob)
		want  []string // of the three windows
	}{
		{"none", nil, []string{"missed controller", "missed controller", "done"}},
		{"latest", []func(*batchv1.CronJob){annotated(contract.AnnotationCatchUp, "latest")}, []string{"skipped superseded latest", "skipped superseded latest", "done"}},
		{"all", []func(*batchv1.CronJob){all}, []string{"done", "done", "done"}},
		{"serial", []func(*batchv1.CronJob){all, serial}, []string{"done", "done", "done"}},
		{"deadline", []func(*batchv1.CronJob){deadline(10)}, []string{"missed start-deadline", "missed start-deadline", "missed start-deadline"}},
		{"deadline-all", []func(*batchv1.CronJob){deadline(10), all}, []string{"done", "done", "done"}},
		{"forbid", []func(*batchv1.CronJob){func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent }}, []string{"missed controller", "missed controller", "done"}},
	}
	calm(t, time.Now())
	component(t, "stop", "kube-controller-manager")
	started := false
	start := func() {
		if !started {
			component(t, "start", "kube-controller-manager")
			started = true
		}
	}
	defer start()
	var cronJobs []*batchv1.CronJob
	for _, row := range rows {
		cronJobs = append(cronJobs, w.cronJob(t, row.name, credit, append(row.edits, live)...))
	}
	first := settingsOf(t, cronJobs[0]).Since.Truncate(time.Minute).Add(time.Minute)
	// Nobody makes pods; of what is caught up one Job at a time is made nevertheless.
	w.gapSays(t, 4*time.Minute, w.ns+"/none", first, "missed controller")
	newest := first.Add(2 * time.Minute)
	calm(t, newest.Add(15*time.Second)) // the short deadline has passed
	for i, row := range rows {
		if n := len(w.jobsOf(t, cronJobs[i])); n > 1 {
			t.Errorf("%s: %d Jobs while the controllers are stopped", row.name, n)
		}
	}
	start()
	// Two replicas come again in the place of the two.
	if _, err := w.Kubectl(t.Context(), "delete", "pods", "-n", bed.Namespace, "-l", "app.kubernetes.io/component=webhook", "--grace-period=0", "--force"); err != nil {
		t.Fatal(err)
	}
	windows := []time.Time{first, first.Add(time.Minute), newest}
	for i, row := range rows {
		for n, a := range w.answered(t, 4*time.Minute, w.ns+"/"+row.name, windows) {
			if got := is(a); got != row.want[n] {
				t.Errorf("%s, window %s: %s, want %s", row.name, a.Window, got, row.want[n])
			}
		}
		w.patch(t, row.name, suspending)
		w.noFlood(t, cronJobs[i])
	}
	for _, name := range []string{"serial", "deadline-all"} {
		if order := w.starts(t, w.ns+"/"+name); len(order) < 3 || !slices.IsSortedFunc(order[:3], time.Time.Compare) {
			t.Errorf("%s: the windows ran in the order %v", name, order)
		}
	}
	w.accounted(t, "none", "latest", "all", "serial", "deadline", "deadline-all", "forbid")
	eventually(t, time.Minute, "the webhook's replicas", func(ctx context.Context) (bool, error) {
		d, err := w.Client.AppsV1().Deployments(bed.Namespace).Get(ctx, "onceguard-webhook", metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == 2, err
	})
}
