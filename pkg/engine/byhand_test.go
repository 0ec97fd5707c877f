package engine

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// The controller counts only Jobs that it made itself: one by hand forbids none of its own.
func TestAJobByHandForbidsNoOther(t *testing.T) {
	r := newRig(t)
	c := r.cronJob("sync", 0, func(_ *contract.Settings, c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent })
	r.job(c, 0, func(j *batchv1.Job) {
		j.Name = "by-hand"
		delete(j.Annotations, contract.AnnotationScheduledTimestamp)
		j.Annotations[contract.AnnotationInstantiate] = "manual"
	})
	a := r.claimed("shop/sync", 0)
	r.byHand()
	r.at(3*m + 10*time.Second)
	if _, err := r.guards.Heartbeat(t.Context(), a, time.Hour); err != nil {
		t.Fatal(err)
	}
	r.at(5*m + 10*time.Second)
	r.want("shop/sync", "1..3 missed controller", "4..4 late controller")
}
