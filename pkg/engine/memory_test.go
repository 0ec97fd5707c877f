package engine

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/onceguard/onceguard/pkg/contract"
)

// alive is what is alive in memory, in bytes.
func alive() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc) //nolint:gosec // far from overflow
}

// realJob is a Job as an API server sends it, n of one of CronJobs with ten Jobs each.
func realJob(t testing.TB, n int) []byte {
	t.Helper()
	created := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).Add(time.Duration(n%10) * time.Minute)
	owner := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n/10))
	settings, err := json.Marshal(contract.Settings{
		Version: 1, CronJob: fmt.Sprintf("nightly-order-sync-%d", n/10), CronJobUID: string(owner), JobName: fmt.Sprintf("shop/nightly-order-sync-%d", n/10),
		Ledger: "default", Schedule: "* * * * *", TimeZone: "Etc/UTC", Since: created, Containers: []string{"main"}, Completion: "exit-code", Busy: "wait", Manual: "window",
		StartTimeout: contract.Duration(5 * time.Minute), Lease: contract.Duration(30 * time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	uid := types.UID(uuid.NewString())
	labels := fmt.Sprintf(`{"app.kubernetes.io/name":"order-sync","app.kubernetes.io/part-of":"shop","batch.kubernetes.io/controller-uid":%q,"batch.kubernetes.io/job-name":"nightly-order-sync-%d","controller-uid":%q,"job-name":"nightly-order-sync","onceguard.dev/guard":"enabled"}`, uid, n, uid)
	managed := `{"f:metadata":{"f:annotations":{".":{},"f:batch.kubernetes.io/cronjob-scheduled-timestamp":{},"f:onceguard.dev/config":{}},"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:onceguard.dev/guard":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"x\"}":{}}},"f:spec":{"f:backoffLimit":{},"f:completionMode":{},"f:completions":{},"f:manualSelector":{},"f:parallelism":{},"f:podReplacementPolicy":{},"f:suspend":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:command":{},"f:env":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}}}`
	text := fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"nightly-order-sync-%d-%d","namespace":"shop","uid":%q,"resourceVersion":"%d","generation":1,
		"creationTimestamp":%q,"labels":%s,"annotations":{"batch.kubernetes.io/cronjob-scheduled-timestamp":%q,"onceguard.dev/config":%q},
		"ownerReferences":[{"apiVersion":"batch/v1","kind":"CronJob","name":"nightly-order-sync-%d","uid":%q,"controller":true,"blockOwnerDeletion":true}],
		"managedFields":[{"manager":"kube-controller-manager","operation":"Update","apiVersion":"batch/v1","time":%q,"fieldsType":"FieldsV1","fieldsV1":%s},
			{"manager":"kube-controller-manager","operation":"Update","apiVersion":"batch/v1","time":%q,"fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:completionTime":{},"f:conditions":{},"f:ready":{},"f:startTime":{},"f:succeeded":{},"f:terminating":{},"f:uncountedTerminatedPods":{}}},"subresource":"status"}]},
		"spec":{"parallelism":1,"completions":1,"backoffLimit":6,"completionMode":"NonIndexed","suspend":false,"manualSelector":false,"podReplacementPolicy":"TerminatingOrFailed",
			"selector":{"matchLabels":{"batch.kubernetes.io/controller-uid":%q}},"template":{"metadata":{"labels":%s},
			"spec":{"containers":[{"name":"main","image":"registry.example.com/shop/order-sync:1.42.0","command":["/bin/order-sync","--all"],"env":[{"name":"PGHOST","value":"db.shop.svc"},{"name":"TOKEN","valueFrom":{"secretKeyRef":{"name":"t","key":"token"}}}],
			"resources":{"limits":{"memory":"128Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],
			"restartPolicy":"Never","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},"schedulerName":"default-scheduler"}}},
		"status":{"conditions":[{"type":"SuccessCriteriaMet","status":"True","lastProbeTime":%q,"lastTransitionTime":%q,"reason":"CompletionsReached","message":"Reached expected number of succeeded pods"},
			{"type":"Complete","status":"True","lastProbeTime":%q,"lastTransitionTime":%q,"reason":"CompletionsReached","message":"Reached expected number of succeeded pods"}],
			"startTime":%q,"completionTime":%q,"succeeded":1,"terminating":0,"uncountedTerminatedPods":{},"ready":0}}`,
		n/10, created.Unix()/60, uid, n+1000, at(created), labels, at(created), string(settings), n/10, owner,
		at(created), managed, at(created), uid, labels, at(created), at(created), at(created), at(created), at(created), at(created))
	return []byte(text)
}

func at(t time.Time) string { return t.Format(time.RFC3339) }

// A Job in memory costs at most six hundredths of what an informer of whole Jobs keeps.
func TestMemoryOfJobs(t *testing.T) {
	const count = 1000
	texts := make([][]byte, count)
	for n := range texts {
		texts[n] = realJob(t, n)
	}
	before := alive()
	whole := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, text := range texts {
		var j batchv1.Job
		if err := json.Unmarshal(text, &j); err != nil {
			t.Fatal(err)
		}
		if err := whole.Add(&j); err != nil {
			t.Fatal(err)
		}
	}
	middle := alive()
	ours := newCluster(nil, nil, time.Now, nil, func(types.UID, types.UID) {}).parts[0]
	var list []any
	for _, text := range texts {
		var j metav1.PartialObjectMetadata
		if err := json.Unmarshal(text, &j); err != nil {
			t.Fatal(err)
		}
		bare, err := bareJob(&j)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, bare)
	}
	if err := ours.jobs.Replace(list, ""); err != nil {
		t.Fatal(err)
	}
	list = nil
	after := alive()
	typed, small := float64(middle-before)/count, float64(after-middle)/count
	t.Logf("whole %.0f bytes a Job, ours %.0f: %.4f", typed, small, small/typed)
	if small > 0.06*typed {
		t.Errorf("a Job takes %.0f bytes, in an informer %.0f: %.3f, want at most 0.06", small, typed, small/typed)
	}
	runtime.KeepAlive(whole)
	runtime.KeepAlive(list)
	if n := len(ours.jobs.byOwner); n != count/10 {
		t.Errorf("%d CronJobs", n)
	}
	runtime.KeepAlive(ours)
	runtime.KeepAlive(texts)
}
