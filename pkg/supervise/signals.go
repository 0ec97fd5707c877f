package supervise

import (
	"os"
	"os/signal"
	"syscall"
)

// Catch takes over every signal a program can catch, except those of the runtime
// itself (SIGCHLD, SIGURG). Call it first of all: what arrives before the command
// is started is kept. The channel holds a storm of any length, since equal pending
// signals are one, as in the kernel.
//
// A SIGHUP or SIGINT that was ignored when the program began (nohup) is left so, and
// the command inherits that. SIGPIPE is caught and dropped: it would be our own,
// from writing to a guard or a log reader that went away, and not the worker's.
func Catch() <-chan os.Signal {
	var all []os.Signal
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE:
		default:
			if !signal.Ignored(n) {
				all = append(all, n)
			}
		}
	}
	caught := make(chan os.Signal, 256)
	signal.Notify(caught, all...)
	// Notify and not Ignore: an ignored signal would stay ignored in the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return caught
}
