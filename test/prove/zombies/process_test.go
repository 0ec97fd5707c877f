package zombies_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceguard/onceguard/test/prove/rig"
)

// process is a running zombie.
type process struct {
	job   job
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

func (w *world) start(t *testing.T, j job) *process {
	t.Helper()
	j.URL, j.Lease = w.url, lease
	description, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), zombieEnv+"="+string(description))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{job: j, cmd: cmd, in: in, lines: make(chan string, 16)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	return p
}

// after gives the rest of the next line, which must begin with prefix.
func (p *process) after(t *testing.T, prefix string) string {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		rest, found := strings.CutPrefix(line, prefix)
		if !ok || !found {
			t.Fatalf("the process said %q, not %q", line, prefix)
		}
		return rest
	case <-time.After(rig.Patience):
		t.Fatalf("the process did not say %q", prefix)
	}
	return ""
}

func (p *process) expect(t *testing.T, line string) {
	t.Helper()
	if rest := p.after(t, line); rest != "" {
		t.Fatalf("the process said %q", line+rest)
	}
}

// freeze stops the process and waits until it stands.
func (p *process) freeze(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rig.Until(t, "the process is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}

// thaw lets it go on, past the point where it waits.
func (p *process) thaw(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.in, "go\n"); err != nil {
		t.Fatal(err)
	}
}
