package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// Pod is one creation of a pod that carries the label.
type Pod struct {
	Object    []byte
	Namespace string // of the request; the pod itself may not say it
	// Job is the Job that controls the pod; nil when there is none. Only its metadata
	// is read.
	Job *metav1.PartialObjectMetadata
	// JobSpec is needed only when NeedsSpec(Job).
	JobSpec *batchv1.JobSpec
	Now     time.Time
}

// NeedsSpec reports whether the settings are not stamped on the Job but must be read
// off it, since no CronJob stands behind it.
func NeedsSpec(job *metav1.PartialObjectMetadata) bool {
	_, stamped := job.Annotations[contract.AnnotationConfig]
	return !stamped && cronJobOf(job).Name == ""
}

// cronJobOf is the owner of kind CronJob, controlling or not; empty without one.
func cronJobOf(job *metav1.PartialObjectMetadata) metav1.OwnerReference {
	for _, owner := range job.OwnerReferences {
		if owner.Kind == "CronJob" && isBatch(owner.APIVersion) {
			return owner
		}
	}
	return metav1.OwnerReference{}
}

// Injection is the answer about a pod.
type Injection struct {
	Ops    []Op
	Config contract.GuardConfig // what the guard is told; its Refusal says whether anything will run
}

// Impossible says why a pod can get no guard at all, not even one that refuses: it is
// the one permanent rejection. For CronJobs the same is refused at apply.
type Impossible string

// Error gives the sentence.
func (i Impossible) Error() string { return string(i) }

// PatchPod gives a pod its guard. A pod that must not run gets one too, with the
// reason in Config.Refusal. A pod that has its guard already gets what another
// webhook has undone since, and nothing else. The error is [Impossible], or about
// objects that cannot be read.
func (g Guard) PatchPod(in Pod) (Injection, error) {
	p, err := newPatch(in.Object)
	if err != nil {
		return Injection{}, err
	}
	pod, err := decode[corev1.Pod](in.Object)
	if err != nil {
		return Injection{}, err
	}
	s, config := g.configure(in, &pod)
	if err := possible(&pod, config); err != nil {
		return Injection{}, err
	}
	if err := g.apply(p, &pod, s, config); err != nil {
		return Injection{}, err
	}
	return Injection{Ops: p.ops, Config: config}, nil
}

// configure decides what the guard is told. Only what is fixed since the Job's
// creation counts, so that all pods of a Job are told the same.
func (g Guard) configure(in Pod, pod *corev1.Pod) (contract.Settings, contract.GuardConfig) {
	s, job, refusal := g.settings(in, pod)
	if label, ok := pod.Labels[contract.LabelGuard]; ok && label != contract.Enabled {
		refusal = fmt.Sprintf("the pod's label %s has the value %q, and it is not known what that means: the one accepted value is %q; without a guard there is no label",
			contract.LabelGuard, label, contract.Enabled)
	}
	var derived window.Derived
	if refusal == "" {
		d, err := window.Derive(job, s, in.Now)
		if derived = d; err != nil {
			refusal = err.Error()
		}
	}
	if refusal == "" {
		refusal = mismatch(pod, s)
	}
	jobName := s.JobName
	if derived.Window.JobName != "" {
		jobName = derived.Window.JobName
	}
	// Whoever is refused must end the pod: without knowing what to wrap, wrap it all.
	inits, workers := present(pod, s)
	if len(workers) == 0 {
		all, _, _ := contract.ParseAnnotations(subjectOf(&pod.Spec), "")
		inits, workers = all.InitContainers, all.Containers
	}
	config := contract.GuardConfig{
		Version: contract.ConfigVersion, JobName: jobName,
		Trigger: derived.Trigger, Source: derived.Source, Schedule: s.Schedule, TimeZone: s.TimeZone,
		Refusal:   refusal,
		Namespace: in.Namespace, Job: job.Name, JobUID: job.UID,
		Ledger: s.Ledger, Secret: g.LedgerSecretPrefix + s.Ledger, SecretKey: contract.LedgerKey,
		InitContainers: inits, Containers: workers, Probed: probed(&pod.Spec, workers),
		RestartInPlace: restartsInPlace(pod, workers), HostNetwork: pod.Spec.HostNetwork,
		Completion: s.Completion, Busy: s.Busy,
		StartTimeout: s.StartTimeout, LedgerWait: s.LedgerWait, Lease: s.Lease,
		LogLanguage: g.LogLanguage, Policies: s.Policies,
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		config.Grace = contract.Duration(time.Duration(max(1, *grace)) * time.Second) // Kubernetes makes 1 of 0 too
	}
	if s.Order == contract.OrderSerial {
		config.Since, config.Previous = cmp.Or(s.OrderedSince, s.Since), derived.Previous
	}
	if derived.Trigger == contract.TriggerCatchUp && s.CatchUpParallel <= 1 {
		config.Overlap = contract.OverlapWait // one at a time, and beside nothing else
	}
	if derived.Source == contract.SourceManual {
		// Creation is told in whole seconds: what was closed in that very second was most
		// likely why the Job was made.
		config.Asked = job.Created.UTC().Truncate(time.Second).Add(time.Second)
	}
	config.WindowStart, config.WindowEnd, config.Repeats = derived.Window.Start, derived.End, derived.Repeats
	return s, config
}

// settings are those that the Job was stamped with; a Job that no CronJob stands
// behind is read like a CronJob itself. The text is a refusal.
func (g Guard) settings(in Pod, pod *corev1.Pod) (contract.Settings, window.Job, string) {
	subject := subjectOf(&pod.Spec)
	subject.Namespace = in.Namespace
	if in.Job == nil {
		subject.Name = "-"
		s, _, _ := contract.ParseAnnotations(subject, g.Cluster)
		return s, window.Job{Namespace: in.Namespace}, fmt.Sprintf(
			"the pod carries the label %s but no Job controls it; Onceguard guards the pods of Jobs only, remove the label", contract.LabelGuard)
	}
	job := window.Job{
		Namespace: in.Namespace, Name: in.Job.Name, UID: string(in.Job.UID), Created: in.Job.CreationTimestamp.Time,
		Annotations: in.Job.Annotations, WindowStart: pod.Annotations[contract.AnnotationWindowStart],
		Index: pod.Annotations[contract.AnnotationIndex], CatchUp: in.Job.Labels[contract.LabelCatchUp],
	}
	owner := cronJobOf(in.Job)
	job.CronJob, job.CronJobUID = owner.Name, string(owner.UID)
	text, stamped := in.Job.Annotations[contract.AnnotationConfig]
	if stamped {
		s, err := contract.DecodeSettings(text)
		switch {
		case err == nil && !g.owns(in.Namespace, s.JobName):
			return s, job, fmt.Sprintf("Job %s is in namespace %q, but its annotation %s means %q, the job of another one: "+
				"it is written by Onceguard and must not be copied between namespaces or by hand; annotate the CronJob and let it make the Job",
				job.Name, in.Namespace, contract.AnnotationConfig, s.JobName)
		case err == nil:
			return s, job, s.Refusal
		}
		s, _, _ = contract.ParseAnnotations(subject, g.Cluster)
		return s, job, "Job " + job.Name + ": " + err.Error()
	}
	var problems []contract.Problem
	if in.JobSpec != nil {
		// What the Job's own template has, without what others added to the pod.
		subject = subjectOf(&in.JobSpec.Template.Spec)
		subject.Namespace, subject.Indexed = in.Namespace, isIndexed(in.JobSpec)
		problems = jobProblems(&batchv1.JobTemplateSpec{Spec: *in.JobSpec}, "spec.")
	}
	subject.Name, subject.Annotations = in.Job.Name, in.Job.Annotations
	s, more, _ := contract.ParseAnnotations(subject, g.Cluster)
	s.CronJob = "" // its name was the Job's
	switch problems = append(problems, more...); {
	case job.CronJob != "":
		return s, job, "" // not stamped: Derive says so
	case in.JobSpec == nil:
		return s, job, "Job " + job.Name + ": its spec was not read"
	case len(problems) > 0:
		return s, job, "Job " + job.Name + ": " + problems[0].Error()
	case in.Job.GenerateName != "" && in.Job.Annotations[contract.AnnotationJobName] == "":
		return s, job, fmt.Sprintf("Job %s got its name from generateName %q, so as a job name it would be a new one each time and no run ever a duplicate of another: "+
			"set the annotation %s on the Job to a name that stays the same", job.Name, in.Job.GenerateName, contract.AnnotationJobName)
	}
	return s, job, ""
}

// owns reports whether jobName is one of namespace's: whoever may make Jobs there must
// not be able to take or to complete other people's windows.
func (g Guard) owns(namespace, jobName string) bool {
	if g.Cluster != "" {
		jobName = strings.TrimPrefix(jobName, g.Cluster+":")
	}
	return strings.HasPrefix(jobName, namespace+"/")
}

// mismatch compares what the Job was stamped with to the pod at hand.
func mismatch(pod *corev1.Pod, s contract.Settings) string {
	for _, list := range []struct {
		name   string
		of     []corev1.Container
		wanted []string
	}{{"initContainers", pod.Spec.InitContainers, s.InitContainers}, {"containers", pod.Spec.Containers, s.Containers}} {
		for _, name := range list.wanted {
			c := container(list.of, name)
			switch {
			case c == nil:
				return fmt.Sprintf("container %q is to be guarded, but the pod has none of that name", name)
			case !namesCommand(c) && len(s.Commands[name]) == 0:
				return contract.MissingCommand(list.name, name).Error()
			}
		}
	}
	if s.After != "" && container(pod.Spec.InitContainers, s.After) == nil {
		return fmt.Sprintf("the guard is to start after init container %q (%s), but the pod has none of that name", s.After, contract.AnnotationAfter)
	}
	return ""
}

// present lists the containers to wrap that the pod has, in the settings' order.
func present(pod *corev1.Pod, s contract.Settings) (inits, workers []string) {
	in := func(of []corev1.Container) func(string) bool {
		return func(name string) bool { return container(of, name) == nil }
	}
	inits = slices.DeleteFunc(slices.Clone(s.InitContainers), in(pod.Spec.InitContainers))
	return inits, slices.DeleteFunc(slices.Clone(s.Containers), in(pod.Spec.Containers))
}

// restartsInPlace reports whether kubelet may start a worker again in this pod.
func restartsInPlace(pod *corev1.Pod, workers []string) bool {
	for _, name := range workers {
		if c := container(pod.Spec.Containers, name); c != nil && c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyNever {
			return true
		}
	}
	return pod.Spec.RestartPolicy != corev1.RestartPolicyNever
}

// possible finds what stands in the way of any guard.
func possible(pod *corev1.Pod, config contract.GuardConfig) error {
	if isWindows(&pod.Spec) {
		return Impossible("the pod runs on Windows, the guard on Linux only")
	}
	ours := guardAt(&pod.Spec) >= 0
	for _, v := range pod.Spec.Volumes {
		if isOurVolume(v.Name) && !(ours && isOurs(v, config)) {
			return Impossible(fmt.Sprintf("the pod has a volume %q of its own, a name that Onceguard needs; give it another", v.Name))
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if (c.Name == contract.ContainerGuard || c.Name == contract.ContainerClaim) && !isGuardOrClaim(&c) {
			return Impossible(fmt.Sprintf("the pod has a container %q of its own, a name that Onceguard needs; give it another", c.Name))
		}
		if !slices.Contains(config.InitContainers, c.Name) && !slices.Contains(config.Containers, c.Name) {
			continue
		}
		for _, m := range c.VolumeMounts {
			if within(m.MountPath, contract.DirShared) && !(ours && isSharedMount(m)) {
				return Impossible(fmt.Sprintf("container %q mounts %q, where Onceguard must mount %s; mount it elsewhere", c.Name, m.MountPath, contract.DirShared))
			}
		}
	}
	return nil
}

func container(of []corev1.Container, name string) *corev1.Container {
	for i := range of {
		if of[i].Name == name {
			return &of[i]
		}
	}
	return nil
}

func isBatch(apiVersion string) bool { return len(apiVersion) > 6 && apiVersion[:6] == "batch/" }

func encode(config contract.GuardConfig) (string, error) {
	text, err := json.Marshal(config)
	return string(text), err
}
