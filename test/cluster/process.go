package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// envMarker stands in the environment of every process that this program starts, with
// the cluster's name and the component. It is how they are found again: no file of
// process ids can be stale, and a process without the mark is never signalled.
const envMarker = "ONCEGUARD_TEST_BED"

// How long a process may take to end: when somebody wants to see it stop in good order
// (the API server lets watches go on for a minute), when all of the cluster goes, and after SIGKILL.
const (
	stopGrace = 75 * time.Second
	downGrace = 5 * time.Second
	killGrace = 10 * time.Second
)

// process is a running process of the cluster.
type process struct {
	pid       int
	component string   // whose process it is; containerd's shims carry containerd's
	program   string   // base name of its executable
	argv      []string // as it was started
}

// main reports whether p is the component itself rather than a child of it.
func (p process) main() bool { return p.program == p.component }

// processes lists the running processes of the cluster, those of pods apart (podProcesses).
func processes(l layout) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process that ends meanwhile, a zombie or a kernel thread has no environment.
		if p, ok := readProcess("/proc/"+e.Name(), pid, l.name); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func readProcess(dir string, pid int, name string) (process, bool) {
	environ, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return process{}, false
	}
	component, ok := markedComponent(environ, name)
	if !ok {
		return process{}, false
	}
	exe, err := os.Readlink(dir + "/exe")
	if err != nil {
		return process{}, false
	}
	cmdline, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return process{}, false
	}
	return process{
		pid: pid, component: component,
		program: filepath.Base(strings.TrimSuffix(exe, " (deleted)")), // rebuilt since
		argv:    strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00"),
	}, true
}

// markedComponent finds the mark of the named cluster in the text of /proc/PID/environ.
func markedComponent(environ []byte, name string) (string, bool) {
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(envMarker+"="+name+"/")); ok {
			return string(value), true
		}
	}
	return "", false
}

// start runs a component in the cluster's network, in a session of its own: it outlives
// this program and holds none of its streams. Its output is appended to its log.
func start(l layout, c component) error {
	log, err := os.OpenFile(l.log(c.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	argv := c.argv(l)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = l.state
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=" + componentPath(l), "HOME=/root", envMarker + "=" + l.name + "/" + c.name}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := inNamespace(l.netns(), cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	go func() { _ = cmd.Wait() }() // so that one that ends at once is no zombie, which would look alive
	return nil
}

// handle is a process that cannot be mistaken for a later one with the same number.
type handle struct {
	pid int
	fd  int
}

// hold opens a process and then asks again whether it is the one that is meant.
func hold(pid int, ours func() bool) (handle, bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return handle{}, false
	}
	if !ours() {
		_ = unix.Close(fd)
		return handle{}, false
	}
	return handle{pid, fd}, true
}

func holdAll(l layout, ps []process) []handle {
	var hs []handle
	for _, p := range ps {
		h, ok := hold(p.pid, func() bool {
			again, ok := readProcess("/proc/"+strconv.Itoa(p.pid), p.pid, l.name)
			return ok && again.component == p.component
		})
		if ok {
			hs = append(hs, h)
		}
	}
	return hs
}

func closeAll(hs []handle) {
	for _, h := range hs {
		_ = unix.Close(h.fd)
	}
}

func signalAll(hs []handle, sig unix.Signal) error {
	for _, h := range hs {
		if err := unix.PidfdSendSignal(h.fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal %v to process %d: %w", sig, h.pid, err)
		}
	}
	return nil
}

// waitGone waits until every process has ended, at most for d, and reports whether it did.
func waitGone(ctx context.Context, hs []handle, d time.Duration) (bool, error) {
	deadline := time.Now().Add(d)
	for _, h := range hs {
		for {
			if err := ctx.Err(); err != nil {
				return false, context.Cause(ctx)
			}
			left := time.Until(deadline)
			if left <= 0 {
				return false, nil
			}
			// Short turns, so that a cancelled ctx is noticed.
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, int(min(left, 200*time.Millisecond).Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return false, err
			}
			if n > 0 {
				break
			}
		}
	}
	return true, nil
}

// end stops processes: the first signal, a bounded wait, then SIGKILL.
func end(ctx context.Context, l layout, ps []process, first unix.Signal, grace time.Duration) error {
	hs := holdAll(l, ps)
	defer closeAll(hs)
	return endHandles(ctx, hs, first, grace)
}

func endHandles(ctx context.Context, hs []handle, first unix.Signal, grace time.Duration) error {
	for _, step := range []struct {
		sig   unix.Signal
		grace time.Duration
	}{{first, grace}, {unix.SIGKILL, killGrace}} {
		if err := signalAll(hs, step.sig); err != nil {
			return err
		}
		if gone, err := waitGone(ctx, hs, step.grace); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("%d processes did not end within %s of SIGKILL", len(hs), killGrace)
}

// endPods kills what runs in the cluster's pods.
func endPods(ctx context.Context, l layout) error {
	// More than once: a process may fork while it is looked for.
	for range 10 {
		pids, err := podProcesses(l)
		if err != nil || len(pids) == 0 {
			return err
		}
		var hs []handle
		for _, pid := range pids {
			if h, ok := hold(pid, func() bool { return inCgroup(l, pid) }); ok {
				hs = append(hs, h)
			}
		}
		err = endHandles(ctx, hs, unix.SIGKILL, killGrace)
		closeAll(hs)
		if err != nil {
			return fmt.Errorf("pods: %w", err)
		}
	}
	return errors.New("pods: new processes keep appearing in them")
}

func inCgroup(l layout, pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
		parts := strings.SplitN(line, ":", 3)
		return len(parts) == 3 && strings.Contains(parts[2]+"/", "/"+l.cgroup()+"/")
	})
}
