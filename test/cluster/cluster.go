package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// upTimeout bounds everything of up but the build.
const upTimeout = 5 * time.Minute

// errNotUp: the command needs a running cluster.
var errNotUp = errors.New(`the cluster is not up: run "cluster up"`)

// lockCluster makes up, down, start and stop of one cluster wait for each other.
func lockCluster(ctx context.Context, l layout, out io.Writer) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(l.run), 0o755); err != nil {
		return nil, err
	}
	return lock(ctx, l.run+".lock", func() { fmt.Fprintf(out, "another command works on cluster %s - waiting for it\n", l.name) })
}

// up starts the cluster, builds what it lacks first, and starts over whatever an
// earlier run left. One that is up and was started the same way is left alone.
// Unless it is told to wait, it returns once the node's programs have been started.
func up(ctx context.Context, l layout, fresh, wait bool, out io.Writer) error {
	if err := requireRoot(); err != nil {
		return err
	}
	if err := ensurePackages(ctx, out); err != nil {
		return err
	}
	unified, err := unifiedCgroups()
	if err != nil {
		return err
	}
	if err := build(ctx, l, out); err != nil {
		return err
	}
	unlock, err := lockCluster(ctx, l, out)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, upTimeout, fmt.Errorf("the cluster was not ready within %s", upTimeout))
	defer cancel()

	if !fresh && healthy(ctx, l) {
		fmt.Fprintf(out, "cluster %s is already up\n", l.name)
		return nil
	}
	begin := time.Now()
	if err := clean(ctx, l); err != nil {
		return fmt.Errorf("clean up after an earlier run: %w", err)
	}
	if err := prepare(ctx, l, unified); err != nil {
		return err
	}
	if err := startAll(ctx, l, wait); err != nil {
		return fmt.Errorf("%w\nThe rest still runs: look with \"cluster logs COMPONENT\", end it with \"cluster down\"", err)
	}
	fmt.Fprintf(out, "cluster %s is up after %.1f s: Kubernetes %s, node %s\n", l.name, time.Since(begin).Seconds(), pinnedVersion("k8s.io/kubernetes"), nodeAddress)
	return nil
}

// healthy reports whether every component runs as this program would start it, and answers.
func healthy(ctx context.Context, l layout) bool {
	ps, err := processes(l)
	if err != nil {
		return false
	}
	for _, c := range components() {
		if !slices.ContainsFunc(ps, func(p process) bool {
			return p.main() && p.component == c.name && slices.Equal(p.argv, c.argv(l))
		}) {
			return false
		}
	}
	a, err := newAPI(l)
	return err == nil && a.nodeReady(ctx) == nil && a.podsReady(ctx) == nil
}

// prepare makes folders, keys, configuration, network and cgroups.
func prepare(ctx context.Context, l layout, unified bool) error {
	for _, dir := range []string{l.state, l.config("cni"), l.pki(""), l.bin(), filepath.Dir(l.log("x")), filepath.Join(l.state, "pod-logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{l.run, filepath.Join(l.run, "s"), filepath.Join(l.state, "etcd")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(l.state, stateMarker), nil, 0o644); err != nil {
		return err
	}
	for _, p := range []string{"kubectl", "helm", "ctr"} {
		if err := os.Symlink(l.program(p), filepath.Join(l.bin(), p)); err != nil {
			return err
		}
	}
	if err := writePKI(l, time.Now()); err != nil {
		return err
	}
	if err := writeConfig(l, unified); err != nil {
		return err
	}
	if err := createCgroup(l); err != nil {
		return err
	}
	return createNamespace(ctx, l)
}

func startAll(ctx context.Context, l layout, wait bool) error {
	var running []string
	startNamed := func(names ...string) error {
		for _, name := range names {
			c, err := componentNamed(name)
			if err != nil {
				return err
			}
			if err := start(l, c); err != nil {
				return err
			}
			running = append(running, name)
		}
		return nil
	}
	if err := startNamed("etcd", "containerd", "kube-apiserver"); err != nil {
		return err
	}
	// The API server takes seconds: meanwhile the images.
	if err := waitReady(ctx, l, "containerd", running...); err != nil {
		return err
	}
	images, err := baseImages(ctx, l)
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := loadImage(ctx, l, image); err != nil {
			return err
		}
	}
	if err := waitReady(ctx, l, "kube-apiserver", running...); err != nil {
		return err
	}
	if err := startNamed("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"); err != nil {
		return err
	}
	if !wait {
		return nil
	}
	for _, name := range running {
		if err := waitReady(ctx, l, name, running...); err != nil {
			return err
		}
	}
	a, err := newAPI(l)
	if err != nil {
		return err
	}
	return waitFor(ctx, l, func(ctx context.Context) error {
		return errors.Join(a.nodeReady(ctx), a.podsReady(ctx))
	}, running...)
}

// readiness is how one component shows that it serves.
func readiness(l layout, component string) (func(context.Context) error, error) {
	if component == "containerd" {
		return func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", l.containerdSocket())
			if err != nil {
				return err
			}
			return conn.Close()
		}, nil
	}
	a, err := newAPI(l)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return a.serves(ctx, component) }, nil
}

// waitReady waits until a component serves, as long as the components named beside it run.
func waitReady(ctx context.Context, l layout, component string, others ...string) error {
	ready, err := readiness(l, component)
	if err != nil {
		return err
	}
	return waitFor(ctx, l, ready, append(others, component)...)
}

// waitFor polls ready, and gives up when one of the components has ended, with the end
// of its log. One look is not enough to call it ended: while a process is in the
// middle of execve, its environment, and so its mark, cannot be read.
func waitFor(ctx context.Context, l layout, ready func(context.Context) error, components ...string) error {
	const looks = 5
	missing := map[string]int{}
	return poll(ctx, func(ctx context.Context) (bool, error) {
		err := ready(ctx)
		if err == nil {
			return true, nil
		}
		ps, listErr := processes(l)
		if listErr != nil {
			return false, fatalError{listErr}
		}
		for _, c := range components {
			if slices.ContainsFunc(ps, func(p process) bool { return p.component == c && p.main() }) {
				missing[c] = 0
			} else if missing[c]++; missing[c] == looks {
				return false, fatalError{fmt.Errorf("%s ended by itself; the end of its log:\n%s", c, tail(l.log(c), 20))}
			}
		}
		return false, err
	})
}

// tail returns the last lines of a file, as far as it can be read.
func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// down ends the cluster and removes everything but the cache.
func down(ctx context.Context, l layout, out io.Writer) error {
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := lockCluster(ctx, l, out)
	if err != nil {
		return err
	}
	defer unlock()
	begin := time.Now()
	if err := clean(ctx, l); err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster %s is down after %.1f s\n", l.name, time.Since(begin).Seconds())
	return nil
}

// clean ends every process of the cluster and removes what it left, whether it ran to
// its end or was killed anywhere. Without a cluster it does nothing.
func clean(ctx context.Context, l layout) error {
	if err := endComponents(ctx, l, func(p process) bool { return p.main() && p.component == "kubelet" }, unix.SIGTERM); err != nil {
		return err // the kubelet first: it would start the pods again
	}
	if err := endPods(ctx, l); err != nil {
		return err
	}
	if err := endComponents(ctx, l, func(p process) bool { return p.main() && p.component != "etcd" && p.component != "kube-apiserver" }, unix.SIGTERM); err != nil {
		return err
	}
	// What is left has nobody to serve: the API server would drain for a while, and a
	// shim stays as long as it has a pod. Nothing of theirs is kept.
	if err := endComponents(ctx, l, func(process) bool { return true }, unix.SIGKILL); err != nil {
		return err
	}
	if err := unmountBelow(l.state, l.run); err != nil {
		return err
	}
	if err := removeCgroup(l); err != nil {
		return err
	}
	if err := deleteNamespace(ctx, l); err != nil {
		return err
	}
	return removeFiles(l)
}

func endComponents(ctx context.Context, l layout, which func(process) bool, first unix.Signal) error {
	ps, err := processes(l)
	if err != nil {
		return err
	}
	ps = slices.DeleteFunc(ps, func(p process) bool { return !which(p) })
	return end(ctx, l, ps, first, downGrace)
}

// removeFiles removes the cluster's folders, and what kubelet and CNI keep in places
// that nobody can change.
func removeFiles(l layout) error {
	if entries, err := os.ReadDir(l.state); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(l.state, stateMarker)); err != nil {
			return fmt.Errorf("%s is not empty and was not made by this program (no %s in it): remove it yourself, or choose another ONCEGUARD_STATE or --name", l.state, stateMarker)
		}
	}
	for _, dir := range []string{l.run, l.state} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	results, err := filepath.Glob("/var/lib/cni/results/" + l.network() + "-*")
	if err != nil {
		return err
	}
	links, err := filepath.Glob("/var/log/containers/*.log")
	if err != nil {
		return err
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && within(target, l.state) {
			results = append(results, link)
		}
	}
	for _, f := range results {
		if err := ignoreGone(os.Remove(f)); err != nil {
			return err
		}
	}
	return nil
}
