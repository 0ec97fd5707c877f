package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The Kubernetes programs and etcd are built in a module of their own, because
// k8s.io/kubernetes cannot be installed by version: its own go.mod points the staging
// modules at folders. The two files are that module's go.mod and go.sum.
var (
	//go:embed kubernetes.mod
	kubernetesMod string
	//go:embed kubernetes.sum
	kubernetesSum string
	//go:embed pause/main.go
	pauseSource string
)

// tool is a set of programs built together from one module at one version.
type tool struct {
	name, version string
	programs      []string // what the folder holds afterwards
	packages      []string
	pinned        bool   // built in the module of kubernetes.mod instead of installed by version
	ldflags       string // besides -s -w
}

const (
	containerdVersion = "v2.3.7"
	cniVersion        = "v1.9.1"
	helmVersion       = "v3.22.0"
	pauseVersion      = "v1"
)

func tools() []tool {
	kubernetes := pinnedVersion("k8s.io/kubernetes")
	minor := strings.Split(strings.TrimPrefix(kubernetes, "v"), ".")[1]
	const stamp = "-X k8s.io/component-base/version."
	k8s := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}
	return []tool{
		{
			name: "kubernetes", version: kubernetes, pinned: true, programs: k8s, packages: prefixed("k8s.io/kubernetes/cmd/", k8s...),
			// Without its version the API server and kubectl refuse or misreport.
			ldflags: stamp + "gitVersion=" + kubernetes + " " + stamp + "gitMajor=1 " + stamp + "gitMinor=" + minor,
		},
		{
			name: "etcd", version: pinnedVersion("go.etcd.io/etcd/server/v3"), pinned: true,
			programs: []string{"etcd"}, packages: []string{"go.etcd.io/etcd/server/v3"},
		},
		{
			name: "containerd", version: containerdVersion, programs: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
			packages: prefixed("github.com/containerd/containerd/v2/cmd/", "containerd", "containerd-shim-runc-v2", "ctr"),
			ldflags:  "-X github.com/containerd/containerd/v2/version.Version=" + containerdVersion,
		},
		{
			name: "cni-plugins", version: cniVersion, programs: []string{"ptp", "host-local", "portmap"},
			packages: prefixed("github.com/containernetworking/plugins/plugins/", "main/ptp", "ipam/host-local", "meta/portmap"),
		},
		{
			name: "helm", version: helmVersion, programs: []string{"helm"}, packages: []string{"helm.sh/helm/v3/cmd/helm"},
			ldflags: "-X helm.sh/helm/v3/internal/version.version=" + helmVersion,
		},
		{name: "pause", version: pauseVersion, programs: []string{"pause"}},
	}
}

func prefixed(prefix string, names ...string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = prefix + n
	}
	return out
}

// pinnedVersion is the version that kubernetes.mod requires of a module.
func pinnedVersion(module string) string {
	m := regexp.MustCompile(`(?m)^\s+` + regexp.QuoteMeta(module) + ` (v\S+)`).FindStringSubmatch(kubernetesMod)
	if m == nil {
		panic("kubernetes.mod does not require " + module)
	}
	return m[1]
}

// built reports whether every program of t is in the cache. A folder appears there
// under its name only when it is complete.
func (l layout) built(t tool) bool {
	return !slices.ContainsFunc(t.programs, func(p string) bool {
		info, err := os.Stat(filepath.Join(l.toolDir(t), p))
		return err != nil || info.Mode()&0o111 == 0
	})
}

// build makes every tool that the cache lacks. Two builds at once would only fight
// for the processor, so that the second waits for the first and then finds its work done.
func build(ctx context.Context, l layout, out io.Writer) error {
	missing := func() []tool {
		return slices.DeleteFunc(tools(), l.built)
	}
	if len(missing()) == 0 {
		return nil
	}
	dir := filepath.Join(l.cache, "tools")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cache for built programs: %w (set ONCEGUARD_CACHE to another folder)", err)
	}
	unlock, err := lock(ctx, filepath.Join(l.cache, "build.lock"), func() {
		fmt.Fprintln(out, "another run is building in", l.cache, "- waiting for it")
	})
	if err != nil {
		return err
	}
	defer unlock()
	// Only under the lock: what is found here, a killed build left.
	leftovers, err := filepath.Glob(filepath.Join(dir, ".build-*"))
	if err != nil {
		return err
	}
	for _, left := range leftovers {
		if err := os.RemoveAll(left); err != nil {
			return err
		}
	}
	todo := missing()
	if len(todo) == 0 { // the other run built it
		return nil
	}
	fmt.Fprintf(out, "building %s into %s (once; up to 20 minutes on two cores, and 5 GB of Go's build cache)\n", toolNames(todo), dir)
	begin := time.Now()
	for i, t := range todo {
		p := &progress{out: out, label: fmt.Sprintf("[%d/%d] %s %s", i+1, len(todo), t.name, t.version), begin: begin}
		if err := p.watch(ctx, func(ctx context.Context) error { return l.buildTool(ctx, t, p) }); err != nil {
			return fmt.Errorf("building %s %s: %w", t.name, t.version, err)
		}
	}
	return nil
}

func toolNames(ts []tool) string {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.name + " " + t.version
	}
	return strings.Join(names, ", ")
}

// buildTool builds t beside its place and renames the folder when it is complete.
func (l layout) buildTool(ctx context.Context, t tool, p *progress) error {
	temp, err := os.MkdirTemp(filepath.Join(l.cache, "tools"), ".build-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	src, bin := filepath.Join(temp, "src"), filepath.Join(temp, "bin")
	for _, dir := range []string{src, bin} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	flags := []string{"-v", "-trimpath", "-ldflags", strings.TrimSpace("-s -w " + t.ldflags)}
	args := append([]string{"install"}, flags...)
	switch {
	case t.pinned:
		files := map[string]string{"go.mod": kubernetesMod, "go.sum": kubernetesSum}
		if err := writeFiles(src, files); err != nil {
			return err
		}
		args = append(append([]string{"build"}, flags...), "-o", bin+"/")
		args = append(args, t.packages...)
	case len(t.packages) == 0:
		if err := writeFiles(src, map[string]string{"main.go": pauseSource}); err != nil {
			return err
		}
		args = append(append([]string{"build"}, flags...), "-o", filepath.Join(bin, t.programs[0]), "main.go")
	default:
		for _, pkg := range t.packages {
			args = append(args, pkg+"@"+t.version)
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+bin, "GOFLAGS=", "GOWORK=off", "GOOS=linux", "GOARCH=")
	cmd.Stdout, cmd.Stderr = p, p
	// The compilers are children of go: a cancelled build must end them too. And go must
	// not go on alone when this process is killed; the signal for that comes at the
	// end of the thread that started it, which is therefore kept.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", args[0], err, p.tail())
	}
	if err := renamePrograms(bin, t); err != nil {
		return err
	}
	if err := os.RemoveAll(l.toolDir(t)); err != nil { // incomplete, or it would not be built
		return err
	}
	return os.Rename(bin, l.toolDir(t))
}

// renamePrograms gives every program its own name where the package is called
// otherwise: etcd's main package is its module's root, "server".
func renamePrograms(bin string, t tool) error {
	for i, pkg := range t.packages {
		base := path.Base(pkg)
		if regexp.MustCompile(`^v\d+$`).MatchString(base) {
			base = path.Base(path.Dir(pkg))
		}
		if base == t.programs[i] {
			continue
		}
		if err := os.Rename(filepath.Join(bin, base), filepath.Join(bin, t.programs[i])); err != nil {
			return err
		}
	}
	return nil
}

func writeFiles(dir string, files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
