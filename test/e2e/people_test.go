//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// onceguard runs the kubectl plugin in the world's namespace as the ledger's owner.
func (w *world) onceguard(t *testing.T, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "owner.url")
	if err := os.WriteFile(file, []byte(w.ledger.OwnerURL), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := w.Kubectl(ctx, append(append([]string{"onceguard"}, args...), "-n", w.ns, "--ledger-url-file", file)...)
	t.Logf("$ kubectl onceguard %s\n%s", strings.Join(args, " "), out)
	return out, err
}

// A person backfills a span: tried first, then to its end; again, nothing is left to do.
// Then he releases a window that is held, and the engine's Job runs it.
func TestBackfillAndRelease(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	// The first attempt at one window crashes.
	fatal := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	cj := w.cronJob(t, "credit", `if [ "$ONCEGUARD_WINDOW_START/$ONCEGUARD_ATTEMPT" = `+stamp(fatal)+`/1 ]; then kill -9 $PPID; sleep 60; fi; `+credit,
		scheduled("0 * * * *"), oneTry, annotated(contract.AnnotationOnCrash, "hold"), func(cj *batchv1.CronJob) {
			share := true // else the wrapper is process 1, which nobody inside can kill
			podSpec(cj).ShareProcessNamespace = &share
		})
	jobName := w.ns + "/credit"
	eventually(t, time.Minute, "the engine knows the CronJob", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_schedule") == 1, nil
	})
	span := []string{"backfill", "credit", "--from", stamp(fatal.Add(-3 * time.Hour)), "--to", stamp(fatal), "--reason", "TICKET-3", "--by", "ann"}
	if out, err := w.onceguard(t, span...); err == nil {
		t.Errorf("windows before guarding are planned without being asked for:\n%s", out)
	}
	span = append(span, "--before-guarding")
	out, err := w.onceguard(t, append(span, "--dry-run")...)
	if err != nil {
		t.Error(err)
	}
	demand(t, out, "Nothing is changed", "4 windows of "+jobName, "4 never run")
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_plan"); n != 0 {
		t.Errorf("a dry run planned %d windows", n)
	}
	out, err = w.onceguard(t, span...)
	if err == nil {
		t.Error("the window that is held is not reported by the exit code")
	}
	demand(t, out, "3 of 4 done", "held")
	w.booked(t, 30, 3)
	w.stands(t, fatal, "held")
	out, err = w.onceguard(t, "explain", "credit", stamp(fatal))
	if err != nil {
		t.Error(err)
	}
	demand(t, out, "held", "release")

	if _, err := w.onceguard(t, "release", "credit", stamp(fatal), "--reason", "nothing was sent", "--by", "ann"); err != nil {
		t.Error(err)
	}
	out, err = w.onceguard(t, append(span, "--reprocess", "failed")...)
	if err != nil {
		t.Error(err)
	}
	demand(t, out, "4 of 4 done")
	w.booked(t, 40, 4)
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE trigger = 'catch-up'"); n != 5 {
		t.Errorf("%d attempts by the engine's Jobs, want 5", n)
	}
	w.noFlood(t, cj)
}

// Two Jobs made by hand in one second are two runs of their own where manual is separate.
// Else both mean the newest window, like the scheduled one: it runs once, and each says which it
// meant and why it did not run.
func TestManualJobsTogether(t *testing.T) {
	t.Parallel()
	w := judgedWorld(t)
	byHand := func(cj *batchv1.CronJob, names ...string) {
		t.Helper()
		manifests := ""
		for _, name := range names {
			out, err := w.Kubectl(t.Context(), "create", "job", name, "-n", w.ns, "--from=cronjob/"+cj.Name, "--dry-run=client", "-o", "yaml")
			if err != nil {
				t.Fatal(err)
			}
			manifests += out + "---\n"
		}
		if _, err := w.Apply(t.Context(), manifests); err != nil {
			t.Fatal(err)
		}
	}
	apart := w.cronJob(t, "apart", credit, scheduled("0 0 29 2 *"), annotated(contract.AnnotationManual, "separate"))
	byHand(apart, "apart-a", "apart-b")
	for _, name := range []string{"apart-a", "apart-b"} {
		w.ends(t, name, batchv1.JobComplete)
	}
	w.booked(t, 20, 2)

	calm(t, time.Now())
	same := w.cronJob(t, "same", "sleep 3; "+credit, live)
	first := minute(t, settingsOf(t, same).Since, 1)
	byHand(same, "same-a", "same-b")
	for _, name := range []string{"same-a", "same-b"} {
		w.ends(t, name, batchv1.JobComplete)
	}
	w.answered(t, time.Minute, w.ns+"/same", []time.Time{first})
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_attempt WHERE job_name = $1 AND window_start = $2", w.ns+"/same", first); n != 1 {
		t.Errorf("%d attempts at window %s", n, first)
	}
	for _, name := range []string{"same-a", "same-b"} {
		w.event(t, "Job", name, "WindowSkipped", "Job "+name+" was made by hand and means window "+w.ns+"/same "+stamp(first))
		w.logs(t, w.onlyPod(t, name).Name, "worker", "means window "+w.ns+"/same "+stamp(first), "completed")
	}
	w.patch(t, "same", suspending)
	w.bookedOnce(t)
}
