package engine

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// job is what is kept of a Job: there may be a hundred thousand.
type job struct {
	uid     types.UID
	name    string
	created int64 // Unix seconds
	minutes int64 // of the window that it means, since 1970
	catchUp bool  // made by the engine
	byHand  bool  // made by hand of the CronJob
}

func (j job) window() time.Time { return time.Unix(j.minutes*60, 0).UTC() }

// jobs are the Jobs that mean a window, by the CronJob that owns them.
type jobs struct {
	// changed hears of each Job that comes, goes or changes.
	changed func(cronJob, job types.UID)

	mu      sync.Mutex
	byOwner map[types.UID][]job
}

// of gives the Jobs of a CronJob, in the order of their windows.
func (s *jobs) of(cronJob types.UID) []job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.byOwner[cronJob])
}

// Add, Update, Delete, Replace and Resync make it a store that a reflector fills.
func (s *jobs) Add(o any) error {
	if owner, j, ok := readJob(o); ok {
		s.put(owner, j)
		s.changed(owner, j.uid)
	}
	return nil
}

// Update is Add: what is kept of a Job never changes, but news of it may.
func (s *jobs) Update(o any) error { return s.Add(o) }

// Delete forgets a Job.
func (s *jobs) Delete(o any) error {
	if owner, j, ok := readJob(o); ok {
		s.drop(owner, j.uid)
		s.changed(owner, j.uid)
	}
	return nil
}

// Replace takes a whole list; nothing is told of it.
func (s *jobs) Replace(list []any, _ string) error {
	fresh := map[types.UID][]job{}
	for _, o := range list {
		if owner, j, ok := readJob(o); ok {
			fresh[owner] = append(fresh[owner], j)
		}
	}
	for owner, all := range fresh {
		slices.SortFunc(all, byWindow)
		fresh[owner] = slices.Clip(all)
	}
	s.mu.Lock()
	before := s.byOwner
	s.byOwner = fresh
	s.mu.Unlock()
	// A watch that was interrupted: whatever came and went meanwhile.
	for owner, all := range before {
		if !slices.Equal(all, fresh[owner]) {
			s.changed(owner, "")
		}
	}
	for owner := range fresh {
		if _, known := before[owner]; !known {
			s.changed(owner, "")
		}
	}
	return nil
}

// Resync has nothing to do.
func (s *jobs) Resync() error { return nil }

func (s *jobs) put(owner types.UID, j job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.byOwner[owner]
	if at := slices.IndexFunc(all, func(k job) bool { return k.uid == j.uid }); at >= 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(all, j, byWindow)
	s.byOwner[owner] = slices.Insert(all, at, j)
}

func (s *jobs) drop(owner, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(s.byOwner[owner], func(k job) bool { return k.uid == uid })
	if s.byOwner[owner] = all; len(all) == 0 {
		delete(s.byOwner, owner)
	}
}

func byWindow(a, b job) int {
	return cmp.Or(cmp.Compare(a.minutes, b.minutes), cmp.Compare(a.created, b.created), cmp.Compare(a.name, b.name))
}

// readJob finds out whose a Job is and which window it means; false for one that means none.
func readJob(o any) (owner types.UID, j job, ok bool) {
	m, ok := o.(metav1.Object)
	if !ok {
		return "", job{}, false
	}
	cronJob := ""
	for _, r := range m.GetOwnerReferences() {
		if r.Kind == "CronJob" {
			owner, cronJob = types.UID(strings.Clone(string(r.UID))), r.Name
		}
	}
	at := windowOf(m, cronJob)
	if owner == "" || at.IsZero() {
		return "", job{}, false
	}
	_, byHand := m.GetAnnotations()[contract.AnnotationInstantiate]
	// Clones do not keep the buffer alive that the object was decoded from.
	return owner, job{
		uid: types.UID(strings.Clone(string(m.GetUID()))), name: strings.Clone(m.GetName()), created: m.GetCreationTimestamp().Unix(),
		minutes: at.Unix() / 60, catchUp: m.GetLabels()[contract.LabelCatchUp] == contract.Enabled, byHand: byHand,
	}, true
}

// windowOf is the window of the CronJob that a Job means; zero for none, and for a run of
// its own.
func windowOf(m metav1.Object, cronJob string) time.Time {
	a := m.GetAnnotations()
	if at, err := time.Parse(time.RFC3339, a[contract.AnnotationScheduledTimestamp]); err == nil && a[contract.AnnotationInstantiate] == "" {
		return at // of most; what the settings would say is the same
	}
	s, err := contract.DecodeSettings(a[contract.AnnotationConfig])
	if err != nil || cronJob == "" {
		return time.Time{}
	}
	s.Indexed = false // the window is that of the whole Job
	created := m.GetCreationTimestamp().Time
	d, err := window.Derive(window.Job{
		Namespace: m.GetNamespace(), Name: m.GetName(), UID: string(m.GetUID()), Created: created,
		Annotations: a, CronJob: cronJob,
	}, s, created)
	if err != nil || d.Window.JobName != s.JobName {
		return time.Time{}
	}
	return d.Window.Start
}

// bareJob keeps of a Job's metadata what readJob needs.
func bareJob(o any) (any, error) {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return o, nil
	}
	bare := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
	}}
	for _, r := range m.OwnerReferences {
		if r.Kind == "CronJob" {
			bare.OwnerReferences = []metav1.OwnerReference{{Kind: r.Kind, Name: r.Name, UID: r.UID}}
		}
	}
	if v, ok := m.Labels[contract.LabelCatchUp]; ok {
		bare.Labels = map[string]string{contract.LabelCatchUp: v}
	}
	cronJob := ""
	if len(bare.OwnerReferences) > 0 {
		cronJob = bare.OwnerReferences[0].Name
	}
	if at := windowOf(m, cronJob); !at.IsZero() {
		bare.Annotations = map[string]string{contract.AnnotationScheduledTimestamp: at.UTC().Format(time.RFC3339)}
		if _, byHand := m.Annotations[contract.AnnotationInstantiate]; byHand {
			bare.Annotations[contract.AnnotationInstantiate] = "" // its window is settled: windowOf takes it
		}
	}
	return bare, nil
}
