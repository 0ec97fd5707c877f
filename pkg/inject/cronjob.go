package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/onceguard/onceguard/pkg/contract"
)

// CronJob is one writing of a CronJob.
type CronJob struct {
	Object    []byte // as it is about to be
	OldObject []byte // as it was; empty at CREATE. Equal to Object when nothing is being written
	Namespace string
	Cluster   string // prefix of the job name; empty when clusters share
	Now       time.Time
}

// Stamp is the answer about a CronJob.
type Stamp struct {
	Ops      []Op               // to apply; none when Problems is not empty
	Problems []contract.Problem // why the writing must be refused
	Warnings []string           // what people should know
	Left     []string           // those of the warnings that are about values which were bad before
}

var (
	jobMeta        = path{"spec", "jobTemplate", "metadata"}
	jobConfig      = jobMeta.at("annotations", contract.AnnotationConfig)
	jobLabel       = jobMeta.at("labels", contract.LabelGuard)
	podLabel       = path{"spec", "jobTemplate", "spec", "template", "metadata", "labels", contract.LabelGuard}
	configOnTarget = func(c *batchv1.CronJob) string {
		return c.Spec.JobTemplate.Annotations[contract.AnnotationConfig]
	}
)

// PatchCronJob decides what a CronJob's Job template must carry. An annotated one
// gets label and settings; one that is no longer annotated loses what was stamped.
// A problem that the old object had as well is only a warning, so that a newer
// Onceguard never blocks a write that leaves the bad value alone. The error is about
// objects that cannot be read.
func PatchCronJob(in CronJob) (Stamp, error) {
	p, err := newPatch(in.Object)
	if err != nil {
		return Stamp{}, err
	}
	object, err := decode[batchv1.CronJob](in.Object)
	if err != nil {
		return Stamp{}, err
	}
	var old batchv1.CronJob
	if len(in.OldObject) > 0 {
		if old, err = decode[batchv1.CronJob](in.OldObject); err != nil {
			return Stamp{}, fmt.Errorf("old object: %w", err)
		}
	}
	if !annotated(&object) {
		// The stamp is the record of what is ours; the old annotation is one too.
		if configOnTarget(&object) != "" || annotated(&old) {
			p.remove(jobConfig)
			p.remove(jobLabel)
			p.remove(podLabel)
		}
		return Stamp{Ops: p.ops}, nil
	}

	s, problems, warnings := judge(&object, in)
	var before []contract.Problem
	if annotated(&old) {
		_, before, _ = judge(&old, in)
	}
	earlier, hasEarlier := earlierSettings(&old)
	var fresh []contract.Problem
	var left []string
	for _, problem := range problems {
		// The cure may have changed with the template, or with a newer Onceguard.
		there := func(p contract.Problem) bool { return p.Field == problem.Field && p.Value == problem.Value }
		switch {
		case !slices.ContainsFunc(before, there):
			fresh = append(fresh, problem)
			continue
		case hasEarlier && earlier.Refusal == "":
			s.Keep(problem.Field, earlier, subject(&object, in))
			left = append(left, "left as it was: "+problem.Error())
		default:
			if s.Refusal == "" {
				s.Refusal = "CronJob " + s.CronJob + ": " + problem.Error()
			}
			left = append(left, "its Jobs are refused until this is mended: "+problem.Error())
		}
	}
	warnings = append(warnings, left...)
	if len(fresh) > 0 {
		return Stamp{Problems: fresh, Warnings: warnings}, nil
	}
	begin(&s, earlier, in.Now)
	if !sameSettings(configOnTarget(&object), s) {
		text, err := json.Marshal(s)
		if err != nil {
			return Stamp{}, err
		}
		p.set(jobConfig, string(text))
	}
	for _, label := range []path{jobLabel, podLabel} {
		if p.get(label) != contract.Enabled {
			p.set(label, contract.Enabled)
		}
	}
	return Stamp{Ops: p.ops, Warnings: append(warnings, advice(&object, s)...), Left: left}, nil
}

// begin sets since when windows count. What was stamped earlier goes on while it means the
// same windows; the zero value of earlier is no stamp.
func begin(s *contract.Settings, earlier contract.Settings, now time.Time) {
	s.Since = now.UTC().Truncate(time.Second).Add(time.Second)
	same := earlier.Version != 0 && earlier.JobName == s.JobName && earlier.Ledger == s.Ledger &&
		earlier.Schedule == s.Schedule && earlier.TimeZone == s.TimeZone && earlier.DST == s.DST
	if s.Order == contract.OrderSerial {
		s.OrderedSince = s.Since
		if same && !earlier.OrderedSince.IsZero() && earlier.Indexed == s.Indexed && earlier.Completions == s.Completions {
			s.OrderedSince = earlier.OrderedSince
		}
	}
	if same {
		s.Since = earlier.Since
	}
}

// judge reads settings and problems off a CronJob.
func judge(c *batchv1.CronJob, in CronJob) (contract.Settings, []contract.Problem, []string) {
	s, problems, warnings := contract.ParseAnnotations(subject(c, in), in.Cluster)
	problems = append(problems, jobProblems(&c.Spec.JobTemplate, "spec.jobTemplate.spec.")...)
	return s, append(problems, podProblems(&c.Spec.JobTemplate.Spec.Template.Spec, s)...), warnings
}

// subject is a CronJob as its annotations are read.
func subject(c *batchv1.CronJob, in CronJob) contract.Subject {
	s := subjectOf(&c.Spec.JobTemplate.Spec.Template.Spec)
	s.Namespace, s.Name, s.UID = in.Namespace, c.Name, string(c.UID)
	s.Annotations, s.Schedule = c.Annotations, c.Spec.Schedule
	s.Concurrency, s.Indexed = string(c.Spec.ConcurrencyPolicy), isIndexed(&c.Spec.JobTemplate.Spec)
	if n := c.Spec.JobTemplate.Spec.Completions; n != nil && s.Indexed {
		s.Completions = *n
	}
	if c.Spec.TimeZone != nil {
		s.TimeZone = *c.Spec.TimeZone
	}
	return s
}

// subjectOf lists a pod spec's containers, without ours.
func subjectOf(pod *corev1.PodSpec) contract.Subject {
	var s contract.Subject
	for _, c := range pod.InitContainers {
		if c.Name != contract.ContainerGuard && c.Name != contract.ContainerClaim {
			s.InitContainers = append(s.InitContainers, contract.Container{Name: c.Name, Command: namesCommand(&c), Sidecar: isSidecar(&c)})
		}
	}
	for _, c := range pod.Containers {
		s.Containers = append(s.Containers, contract.Container{Name: c.Name, Command: namesCommand(&c)})
	}
	return s
}

// jobProblems are kinds of Jobs that cannot be guarded; spec is where the Job's spec
// stands in the object.
func jobProblems(t *batchv1.JobTemplateSpec, spec string) []contract.Problem {
	var out []contract.Problem
	for _, key := range []string{contract.AnnotationInstantiate, contract.AnnotationScheduledTimestamp} {
		if v, ok := t.Annotations[key]; ok {
			out = append(out, contract.Problem{
				Field: "spec.jobTemplate.metadata.annotations[" + key + "]", Value: v,
				Cure: "Kubernetes writes it on each Job, and it tells Onceguard which window a Job is; remove it from the template",
			})
		}
	}
	if v, ok := t.Labels[contract.LabelCatchUp]; ok {
		out = append(out, contract.Problem{
			Field: "spec.jobTemplate.metadata.labels[" + contract.LabelCatchUp + "]", Value: v,
			Cure: "Onceguard writes it on the Jobs that it makes itself, and all other Jobs that carry it are refused; remove it from the template",
		})
	}
	if isIndexed(&t.Spec) {
		return out // each index is a window of its own
	}
	// The pods of one Job share a window: one would run, the others would skip.
	const several = "the pods of a NonIndexed Job share one window, so one would run and the others skip; use 1, or completionMode Indexed, where each index is a window of its own"
	if n := t.Spec.Parallelism; n != nil && *n > 1 {
		out = append(out, contract.Problem{Field: spec + "parallelism", Value: fmt.Sprint(*n), Cure: several})
	}
	if n := t.Spec.Completions; n != nil && *n > 1 {
		out = append(out, contract.Problem{Field: spec + "completions", Value: fmt.Sprint(*n), Cure: several})
	}
	return out
}

func isIndexed(job *batchv1.JobSpec) bool {
	return job.CompletionMode != nil && *job.CompletionMode == batchv1.IndexedCompletion
}

// podProblems are pods that cannot be guarded under s.
func podProblems(pod *corev1.PodSpec, s contract.Settings) []contract.Problem {
	const spec = "spec.jobTemplate.spec.template.spec."
	var out []contract.Problem
	if isWindows(pod) {
		out = append(out, contract.Problem{Field: spec + "os.name", Value: "windows", Cure: "the guard runs on Linux only"})
	}
	for _, list := range []struct {
		name string
		of   []corev1.Container
	}{{"initContainers", pod.InitContainers}, {"containers", pod.Containers}} {
		for _, c := range list.of {
			if c.Name == contract.ContainerGuard || c.Name == contract.ContainerClaim {
				out = append(out, contract.Problem{Field: spec + list.name, Value: c.Name, Cure: "Onceguard adds a container of this name; give yours another"})
			}
			if !slices.Contains(s.Containers, c.Name) && !slices.Contains(s.InitContainers, c.Name) {
				continue
			}
			for _, m := range c.VolumeMounts {
				if within(m.MountPath, contract.DirShared) {
					out = append(out, contract.Problem{
						Field: spec + list.name + "[" + c.Name + "].volumeMounts", Value: m.MountPath,
						Cure: "Onceguard mounts " + contract.DirShared + " here; mount yours elsewhere",
					})
				}
			}
		}
	}
	for _, v := range pod.Volumes {
		if isOurVolume(v.Name) {
			out = append(out, contract.Problem{Field: spec + "volumes", Value: v.Name, Cure: "Onceguard adds a volume of this name; give yours another"})
		}
	}
	return out
}

func annotated(c *batchv1.CronJob) bool {
	_, ok := c.Annotations[contract.AnnotationGuard]
	return ok
}

// earlierSettings reads what was stamped before; what cannot be read never was.
func earlierSettings(old *batchv1.CronJob) (contract.Settings, bool) {
	s, err := contract.DecodeSettings(configOnTarget(old))
	return s, err == nil
}

// sameSettings reports whether text already says s. A CronJob has no UID yet when it
// is created; that alone is no reason to write again.
func sameSettings(text string, s contract.Settings) bool {
	now, err := contract.DecodeSettings(text)
	if err != nil {
		return false
	}
	if now.CronJobUID == "" {
		s.CronJobUID = ""
	}
	a, errA := json.Marshal(now)
	b, errB := json.Marshal(s)
	return errA == nil && errB == nil && string(a) == string(b)
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func isWindows(pod *corev1.PodSpec) bool {
	return pod.OS != nil && pod.OS.Name == corev1.Windows || pod.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows)
}

func isOurVolume(name string) bool {
	return name == contract.VolumeShared || name == contract.VolumeState || name == contract.VolumeLedger
}

// within reports whether mount is dir or lies in it.
func within(mount, dir string) bool {
	return strings.HasPrefix(strings.TrimRight(mount, "/")+"/", dir+"/")
}

func decode[T any](raw []byte) (T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("object cannot be read: %w", err)
	}
	return v, nil
}
