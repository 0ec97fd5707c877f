//go:build e2e

package e2e

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/engine"
	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/test/bed"
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

// hours are n whole hours that begin soon, the first of them, and their numbers for a schedule.
func hours(n int) (first time.Time, list string) {
	first = time.Now().UTC().Add(20 * time.Minute).Truncate(time.Hour).Add(time.Hour)
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(first.Add(time.Duration(i) * time.Hour).Hour())
	}
	return first, strings.Join(all, ",")
}

// The engine's clock is ten hours ahead of everybody else's, and 500 windows are missed at
// once. The newest 20 are caught up, one at a time, the oldest first; of the others there is one gap.
// Back at the right time nothing is made again, and people are told.
func TestFiveHundredMissedWindows(t *testing.T) {
	t.Parallel()
	const many, limit = 500, 20
	w, ledgers := ownWorld(t)
	// Nothing of it is due for the CronJob controller.
	first, list := hours(many / 50)
	cj := w.cronJob(t, "credit", credit, scheduled("0-49 "+list+" * * *"), deadline(60),
		annotated(contract.AnnotationCatchUp, "all"), annotated(contract.AnnotationCatchUpLimit, strconv.Itoa(limit)))
	jobName := w.ns + "/credit"
	newest := first.Add(many/50*time.Hour - 11*time.Minute)
	windows := due(t, settingsOf(t, cj), newest)
	if len(windows) != many {
		t.Fatalf("%d windows from %s to %s", len(windows), windows[0], newest)
	}
	stop := w.engineAt(t, ledgers, time.Until(newest.Add(5*time.Minute)))
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
	stop = w.engineAt(t, ledgers, 0)
	eventually(t, time.Minute, "a note about the clock", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_schedule WHERE note LIKE '%clock%'") == 1, nil
	})
	stop()
	once()
	w.noFlood(t, cj)
}

// The engine's clock goes wrong by some minutes, in both directions, while the CronJob
// controller makes its Jobs. Windows are caught up before they are due; none runs twice.
func TestTheEnginesClockIsWrong(t *testing.T) {
	t.Parallel()
	w, ledgers := ownWorld(t)
	calm(t, time.Now())
	cj := w.cronJob(t, "credit", credit, live, annotated(contract.AnnotationCatchUp, "all"))
	s := settingsOf(t, cj)
	jobName := w.ns + "/credit"
	stop := w.engineAt(t, ledgers, 3*time.Minute)
	eventually(t, 2*time.Minute, "a window that is caught up before it is due", func(context.Context) (bool, error) {
		return w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed' AND completed_at < window_start") > 0, nil
	})
	early := w.starts(t, jobName)[0]
	eventually(t, 4*time.Minute, "the controller's Job for it", func(ctx context.Context) (bool, error) {
		job, err := w.Client.BatchV1().Jobs(w.ns).Get(ctx, bed.JobNameFor("credit", early), metav1.GetOptions{})
		return err == nil && bed.Ended(job) == batchv1.JobComplete, err
	})
	stop()
	stop = w.engineAt(t, ledgers, -3*time.Minute)
	for _, a := range w.answered(t, 2*time.Minute, jobName, due(t, s, minute(t, time.Now(), 1))) {
		if is(a) != "done" {
			t.Errorf("window %s: %s", a.Window, is(a))
		}
	}
	stop()
	if attempts, windows := w.number(t, "SELECT count(*) FROM onceguard.job_attempt"), w.number(t, "SELECT count(*) FROM onceguard.job_execution"); attempts != windows {
		t.Errorf("%d attempts at %d windows", attempts, windows)
	}
	w.bookedOnce(t)
}
