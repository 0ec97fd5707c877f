//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/engine"
	"github.com/onceguard/onceguard/pkg/kube"
)

// ownWorld is a world whose ledger the installed engine does not know: a test judges it with
// engines of its own. The folder is what they know of ledgers.
func ownWorld(t *testing.T) (w *world, ledgers string) {
	t.Helper()
	w = newWorld(t)
	ledgers = t.TempDir()
	folder := filepath.Join(ledgers, w.ledger.Name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, contract.LedgerKey), []byte(w.ledger.EngineURL), 0o600); err != nil {
		t.Fatal(err)
	}
	return w, ledgers
}

// engineAt runs an engine whose clock is ahead, in this process; stop ends it and waits.
func (w *world) engineAt(t *testing.T, ledgers string, ahead time.Duration) (stop func()) {
	t.Helper()
	clients, err := kube.Connect(os.Getenv("KUBECONFIG"), "onceguard-e2e")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine.Engine{
		Clients: clients, Ledgers: engine.Ledgers(ledgers), Namespaces: []string{w.ns},
		Now: func() time.Time { return time.Now().Add(ahead) }, Log: zaptest.NewLogger(t),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// engineProcess starts `webhook engine` with a Lease of its own, so that several lead at once; kill
// ends it with SIGKILL.
func (w *world) engineProcess(t *testing.T, program, ledgers, lease string) (kill func()) {
	t.Helper()
	cmd := exec.Command(program, "engine", "--ledgers-dir="+ledgers, "--namespace="+w.ns, "--namespaces="+w.ns, "--lease-name="+lease, "--health-listen=127.0.0.1:0")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", lease, log.String())
		}
	}
	t.Cleanup(kill)
	return kill
}

// Two engines at once, both leading, carry out what is planned; each is killed in the middle
// of it, and a third one ends it. No window runs twice.
func TestEnginesAreKilled(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "webhook")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/webhook").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w, ledgers := ownWorld(t)
	cj := w.cronJob(t, "credit", credit, scheduled("0 * * * *"), annotated(contract.AnnotationCatchUpParallel, "2"))
	const many = 8
	var windows []time.Time
	last := settingsOf(t, cj).Since.Truncate(time.Hour)
	for i := range many {
		windows = append(windows, last.Add(time.Duration(i-many)*time.Hour))
	}
	first, second := w.engineProcess(t, program, ledgers, "first"), w.engineProcess(t, program, ledgers, "second")
	jobName := w.ns + "/credit"
	eventually(t, time.Minute, "an engine knows the CronJob", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_schedule") == 1, nil
	})
	b, err := admin.Backfill(t.Context(), w.ledger.DB, jobName, windows, admin.ReprocessNone, "ops", "TICKET-2")
	if err != nil || b.Planned != many {
		t.Fatalf("%+v, %v", b, err)
	}
	done := func(n int) {
		t.Helper()
		eventually(t, 3*time.Minute, "windows that are done", func(context.Context) (bool, error) {
			return w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed'") >= n, nil
		})
	}
	done(1)
	first()
	done(3)
	second()
	w.engineProcess(t, program, ledgers, "third")
	for _, a := range w.answered(t, 4*time.Minute, jobName, windows) {
		if is(a) != "done" {
			t.Errorf("window %s: %s", a.Window, is(a))
		}
	}
	w.booked(t, 10*many, many)
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_attempt"); n != many {
		t.Errorf("%d attempts at %d windows", n, many)
	}
	w.noFlood(t, cj)
}

// lately are n whole hours that have just passed, the first of them, and their numbers for a
// schedule. None of them is due for the CronJob controller, which counts from the creation.
func lately(n int) (first time.Time, list string) {
	first = time.Now().UTC().Truncate(time.Hour).Add(-time.Duration(n) * time.Hour)
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(first.Add(time.Duration(i) * time.Hour).Hour())
	}
	return first, strings.Join(all, ",")
}

// guardedSince makes the guarding of a CronJob begin earlier. The hook of CronJobs would not
// have it, so it is kept away from this one namespace for a while.
func (w *world) guardedSince(t *testing.T, cj *batchv1.CronJob, since time.Time) *batchv1.CronJob {
	t.Helper()
	away := metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{w.ns}}
	same := func(r metav1.LabelSelectorRequirement) bool { return slices.Equal(r.Values, away.Values) }
	edit := func(ctx context.Context, change func(all []metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			configurations := w.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
			c, err := configurations.Get(ctx, "onceguard", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for i := range c.Webhooks {
				if hook := &c.Webhooks[i]; hook.Name == "cronjobs.onceguard.dev" {
					hook.NamespaceSelector.MatchExpressions = change(hook.NamespaceSelector.MatchExpressions)
				}
			}
			_, err = configurations.Update(ctx, c, metav1.UpdateOptions{})
			return err
		})
	}
	back := func() {
		if err := edit(context.Background(), func(all []metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement {
			return slices.DeleteFunc(all, same)
		}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(back)
	if err := edit(t.Context(), func(all []metav1.LabelSelectorRequirement) []metav1.LabelSelectorRequirement {
		return append(all, away)
	}); err != nil {
		t.Fatal(err)
	}
	s := settingsOf(t, cj)
	s.Since = since
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "a CronJob that is guarded since "+since.String(), func(ctx context.Context) (bool, error) {
		cronJobs := w.Client.BatchV1().CronJobs(w.ns)
		var err error
		if cj, err = cronJobs.Get(ctx, cj.Name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		if settingsOf(t, cj).Since.Equal(since) {
			return true, nil
		}
		cj.Spec.JobTemplate.Annotations[contract.AnnotationConfig] = string(text)
		_, err = cronJobs.Update(ctx, cj, metav1.UpdateOptions{})
		return false, ignoreConflict(err)
	})
	back()
	// The API server hears of it in its own time.
	eventually(t, time.Minute, "the hook is asked again", func(ctx context.Context) (bool, error) {
		probe := cj.DeepCopy()
		probe.Annotations[contract.Prefix+"nonsense"] = "x"
		_, err := w.Client.BatchV1().CronJobs(w.ns).Update(ctx, probe, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && !apierrors.IsConflict(err), nil
	})
	return cj
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Ten hours with 500 windows have passed when an engine first looks. The newest 20 are caught
// up, one at a time, the oldest first; of the others there is one gap. An engine that comes
// after it makes nothing again.
func TestFiveHundredMissedWindows(t *testing.T) {
	t.Parallel()
	const many, limit = 500, 20
	w, ledgers := ownWorld(t)
	first, list := lately(many / 50)
	cj := w.cronJob(t, "credit", credit, scheduled("0-49 "+list+" * * *"), deadline(60),
		annotated(contract.AnnotationCatchUp, "all"), annotated(contract.AnnotationCatchUpLimit, strconv.Itoa(limit)))
	cj = w.guardedSince(t, cj, first)
	jobName := w.ns + "/credit"
	windows := due(t, settingsOf(t, cj), first.Add(many/50*time.Hour-time.Second))
	if len(windows) != many {
		t.Fatalf("%d windows from %s", len(windows), first)
	}
	stop := w.engineAt(t, ledgers, 0)
	for i, a := range w.answered(t, 6*time.Minute, jobName, windows) {
		want := "missed start-deadline limit"
		if i >= many-limit {
			want = "done"
		}
		if got := is(a); got != want {
			t.Errorf("window %s: %s, want %s", a.Window, got, want)
		}
	}
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_gap"); n != 1 {
		t.Errorf("%d gaps", n)
	}
	once := func() {
		t.Helper()
		w.booked(t, 10*limit, limit)
		if n := len(w.jobsOf(t, cj)); n != limit {
			t.Errorf("%d Jobs for %d windows", n, limit)
		}
	}
	once()
	if order := w.starts(t, jobName); !slices.Equal(order, windows[many-limit:]) {
		t.Errorf("the windows ran in the order %v", order)
	}
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_attempt a JOIN onceguard.job_attempt b ON a.window_start < b.window_start AND b.started_at < a.ended_at"); n != 0 {
		t.Errorf("%d pairs of windows ran at the same time", n)
	}
	stop()
	once()
	w.noFlood(t, cj)
}

// The engine's clock goes wrong by some minutes, in both directions, while the CronJob
// controller makes its Jobs. It goes by the ledger's when that is behind: no window runs before
// it is due, and none twice.
func TestTheEnginesClockIsWrong(t *testing.T) {
	t.Parallel()
	w, ledgers := ownWorld(t)
	calm(t, time.Now())
	cj := w.cronJob(t, "credit", credit, live, annotated(contract.AnnotationCatchUp, "all"))
	s := settingsOf(t, cj)
	for _, wrong := range []time.Duration{3 * time.Minute, -3 * time.Minute} {
		stop := w.engineAt(t, ledgers, wrong)
		for _, a := range w.answered(t, 3*time.Minute, w.ns+"/credit", due(t, s, minute(t, time.Now(), 1))) {
			if is(a) != "done" {
				t.Errorf("window %s: %s", a.Window, is(a))
			}
		}
		stop()
	}
	if n := w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE completed_at < window_start"); n != 0 {
		t.Errorf("%d windows ran before they were due", n)
	}
	if attempts, windows := w.number(t, "SELECT count(*) FROM onceguard.job_attempt"), w.number(t, "SELECT count(*) FROM onceguard.job_execution"); attempts != windows {
		t.Errorf("%d attempts at %d windows", attempts, windows)
	}
	w.bookedOnce(t)
}
