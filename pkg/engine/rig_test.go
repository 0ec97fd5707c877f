package engine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// clock is moved by hand.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.at }

func (c *clock) set(t time.Time) { c.mu.Lock(); c.at = t; c.mu.Unlock() }

// rig is an engine between a fake cluster and a real ledger. Its clock begins at the top of
// the minute, as Postgres has a clock of its own.
type rig struct {
	t      testing.TB
	clock  *clock
	minute time.Time // when it began
	client *fake.Clientset
	meta   *metadatafake.FakeMetadataClient
	owner  *pgx.Conn
	dir    string // of ledgers
	engine *Engine
	w      *worker // of the ledger "default", where the test goes step by step
	guards *ledger.Ledger
	log    *observer.ObservedLogs
}

func newRig(t testing.TB) *rig {
	t.Helper()
	ownerURL := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), ownerURL, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	role, url := postgres.Login(t, ownerURL)
	if err := migrate.GrantEngine(t.Context(), ownerURL, role); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, clock: &clock{}, owner: connect(t, ownerURL), dir: t.TempDir(), client: fake.NewClientset()}
	r.minute = time.Now().UTC().Truncate(time.Minute)
	r.clock.at = r.minute
	r.register("default", url)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r.meta = metadatafake.NewSimpleMetadataClient(scheme)
	r.guards = ledger.New(func(context.Context) (string, error) { return ownerURL, nil }, zap.NewNop())
	t.Cleanup(func() { r.guards.Close(context.Background()) })
	r.engine = r.another()
	return r
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// another is one more engine on the same cluster and ledgers.
func (r *rig) another() *Engine {
	core, logs := observer.New(zap.DebugLevel)
	r.log = logs
	e := &Engine{Clients: kube.Clients{Typed: r.client, Metadata: r.meta}, Ledgers: Ledgers(r.dir), Excluded: []string{"kube-system"}, Now: r.clock.now, Log: zap.New(core)}
	e.theirs = func() time.Time { return e.Now() }
	return e
}

func (r *rig) register(name, url string) {
	r.t.Helper()
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, contract.LedgerKey), []byte(url+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// byHand has the engine read the cluster as it is, and go on step by step.
func (r *rig) byHand() {
	r.t.Helper()
	if r.w != nil && r.w.book != nil {
		r.w.book.close()
	}
	e := r.engine
	e.workers, e.start = map[string]*worker{}, nil
	e.cluster = newCluster(nil, e.Excluded, e.Now, e.cronJobChanged, e.jobChanged)
	r.w = e.worker("default")
	r.t.Cleanup(func() {
		if r.w.book != nil {
			r.w.book.close()
			r.w.book = nil
		}
	})
	r.read()
}

// read has the engine's copy of the cluster be what it is now.
func (r *rig) read() {
	r.t.Helper()
	p := r.engine.cluster.parts[0]
	cronJobs, err := r.client.BatchV1().CronJobs("").List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	jobs, err := r.client.BatchV1().Jobs("").List(r.t.Context(), metav1.ListOptions{LabelSelector: contract.LabelGuard})
	if err != nil {
		r.t.Fatal(err)
	}
	var all, some []any
	for i := range cronJobs.Items {
		bare, err := bareCronJob(&cronJobs.Items[i])
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, bare)
	}
	for i := range jobs.Items {
		bare, err := bareJob(&metav1.PartialObjectMetadata{ObjectMeta: jobs.Items[i].ObjectMeta})
		if err != nil {
			r.t.Fatal(err)
		}
		some = append(some, bare)
	}
	p.synced.Store(2)
	_, _ = p.cronJobs.Replace(all, ""), p.jobs.Replace(some, "")
	r.client.ClearActions()
}

// at moves the clock to so long after the beginning, and works until nothing is due.
func (r *rig) at(after time.Duration) {
	r.t.Helper()
	r.clock.set(r.minute.Add(after))
	r.step()
}

// step works until nothing is due.
func (r *rig) step() {
	r.t.Helper()
	for range 50 {
		if err := r.w.open(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		now := r.w.now()
		due, next := r.w.take(now)
		if len(due) == 0 {
			if next.IsZero() || next.Sub(now) > 2*settle {
				return
			}
			r.clock.set(r.clock.now().Add(next.Sub(now)))
			continue
		}
		if err := r.w.look(r.t.Context(), due); err != nil {
			r.t.Fatal(err)
		}
	}
	r.t.Fatal("the engine looks in circles")
}

// cronJob makes a guarded CronJob "shop/<name>", every minute, guarded since before.
func (r *rig) cronJob(name string, since time.Duration, edit ...func(*contract.Settings, *batchv1.CronJob)) *batchv1.CronJob {
	r.t.Helper()
	uid := types.UID(uuid.NewString())
	s := contract.Settings{
		Version: contract.ConfigVersion, CronJob: name, CronJobUID: string(uid), JobName: "shop/" + name, Ledger: "default",
		Schedule: "* * * * *", TimeZone: "Etc/UTC", Since: r.minute.Add(since), Containers: []string{"main"}, Lease: contract.Duration(30 * time.Second),
	}
	zone := "Etc/UTC"
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: uid, Annotations: map[string]string{contract.AnnotationGuard: contract.Enabled}},
		Spec: batchv1.CronJobSpec{Schedule: s.Schedule, TimeZone: &zone, JobTemplate: batchv1.JobTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{contract.LabelGuard: contract.Enabled, "app": "x"}},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Command: []string{"work"}}},
			}}},
		}},
	}
	for _, f := range edit {
		f(&s, c)
	}
	stamp(r.t, c, s)
	made, err := r.client.BatchV1().CronJobs("shop").Create(r.t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return made
}

func stamp(t testing.TB, c *batchv1.CronJob, s contract.Settings) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c.Spec.JobTemplate.Annotations = map[string]string{contract.AnnotationConfig: string(text)}
}

func catchUp(rule contract.CatchUp) func(*contract.Settings, *batchv1.CronJob) {
	return func(s *contract.Settings, _ *batchv1.CronJob) {
		s.CatchUp, s.CatchUpLimit, s.CatchUpAge, s.CatchUpParallel = rule, contract.DefaultCatchUpLimit, contract.Duration(contract.DefaultCatchUpAge), 1
	}
}

// edit changes a CronJob in the cluster.
func (r *rig) edit(c *batchv1.CronJob, f func(*batchv1.CronJob)) {
	r.t.Helper()
	live, err := r.client.BatchV1().CronJobs(c.Namespace).Get(r.t.Context(), c.Name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	f(live)
	if _, err := r.client.BatchV1().CronJobs(c.Namespace).Update(r.t.Context(), live, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// job is the controller's Job for a window, made then.
func (r *rig) job(c *batchv1.CronJob, at time.Duration, edit ...func(*batchv1.Job)) *batchv1.Job {
	r.t.Helper()
	w, yes := r.minute.Add(at), true
	j := jobFor(c, w)
	j.Name = c.Name + "-" + strings.TrimPrefix(strings.TrimPrefix(window.CatchUpName(c.Name, w), c.Name), "-r")
	j.UID, j.CreationTimestamp, j.OwnerReferences[0].Controller = types.UID(uuid.NewString()), metav1.NewTime(w), &yes
	delete(j.Labels, contract.LabelCatchUp)
	for _, f := range edit {
		f(j)
	}
	made, err := r.client.BatchV1().Jobs("shop").Create(r.t.Context(), j, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return made
}

// asServer has the fake API server do what a real one does: UIDs, times, dry runs.
func (r *rig) asServer() {
	r.client.PrependReactor("create", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		j := create.GetObject().(*batchv1.Job)
		if len(create.CreateOptions.DryRun) > 0 {
			return true, j, nil
		}
		if j.UID == "" {
			j.UID, j.CreationTimestamp = types.UID(uuid.NewString()), metav1.NewTime(r.clock.now())
		}
		return false, nil, nil
	})
}

// end gives a Job its last condition.
func (r *rig) end(j *batchv1.Job, kind batchv1.JobConditionType, reason, message string) {
	r.t.Helper()
	live, err := r.client.BatchV1().Jobs("shop").Get(r.t.Context(), j.Name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	live.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(r.clock.now())}}
	if _, err := r.client.BatchV1().Jobs("shop").UpdateStatus(r.t.Context(), live, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	if r.engine.cluster != nil {
		for _, o := range j.OwnerReferences {
			r.engine.jobChanged(o.UID, live.UID)
		}
	}
}

// done runs a window, as a guard does.
func (r *rig) done(jobName string, at time.Duration) {
	r.t.Helper()
	a := r.claimed(jobName, at)
	if err := r.guards.Complete(r.t.Context(), a, claim.Completion{}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.guards.Release(r.t.Context(), a, claim.End{Outcome: claim.OutcomeCompleted}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) claimed(jobName string, at time.Duration) claim.Attempt {
	r.t.Helper()
	a := claim.Attempt{Window: window.Window{JobName: jobName, Start: r.minute.Add(at)}, ExecutionID: uuid.New()}
	got, err := r.guards.Claim(r.t.Context(), claim.Request{Attempt: a, Lease: 30 * time.Second, Origin: claim.Origin{
		Trigger: "scheduled", Source: "timestamp", Namespace: "shop", Job: "j", JobUID: "u", Pod: "p", PodUID: uuid.NewString(), Node: "n",
	}})
	if err != nil || got.Verdict != claim.Run {
		r.t.Fatalf("claim of %s: %+v, %v", a.Window, got, err)
	}
	return a
}

// jobs are those of the engine, by name.
func (r *rig) jobs() []batchv1.Job {
	r.t.Helper()
	list, err := r.client.BatchV1().Jobs("shop").List(r.t.Context(), metav1.ListOptions{LabelSelector: contract.LabelCatchUp})
	if err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

// events are those about a CronJob, "reason: message".
func (r *rig) events(c *batchv1.CronJob) []string {
	r.t.Helper()
	list, err := r.client.CoreV1().Events("shop").List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.UID == c.UID && e.Source.Component == "onceguard" {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	slices.Sort(out)
	return out
}

// gaps are the recorded ones of a job, as "first..last status reason rule", in minutes.
func (r *rig) gaps(jobName string) []string {
	r.t.Helper()
	rows, err := r.owner.Query(r.t.Context(), `SELECT concat_ws(' ', extract(epoch FROM first_window - $2)::int / 60 || '..' || extract(epoch FROM last_window - $2)::int / 60,
		status, reason, rule) FROM onceguard.gaps WHERE job_name = $1 ORDER BY first_window`, jobName, r.minute)
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) evidence(jobName string) string {
	r.t.Helper()
	return value[string](r, `SELECT coalesce(string_agg(evidence, '|' ORDER BY first_window), '') FROM onceguard.gaps WHERE job_name = $1`, jobName)
}

func value[T any](r *rig, sql string, args ...any) (v T) {
	r.t.Helper()
	if err := r.owner.QueryRow(r.t.Context(), sql, args...).Scan(&v); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (r *rig) want(jobName string, want ...string) {
	r.t.Helper()
	if got := r.gaps(jobName); !slices.Equal(got, want) {
		r.t.Errorf("gaps of %s:\n got %q\nwant %q", jobName, got, want)
	}
}

// cost is what the engine spent since the last call.
type cost struct{ looks, statements, judged, reads, writes int64 }

func (r *rig) cost() (c cost) {
	n := &r.engine.Counters
	c = cost{n.Looks.Swap(0), n.Statements.Swap(0), n.Judged.Swap(0), n.Reads.Swap(0), n.Writes.Swap(0)}
	return c
}
