package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/inject"
)

const (
	settings = `{"version":1,"cronJob":"sync","jobName":"shop/sync","ledger":"default","schedule":"*/5 * * * *","timeZone":"Etc/UTC","since":"2025-06-01T00:00:00Z",` +
		`"containers":["main"],"completion":"exit-code","busy":"wait","manual":"window","startTimeout":"5m0s","lease":"30s"}`
	pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"sync-29146200-","labels":{"onceguard.dev/guard":"enabled"},` +
		`"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"sync-29146200","uid":"job-uid","controller":true}]},` +
		`"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"busybox","command":["work"]}]}}`
	cronJob = `{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"sync","annotations":{"onceguard.dev/guard":"enabled"}},` +
		`"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"busybox","command":["work"]}]}}}}}}`
)

// jobs answers with one Job, an error, or a panic.
type jobs struct {
	job     *metav1.PartialObjectMetadata
	err     error
	boom    bool
	specErr error
	ask     func(context.Context)
}

func (j jobs) Job(ctx context.Context, namespace, name string, uid types.UID) (*metav1.PartialObjectMetadata, error) {
	if j.boom {
		panic("boom")
	}
	if j.ask != nil {
		j.ask(ctx)
	}
	if namespace != "shop" || name != "sync-29146200" || uid != "job-uid" {
		return nil, errors.New("asked for another Job")
	}
	return j.job, j.err
}

func (j jobs) Spec(_ context.Context, _, _ string, uid types.UID) (*batchv1.JobSpec, error) {
	three := int32(3)
	return &batchv1.JobSpec{Completions: &three}, j.specErr
}

func theJob(annotations map[string]string) *metav1.PartialObjectMetadata {
	all := map[string]string{contract.AnnotationConfig: settings, contract.AnnotationScheduledTimestamp: "2025-06-01T10:00:00Z"}
	for k, v := range annotations {
		all[k] = v
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sync-29146200", UID: "job-uid", Annotations: all}}
}

func server(j Jobs) http.Handler {
	return New(Config{
		Jobs: j, Guard: inject.Guard{Image: "guard:1", Resources: inject.DefaultResources(), LedgerSecretPrefix: "onceguard-ledger-"},
		Now: func() time.Time { return time.Date(2025, 6, 1, 10, 0, 5, 0, time.UTC) }, Log: zap.NewNop(),
	})
}

func review(object, old string) []byte {
	request := map[string]any{"uid": "the-uid", "namespace": "shop", "operation": "CREATE", "object": json.RawMessage(object)}
	if old != "" {
		request["oldObject"] = json.RawMessage(old)
	}
	body, _ := json.Marshal(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
	return body
}

func post(h http.Handler, path string, body []byte) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	return w
}

func answer(t *testing.T, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK || out.Response == nil {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	if out.APIVersion != "admission.k8s.io/v1" || out.Kind != "AdmissionReview" || out.Response.UID != "the-uid" {
		t.Fatalf("not an answer to the request: %s", w.Body)
	}
	if len(out.Response.Patch) > 0 && (out.Response.PatchType == nil || *out.Response.PatchType != admissionv1.PatchTypeJSONPatch) {
		t.Fatal("a patch without its type")
	}
	return out.Response
}

func TestPods(t *testing.T) {
	bare := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sync-29146200", UID: "job-uid"}}
	for _, c := range []struct {
		name    string
		jobs    jobs
		pod     string
		allowed bool
		code    int32
		says    string // in the patch when allowed, else in the message
	}{
		{name: "guarded", jobs: jobs{job: theJob(nil)}, pod: pod, allowed: true, says: `windowStart\\\":\\\"2025-06-01T10:00:00Z`},
		{name: "a permanent refusal is admitted", jobs: jobs{job: theJob(map[string]string{contract.AnnotationScheduledTimestamp: "x"})}, pod: pod, allowed: true, says: `refusal\\\":`},
		{name: "no Job", jobs: jobs{}, pod: strings.Replace(pod, `"kind":"Job"`, `"kind":"ReplicaSet"`, 1), allowed: true, says: "no Job controls it"},
		{name: "several pods of a Job without CronJob", jobs: jobs{job: bare}, pod: pod, allowed: true, says: `spec.completions: \\\\\\\"3\\\\\\\"`},
		{name: "spec not readable", jobs: jobs{job: bare, specErr: errors.New("away")}, pod: pod, code: 503, says: "tried again"},
		{name: "the API is away", jobs: jobs{err: errors.New("away")}, pod: pod, code: 503, says: "away; it is tried again"},
		{name: "a fault of ours", jobs: jobs{boom: true}, pod: pod, code: 500, says: "fault"},
		{name: "no guard fits", jobs: jobs{job: theJob(nil)}, pod: strings.Replace(pod, `"restartPolicy"`, `"volumes":[{"name":"onceguard","emptyDir":{}}],"restartPolicy"`, 1), code: 422, says: "volume"},
		{name: "unreadable", pod: `{"spec":7}`, code: 400, says: "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := answer(t, post(server(c.jobs), "/mutate/pods?timeout=10s", review(c.pod, "")))
			if r.Allowed != c.allowed {
				t.Fatalf("allowed %v: %+v", r.Allowed, r.Result)
			}
			if c.allowed {
				if patch, _ := json.Marshal(string(r.Patch)); !strings.Contains(string(patch), c.says) {
					t.Errorf("want %s in %s", c.says, patch)
				}
			} else if r.Result.Code != c.code || !strings.Contains(r.Result.Message, c.says) || len(r.Patch) > 0 {
				t.Errorf("got %+v", r.Result)
			}
		})
	}
}

func TestCronJobs(t *testing.T) {
	r := answer(t, post(server(jobs{}), "/mutate/cronjobs", review(cronJob, "")))
	if !r.Allowed || !strings.Contains(string(r.Patch), "/spec/jobTemplate/metadata") || len(r.Warnings) == 0 {
		t.Errorf("not stamped: %+v", r)
	}
	bad := strings.Replace(cronJob, `"enabled"`, `"enabled","onceguard.dev/lease":"2"`, 1)
	r = answer(t, post(server(jobs{}), "/mutate/cronjobs", review(bad, "")))
	if r.Allowed || r.Result.Code != 422 || !strings.Contains(r.Result.Message, `onceguard.dev/lease: "2" is not accepted`) {
		t.Errorf("got %+v", r.Result)
	}
	if r = answer(t, post(server(jobs{}), "/mutate/cronjobs", review(bad, bad))); !r.Allowed {
		t.Errorf("an unchanged bad value blocks: %+v", r.Result)
	}
	if r = answer(t, post(server(jobs{}), "/mutate/cronjobs", review(`{"spec":[]}`, ""))); r.Allowed || r.Result.Code != 400 {
		t.Errorf("got %+v", r)
	}
}

func TestRequestsThatAreNone(t *testing.T) {
	h := server(jobs{})
	for name, c := range map[string]struct {
		path, body string
		code       int
	}{
		"no JSON":       {"/mutate/pods", "hello", 400},
		"empty":         {"/mutate/pods", "", 400},
		"no request":    {"/mutate/pods", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400},
		"old version":   {"/mutate/pods", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}`, 400},
		"too large":     {"/mutate/pods", strings.Repeat(" ", maxBody+1), 413},
		"other path":    {"/", "{}", 404},
		"other webhook": {"/mutate/nodes", "{}", 404},
	} {
		if w := post(h, c.path, []byte(c.body)); w.Code != c.code {
			t.Errorf("%s: got %d, want %d", name, w.Code, c.code)
		}
	}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/mutate/pods", nil)); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

// The API server's patience bounds what the handler may take, so that the sentence
// about the slow call arrives and not a time-out.
func TestPatienceOfTheAPIServerIsKept(t *testing.T) {
	for query, most := range map[string]time.Duration{"?timeout=3s": 3 * time.Second, "": 10 * time.Second, "?timeout=-1s": 10 * time.Second, "?timeout=x": 10 * time.Second, "?timeout=900h": 10 * time.Second} {
		var left time.Duration
		j := jobs{err: errors.New("slow"), ask: func(ctx context.Context) {
			if end, ok := ctx.Deadline(); ok {
				left = time.Until(end)
			}
		}}
		answer(t, post(server(j), "/mutate/pods"+query, review(pod, "")))
		if left <= 0 || left >= most {
			t.Errorf("%q: the Job may be looked for for %s", query, left)
		}
	}
}

func FuzzReview(f *testing.F) {
	f.Add([]byte(pod), true)
	f.Add([]byte(cronJob), false)
	h := server(jobs{job: theJob(nil)})
	f.Fuzz(func(t *testing.T, object []byte, pods bool) {
		if !json.Valid(object) {
			return
		}
		path := "/mutate/cronjobs"
		if pods {
			path = "/mutate/pods"
		}
		w := post(h, path, review(string(object), ""))
		if w.Code == http.StatusOK {
			answer(t, w)
		} else if w.Code != http.StatusBadRequest {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}
