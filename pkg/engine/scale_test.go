package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// some are the CronJobs here, fewer than a look takes.
const some = 60

// many makes CronJobs that are due every ten minutes, at the beginning among others.
func many(r *rig, n int) (all []*batchv1.CronJob) {
	first := r.minute.Minute() % 10
	for i := range n {
		all = append(all, r.cronJob(fmt.Sprintf("sync-%03d", i), -5*m, func(s *contract.Settings, c *batchv1.CronJob) {
			s.Schedule = fmt.Sprintf("%d-59/10 * * * *", first)
			c.Spec.Schedule = s.Schedule
		}))
	}
	return all
}

// What a window costs that was run: its share of one statement for up to two hundred, and nothing
// of the API server.
func TestCostOfWindowsThatWereRun(t *testing.T) {
	r := newRig(t)
	all := many(r, some)
	ran := func(at time.Duration) {
		for _, c := range all {
			r.job(c, at)
		}
		// By the owner: as many claims would take minutes.
		if _, err := r.owner.Exec(t.Context(), `INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, completed_at)
			SELECT name, $1, 'completed', gen_random_uuid(), 1, 1, clock_timestamp() FROM (SELECT 'shop/sync-' || lpad(i::text, 3, '0') AS name FROM generate_series(0, $2 - 1) i) n`,
			r.minute.Add(at), len(all)); err != nil {
			t.Fatal(err)
		}
	}
	ran(0)
	r.byHand()
	r.step()
	ran(10 * m)
	r.read()
	r.cost()
	r.at(12 * m)
	// One look, and the question what people have planned meanwhile.
	if got := r.cost(); got.looks != some || got.statements > 2 || got.judged+got.reads+got.writes != 0 {
		t.Errorf("%+v", got)
	}
}

// However many windows of a namespace are missed together, its Events are read a few times
// in a look, and what they say is found.
func TestCostOfWindowsThatAreMissedTogether(t *testing.T) {
	const refusedOne = some - 10
	r := newRig(t)
	all := many(r, some)
	message := `Error creating job: jobs.batch "x" is forbidden: exceeded quota: jobs`
	event(r, all[refusedOne], "FailedCreate", message, 2*time.Second)
	event(r, all[1], "SuccessfulCreate", "something else", 2*time.Second)
	r.byHand()
	r.at(90 * time.Second)
	got := r.cost()
	if got.looks != some || got.reads > single+1 || got.statements > 8 {
		t.Errorf("%+v", got)
	}
	r.want("shop/"+all[refusedOne].Name, "0..0 late quota")
	if e := r.evidence("shop/" + all[refusedOne].Name); !strings.Contains(e, message) {
		t.Errorf("evidence: %q", e)
	}
	r.want("shop/"+all[1].Name, "0..0 late controller")
	r.want("shop/"+all[some-1].Name, "0..0 late controller")
}
