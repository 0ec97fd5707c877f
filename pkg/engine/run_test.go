package engine

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 60 s: %s", what)
		}
	}
}

// start runs an engine until stop is called, which waits for its end.
func start(t *testing.T, e *Engine) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(60 * time.Second):
			t.Fatal("the engine does not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

// live lets the engine's clock go, and has the watch of Jobs see those that are made.
func (r *rig) live() {
	r.t.Helper()
	begun, at := time.Now(), r.clock.now()
	r.engine.Now = func() time.Time { return at.Add(time.Since(begun)) }
	r.client.PrependReactor("create", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		j := a.(clienttesting.CreateAction).GetObject().(*batchv1.Job)
		if j.UID == "" {
			j.UID, j.CreationTimestamp = types.UID(uuid.NewString()), metav1.NewTime(r.engine.Now())
		}
		m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: *j.ObjectMeta.DeepCopy()}
		m.Namespace = "shop"
		return false, nil, r.meta.Tracker().Create(jobsResource, m, "shop")
	})
}

func TestRunCatchesUpAndHearsOfChanges(t *testing.T) {
	r := newRig(t)
	r.live()
	c := r.cronJob("sync", -3*m, catchUp(contract.CatchUpAll))
	stop := start(t, r.engine)
	eventually(t, "the first Job is made", func() bool { return len(r.jobs()) == 1 })
	if err := r.engine.Ready(); err != nil {
		t.Error(err)
	}
	// A new CronJob, and one that goes.
	r.cronJob("other", -3*m)
	eventually(t, "the other one is judged", func() bool { return len(r.gaps("shop/other")) > 0 })
	if err := r.client.BatchV1().CronJobs("shop").Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first one is gone", func() bool {
		return value[int](r, "SELECT count(*) FROM onceguard.schedules WHERE gone_at IS NOT NULL") == 1
	})
	stop()
	for _, a := range r.client.Actions() {
		if a.Matches("watch", "pods") || a.Matches("list", "pods") && a.GetNamespace() == "" {
			t.Errorf("pods are watched: %v", a)
		}
	}
}

// One ledger that cannot be reached, one that nobody has registered and one of another
// version harm no other, and no password is told.
func TestLedgersThatCannotBeUsed(t *testing.T) {
	r := newRig(t)
	r.live()
	r.register("away", "postgres://engine:hunter2@127.0.0.1:1/db")
	r.register("wrong", "postgres://engine:hunter2@:bad port/db")
	empty := postgres.Database(t)
	r.register("empty", empty)
	old := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), old, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	r.register("newer", old)
	r.exec(old, `CREATE OR REPLACE FUNCTION onceguard.schema_version(OUT version int, OUT min_compatible int) LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS 'SELECT 9, 8'`)
	for _, l := range []string{"away", "wrong", "empty", "newer", "nobodys", "default"} {
		r.cronJob("in-"+l, -5*m, func(s *contract.Settings, _ *batchv1.CronJob) { s.Ledger = l })
	}
	start(t, r.engine)
	eventually(t, "the good one is judged", func() bool { return len(r.gaps("shop/in-default")) > 0 })
	said := func(ledger string) (text string) {
		for _, e := range r.log.FilterMessageSnippet("the ledger cannot be used").All() {
			if e.ContextMap()["ledger"] == ledger {
				text, _ = e.ContextMap()["error"].(string)
			}
		}
		return text
	}
	for ledger, words := range map[string]string{
		"away": "connect", "wrong": "connection URL is not valid", "empty": "migrate it", "nobodys": "engine.ledgers",
		"newer": "the database has version 9 and serves programs from version 8 on, this program has 7",
	} {
		eventually(t, ledger+" is told", func() bool { return said(ledger) != "" })
		if !strings.Contains(said(ledger), words) {
			t.Errorf("%s: %s", ledger, said(ledger))
		}
	}
	for _, e := range r.log.All() {
		for _, v := range e.ContextMap() {
			if s, ok := v.(string); ok && strings.Contains(s, "hunter2") {
				t.Errorf("a password in the log: %s", s)
			}
		}
	}
	// Registered later: no restart is needed.
	url, err := os.ReadFile(r.dir + "/default/url")
	if err != nil {
		t.Fatal(err)
	}
	r.register("nobodys", string(url))
	eventually(t, "the one that was registered later is judged", func() bool { return len(r.gaps("shop/in-nobodys")) > 0 })
}

func TestOneLeads(t *testing.T) {
	r := newRig(t)
	r.live()
	r.cronJob("sync", -5*m)
	clock := r.engine.Now
	var away atomic.Bool
	r.client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	one, two := r.engine, r.another()
	two.Now = clock
	for i, e := range []*Engine{one, two} {
		e.Namespace, e.Lease, e.Identity = "onceguard-system", "onceguard-engine", string(rune('a'+i))
		e.terms = &leaseTerms{2 * time.Second, time.Second, 100 * time.Millisecond}
	}
	stop := start(t, one)
	eventually(t, "the first leads", func() bool { return one.state.Load() == leads })
	start(t, two)
	eventually(t, "the second stands by", func() bool { return two.state.Load() == standsBy })
	if two.Ready() != nil || two.Counters.Looks.Load() > 0 {
		t.Errorf("ready: %v, looks: %d", two.Ready(), two.Counters.Looks.Load())
	}
	holder := func() string {
		l, err := r.client.CoordinationV1().Leases("onceguard-system").Get(t.Context(), "onceguard-engine", metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			return ""
		}
		return *l.Spec.HolderIdentity
	}
	if holder() != "a" {
		t.Errorf("held by %q", holder())
	}
	stop()
	eventually(t, "the second leads", func() bool { return two.state.Load() == leads && holder() == "b" })
	eventually(t, "the second looks", func() bool { return two.Counters.Looks.Load() > 0 })
	// The Lease cannot be renewed: it stops, and comes back.
	away.Store(true)
	eventually(t, "the second stands by again", func() bool { return two.state.Load() == standsBy })
	away.Store(false)
	eventually(t, "the second leads again", func() bool { return two.state.Load() == leads })
}

func (r *rig) exec(url, sql string) {
	r.t.Helper()
	c := connect(r.t, url)
	if _, err := c.Exec(r.t.Context(), sql); err != nil {
		r.t.Fatal(err)
	}
}
