package inject

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/onceguard/onceguard/pkg/contract"
)

// nobody is the user of the guard's image.
const nobody = 65532

// Guard says what the injected containers look like.
type Guard struct {
	Image              string
	PullPolicy         corev1.PullPolicy // empty: Kubernetes decides
	PullSecrets        []string          // names of Secrets in the pod's namespace
	Resources          corev1.ResourceRequirements
	LedgerSecretPrefix string // with the ledger's name: the Secret in the pod's namespace
	LogLanguage        string // en or zh
	Cluster            string // prefix of job names; empty when clusters share
}

// DefaultResources are small, and limits are there because a quota may demand them.
func DefaultResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
}

// apply makes the pod of p guarded. Each step looks first whether it is done.
func (g Guard) apply(p *patch, pod *corev1.Pod, s contract.Settings, config contract.GuardConfig) error {
	spec := path{"spec"}
	wrap(p, spec.at("initContainers"), pod.Spec.InitContainers, config.InitContainers, "init", s)
	wrap(p, spec.at("containers"), pod.Spec.Containers, config.Containers, "worker", s)
	for _, v := range volumes(config) {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name }) {
			p.insert(spec.at("volumes"), len(pod.Spec.Volumes)+3, v)
		}
	}
	for _, name := range g.PullSecrets {
		ref := corev1.LocalObjectReference{Name: name}
		if !slices.Contains(pod.Spec.ImagePullSecrets, ref) {
			p.insert(spec.at("imagePullSecrets"), len(pod.Spec.ImagePullSecrets)+len(g.PullSecrets), ref)
		}
	}
	text, err := encode(config)
	if err != nil {
		return err
	}
	inits := spec.at("initContainers")
	guard := g.guard(&pod.Spec, text)
	at := guardAt(&pod.Spec)
	switch {
	case at < 0:
		at = position(&pod.Spec, s, config)
		p.insert(inits, at, guard)
	case !sameGuard(&pod.Spec.InitContainers[at], &guard):
		p.replace(inits, at, guard)
	}
	if len(config.Probed) > 0 {
		g.waitLast(p, inits, &pod.Spec)
	}
	return nil
}

// waitLast puts the claim container at the end: only the workers' probes need it (init
// containers wait under their wrapper), and whatever stands behind it could not start
// before the verdict, such as the proxy through which the ledger is reached.
func (g Guard) waitLast(p *patch, inits path, pod *corev1.PodSpec) {
	list, _ := p.get(inits).([]any)
	at := slices.IndexFunc(list, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["name"] == contract.ContainerClaim
	})
	if at >= 0 && at == len(list)-1 {
		return
	}
	if at >= 0 { // another webhook has added more since
		p.drop(inits, at)
	}
	p.insert(inits, len(list)+1, g.claim(pod))
}

// wrap lets the named containers of the list at where run under the wrapper. Only
// the command changes, so kubelet expands the arguments as before.
func wrap(p *patch, where path, list []corev1.Container, names []string, kind string, s contract.Settings) {
	for i := range list {
		c := &list[i]
		if !slices.Contains(names, c.Name) {
			continue
		}
		at := where.index(i)
		if !wrapped(c.Command, "--container="+c.Name) {
			p.set(at.at("command"), command(c, kind, s))
		}
		if !slices.ContainsFunc(c.VolumeMounts, isSharedMount) {
			p.insert(at.at("volumeMounts"), len(c.VolumeMounts), corev1.VolumeMount{Name: contract.VolumeShared, MountPath: contract.DirShared, ReadOnly: true})
		}
		if c.Lifecycle == nil {
			continue
		}
		for _, hook := range []struct {
			name string
			is   *corev1.LifecycleHandler
		}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
			if hook.is == nil || hook.is.Exec == nil || len(hook.is.Exec.Command) == 0 || wrapped(hook.is.Exec.Command, "hook") {
				continue
			}
			argv := []string{contract.PathExec, "hook"}
			if hook.name == "preStop" {
				// Without a verdict there is nothing to stop, and waiting would use up the grace period.
				argv = append(argv, "--no-wait")
			}
			argv = append(argv, "--container="+c.Name, "--")
			p.set(at.at("lifecycle", hook.name, "exec", "command"), append(argv, hook.is.Exec.Command...))
		}
	}
}

// noCommand stands where nobody knows what the container runs. Such a pod is always
// refused; no image has a program of this name.
const noCommand = "onceguard-no-command"

func command(c *corev1.Container, kind string, s contract.Settings) []string {
	argv := []string{contract.PathExec, "--container=" + c.Name, "--kind=" + kind}
	if log := c.TerminationMessagePath; log != "" && log != corev1.TerminationMessagePathDefault {
		argv = append(argv, "--termination-log="+log)
	}
	argv = append(argv, "--")
	switch named := s.Commands[c.Name]; {
	case len(c.Command) > 0:
		return append(argv, c.Command...)
	case len(named) > 0:
		for _, word := range named {
			// kubelet expands $(NAME) in a command but never in an image's entrypoint,
			// and makes one $ of two
			argv = append(argv, strings.ReplaceAll(word, "$", "$$"))
		}
		return argv
	}
	return append(argv, noCommand)
}

// namesCommand reports whether the pod says what c runs. What stands in for a missing
// command after an injection does not count.
func namesCommand(c *corev1.Container) bool {
	return len(c.Command) > 0 && !(wrapped(c.Command, "--container="+c.Name) && c.Command[len(c.Command)-1] == noCommand)
}

// wrapped reports whether argv begins with the wrapper and first.
func wrapped(argv []string, first string) bool {
	return len(argv) > 1 && argv[0] == contract.PathExec && argv[1] == first
}

// position is where the guard starts: behind the sidecars that lead the list, as the
// ledger may be reached through them, or behind the init container that the settings
// name; in any case before the first container that needs it.
func position(pod *corev1.PodSpec, s contract.Settings, config contract.GuardConfig) int {
	at := 0
	for at < len(pod.InitContainers) && isSidecar(&pod.InitContainers[at]) {
		at++
	}
	for i := range pod.InitContainers {
		name := pod.InitContainers[i].Name
		if s.After != "" && name == s.After {
			at = i + 1
		}
		if slices.Contains(config.InitContainers, name) {
			return min(at, i)
		}
	}
	return at
}

// probed lists the wrapped workers with a probe that would kill them while they wait
// for their verdict.
func probed(pod *corev1.PodSpec, workers []string) []string {
	return slices.DeleteFunc(slices.Clone(workers), func(name string) bool {
		c := container(pod.Containers, name)
		return c == nil || c.LivenessProbe == nil && c.StartupProbe == nil
	})
}

// guard is the native sidecar.
func (g Guard) guard(pod *corev1.PodSpec, config string) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	resources := g.resources(pod)
	env := []corev1.EnvVar{
		{Name: contract.EnvConfig, Value: escape(config)},
		field(contract.EnvPodName, "metadata.name"), field(contract.EnvPodUID, "metadata.uid"), field(contract.EnvNode, "spec.nodeName"),
	}
	if limit, ok := resources.Limits[corev1.ResourceMemory]; ok {
		// Go collects its garbage before the kernel ends the guard.
		env = append(env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: strconv.FormatInt(limit.Value()/4*3, 10)})
	}
	return corev1.Container{
		Name: contract.ContainerGuard, Image: g.Image, ImagePullPolicy: g.PullPolicy,
		Command:       []string{contract.PathGuard, "sidecar"},
		Env:           env,
		RestartPolicy: &always,
		// The hook holds back every later container until the wrapper is in place, and
		// makes the API server refuse the pod if another webhook takes restartPolicy away.
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{contract.PathGuard, "install"}}}},
		Resources: resources,
		VolumeMounts: []corev1.VolumeMount{
			{Name: contract.VolumeShared, MountPath: contract.DirShared},
			{Name: contract.VolumeState, MountPath: contract.DirState},
			{Name: contract.VolumeLedger, MountPath: contract.DirLedger, ReadOnly: true},
		},
		SecurityContext: restricted(pod),
	}
}

// claim is the init container that waits for the verdict before probes may start.
func (g Guard) claim(pod *corev1.PodSpec) corev1.Container {
	return corev1.Container{
		Name: contract.ContainerClaim, Image: g.Image, ImagePullPolicy: g.PullPolicy,
		Command:         []string{contract.PathExecSource, "wait", "--container=" + contract.ContainerClaim},
		Resources:       g.resources(pod),
		VolumeMounts:    []corev1.VolumeMount{{Name: contract.VolumeShared, MountPath: contract.DirShared, ReadOnly: true}},
		SecurityContext: restricted(pod),
	}
}

// restricted satisfies PodSecurity "restricted" without choosing a user, so that a
// platform may assign one; only a pod that runs as root needs ours said.
func restricted(pod *corev1.PodSpec) *corev1.SecurityContext {
	yes, no := true, false
	sc := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, ReadOnlyRootFilesystem: &yes,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if pod.SecurityContext != nil && pod.SecurityContext.RunAsUser != nil && *pod.SecurityContext.RunAsUser == 0 {
		user := int64(nobody)
		sc.RunAsUser = &user
	}
	return sc
}

// resources keeps a Guaranteed pod Guaranteed: there our requests are our limits. A
// pod that budgets for all its containers together gets nothing on top: requests of
// ours could exceed what it asks for, and Kubernetes would refuse the pod.
func (g Guard) resources(pod *corev1.PodSpec) corev1.ResourceRequirements {
	if whole := pod.Resources; whole != nil && len(whole.Requests)+len(whole.Limits) > 0 {
		return corev1.ResourceRequirements{}
	}
	r := *g.Resources.DeepCopy()
	if !guaranteed(pod) {
		return r
	}
	requests := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, ok := r.Limits[name]
		if !ok {
			limit = DefaultResources().Limits[name]
		}
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[name], requests[name] = limit, limit
	}
	for name, q := range r.Requests {
		if _, ok := requests[name]; !ok {
			requests[name] = q
		}
	}
	r.Requests = requests
	return r
}

// guaranteed reports whether every container but ours has equal requests and limits
// of CPU and memory.
func guaranteed(pod *corev1.PodSpec) bool {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Name == contract.ContainerGuard || c.Name == contract.ContainerClaim {
			continue
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, ok := c.Resources.Limits[name]
			if request, asked := c.Resources.Requests[name]; !ok || limit.IsZero() || asked && request.Cmp(limit) != 0 {
				return false
			}
		}
	}
	return len(pod.Containers) > 0
}

// escape keeps kubelet from expanding $(NAME) in the value of a variable.
func escape(text string) string { return strings.ReplaceAll(text, "$", "$$") }

func volumes(config contract.GuardConfig) []corev1.Volume {
	small := func() *corev1.EmptyDirVolumeSource {
		limit := resource.MustParse("16Mi")
		return &corev1.EmptyDirVolumeSource{SizeLimit: &limit}
	}
	optional := true
	return []corev1.Volume{
		{Name: contract.VolumeShared, VolumeSource: corev1.VolumeSource{EmptyDir: small()}},
		{Name: contract.VolumeState, VolumeSource: corev1.VolumeSource{EmptyDir: small()}},
		// Optional, so that the guard itself can say which Secret is missing. All keys,
		// so that a connection URL can point at a CA certificate beside it.
		{Name: contract.VolumeLedger, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: config.Secret, Optional: &optional}}},
	}
}

// isOurs reports whether v can be one of the volumes that were injected before.
func isOurs(v corev1.Volume, config contract.GuardConfig) bool {
	if v.Name == contract.VolumeLedger {
		return v.Secret != nil && v.Secret.SecretName == config.Secret
	}
	return v.EmptyDir != nil
}

func isSharedMount(m corev1.VolumeMount) bool {
	return m.Name == contract.VolumeShared && m.MountPath == contract.DirShared && m.SubPath == "" && m.ReadOnly
}

// guardAt is the index of the guard among the init containers; -1 without one.
func guardAt(pod *corev1.PodSpec) int {
	return slices.IndexFunc(pod.InitContainers, func(c corev1.Container) bool {
		return c.Name == contract.ContainerGuard && isGuardOrClaim(&c)
	})
}

func isGuardOrClaim(c *corev1.Container) bool {
	if c.Name == contract.ContainerGuard {
		return slices.Equal(c.Command, []string{contract.PathGuard, "sidecar"})
	}
	return len(c.Command) > 1 && c.Command[0] == contract.PathExecSource && c.Command[1] == "wait"
}

// sameGuard compares what decides; the API server adds defaults to the rest.
func sameGuard(have, want *corev1.Container) bool {
	config := func(c *corev1.Container) string {
		for _, e := range c.Env {
			if e.Name == contract.EnvConfig {
				return e.Value
			}
		}
		return ""
	}
	return have.Image == want.Image && isSidecar(have) && have.Lifecycle != nil && config(have) == config(want) && len(have.VolumeMounts) >= len(want.VolumeMounts)
}
