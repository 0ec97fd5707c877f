// Command cluster builds and runs a real Kubernetes node for Onceguard's tests and
// demo: etcd, the control plane, containerd, kubelet and kube-proxy, each built from
// its Go module, in one network namespace that nothing else on the machine notices.
//
// See README.md for what it needs and how it is used.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command and returns the exit code: 0 done, 1 failed, 2 a wrong
// command line, 3 "status" of a cluster that is not up.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	cmd := rootCommand(env, stdout, stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNotUp):
		fmt.Fprintln(stderr, "cluster:", err)
		return 3
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "cluster:", err)
		return 2
	default:
		fmt.Fprintln(stderr, "cluster:", err)
		return 1
	}
}

// usageError is a command line that cannot be carried out as it is written.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}
