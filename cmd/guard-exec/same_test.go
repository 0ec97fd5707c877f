package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// guarded starts a fake guard and gives the command that runs argv under it. The guard says
// run and acks whatever code the worker had.
func guarded(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	g := &fakeGuard{socket: socket, heard: io.Discard}
	if err := g.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.ln.Close() })
	go func() {
		for {
			conn, err := g.ln.AcceptUnix()
			if err != nil {
				return
			}
			go echoGuard(conn)
		}
	}()
	return exec.Command("guard-exec", append([]string{"--container=main", "--socket=" + socket, "--"}, argv...)...)
}

type result struct {
	code   int
	out    string
	errOut string
}

func outcomeOf(t *testing.T, cmd *exec.Cmd, stdin string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := ws.ExitStatus()
	if ws.Signaled() { // as a container runtime shows it
		code = 128 + int(ws.Signal())
	}
	return result{code, out.String(), errOut.String()}
}

// A worker cannot tell whether it is guarded, and neither can who looks at its end.
func TestSameWithAndWithoutTheGuard(t *testing.T) {
	sh := func(script string, args ...string) []string {
		return append([]string{"sh", "-c", script, "sh"}, args...)
	}
	signal := func(n int) []string { return sh(fmt.Sprintf("kill -%d $$; sleep 100", n)) }
	cases := map[string][]string{
		"arguments":    {"printf", "[%s]\n", "a b", "", "'single' \"double\"", "line\nbreak", "$(VAR) $$(VAR) `x`", "--", "-n", "\xff\xfe", "窗口"},
		"stdin":        {"cat"},
		"stderr":       sh("echo problem >&2"),
		"directory":    {"pwd"},
		"umask":        sh("umask"),
		"limits":       sh("ulimit -Sn; ulimit -Hn"),
		"descriptors":  sh("ls /proc/self/fd | wc -l"),
		"signal masks": {"grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"},
		"environment":  {"env", "-u", "_", "sh", "-c", "env | sort"},
		"argv0":        sh("echo $0"),
		"exit 0":       {"true"},
		"signal 1":     signal(1), "signal 9": signal(9), "signal 11": signal(11), "signal 15": signal(15), "signal 2": signal(2), "signal 40": signal(40),
		"group and session": {"awk", "{print $5, $6}", "/proc/self/stat"},
	}
	for _, n := range []int{1, 2, 42, 75, 78, 126, 127, 137, 143, 255} {
		cases[fmt.Sprintf("exit %d", n)] = sh(fmt.Sprintf("exit %d", n))
	}
	for name, argv := range cases {
		t.Run(name, func(t *testing.T) {
			const stdin = "some\x00bytes\n"
			bare := outcomeOf(t, exec.Command(argv[0], argv[1:]...), stdin)
			with := outcomeOf(t, guarded(t, argv...), stdin)
			if bare != with {
				t.Errorf("bare:    %+v\nguarded: %+v", bare, with)
			}
		})
	}
}

// What cannot be started is told as a shell tells it.
func TestNotFoundAndNotExecutable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	plain := write("plain", "x", 0o644)
	write("here", "#!/bin/sh\necho found $0\n", 0o755)
	lost := write("lost", "#!/no/such/interpreter\n", 0o755)
	garbage := write("garbage", "\x00\x01\x02", 0o755)
	for _, c := range []struct {
		name, path string
		argv       string
		code       int
		out        string
	}{
		{"no such name", "/bin:/usr/bin", "no-such-command", 127, ""},
		{"no such file", "/bin", dir + "/nope", 127, ""},
		{"below a file", "/bin", plain + "/x", 127, ""},
		{"empty name", "/bin", "", 127, ""},
		{"no interpreter", "/bin", lost, 127, ""},
		{"not executable", "/bin", plain, 126, ""},
		{"not executable in PATH", dir, "plain", 126, ""},
		{"a directory", "/bin", dir, 126, ""},
		{"a directory in PATH is passed over", filepath.Dir(dir) + ":/bin", filepath.Base(dir), 127, ""},
		{"not a program", "/bin", garbage, 126, ""},
		{"dot in PATH", "/bin:.", "here", 0, "found ./here\n"},
		{"empty entry in PATH", "/bin:", "here", 0, "found ./here\n"},
		{"PATH of the worker", dir, "here", 0, "found " + dir + "/here\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := guarded(t, c.argv)
			cmd.Path, cmd.Err = lookGuardExec(t), nil
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+c.path)
			got := outcomeOf(t, cmd, "")
			if got.code != c.code || got.out != c.out {
				t.Errorf("got %+v, want code %d and %q", got, c.code, c.out)
			}
			if c.code != 0 && !strings.Contains(got.errOut, "cannot start") {
				t.Errorf("no reason given: %q", got.errOut)
			}
		})
	}
}

func lookGuardExec(t *testing.T) string {
	t.Helper()
	file, err := exec.LookPath("guard-exec")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// talk runs a worker whose lines are read one by one.
type talk struct {
	cmd   *exec.Cmd
	lines chan string
}

func talkTo(t *testing.T, cmd *exec.Cmd) *talk {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end all of them
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	lines := make(chan string, 4096)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return &talk{cmd, lines}
}

func (w *talk) expect(t *testing.T, want string) {
	t.Helper()
	var said []string
	for {
		select {
		case got, ok := <-w.lines:
			if !ok {
				t.Fatalf("the worker ended (%v) before it said %q, with %q", w.cmd.Wait(), want, said)
			}
			if got == want {
				return
			}
			said = append(said, got)
		case <-time.After(patience):
			t.Fatalf("the worker did not say %q, but %q", want, said)
		}
	}
}

func (w *talk) send(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (w *talk) code(t *testing.T) int {
	t.Helper()
	_ = w.cmd.Wait()
	return w.cmd.ProcessState.ExitCode()
}

// Each signal reaches the worker, again and again (a wrapper that handles the first
// only, or drops them all, fails here), and only the worker's own process.
func TestSignalsReachTheWorker(t *testing.T) {
	names := []string{"HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "WINCH"}
	script := "trap 'echo RT' 40; "
	for _, n := range names {
		script += fmt.Sprintf("trap 'echo %s' %s; ", n, n)
	}
	// A shell runs its traps between two commands.
	w := talkTo(t, guarded(t, "bash", "-c", script+"echo ready; while :; do sleep 0.02; done"))
	w.expect(t, "ready")
	for range 2 {
		for _, n := range append(names, "RT") {
			w.send(t, signals[n])
			w.expect(t, n)
		}
	}
}

// 1000 TERMs kill neither wrapper nor a worker that handles them, and nothing is stuck afterwards.
func TestStormOfTerms(t *testing.T) {
	w := talkTo(t, guarded(t, "bash", "-c", "trap 'echo TERM' TERM; trap 'echo bye; exit 17' USR2; echo ready; while :; do sleep 0.02; done"))
	w.expect(t, "ready")
	for range 1000 {
		w.send(t, syscall.SIGTERM)
	}
	w.expect(t, "TERM")
	w.send(t, syscall.SIGUSR2)
	w.expect(t, "bye")
	if code := w.code(t); code != 17 {
		t.Errorf("exit code %d, want 17", code)
	}
}

// A TERM at any moment around the start is neither lost nor does it orphan a worker.
func TestTermWhileStarting(t *testing.T) {
	for i := range 60 {
		socket := filepath.Join(t.TempDir(), "s")
		g := &fakeGuard{socket: socket, heard: io.Discard}
		if err := g.listen(); err != nil {
			t.Fatal(err)
		}
		played := make(chan struct{})
		go func() {
			defer close(played)
			_ = g.step("accept")
			_ = g.step(`send {"type":"run"}`)
			for until := time.Now().Add(time.Duration(i) * 100 * time.Microsecond); time.Now().Before(until); {
			}
			_ = g.step("kill TERM")
			echoGuard(g.conn)
		}()
		cmd := exec.Command("guard-exec", "--container=main", "--socket="+socket, "--", "sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		stuck.Stop()
		<-played
		_ = g.ln.Close()
		if code := cmd.ProcessState.ExitCode(); code != 143 {
			t.Fatalf("TERM after %d00 µs: exit code %d, want 143", i, code)
		}
	}
}

const orphans = `i=0; while [ $i -lt 1000 ]; do (sh -c : &); i=$((i+1)); done
n=0; while grep -l '^State:.Z' /proc/[0-9]*/status >/dev/null 2>&1; do n=$((n+1)); [ $n -gt 200 ] && { echo zombies are left; exit 1; }; sleep 0.05; done; echo all reaped`

// As process 1 of a container the wrapper reaps whatever the worker leaves behind.
func TestOrphansAreReapedByProcess1(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a new pid namespace needs root")
	}
	cmd := guarded(t, "sh", "-c", orphans)
	in := exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", lookGuardExec(t)}, cmd.Args[1:]...)...)
	if out, err := in.CombinedOutput(); err != nil || !strings.Contains(string(out), "all reaped") {
		if strings.Contains(string(out), "unshare failed") {
			t.Skipf("no new pid namespace here: %s", out)
		}
		t.Errorf("%v\n%s", err, out)
	}
}

// Elsewhere (a shared pid namespace) it adopts and reaps them as a subreaper.
func TestOrphansAreReapedBySubreaper(t *testing.T) {
	mine := `for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c : &); done; ppid=$(awk '{print $4}' /proc/$$/stat)
n=0; while cat /proc/[0-9]*/stat 2>/dev/null | grep -q "^[0-9]* ([a-z]*) Z $ppid "; do n=$((n+1)); [ $n -gt 200 ] && exit 1; sleep 0.05; done
(sleep 98.7 & echo $! >"$0"); read orphan <"$0"
awk -v w=$ppid '{exit $4 != w}' /proc/$orphan/stat; adopted=$?; kill $orphan; exit $adopted`
	got := outcomeOf(t, guarded(t, "sh", "-c", mine, filepath.Join(t.TempDir(), "pid")), "")
	if got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// onTerminal runs cmd on a terminal of its own, with keys to type. script(1) drops what is
// still on its way to it when the program ends, so no program here ends before it was heard.
// It starts a shell, which must not stay before the program: the keys would reach it too.
func onTerminal(t *testing.T, cmd *exec.Cmd) (w *talk, keys io.Writer) {
	t.Helper()
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("script(1) is not installed")
	}
	quoted := make([]string, len(cmd.Args))
	for i, a := range cmd.Args {
		quoted[i] = "'" + a + "'"
	}
	on := exec.Command("script", "-qec", "exec "+strings.Join(quoted, " "), "/dev/null")
	keys, err := on.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return talkTo(t, on), keys
}

// A terminal stays a terminal.
func TestTerminal(t *testing.T) {
	// tpgid == pgrp: still in the foreground.
	argv := []string{"sh", "-c", `test -t 0 && test -t 1 && tty >/dev/null && stty -echo && echo foreground $(awk "{print (\$5 == \$8)}" /proc/$$/stat); read heard; exit 5`}
	for name, cmd := range map[string]*exec.Cmd{"bare": exec.Command(argv[0], argv[1:]...), "guarded": guarded(t, argv...)} {
		w, keys := onTerminal(t, cmd)
		w.expect(t, "foreground 1")
		if _, err := io.WriteString(keys, "heard\n"); err != nil {
			t.Fatal(err)
		}
		for range w.lines { // to its end
		}
		if _ = w.cmd.Wait(); w.cmd.ProcessState.ExitCode() != 5 {
			t.Errorf("%s: %v", name, w.cmd.ProcessState)
		}
	}
}

// The keys of a terminal reach the worker once, as without the guard: the second Ctrl-C
// means "at once" to many programs. The worker asks the wrapper for USR1, which comes
// behind all that it had still to send.
func TestAKeyReachesTheWorkerOnce(t *testing.T) {
	for key, name := range map[string]string{"\x03": "INT", "\x1c": "QUIT"} {
		file := filepath.Join(t.TempDir(), "worker")
		if err := os.WriteFile(file, []byte("n=0; trap 'n=$((n+1)); kill -USR1 $PPID' "+name+
			"; trap 'echo $n times' USR1; stty -echo; echo ready; for i in {1..3000}; do sleep 0.02; done"), 0o600); err != nil {
			t.Fatal(err)
		}
		w, keys := onTerminal(t, guarded(t, "bash", file))
		w.expect(t, "ready")
		if _, err := io.WriteString(keys, key); err != nil {
			t.Fatal(err)
		}
		w.expect(t, "1 times")
	}
}
