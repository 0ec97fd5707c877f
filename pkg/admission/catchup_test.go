package admission

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// theCronJobs has one CronJob, "sync" in shop, or an error.
type theCronJobs struct {
	json string
	err  error
}

func (c theCronJobs) CronJob(_ context.Context, namespace, name string) ([]byte, error) {
	if c.err == nil && (namespace != "shop" || name != "sync") {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "batch", Resource: "cronjobs"}, name)
	}
	return []byte(c.json), c.err
}

const (
	caughtUpCronJob = `{"metadata":{"name":"sync","uid":"u1"},"spec":{"schedule":"0 * * * *","suspend":false,"jobTemplate":{` +
		`"metadata":{"creationTimestamp":null,"labels":{"team":"books","onceguard.dev/guard":"enabled"},"annotations":{"onceguard.dev/config":"{}"}},` +
		`"spec":{"activeDeadlineSeconds":60,"template":{"metadata":{"creationTimestamp":null,"labels":{"onceguard.dev/guard":"enabled"}},` +
		`"spec":{"restartPolicy":"Never","serviceAccountName":"sync","containers":[{"name":"main","image":"busybox","command":["work"],"resources":{}}],"volumes":[{"name":"tmp","emptyDir":{}}]}}}}}}`
	caughtUpJob = `{"kind":"Job","metadata":{"name":"sync-r29146200","labels":{"team":"books","onceguard.dev/guard":"enabled","onceguard.dev/catch-up":"enabled"},` +
		`"annotations":{"onceguard.dev/config":"{}","batch.kubernetes.io/cronjob-scheduled-timestamp":"2025-06-01T10:00:00Z"},` +
		`"ownerReferences":[{"apiVersion":"batch/v1","kind":"CronJob","name":"sync","uid":"u1","controller":false}]},` +
		`"spec":{"parallelism":1,"completions":1,"backoffLimit":6,"completionMode":"NonIndexed","manualSelector":false,"suspend":false,"podReplacementPolicy":"TerminatingOrFailed","ttlSecondsAfterFinished":86400,` +
		`"activeDeadlineSeconds":60,"template":{"metadata":{"labels":{"onceguard.dev/guard":"enabled"}},` +
		`"spec":{"restartPolicy":"Never","serviceAccountName":"sync","containers":[{"name":"main","image":"busybox","command":["work"],"resources":{}}],"volumes":[{"name":"tmp","emptyDir":{}}]}}}}`
)

// The windows engine may make what the CronJob makes, and nothing else: each part of a Job
// that is another one is denied, also parts that our types do not know.
func TestJobsOfTheWindowsEngine(t *testing.T) {
	const theOwner = `{"apiVersion":"batch/v1","kind":"CronJob","name":"sync","uid":"u1","controller":false}`
	for _, c := range []struct {
		name            string
		job, is         string // what is replaced in the Job, and by what
		cronJob, cronIs string // the same of the CronJob
		err             error
		code            int32 // 0: allowed
		says            string
	}{
		{name: "equal"},
		{name: "held back by a queue", job: `"suspend":false`, is: `"suspend":true`},
		{name: "marked by others", job: `"team":"books"`, is: `"team":"books","queue":"q"`},
		{name: "a time to live of the template", job: `86400`, is: `60`, cronJob: `"activeDeadlineSeconds":60`, cronIs: `"activeDeadlineSeconds":60,"ttlSecondsAfterFinished":60`},
		{name: "another image", job: `busybox`, is: `evil`, code: 403, says: "its spec.template.spec.containers is not the one of its CronJob's template, as it is now (the CronJob was edited just now, "},
		{name: "another command", job: `["work"]`, is: `["sh"]`, code: 403, says: "spec.template"},
		{name: "another account", job: `"serviceAccountName":"sync"`, is: `"serviceAccountName":"admin"`, code: 403, says: "spec.template"},
		{name: "the host's files", job: `"emptyDir":{}`, is: `"hostPath":{"path":"/"}`, code: 403, says: "spec.template"},
		{name: "a field of a newer API", job: `"restartPolicy":"Never"`, is: `"restartPolicy":"Never","power":"all"`, code: 403, says: "spec.template"},
		{name: "a field less", job: `"serviceAccountName":"sync",`, is: ``, code: 403, says: "spec.template"},
		{name: "a pod label", job: `"metadata":{"labels":{"onceguard.dev/guard":"enabled"}}`, is: `"metadata":{"labels":{"onceguard.dev/guard":"enabled","x":"y"}}`, code: 403, says: "its spec.template.metadata.labels.x is not the one of its CronJob's template, as it is now (the CronJob was edited just now, has a field newer than this release, or a MutatingAdmissionPolicy or another webhook changed the Job on its way: "},
		{name: "more pods", job: `"parallelism":1`, is: `"parallelism":50`, code: 403, says: "spec.parallelism"},
		{name: "more retries", job: `"backoffLimit":6`, is: `"backoffLimit":60`, code: 403, says: "spec.backoffLimit"},
		{name: "pods of others", job: `"manualSelector":false`, is: `"manualSelector":true`, code: 403, says: "spec.manualSelector"},
		{name: "a new field of Jobs", job: `"parallelism":1`, is: `"parallelism":1,"power":"all"`, code: 403, says: "spec.power"},
		{name: "without the deadline", job: `"activeDeadlineSeconds":60,`, is: ``, code: 403, says: "spec.activeDeadlineSeconds"},
		{name: "another time to live", cronJob: `"activeDeadlineSeconds":60`, cronIs: `"activeDeadlineSeconds":60,"ttlSecondsAfterFinished":60`, code: 403, says: "spec.ttlSecondsAfterFinished"},
		{name: "other settings", job: `"onceguard.dev/config":"{}"`, is: `"onceguard.dev/config":"{1}"`, code: 403, says: "its annotations differ from those of its CronJob's template, as it is now, in onceguard.dev/config"},
		{name: "a wish of its own", job: `"onceguard.dev/config":"{}"`, is: `"onceguard.dev/config":"{}","onceguard.dev/lease":"1h"`, code: 403, says: "onceguard.dev/lease"},
		{name: "a run of its own", job: `"onceguard.dev/config":"{}"`, is: `"onceguard.dev/config":"{}","cronjob.kubernetes.io/instantiate":"manual"`, code: 403, says: "cronjob.kubernetes.io/instantiate"},
		{name: "a mark of Kubernetes", job: `"team":"books"`, is: `"team":"books","batch.kubernetes.io/job-name":"other"`, code: 403, says: "batch.kubernetes.io/job-name"},
		{name: "a label less", job: `"team":"books",`, is: ``, code: 403, says: "its labels differ"},
		{name: "suspended", cronJob: `"suspend":false`, cronIs: `"suspend":true`, code: 403, says: "suspended"},
		{name: "going", cronJob: `"uid":"u1"`, cronIs: `"uid":"u1","deletionTimestamp":"2025-06-01T10:00:00Z"`, code: 403, says: "being deleted"},
		{name: "no owner", job: theOwner, is: ``, code: 403, says: "it has 0 owners"},
		{name: "two owners", job: theOwner, is: theOwner + `,` + theOwner, code: 403, says: "it has 2 owners"},
		{name: "an owner of another kind", job: `"kind":"CronJob"`, is: `"kind":"ConfigMap"`, code: 403, says: "no CronJob"},
		{name: "an owner that does not exist", job: `"name":"sync","uid"`, is: `"name":"nope","uid"`, code: 403, says: "CronJob nope does not exist"},
		{name: "the owner's namesake", job: `"uid":"u1"`, is: `"uid":"u2"`, code: 403, says: "another CronJob of the name sync, with UID u2"},
		{name: "an owner without UID", job: `"uid":"u1",`, is: ``, code: 403, says: "another CronJob"},
		{name: "the API is away", err: errors.New("away"), code: 503, says: "away; it is tried again"},
		{name: "unreadable", job: caughtUpJob, is: `[]`, code: 400, says: "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := func(s, from, to string) string {
				if !strings.Contains(s, from) {
					t.Fatalf("no %s to replace", from)
				}
				return strings.Replace(s, from, to, 1)
			}
			h := New(Config{CronJobs: theCronJobs{change(caughtUpCronJob, c.cronJob, c.cronIs), c.err}, Log: zap.NewNop()})
			r := answer(t, post(h, "/mutate/jobs", review(change(caughtUpJob, c.job, c.is), "")))
			if len(r.Patch) > 0 || r.Allowed != (c.code == 0) {
				t.Fatalf("allowed %v: %+v, patch %s", r.Allowed, r.Result, r.Patch)
			}
			if c.code == 0 {
				return
			}
			if r.Result.Code != c.code || !strings.Contains(r.Result.Message, c.says) {
				t.Errorf("got %+v", r.Result)
			}
			if c.code == http.StatusForbidden && !strings.Contains(r.Result.Message, "the windows engine may not create Job shop/") {
				t.Errorf("does not say who may not do what: %s", r.Result.Message)
			}
		})
	}
}
