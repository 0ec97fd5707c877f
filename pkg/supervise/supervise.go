// Package supervise runs one command the way a good init of a container does: it
// forks and executes without a shell, leaves stdin, terminal, process group and
// limits as they are, passes signals on to the command's own process, reaps every
// orphan, and tells the exit code as Kubernetes shows it.
//
// The first Start makes the calling program the reaper of all its children
// (wait4(-1)). Such a program must not use os/exec: the two would take each other's
// exit status.
package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Status is how a process ended.
type Status struct {
	Code   int            // as Kubernetes shows it: 128+n when signal n ended it
	Signal syscall.Signal // 0 unless a signal ended it
}

func status(ws syscall.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	}
	return Status{Code: ws.ExitStatus()}
}

// Process is a started command.
type Process struct {
	pid  int
	done chan struct{}

	// Guarded by family.mu.
	reaped   bool // its pid may belong to another process by now
	stopping bool
	kill     *time.Timer

	status Status // valid once done is closed
}

// family is every process this program has started and not reaped yet.
var family = struct {
	mu    sync.Mutex
	once  sync.Once
	procs map[int]*Process
}{procs: map[int]*Process{}}

// Start executes argv with env and this program's stdin, stdout, stderr and working
// directory. It returns once the new program is executing; a failure is a
// *StartError. Signals are not passed on by themselves: see Catch and Forward.
func Start(argv, env []string) (*Process, error) {
	if len(argv) == 0 {
		return nil, startError("", os.ErrNotExist)
	}
	file, err := Lookup(argv[0], env)
	if err != nil {
		return nil, err
	}
	family.once.Do(func() {
		adoptOrphans()
		// Before the fork, so that the first death cannot be missed; a channel of one
		// is enough because reap looks at all that died.
		died := make(chan os.Signal, 1)
		signal.Notify(died, syscall.SIGCHLD)
		go func() {
			for range died {
				reap()
			}
		}()
	})

	family.mu.Lock() // held over the fork: nobody reaps what is not registered yet
	defer family.mu.Unlock()
	// syscall.ForkExec gives the child default signal handlers, an empty mask and the
	// RLIMIT_NOFILE that Go's runtime raised for itself at start.
	pid, err := syscall.ForkExec(file, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s, or the interpreter it names: %w", file, err)
		}
		return nil, startError(argv[0], err)
	}
	p := &Process{pid: pid, done: make(chan struct{})}
	family.procs[pid] = p
	return p, nil
}

// reap collects everything that died: commands and adopted orphans.
func reap() {
	family.mu.Lock()
	defer family.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil || pid == 0: // no children at all, or none that died
			return
		}
		if p := family.procs[pid]; p != nil {
			delete(family.procs, pid)
			p.end(status(ws))
		}
	}
}

// end runs with family.mu held.
func (p *Process) end(s Status) {
	p.reaped, p.status = true, s
	if p.kill != nil {
		p.kill.Stop()
	}
	if !p.stopping {
		close(p.done)
		return
	}
	go func() { // reaping needs the lock
		killChildren()
		close(p.done)
	}()
}

// killChildren ends what a stopped command left behind. Orphans come to us, so the
// children of whom we kill are next, until none is left.
func killChildren() {
	for range 200 { // two seconds: who is still there hangs in the kernel
		pids := children()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// PID is the command's process id.
func (p *Process) PID() int { return p.pid }

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is valid once Done is closed.
func (p *Process) Status() Status { return p.status }

// Signal sends sig to the command's own process, never to its group: a script that
// traps TERM to clean up after its children must find them alive. Once the command
// has ended it does nothing.
func (p *Process) Signal(sig syscall.Signal) {
	family.mu.Lock()
	defer family.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(p.pid, sig) // fails only for a zombie about to be reaped
	}
}

// Forward is Signal for a signal this program got. A stop from the terminal stops
// this program too, or the shell that started it would wait for ever.
//
// The keys of a terminal (Ctrl-C, Ctrl-\, Ctrl-Z) signal its whole foreground group.
// As long as the command is in it with this program, such a signal is taken for a key
// and not sent a second time, which many commands understand as "at once". So use TERM
// to end a command in the foreground by kill(1). Process 1 of a container sends all:
// there it may be the runtime's stop signal, which must not be lost; attached to such a
// terminal, and outside of Linux, a key counts twice.
func (p *Process) Forward(sig syscall.Signal) {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP:
		if group, err := syscall.Getpgid(p.pid); err != nil || group != syscall.Getpgrp() || os.Getpid() == 1 || !foreground() {
			p.Signal(sig)
		}
	default:
		p.Signal(sig)
	}
	switch sig {
	case syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // no effect on process 1
	}
}

// Stop ends the command because its right to run has ended: TERM now, KILL after
// grace. When it is gone, everything it left behind is killed too before Done is
// closed. Safe because these are exactly our children: orphans are adopted (process
// 1 of its namespace, elsewhere a subreaper; outside of Linux they escape). Asking
// again can only bring KILL forward.
func (p *Process) Stop(grace time.Duration) {
	family.mu.Lock()
	if p.reaped {
		family.mu.Unlock()
		return
	}
	again := p.stopping
	p.stopping = true
	kill := time.AfterFunc(grace, func() { p.Signal(syscall.SIGKILL) })
	if p.kill == nil {
		p.kill = kill
	} // a second timer that fires late finds the process gone
	family.mu.Unlock()
	if !again {
		p.Signal(syscall.SIGTERM)
		p.Signal(syscall.SIGCONT) // a suspended process would not see TERM
	}
}
