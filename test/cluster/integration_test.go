package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test run this program as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("CLUSTER_TEST_MAIN") != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

const testCluster = "ogselftest"

// program prepares "cluster ARGS" for the test's own cluster.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), self(t), args...)
	cmd.Env = append(os.Environ(), "CLUSTER_TEST_MAIN=1", "ONCEGUARD_TEST_CLUSTER="+testCluster)
	return cmd
}

// must runs "cluster ARGS" and returns what it wrote to its standard output.
func must(t *testing.T, args ...string) string {
	t.Helper()
	cmd := program(t, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cluster %q: %v\n%s%s", args, err, out, stderr.Bytes())
	}
	if args[0] == "up" || args[0] == "down" {
		t.Log(strings.TrimSpace(stderr.String()))
	}
	return string(out)
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return must(t, append([]string{"exec", "--", "kubectl"}, args...)...)
}

func eventually(t *testing.T, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

const workload = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: web, image: "localhost/busybox:1.36", command: [sh, -c, "echo hello >/tmp/index.html; exec httpd -f -p 8080 -h /tmp"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.7.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          initContainers:
          - name: side
            image: "localhost/busybox:1.36"
            restartPolicy: Always
            command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.2; done"]
          containers:
          - {name: work, image: "localhost/busybox:1.36", command: [wget, -qO-, "http://10.96.7.7/"]}
`

// TestCluster is the test bed's own proof, on a real machine: it needs root and takes
// about two minutes with built programs, so that it runs only when it is asked for.
func TestCluster(t *testing.T) {
	if os.Getenv("ONCEGUARD_CLUSTER_TEST") != "1" {
		t.Skip("set ONCEGUARD_CLUSTER_TEST=1 to start a real cluster")
	}
	if err := requireRoot(); err != nil {
		t.Fatal(err)
	}
	l, err := newLayout(os.Environ(), testCluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := clean(ctx, l); err != nil {
			t.Error(err)
		}
	})
	must(t, "up", "--fresh")
	apply(t, workload)
	t.Run("a CronJob with a native sidecar completes, through a Service", func(t *testing.T) {
		var jobs string
		eventually(t, 90*time.Second, "the CronJob makes a Job", func() bool {
			jobs = strings.TrimSpace(kubectl(t, "get", "jobs", "-o", "name"))
			return jobs != ""
		})
		kubectl(t, "wait", strings.Fields(jobs)[0], "--for=condition=Complete", "--timeout=60s")
		if log := kubectl(t, "logs", strings.Fields(jobs)[0], "-c", "work"); log != "hello\n" {
			t.Errorf("the worker read %q", log)
		}
		if out := kubectl(t, "exec", "web", "--", "cat", "/tmp/index.html"); out != "hello\n" {
			t.Errorf("kubectl exec read %q", out)
		}
	})
	t.Run("exec is transparent", testExec)
	t.Run("components stop and start", testComponents)
	t.Run("up leaves a running cluster alone", func(t *testing.T) {
		before := kubectl(t, "get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
		must(t, "up")
		if after := kubectl(t, "get", "pod", "web", "-o", "jsonpath={.metadata.uid}"); after != before {
			t.Error("the cluster was started over")
		}
	})
	t.Run("up starts over what a killed run left", func(t *testing.T) { testKilled(t, l) })
	t.Run("up starts over a killed up", func(t *testing.T) { testKilledUp(t, l) })
	t.Run("down leaves nothing and nobody else's process", func(t *testing.T) { testDown(t, l) })
}

func apply(t *testing.T, text string) {
	t.Helper()
	cmd := program(t, "exec", "--", "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	kubectl(t, "wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
}

func testExec(t *testing.T) {
	err := program(t, "exec", "--", "sh", "-c", "exit 42").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Errorf("exit code: %v", err)
	}
	cmd := program(t, "exec", "sh", "-c", `trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("a signal did not reach the command: %v", err)
	}
}

func testComponents(t *testing.T) {
	for _, c := range components() {
		must(t, "kill", c.name)
		err := program(t, "status").Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("status without %s: %v", c.name, err)
		}
		must(t, "start", c.name)
		must(t, "start", c.name) // nothing to do
	}
	eventually(t, time.Minute, "all is well again", func() bool { return program(t, "status").Run() == nil })
	if out := kubectl(t, "exec", "web", "--", "cat", "/tmp/index.html"); out != "hello\n" {
		t.Errorf("the pod that ran all the time answers %q", out)
	}
}

// testKilled ends the components as a power cut would, and leaves pods and shims behind.
func testKilled(t *testing.T, l layout) {
	ps, err := processes(l)
	if err != nil {
		t.Fatal(err)
	}
	isComponent := func(p process) bool { return p.main() }
	if err := endComponents(t.Context(), l, isComponent, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pods, err := podProcesses(l)
	if err != nil || len(pods) == 0 {
		t.Fatalf("the pods ended with the components: %v, %v", pods, err)
	}
	if shims := slices.DeleteFunc(ps, isComponent); len(shims) == 0 {
		t.Fatal("no shim was running")
	}
	must(t, "up")
	now, err := podProcesses(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pods {
		if slices.Contains(now, pid) {
			t.Errorf("process %d of the old cluster's pod still runs", pid)
		}
	}
	apply(t, workload)
}

func testKilledUp(t *testing.T, l layout) {
	cmd := program(t, "up", "--fresh")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Killed when the new etcd has just been started: nothing else is there yet.
	old, err := processes(l)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "etcd starts", func() bool {
		ps, err := processes(l)
		return err == nil && slices.ContainsFunc(ps, func(p process) bool {
			return p.component == "etcd" && !slices.ContainsFunc(old, func(o process) bool { return o.pid == p.pid })
		})
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	must(t, "up")
	apply(t, workload)
}

func testDown(t *testing.T, l layout) {
	// A person's own program in the cluster's network is not ours to end.
	stranger := program(t, "exec", "--", "sleep", "300")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = stranger.Process.Kill(), stranger.Wait() }()
	eventually(t, 10*time.Second, "sleep starts", func() bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", stranger.Process.Pid))
		return err == nil && exe != self(t)
	})
	pods, err := podProcesses(l)
	if err != nil {
		t.Fatal(err)
	}
	must(t, "down")
	must(t, "down") // nothing to do
	if !alive(stranger.Process.Pid) {
		t.Error("down ended a process that is not the cluster's")
	}
	if ps, err := processes(l); err != nil || len(ps) > 0 {
		t.Errorf("still running: %+v, %v", ps, err)
	}
	for _, pid := range pods {
		if inCgroup(l, pid) {
			t.Errorf("process %d of a pod still runs", pid)
		}
	}
	mounts, err := mountPoints()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if within(m.path, l.state) || within(m.path, l.run) || within(m.path, l.netns()) {
			t.Errorf("still mounted: %s", m.path)
		}
	}
	leftovers := []string{l.state, l.run, l.netns(), cgroupMount + "/" + l.cgroup(), cgroupMount + "/*/" + l.cgroup(), "/var/lib/cni/results/" + l.network() + "*"}
	for _, pattern := range leftovers {
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			t.Errorf("still there: %v, %v", found, err)
		}
	}
}
