//go:build e2e

// Package e2e proves on a real cluster, with real pods and a real Postgres, what
// the README promises. `make test-cluster` provides the cluster and the images.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/test/bed"
	"github.com/onceguard/onceguard/test/postgres"
)

// What all tests stand on: one cluster with the chart installed, one Postgres.
var (
	cluster *bed.Bed
	server  *postgres.Server
	// judged are ledgers that the windows engine knows, for a world each. They have names
	// of their own: what other tests do in their "default" is not the engine's business.
	judged = make(chan *bed.Ledger, 16)
	// chartValues name them; every installation needs them.
	chartValues []string
)

func TestMain(m *testing.M) { os.Exit(setUp(m)) }

func setUp(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	if cluster, err = bed.Open("../.."); err != nil {
		return fail(err)
	}
	address, err := cluster.NodeAddress(ctx)
	if err != nil {
		return fail(err)
	}
	if server, err = postgres.Start(ctx, postgres.Options{Listen: address, NoSync: true}); err != nil {
		return fail(err)
	}
	defer func() { _ = server.Stop(context.Background(), postgres.Immediate) }()
	if chartValues, err = registerLedgers(ctx); err != nil {
		return fail(err)
	}
	if err := cluster.Install(ctx, chartValues...); err != nil {
		return fail(err)
	}
	return m.Run()
}

// registerLedgers makes the ledgers that the windows engine judges, and gives the chart's
// values that name them.
func registerLedgers(ctx context.Context) ([]string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: bed.Namespace}}
	if _, err := cluster.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	all := make([]*bed.Ledger, cap(judged))
	for i := range all {
		l, err := bed.NewLedger(ctx, server, "")
		if err != nil {
			return nil, err
		}
		l.Name = fmt.Sprintf("judged-%d", i)
		all[i] = l
		judged <- l
	}
	return cluster.EngineSecret(ctx, all...)
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "e2e:", err)
	return 1
}

// world is a namespace with a ledger of its own.
type world struct {
	*bed.Bed
	ns     string
	ledger *bed.Ledger
}

// newWorld makes a namespace, a migrated ledger with a table account(name, units),
// and the Secret that names it. All go with the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, server)
}

// judgedWorld is newWorld with a ledger that the windows engine knows.
func judgedWorld(t *testing.T) *world {
	t.Helper()
	select {
	case l := <-judged:
		return settled(t, worldWith(t, func(context.Context, string) (*bed.Ledger, error) { return l, nil }))
	default:
		t.Fatalf("all %d ledgers of the windows engine are taken: make more", cap(judged))
		return nil
	}
}

// worldOn is newWorld on a Postgres of the caller's.
func worldOn(t *testing.T, s *postgres.Server) *world {
	t.Helper()
	return settled(t, bareWorldOn(t, s))
}

// settled gives a bare world what it lacks.
func settled(t *testing.T, w *world) *world {
	t.Helper()
	if err := w.ledger.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.LedgerSecret(t.Context(), w.ledger); err != nil {
		t.Fatal(err)
	}
	return w
}

// bareWorld is newWorld without the ledger's schema and Secret.
func bareWorld(t *testing.T) *world {
	t.Helper()
	return bareWorldOn(t, server)
}

func bareWorldOn(t *testing.T, s *postgres.Server) *world {
	t.Helper()
	return worldWith(t, func(ctx context.Context, ns string) (*bed.Ledger, error) { return bed.NewLedger(ctx, s, ns) })
}

func worldWith(t *testing.T, newLedger func(ctx context.Context, ns string) (*bed.Ledger, error)) *world {
	t.Helper()
	ctx := t.Context()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	ns, err := cluster.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			report(t, ns.Name)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := cluster.Client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	l, err := newLedger(ctx, ns.Name)
	if err != nil {
		t.Fatal(err)
	}
	l.Namespace = ns.Name
	t.Cleanup(l.Close)
	if err := l.Exec(ctx,
		"CREATE TABLE account (name text PRIMARY KEY, units bigint NOT NULL)",
		"INSERT INTO account VALUES ('acme', 0)",
		"GRANT SELECT, UPDATE ON account TO "+l.GuardRole); err != nil {
		t.Fatal(err)
	}
	return &world{Bed: cluster, ns: ns.Name, ledger: l}
}

// report prints what a person would look at.
func report(t *testing.T, ns string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "cronjobs,jobs,pods", "-n", ns, "-o", "wide"},
		{"get", "events", "-n", ns, "--sort-by=.lastTimestamp"},
		{"logs", "-n", ns, "-l", "onceguard.dev/guard=enabled", "--all-containers", "--tail=40", "--prefix"},
	} {
		out, _ := cluster.Kubectl(ctx, args...)
		t.Logf("$ kubectl %s\n%s", strings.Join(args, " "), out)
	}
}

// Worker scripts. credit books 10 units with the window; it needs no client of ours.
const (
	script = `echo hello from the worker`
	credit = `wget -q -O - --header "Authorization: Bearer $ONCEGUARD_TOKEN" --header 'Content-Type: application/json' ` +
		`--post-data '{"statements":[{"sql":"update account set units = units + 10 where name = $1","args":["acme"],"expect_rows":1}]}' "$ONCEGUARD_URL/v1/commit"`
	creditByExec = `/onceguard/guard-exec commit --sql 'update account set units = units + 10 where name = $1' --arg acme`
)

// cronJob is a suspended, guarded CronJob whose one container runs a shell script;
// edit may change it before it is created.
func (w *world) cronJob(t *testing.T, name, script string, edit ...func(*batchv1.CronJob)) *batchv1.CronJob {
	t.Helper()
	cj := unguarded(w.ns, name, script)
	cj.Annotations = map[string]string{contract.AnnotationGuard: contract.Enabled}
	if w.ledger.Name != contract.DefaultLedger {
		cj.Annotations[contract.AnnotationLedger] = w.ledger.Name
	}
	for _, e := range edit {
		e(cj)
	}
	cj, err := w.Client.BatchV1().CronJobs(w.ns).Create(t.Context(), cj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cj
}

func unguarded(ns, name, script string) *batchv1.CronJob {
	suspend, zone, backoff, deadline, grace := true, "Etc/UTC", int32(4), int64(300), int64(10)
	history := int32(50)
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", TimeZone: &zone, Suspend: &suspend,
			ConcurrencyPolicy: batchv1.AllowConcurrent, SuccessfulJobsHistoryLimit: &history, FailedJobsHistoryLimit: &history,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				BackoffLimit: &backoff, ActiveDeadlineSeconds: &deadline,
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
					Containers: []corev1.Container{{Name: "worker", Image: cluster.WorkerImage, Command: []string{"sh", "-c", script}}},
				}},
			}},
		},
	}
}

// onFailure makes the pods restart their containers in place.
func onFailure(cj *batchv1.CronJob) {
	cj.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
}

// annotated sets one more annotation.
func annotated(key, value string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Annotations[key] = value }
}

// pastWindow is the n-th last whole minute.
func pastWindow(n int) time.Time {
	return time.Now().UTC().Truncate(time.Minute).Add(-time.Duration(n) * time.Minute)
}

// job creates a Job for a window as the CronJob controller would, under a name that
// begins with prefix.
func (w *world) job(t *testing.T, cj *batchv1.CronJob, window time.Time, prefix string) *batchv1.Job {
	t.Helper()
	job, err := w.Create(t.Context(), bed.ScheduledJob(cj, window, prefix))
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// ends waits for the end of a Job and demands the kind of end.
func (w *world) ends(t *testing.T, job string, want batchv1.JobConditionType) {
	t.Helper()
	got, err := w.WaitJob(t.Context(), 3*time.Minute, w.ns, job)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("Job %s: %s, want %s", job, got, want)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, limit time.Duration, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	if err := bed.Wait(t.Context(), limit, what, done); err != nil {
		t.Fatal(err)
	}
}

// number runs a query for one number in the world's database.
func (w *world) number(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	if err := w.ledger.DB.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// booked demands the units of the account and the number of completed windows.
func (w *world) booked(t *testing.T, units, windows int) {
	t.Helper()
	gotUnits := w.number(t, "SELECT units FROM account")
	gotWindows := w.number(t, "SELECT count(*) FROM onceguard.job_execution WHERE status = 'completed'")
	if gotUnits != units || gotWindows != windows {
		t.Fatalf("%d units and %d completed windows, want %d and %d", gotUnits, gotWindows, units, windows)
	}
}

// outcomes lists the outcomes of all attempts at a window in order; a running one is "".
func (w *world) outcomes(t *testing.T, window time.Time) (list []string) {
	t.Helper()
	rows, err := w.ledger.DB.Query(t.Context(), "SELECT coalesce(outcome, '') FROM onceguard.job_attempt WHERE window_start = $1 ORDER BY attempt", window)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}

// onlyPod waits for the one pod of a Job.
func (w *world) onlyPod(t *testing.T, job string) (pod corev1.Pod) {
	t.Helper()
	eventually(t, time.Minute, "the pod of Job "+job, func(ctx context.Context) (bool, error) {
		pods, err := w.Pods(ctx, w.ns, job)
		if err != nil || len(pods) != 1 {
			return false, err
		}
		pod = pods[0]
		return true, nil
	})
	return pod
}

// terminated is how a container of a pod ended, nil while it runs.
func terminated(pod corev1.Pod, container string) *corev1.ContainerStateTerminated {
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if s.Name == container {
			return s.State.Terminated
		}
	}
	return nil
}

// events waits for an Event on an object whose reason and message hold the words.
func (w *world) event(t *testing.T, kind, name, reason, words string) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("Event %s on %s %s with %q", reason, kind, name, words), func(ctx context.Context) (bool, error) {
		list, err := w.Client.CoreV1().Events(w.ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
		if err != nil {
			return false, err
		}
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, words) {
				return true, nil
			}
		}
		return false, nil
	})
}

// ownServer starts a Postgres that a test may stop.
func ownServer(t *testing.T) *postgres.Server {
	t.Helper()
	address, err := cluster.NodeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Start(t.Context(), postgres.Options{Listen: address, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), postgres.Immediate) })
	return s
}

// logs waits until the log of a pod's container holds all words.
func (w *world) logs(t *testing.T, pod, container string, words ...string) string {
	t.Helper()
	var out string
	eventually(t, time.Minute, "a log of "+pod+" that says "+strings.Join(words, ", "), func(ctx context.Context) (bool, error) {
		var err error
		out, err = w.Kubectl(ctx, "logs", "-n", w.ns, pod, "-c", container)
		if err != nil {
			return false, err
		}
		for _, word := range words {
			if !strings.Contains(out, word) {
				return false, nil
			}
		}
		return true, nil
	})
	return out
}
