package engine

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// cronJob is what is kept of a guarded CronJob. Its Job template is read live when a Job is
// to be made.
type cronJob struct {
	namespace, name string
	uid             types.UID
	disposition.CronJob
}

// text names it for people.
func (c *cronJob) text() string { return c.namespace + "/" + c.name }

// reference is what Events are about.
func (c *cronJob) reference() corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "batch/v1", Kind: "CronJob", Namespace: c.namespace, Name: c.name, UID: c.uid}
}

// cronJobs are the guarded CronJobs that the engine may look at.
type cronJobs struct {
	excluded []string
	now      func() time.Time
	// changed hears of each one that comes, goes or changes; small says that only the
	// controller's progress has.
	changed func(now, before *cronJob, small bool)

	mu    sync.Mutex
	byUID map[types.UID]*cronJob
}

// get gives a CronJob, nil when there is none that is guarded.
func (s *cronJobs) get(uid types.UID) *cronJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[uid]
}

// all gives every one.
func (s *cronJobs) all() []*cronJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*cronJob, 0, len(s.byUID))
	for _, c := range s.byUID {
		out = append(out, c)
	}
	return out
}

// Add, Update, Delete, Replace and Resync make it a store that a reflector fills.
func (s *cronJobs) Add(o any) error {
	if c, ok := o.(*batchv1.CronJob); ok {
		s.set(c.UID, s.read(c))
	}
	return nil
}

// Update is Add.
func (s *cronJobs) Update(o any) error { return s.Add(o) }

// Delete forgets a CronJob.
func (s *cronJobs) Delete(o any) error {
	if c, ok := o.(*batchv1.CronJob); ok {
		s.set(c.UID, nil)
	}
	return nil
}

// Replace takes a whole list.
func (s *cronJobs) Replace(list []any, _ string) error {
	fresh := map[types.UID]bool{}
	for _, o := range list {
		if c, ok := o.(*batchv1.CronJob); ok {
			fresh[c.UID] = true
			s.set(c.UID, s.read(c))
		}
	}
	for _, c := range s.all() {
		if !fresh[c.uid] {
			s.set(c.uid, nil)
		}
	}
	return nil
}

// Resync has nothing to do.
func (s *cronJobs) Resync() error { return nil }

func (s *cronJobs) set(uid types.UID, now *cronJob) {
	s.mu.Lock()
	before := s.byUID[uid]
	if now != nil {
		now.Seen = sights(before, now, s.now())
	}
	if now == nil {
		delete(s.byUID, uid)
	} else {
		s.byUID[uid] = now
	}
	s.mu.Unlock()
	if now == nil && before == nil || now != nil && before != nil && reflect.DeepEqual(now, before) {
		return
	}
	small := false
	if now != nil && before != nil {
		but := *now
		but.LastScheduled = before.LastScheduled
		small = reflect.DeepEqual(&but, before)
	}
	s.changed(now, before, small)
}

// sights adds to the intervals in which a CronJob was seen suspended what is seen of it now:
// whether its windows were suspended is known then, even when the ledger is not there. The
// first one is empty when it was not suspended at first.
func sights(before, now *cronJob, at time.Time) []disposition.Span {
	at = at.UTC().Truncate(time.Microsecond)
	switch {
	case before == nil && now.Suspended:
		return []disposition.Span{{From: at}}
	case before == nil:
		return []disposition.Span{{From: at, To: at}}
	case before.Suspended == now.Suspended:
		return before.Seen
	}
	seen := slices.Clone(before.Seen[max(0, len(before.Seen)-mostSights):])
	if now.Suspended {
		return append(seen, disposition.Span{From: at})
	}
	seen[len(seen)-1].To = at
	return seen
}

// mostSights bounds what is kept of suspensions for a ledger that is away.
const mostSights = 50

// read gives nil for what is not guarded or not to be looked at.
func (s *cronJobs) read(c *batchv1.CronJob) *cronJob {
	settings, ok := guarded(c)
	if !ok || slices.Contains(s.excluded, c.Namespace) {
		return nil
	}
	// What only the guards need is not kept.
	settings.InitContainers, settings.Containers, settings.Commands = nil, nil, nil
	out := &cronJob{
		namespace: strings.Clone(c.Namespace), name: strings.Clone(c.Name), uid: types.UID(strings.Clone(string(c.UID))),
		CronJob: disposition.CronJob{
			Settings:  settings,
			Suspended: c.Spec.Suspend != nil && *c.Spec.Suspend,
			Forbid:    c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent,
		},
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil {
		deadline := time.Duration(*d) * time.Second
		out.StartingDeadline = &deadline
	}
	if t := c.Status.LastScheduleTime; t != nil {
		out.LastScheduled = t.UTC()
	}
	return out
}

// guarded reads the settings of a CronJob that is guarded: annotated, stamped under this
// UID, and not being deleted.
func guarded(c *batchv1.CronJob) (contract.Settings, bool) {
	if _, annotated := c.Annotations[contract.AnnotationGuard]; !annotated || c.DeletionTimestamp != nil {
		return contract.Settings{}, false
	}
	s, err := contract.DecodeSettings(c.Spec.JobTemplate.Annotations[contract.AnnotationConfig])
	if err != nil || s.CronJobUID != "" && s.CronJobUID != string(c.UID) {
		return contract.Settings{}, false // it is about to be stamped
	}
	if !owns(c.Namespace, s.JobName) {
		return contract.Settings{}, false // it was not the webhook that stamped it, and no guard would run it
	}
	s.CronJobUID = string(c.UID)
	if s.Refusal != "" {
		s.CatchUp = "" // each Job would be refused
	}
	return s, true
}

// longestJobName is what the ledger takes.
const longestJobName = 1000

// owns reports whether jobName, without the prefix of a cluster, is one of the namespace: an
// annotation that somebody else wrote must not have other people's windows judged.
func owns(namespace, jobName string) bool {
	if at := strings.IndexByte(jobName, ':'); at >= 0 && at < strings.IndexByte(jobName, '/') {
		jobName = jobName[at+1:]
	}
	name, ok := strings.CutPrefix(jobName, namespace+"/")
	return ok && name != "" && len(jobName) <= longestJobName && !strings.ContainsAny(name, "#@")
}

// bareCronJob keeps of a CronJob what read needs.
func bareCronJob(o any) (any, error) {
	c, ok := o.(*batchv1.CronJob)
	if !ok {
		return o, nil
	}
	bare := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion, DeletionTimestamp: c.DeletionTimestamp,
		},
		Spec: batchv1.CronJobSpec{
			Suspend: c.Spec.Suspend, ConcurrencyPolicy: c.Spec.ConcurrencyPolicy, StartingDeadlineSeconds: c.Spec.StartingDeadlineSeconds,
		},
		Status: batchv1.CronJobStatus{LastScheduleTime: c.Status.LastScheduleTime},
	}
	if v, ok := c.Annotations[contract.AnnotationGuard]; ok {
		bare.Annotations = map[string]string{contract.AnnotationGuard: v}
		bare.Spec.JobTemplate.Annotations = map[string]string{contract.AnnotationConfig: c.Spec.JobTemplate.Annotations[contract.AnnotationConfig]}
	}
	return bare, nil
}
