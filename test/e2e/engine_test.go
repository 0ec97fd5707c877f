//go:build e2e

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// A window that somebody planned is run by a Job that the engine makes with the rights
// that the chart gives it, once, under its own name.
func TestTheEngineMakesTheJobOfAPlannedWindow(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	cj := w.cronJob(t, "credit", credit, func(cj *batchv1.CronJob) {
		no := false
		cj.Spec.Suspend, cj.Spec.Schedule = &no, "0 0 29 2 *"
	})
	leapDay := time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)
	eventually(t, 3*time.Minute, "the engine knows the CronJob", func(ctx context.Context) (bool, error) {
		_, err := admin.Backfill(ctx, w.ledger.DB, w.ns+"/credit", []time.Time{leapDay}, admin.ReprocessNone, "ops", "TICKET-1")
		if errors.Is(err, admin.ErrState) {
			return false, err
		} else if err != nil {
			t.Fatal(err)
		}
		return true, nil
	})
	name := window.CatchUpName(cj.Name, leapDay)
	w.ends(t, name, batchv1.JobComplete)
	w.booked(t, 10, 1)
	job, err := w.Client.BatchV1().Jobs(w.ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if job.Labels[contract.LabelCatchUp] != contract.Enabled || len(job.OwnerReferences) != 1 || job.OwnerReferences[0].UID != cj.UID {
		t.Errorf("labels %v, owners %v", job.Labels, job.OwnerReferences)
	}
}
