// Command kubectl-onceguard is the kubectl plugin that reads the record: which windows
// of which jobs were done, tried, skipped or are running, and why; and by which people
// decide about them.
//
//	kubectl onceguard windows [-n NS | -A] [--job NAME] [--state done,held,failed] [--since 24h]
//	kubectl onceguard show JOB WINDOW
//	kubectl onceguard gaps [JOB] [-n NS | -A] [--since 7d] [--late] [--fail]
//	kubectl onceguard explain JOB WINDOW
//	kubectl onceguard rerun JOB WINDOW --reason TEXT [--by NAME] [--dry-run]
//	kubectl onceguard cancel JOB WINDOW --reason TEXT [--by NAME] [--dry-run]
//	kubectl onceguard release JOB WINDOW --reason TEXT [--by NAME] [--dry-run]
//	kubectl onceguard backfill JOB --from INSTANT --to INSTANT --reason TEXT [--reprocess none|failed|completed] [--cancel] [--detach] [--dry-run]
//	kubectl onceguard prune {JOB | --all [-A]} {--before INSTANT | --older-than 90d} [--dry-run]
//	kubectl onceguard migrate
//	kubectl onceguard grant ROLE [PATTERN] [--audit] [--revoke]
//	kubectl onceguard version
//
// The ledger's URL comes from --ledger-url-file, else from the environment variable
// ONCEGUARD_LEDGER_URL, else from the Secret onceguard-ledger-default (--secret) of
// the namespace. It is never printed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code: 0 done, 1 failed, 2 a
// wrong command line.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{env: env, stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now}
	root := p.rootCommand() //nolint:contextcheck // cobra hands the context to each command
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "error: %v\nSee kubectl onceguard --help\n", err)
		return 2
	default:
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
}

// usageError is a command line that cannot be carried out as it is written.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// getenv gives the last value of key, as the C library does.
func getenv(env []string, key string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v
		}
	}
	return ""
}
