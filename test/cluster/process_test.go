package main

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper starts a process with the given environment; it is killed with the test.
func sleeper(t *testing.T, env ...string) int {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	// Until exec has happened it shows our own environment.
	for deadline := time.Now().Add(10 * time.Second); ; {
		if exe, _ := os.Readlink("/proc/" + pidText(cmd.Process.Pid) + "/exe"); exe != "" && exe != self(t) {
			return cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			t.Fatal("sleep did not start")
		}
		time.Sleep(time.Millisecond)
	}
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestOnlyMarkedProcessesAreFound(t *testing.T) {
	l := testLayout(t)
	ours := sleeper(t, envMarker+"=unit/kubelet")
	sleeper(t, envMarker+"=unit2/kubelet")
	sleeper(t, envMarker+"=other/unit/kubelet")
	sleeper(t, "X="+envMarker+"=unit/kubelet")
	ps, err := processes(l)
	if err != nil {
		t.Fatal(err)
	}
	if len(ps) != 1 || ps[0].pid != ours || ps[0].component != "kubelet" || !slices.Equal(ps[0].argv, []string{"sleep", "300"}) {
		t.Fatalf("found %+v, want the one process %d", ps, ours)
	}
	if ps[0].main() {
		t.Error("a child that runs another program counts as the kubelet")
	}
}

func TestARecycledProcessIDIsNotSignalled(t *testing.T) {
	l := testLayout(t)
	stranger := sleeper(t)
	another := sleeper(t, envMarker+"=unit/etcd")
	stale := []process{{pid: stranger, component: "kubelet"}, {pid: another, component: "kubelet"}}
	if err := end(t.Context(), l, stale, unix.SIGKILL, time.Second); err != nil {
		t.Fatal(err)
	}
	if !alive(stranger) || !alive(another) {
		t.Fatal("a process was killed for the number it has")
	}
	// The power of the test: the same call ends a process that is what it was taken for.
	if err := end(t.Context(), l, []process{{pid: another, component: "etcd"}}, unix.SIGKILL, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if ps, err := processes(l); err != nil || len(ps) > 0 {
		t.Fatalf("still there: %+v, %v", ps, err)
	}
}

func TestAProcessThatIgnoresSIGTERMIsKilled(t *testing.T) {
	l := testLayout(t)
	cmd := exec.Command("sh", "-c", `trap "" TERM; echo; while :; do read x; done`)
	cmd.Env = []string{envMarker + "=unit/etcd"}
	in, err := cmd.StdinPipe() // never written: read blocks
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the trap is set
		t.Fatal(err)
	}
	ps, err := processes(l)
	if err != nil || len(ps) != 1 {
		t.Fatalf("%+v, %v", ps, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err := end(t.Context(), l, ps, unix.SIGTERM, 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("it ended well")
	}
	if sig := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
}

func pidText(pid int) string { return strconv.Itoa(pid) }
