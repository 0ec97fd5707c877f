package kube

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/onceguard/onceguard/pkg/contract"
)

var noon = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

func now() time.Time { return noon }

// eventually polls until ok, or fails the test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func cronJob(name string, annotations map[string]string) *batchv1.CronJob {
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-1", ResourceVersion: "1", Annotations: annotations},
		Spec: batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Command: []string{"work"}}}},
		}}}},
	}
}

func start(t *testing.T, loop func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- loop(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestReconcilerStampsAndUnstamps(t *testing.T) {
	enabled := map[string]string{contract.AnnotationGuard: "enabled"}
	left := cronJob("un-annotated-while-away", nil)
	left.Spec.JobTemplate.Annotations = map[string]string{contract.AnnotationConfig: "{}", "theirs": "x"}
	left.Spec.JobTemplate.Labels = map[string]string{contract.LabelGuard: "enabled"}
	excluded := cronJob("excluded", enabled)
	excluded.Namespace = "kube-system"
	going := cronJob("going", enabled)
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: noon}, []string{"x"}
	client := fake.NewClientset(cronJob("annotated-before", enabled), cronJob("nobody's", nil), left, excluded, going,
		cronJob("bad", map[string]string{contract.AnnotationGuard: "enabled", contract.AnnotationLease: "2"}))
	// The first try of each fails.
	failures := map[string]bool{}
	client.PrependReactor("patch", "cronjobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.PatchAction).GetName()
		if failures[name] {
			return false, nil, nil
		}
		failures[name] = true
		return true, nil, apierrors.NewInternalError(context.DeadlineExceeded)
	})
	start(t, (&Reconciler{Client: client, Excluded: []string{"kube-system"}, Now: now, Log: zap.NewNop()}).Run)
	start(t, (&Reconciler{Client: client, Excluded: []string{"kube-system"}, Now: now, Log: zap.NewNop()}).Run) // the second replica

	get := func(namespace, name string) *batchv1.CronJob {
		c, err := client.BatchV1().CronJobs(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	config := func(c *batchv1.CronJob) string { return c.Spec.JobTemplate.Annotations[contract.AnnotationConfig] }
	eventually(t, "stamped", func() bool { return config(get("shop", "annotated-before")) != "" })
	eventually(t, "stamped with its refusal", func() bool { return strings.Contains(config(get("shop", "bad")), "refusal") })
	eventually(t, "unstamped", func() bool { return config(get("shop", "un-annotated-while-away")) == "" })
	stamped := get("shop", "annotated-before").Spec.JobTemplate
	if stamped.Labels[contract.LabelGuard] != "enabled" || stamped.Spec.Template.Labels[contract.LabelGuard] != "enabled" {
		t.Errorf("labels: %v %v", stamped.Labels, stamped.Spec.Template.Labels)
	}
	un := get("shop", "un-annotated-while-away").Spec.JobTemplate
	if un.Annotations["theirs"] != "x" || un.Labels[contract.LabelGuard] != "" {
		t.Errorf("left behind or lost: %v %v", un.Annotations, un.Labels)
	}
	for _, c := range []*batchv1.CronJob{get("kube-system", "excluded"), get("shop", "going"), get("shop", "nobody's")} {
		if config(c) != "" {
			t.Errorf("%s was touched", c.Name)
		}
	}
}

func TestReconcilerWritesNothingWhenAllIsWell(t *testing.T) {
	c := cronJob("sync", map[string]string{contract.AnnotationGuard: "enabled"})
	client := fake.NewClientset(c)
	r := &Reconciler{Client: client, Now: now, Log: zap.NewNop()}
	if err := r.Reconcile(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	stamped, err := client.BatchV1().CronJobs("shop").Get(t.Context(), "sync", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client.ClearActions()
	r.Now = func() time.Time { return noon.Add(time.Hour) }
	if err := r.Reconcile(t.Context(), stamped); err != nil || len(client.Actions()) > 0 {
		t.Errorf("%v %v", client.Actions(), err)
	}
	// Somebody changed it since: the write must not happen.
	stale := stamped.DeepCopy()
	stale.Annotations[contract.AnnotationBusy], stale.ResourceVersion = "skip", "0"
	if err := r.Reconcile(t.Context(), stale); err == nil {
		t.Error("a stale view was written")
	}
}

// An installation's webhook is not reachable for its first seconds, an outage's for
// minutes: what failed is tried again until the resync is near.
func TestTriesLastUntilTheResync(t *testing.T) {
	p := pauses[string]()
	var total time.Duration
	for range attempts {
		total += p.When("shop/sync")
	}
	if total < resync/2 || total > resync {
		t.Errorf("%d tries in %s, resync after %s", attempts, total, resync)
	}
}

func TestABadValueThatNobodySawIsTold(t *testing.T) {
	c := cronJob("sync", map[string]string{contract.AnnotationGuard: "enabled", contract.AnnotationLease: "2", contract.AnnotationBusy: "no"})
	client := fake.NewClientset(c)
	r := &Reconciler{Client: client, Now: now, Log: zap.NewNop()}
	twin := &Reconciler{Client: client, Now: now, Log: zap.NewNop()}
	creates := func(r *Reconciler) (n int) {
		t.Helper()
		client.ClearActions()
		current, err := client.BatchV1().CronJobs("shop").Get(t.Context(), "sync", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		current.Annotations = c.Annotations
		if err := r.Reconcile(t.Context(), current); err != nil {
			t.Fatal(err)
		}
		for _, a := range client.Actions() {
			if a.Matches("create", "events") {
				n++
			}
		}
		return n
	}
	if first, second, other := creates(r), creates(r), creates(twin); first != 2 || second != 0 || other != 2 {
		t.Errorf("told %d, %d and by the other replica %d times; want 2, 0, 2", first, second, other)
	}
	list, err := client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("want one Event for each value, whoever told it: %v %v", list, err)
	}
	for _, e := range list.Items {
		if e.Reason != ReasonBadAnnotation || e.Type != corev1.EventTypeWarning || e.InvolvedObject.Kind != "CronJob" || e.InvolvedObject.UID != c.UID ||
			!strings.Contains(e.Message, "until this is mended: onceguard.dev/") {
			t.Errorf("got %+v", e)
		}
	}
	// Mended and broken again: news.
	c.Annotations = map[string]string{contract.AnnotationGuard: "enabled", contract.AnnotationBusy: "no"}
	if n := creates(r); n != 0 {
		t.Errorf("one less was told %d times", n)
	}
	c.Annotations = map[string]string{contract.AnnotationGuard: "enabled", contract.AnnotationBusy: "no", contract.AnnotationLease: "2"}
	if n := creates(r); n != 1 {
		t.Errorf("one more was told %d times", n)
	}
}

func partial(name, uid string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: "", Labels: map[string]string{contract.LabelGuard: "enabled"},
			Annotations:     map[string]string{"uid": uid},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "sync", UID: "cj-uid"}},
		},
	}
}

func jobsWith(objects ...*metav1.PartialObjectMetadata) (*Jobs, *metadatafake.FakeMetadataClient) {
	scheme := metadatafake.NewTestScheme()
	_ = metav1.AddMetaToScheme(scheme)
	var all []runtime.Object
	for _, o := range objects {
		o.UID = "job-uid"
		all = append(all, o)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, all...)
	return NewJobs(Clients{Metadata: client, Typed: fake.NewClientset(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "sync-1", UID: "job-uid"}})}), client
}

func TestJobIsReadLiveOnAMissAndFromTheCopyAfterwards(t *testing.T) {
	jobs, client := jobsWith(partial("sync-1", ""))
	if job, err := jobs.Job(t.Context(), "shop", "sync-1", "job-uid"); err != nil || job.Name != "sync-1" {
		t.Fatal(job, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { jobs.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	eventually(t, "watched", jobs.watched.HasSynced)
	client.ClearActions()
	if job, err := jobs.Job(t.Context(), "shop", "sync-1", "job-uid"); err != nil || job.Name != "sync-1" {
		t.Fatal(job, err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "get" {
			t.Error("read live although the copy has it")
		}
	}
	if _, err := jobs.Job(t.Context(), "shop", "sync-1", "another-uid"); err == nil || !strings.Contains(err.Error(), "that Job is gone") {
		t.Errorf("a Job of another UID was taken: %v", err)
	}
	if spec, err := jobs.Spec(t.Context(), "shop", "sync-1", "job-uid"); err != nil || spec == nil {
		t.Error(spec, err)
	}
	if _, err := jobs.Spec(t.Context(), "shop", "sync-1", "another-uid"); err == nil {
		t.Error("the spec of a Job of another UID was taken")
	}
	if _, err := jobs.Job(t.Context(), "shop", "nobody", "x"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func pod(name string, config contract.GuardConfig, ended ...corev1.ContainerStatus) *corev1.Pod {
	text, _ := json.Marshal(config)
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: "pod-uid-" + "x", CreationTimestamp: metav1.NewTime(noon),
			Labels:          map[string]string{contract.LabelGuard: "enabled"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "sync-1", UID: "job-uid", Controller: &yes}},
		},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{
			Name: contract.ContainerGuard,
			Env:  []corev1.EnvVar{{Name: contract.EnvConfig, Value: strings.ReplaceAll(string(text), "$", "$$")}},
		}}},
		Status: corev1.PodStatus{ContainerStatuses: ended},
	}
}

func ended(code int32, message string, at time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, FinishedAt: metav1.NewTime(at)}}}
}

func TestNotesOfAPod(t *testing.T) {
	const ours = contract.TerminationPrefix
	restarted := corev1.ContainerStatus{Name: "main", LastTerminationState: ended(contract.ExitRetry, ours+"the ledger is away", noon).State, State: ended(0, ours+"done already", noon).State}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"nothing ended", pod("p", contract.GuardConfig{}), ""},
		{"a worker's own message", pod("p", contract.GuardConfig{}, ended(0, "all fine", noon), ended(78, "my own 78", noon)), ""},
		{"skipped", pod("p", contract.GuardConfig{}, ended(0, ours+"done by shop/other", noon)), "WindowSkipped main done by shop/other"},
		{"refused", pod("p", contract.GuardConfig{}, ended(78, ours+"no window", noon)), "WindowRefused main no window"},
		{"unfinished", pod("p", contract.GuardConfig{}, ended(75, ours+"the ledger is away", noon)), "WindowUnfinished main the ledger is away"},
		{"restarted in place", pod("p", contract.GuardConfig{}, restarted), "WindowUnfinished main the ledger is away|WindowSkipped main done already"},
		{"injected to be refused, told once", pod("p", contract.GuardConfig{Refusal: "costs $5"}, ended(78, ours+"costs $5", noon)), "WindowRefused  costs $5"},
		{"two containers, told once", pod("p", contract.GuardConfig{}, ended(0, ours+"a", noon), ended(0, ours+"b", noon)), "WindowSkipped main a"},
		{"old news", pod("p", contract.GuardConfig{}, ended(0, ours+"a", noon.Add(-2*time.Hour))), ""},
	} {
		small, err := essence(c.pod)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range notesOf(small.(*corev1.Pod), noon) {
			got = append(got, n.reason+" "+n.container+" "+n.message)
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestEventsOnJobAndCronJobOnceForTwoReplicas(t *testing.T) {
	jobs, _ := jobsWith(partial("sync-1", ""))
	client := fake.NewClientset(pod("sync-1-abc", contract.GuardConfig{}))
	start(t, (&Notes{Client: client, Jobs: jobs, Now: now, Log: zap.NewNop()}).Run)
	start(t, (&Notes{Client: client, Jobs: jobs, Now: now, Log: zap.NewNop()}).Run)
	watching := func() (n int) {
		for _, a := range client.Actions() {
			if a.Matches("watch", "pods") {
				n++
			}
		}
		return n
	}
	eventually(t, "both watch", func() bool { return watching() >= 2 })
	// OnFailure: the status is written, and the pod goes at once.
	last := pod("sync-1-abc", contract.GuardConfig{}, ended(78, contract.TerminationPrefix+"no command"+strings.Repeat("…", 1000), noon))
	if _, err := client.CoreV1().Pods("shop").UpdateStatus(t.Context(), last, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Pods("shop").Delete(t.Context(), "sync-1-abc", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	events := func() []corev1.Event {
		list, err := client.CoreV1().Events("shop").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	creates := func() (n int) {
		for _, a := range client.Actions() {
			if a.Matches("create", "events") {
				n++
			}
		}
		return n
	}
	eventually(t, "both replicas told", func() bool { return creates() == 4 })
	got := map[string]string{}
	for _, e := range events() {
		got[e.InvolvedObject.Kind] = e.Reason + " " + e.Type
		if !strings.HasPrefix(e.Message, "pod sync-1-abc, container main: no command") || len(e.Message) > longest {
			t.Errorf("message: %q", e.Message)
		}
	}
	if len(events()) != 2 || got["Job"] != "WindowRefused Warning" || got["CronJob"] != "WindowRefused Warning" {
		t.Errorf("events: %v", got)
	}
}

func TestNamespaceThatIsGoingIsNoError(t *testing.T) {
	jobs, _ := jobsWith()
	client := fake.NewClientset()
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "x", nil)
	})
	n := &Notes{Client: client, Jobs: jobs, Now: now, Log: zap.NewNop()}
	if err := n.tell(t.Context(), note{namespace: "shop", job: "sync-1", reason: ReasonSkipped}); err != nil {
		t.Error(err)
	}
}
