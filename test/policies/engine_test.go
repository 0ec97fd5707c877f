//go:build e2e

package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/bed"
)

// engine is the windows engine's account.
const engine = "system:serviceaccount:" + bed.Namespace + ":onceguard-engine"

// as gives a client that acts in the name of a user, and keeps warnings to itself; empty:
// the administrator.
func as(t *testing.T, user string) *kubernetes.Clientset {
	t.Helper()
	config := rest.CopyConfig(cluster.Config)
	config.Impersonate.UserName, config.WarningHandler = user, rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// guardedCronJob makes one of some size, and waits until the webhook has stamped it.
func guardedCronJob(t *testing.T, name string, edit ...func(*batchv1.CronJob)) *batchv1.CronJob {
	t.Helper()
	no, deadline := false, int64(300)
	cj := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{contract.AnnotationGuard: contract.Enabled}},
		Spec: batchv1.CronJobSpec{
			Schedule: "0 0 29 2 *", Suspend: &no, ConcurrencyPolicy: batchv1.AllowConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "books"}, Annotations: map[string]string{"note": "yes"}},
				Spec: batchv1.JobSpec{
					ActiveDeadlineSeconds: &deadline,
					Template: corev1.PodTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "books"}, Annotations: map[string]string{"note": "yes"}},
						Spec: corev1.PodSpec{
							RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: "books",
							Containers: []corev1.Container{{
								Name: "worker", Image: "worker:none", ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", "true"},
								Env:          []corev1.EnvVar{{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
								Ports:        []corev1.ContainerPort{{ContainerPort: 80}},
								VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
							}},
							Volumes: []corev1.Volume{
								{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
								{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
							},
						},
					},
				},
			},
		},
	}
	for _, e := range edit {
		e(cj)
	}
	made, err := as(t, "").BatchV1().CronJobs(namespace).Create(t.Context(), cj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.Client.BatchV1().CronJobs(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return made
}

// caughtUp is the Job that the engine makes for a window.
func caughtUp(cj *batchv1.CronJob, at time.Time) *batchv1.Job {
	no, day := false, int32(86400)
	template := cj.Spec.JobTemplate.DeepCopy()
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cj.Namespace, Name: window.CatchUpName(cj.Name, at), Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: cj.Name, UID: cj.UID, Controller: &no}},
		},
		Spec: template.Spec,
	}
	j.Labels[contract.LabelCatchUp] = contract.Enabled
	j.Annotations[contract.AnnotationScheduledTimestamp] = at.UTC().Format(time.RFC3339)
	if j.Spec.TTLSecondsAfterFinished == nil {
		j.Spec.TTLSecondsAfterFinished = &day
	}
	return j
}

var leapDay = time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)

// The right to create Jobs is the right to run anything as anybody: the engine's account
// has it for what a guarded CronJob makes, for one of its windows.
func TestTheEnginesAccountMayOnlyMakeWhatTheCronJobMakes(t *testing.T) {
	const (
		form = "Onceguard's windows engine"               // the policy's words
		live = "the windows engine may not create Job"    // the webhook's
		spec = "is not the one of its CronJob's template" // of them, about the spec
	)
	cj := guardedCronJob(t, "catch-up")
	other := guardedCronJob(t, "other", func(cj *batchv1.CronJob) { cj.Spec.JobTemplate.Spec.Template.Spec.ServiceAccountName = "admin" })
	yes := true
	pod := func(j *batchv1.Job) *corev1.PodSpec { return &j.Spec.Template.Spec }
	for _, c := range []struct {
		name string
		edit func(*batchv1.Job)
		says string // empty: allowed
	}{
		{"what the CronJob makes", func(*batchv1.Job) {}, ""},
		{"held back", func(j *batchv1.Job) { j.Spec.Suspend = &yes }, ""},
		{"another image", func(j *batchv1.Job) { pod(j).Containers[0].Image = "evil:1" }, spec},
		{"another command", func(j *batchv1.Job) { pod(j).Containers[0].Command = []string{"sh"} }, spec},
		{"another account", func(j *batchv1.Job) { pod(j).ServiceAccountName = "admin" }, spec},
		{"the host's files", func(j *batchv1.Job) {
			pod(j).Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		}, spec},
		{"another Secret", func(j *batchv1.Job) { pod(j).Volumes[1].Secret.SecretName = "admin" }, spec},
		{"the host's network", func(j *batchv1.Job) { pod(j).HostNetwork = true }, spec},
		{"as root", func(j *batchv1.Job) {
			pod(j).Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}, spec},
		{"one more container", func(j *batchv1.Job) {
			pod(j).Containers = append(pod(j).Containers, corev1.Container{Name: "more", Image: "evil:1"})
		}, spec},
		{"an init container", func(j *batchv1.Job) {
			pod(j).InitContainers = []corev1.Container{{Name: "more", Image: "evil:1"}}
		}, spec},
		{"an annotation of the pods", func(j *batchv1.Job) { j.Spec.Template.Annotations["note"] = "no" }, spec},
		{"a label of the pods", func(j *batchv1.Job) { j.Spec.Template.Labels["app"] = "shop" }, spec},
		{"more pods", func(j *batchv1.Job) { n := int32(50); j.Spec.Parallelism = &n }, spec},
		{"pods of others", func(j *batchv1.Job) {
			j.Spec.ManualSelector, j.Spec.Selector = &yes, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "books"}}
		}, spec},
		{"other settings", func(j *batchv1.Job) { j.Annotations[contract.AnnotationConfig] = "{}" }, live},
		{"a wish of its own", func(j *batchv1.Job) { j.Annotations[contract.AnnotationLease] = "1h" }, live},
		{"without a label of the template", func(j *batchv1.Job) { delete(j.Labels, "team") }, live},
		{"no label", func(j *batchv1.Job) { delete(j.Labels, contract.LabelCatchUp) }, form},
		{"not guarded", func(j *batchv1.Job) { delete(j.Spec.Template.Labels, contract.LabelGuard) }, "onceguard"},
		{"no owner", func(j *batchv1.Job) { j.OwnerReferences = nil }, "owner"},
		{"two owners", func(j *batchv1.Job) {
			o := j.OwnerReferences[0]
			o.Name, o.UID = other.Name, other.UID
			j.OwnerReferences = append(j.OwnerReferences, o)
		}, "owner"},
		{"the CronJob's controller's", func(j *batchv1.Job) { j.OwnerReferences[0].Controller = &yes }, form},
		{"in the way of the CronJob's end", func(j *batchv1.Job) { j.OwnerReferences[0].BlockOwnerDeletion = &yes }, form},
		{"a finalizer", func(j *batchv1.Job) { j.Finalizers = []string{"example.com/x"} }, form},
		{"an owner of another kind", func(j *batchv1.Job) {
			j.OwnerReferences[0].APIVersion, j.OwnerReferences[0].Kind = "v1", "ConfigMap"
		}, "CronJob"},
		{"an owner that does not exist", func(j *batchv1.Job) {
			j.Name, j.OwnerReferences[0].Name = window.CatchUpName("nobody", leapDay), "nobody"
		}, "CronJob nobody does not exist"},
		{"the owner's namesake", func(j *batchv1.Job) { j.OwnerReferences[0].UID = "1" }, "another CronJob of the name catch-up"},
		{"another CronJob's Job", func(j *batchv1.Job) {
			o := j.OwnerReferences[0]
			*j = *caughtUp(other, leapDay)
			j.Name, j.OwnerReferences = window.CatchUpName(cj.Name, leapDay), []metav1.OwnerReference{o}
		}, live},
		{"another namespace", func(j *batchv1.Job) { j.Namespace = "default" }, "CronJob catch-up does not exist"},
		{"an excluded namespace", func(j *batchv1.Job) { j.Namespace = "kube-system" }, "onceguard"},
		{"a name of the CronJob controller", func(j *batchv1.Job) { j.Name = bed.JobNameFor(cj.Name, leapDay) }, form},
		{"another window's name", func(j *batchv1.Job) { j.Name = window.CatchUpName(cj.Name, leapDay.Add(time.Minute)) }, form},
		{"no timestamp", func(j *batchv1.Job) { delete(j.Annotations, contract.AnnotationScheduledTimestamp) }, form},
		{"a timestamp that is none", func(j *batchv1.Job) { j.Annotations[contract.AnnotationScheduledTimestamp] = "2024-13-45T00:00:00Z" }, "ValidatingAdmissionPolicy"},
		{"part of a minute", func(j *batchv1.Job) { j.Annotations[contract.AnnotationScheduledTimestamp] = "2024-02-29T00:00:01Z" }, form},
	} {
		t.Run(c.name, func(t *testing.T) {
			create := func(user string) error {
				j := caughtUp(cj, leapDay)
				c.edit(j)
				_, err := as(t, user).BatchV1().Jobs(j.Namespace).Create(t.Context(), j, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			}
			if err := create(engine); c.says == "" && err != nil {
				t.Error(err)
			} else if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("want a denial that says %q, got %v", c.says, err)
			}
			// The same Job is sound: it is the account that may not.
			if err := create(""); err != nil && c.name != "pods of others" {
				t.Errorf("the administrator may not either: %v", err)
			}
		})
	}

	// What the CronJob makes is what it makes now.
	old := caughtUp(cj, leapDay)
	if _, err := cluster.Kubectl(t.Context(), "-n", namespace, "set", "image", "cronjob/catch-up", "worker=worker:2"); err != nil {
		t.Fatal(err)
	}
	_, err := as(t, engine).BatchV1().Jobs(namespace).Create(t.Context(), old, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), spec) {
		t.Errorf("a template that is no more: %v", err)
	}
	if cj, err = cluster.Client.BatchV1().CronJobs(namespace).Get(t.Context(), "catch-up", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = as(t, engine).BatchV1().Jobs(namespace).Create(t.Context(), caughtUp(cj, leapDay), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("the template as it is now: %v", err)
	}
	// And none while it is suspended.
	if _, err := cluster.Kubectl(t.Context(), "-n", namespace, "patch", "cronjob", "catch-up", "-p", `{"spec":{"suspend":true}}`); err != nil {
		t.Fatal(err)
	}
	_, err = as(t, engine).BatchV1().Jobs(namespace).Create(t.Context(), caughtUp(cj, leapDay), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "its CronJob is suspended") {
		t.Errorf("suspended: %v", err)
	}
}

// What it has made it may take away when it has ended; what it has not made, never.
func TestTheEnginesAccountMayOnlyDeleteItsOwnEndedJobs(t *testing.T) {
	cj := guardedCronJob(t, "deletes")
	jobs := cluster.Client.BatchV1().Jobs(namespace)
	yes := true
	make := func(name string, labelled bool) *batchv1.Job {
		j := caughtUp(cj, leapDay)
		j.Name, j.Spec.Suspend = name, &yes
		if !labelled {
			delete(j.Labels, contract.LabelCatchUp)
		}
		j, err := jobs.Create(t.Context(), j, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	end := func(j *batchv1.Job) {
		t.Helper()
		if _, err := cluster.Kubectl(t.Context(), "-n", namespace, "patch", "job", j.Name, "-p", `{"spec":{"suspend":false,"activeDeadlineSeconds":1}}`); err != nil {
			t.Fatal(err)
		}
		if got, err := cluster.WaitJob(t.Context(), time.Minute, namespace, j.Name); err != nil || got != batchv1.JobFailed {
			t.Fatal(got, err)
		}
	}
	mine, alive, theirs := make("mine", true), make("alive", true), make("theirs", false)
	end(mine)
	end(theirs)
	background := metav1.DeletePropagationBackground
	remove := func(j *batchv1.Job) error {
		return as(t, engine).BatchV1().Jobs(namespace).Delete(t.Context(), j.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	}
	denied(t, remove(alive), "delete those of its own that have ended")
	denied(t, remove(theirs), "delete those of its own that have ended")
	if err := remove(mine); err != nil {
		t.Error(err)
	}
}

// Nothing else is given to the account, and what is given is what the engine uses.
func TestTheEnginesRights(t *testing.T) {
	const lease = "onceguard-engine"
	for _, c := range []struct {
		verb, group, resource, namespace, name string
		may                                    bool
	}{
		{"list", "batch", "cronjobs", "", "", true},
		{"watch", "batch", "jobs", "", "", true},
		{"create", "batch", "jobs", namespace, "", true},
		{"list", "", "pods", namespace, "", true},
		{"list", "", "events", namespace, "", true},
		{"create", "", "events", namespace, "", true},
		{"create", "coordination.k8s.io", "leases", bed.Namespace, "", true},
		{"update", "coordination.k8s.io", "leases", bed.Namespace, lease, true},
		{"update", "coordination.k8s.io", "leases", bed.Namespace, "other", false},
		{"create", "coordination.k8s.io", "leases", namespace, "", false},
		{"update", "batch", "jobs", namespace, "", false},
		{"patch", "batch", "jobs", namespace, "", false},
		{"deletecollection", "batch", "jobs", namespace, "", false},
		{"create", "batch", "cronjobs", namespace, "", false},
		{"update", "batch", "cronjobs", namespace, "", false},
		{"patch", "batch", "cronjobs", namespace, "", false},
		{"delete", "batch", "cronjobs", namespace, "", false},
		{"create", "", "pods", namespace, "", false},
		{"delete", "", "pods", namespace, "", false},
		{"get", "", "secrets", namespace, "", false},
		{"get", "", "secrets", bed.Namespace, "", false},
		{"list", "", "configmaps", namespace, "", false},
		{"patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", bed.Release, false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: engine,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: c.verb, Group: c.group, Resource: c.resource, Namespace: c.namespace, Name: c.name,
			},
		}}
		got, err := cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed != c.may {
			t.Errorf("%s %s %q in %q: %v", c.verb, c.resource, c.name, c.namespace, got.Status.Allowed)
		}
	}
}

// The webhook is asked about the engine's Jobs and nobody else's: with it away, others make
// theirs, and the engine makes none.
func TestWithoutTheWebhookTheEngineMakesNothing(t *testing.T) {
	cj := guardedCronJob(t, "alone")
	scale := func(n int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if _, err := cluster.Kubectl(ctx, "-n", bed.Namespace, "scale", "deployment", "onceguard-webhook", fmt.Sprintf("--replicas=%d", n)); err != nil {
			return err
		}
		return bed.Wait(ctx, 2*time.Minute, fmt.Sprintf("%d replicas of the webhook", n), func(ctx context.Context) (bool, error) {
			d, err := cluster.Client.AppsV1().Deployments(bed.Namespace).Get(ctx, "onceguard-webhook", metav1.GetOptions{})
			return err == nil && int(d.Status.Replicas) == n && int(d.Status.ReadyReplicas) == n, err
		})
	}
	before, err := cluster.Client.AppsV1().Deployments(bed.Namespace).Get(t.Context(), "onceguard-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scale(int(*before.Spec.Replicas)); err != nil {
			t.Error(err)
		}
	})
	if err := scale(0); err != nil {
		t.Fatal(err)
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	err = bed.Wait(t.Context(), time.Minute, "the engine's Job is refused", func(ctx context.Context) (bool, error) {
		_, err := as(t, engine).BatchV1().Jobs(namespace).Create(ctx, caughtUp(cj, leapDay), dry)
		return apierrors.IsInternalError(err), err
	})
	if err != nil {
		t.Error(err)
	}
	for _, user := range []string{"system:serviceaccount:kube-system:cronjob-controller", ""} {
		for _, j := range []*batchv1.Job{bed.ScheduledJob(cj, leapDay, cj.Name), caughtUp(cj, leapDay)} {
			if _, err := as(t, user).BatchV1().Jobs(namespace).Create(t.Context(), j, dry); err != nil {
				t.Errorf("%q: %v", user, err)
			}
		}
	}
}

// Its own pod is what a restricted namespace lets in, and it idles until it is given a ledger.
func TestTheEngineRuns(t *testing.T) {
	pods, err := cluster.Client.CoreV1().Pods(bed.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=engine"})
	if err != nil || len(pods.Items) == 0 {
		t.Fatal(err, "no pod of the engine")
	}
	bare := pods.Items[0]
	restricted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if restricted, err = cluster.Client.CoreV1().Namespaces().Create(t.Context(), restricted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.Client.CoreV1().Namespaces().Delete(context.Background(), restricted.Name, metav1.DeleteOptions{})
	})
	bare.ObjectMeta = metav1.ObjectMeta{Namespace: restricted.Name, Name: "engine"}
	bare.Spec.ServiceAccountName, bare.Spec.NodeName = "default", ""
	err = bed.Wait(t.Context(), time.Minute, "a copy of the engine's pod in a restricted namespace", func(ctx context.Context) (bool, error) {
		_, err := cluster.Client.CoreV1().Pods(restricted.Name).Create(ctx, bare.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), "PodSecurity") {
			t.Fatal(err)
		}
		return err == nil, err // its account is made a moment later
	})
	if err != nil {
		t.Error(err)
	}
	err = bed.Wait(t.Context(), time.Minute, "the engine's Lease", func(ctx context.Context) (bool, error) {
		l, err := cluster.Client.CoordinationV1().Leases(bed.Namespace).Get(ctx, "onceguard-engine", metav1.GetOptions{})
		return err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "", err
	})
	if err != nil {
		t.Error(err)
	}
	if text, err := json.Marshal(bare.Spec.Volumes); err != nil || strings.Contains(string(text), "hostPath") {
		t.Errorf("%v %s", err, text)
	}
}
