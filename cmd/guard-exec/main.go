// Command guard-exec runs a worker under the guard of its pod. It lives in the
// worker's container and memory, so it is small: standard library only, and of that
// neither net nor os/exec.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
	"github.com/onceguard/onceguard/pkg/wrapper"
)

const usage = `guard-exec runs a command when the guard of this pod says so, and tells it how the command ended.

  guard-exec --container=NAME [options] -- COMMAND [ARGUMENT…]
      --kind=worker|init        what kind of container this is (worker)
      --termination-log=PATH    where to leave the reason when COMMAND is not run or is stopped (/dev/termination-log)
      --guard-wait=DURATION     how long no guard may say a word before giving up with 75 (5m)
      --ack-wait=DURATION       how long to wait for the guard to record the end (30s)
      --socket=PATH             where the guard listens (/onceguard/exec.sock)
  guard-exec hook --container=NAME [--no-wait] -- COMMAND [ARGUMENT…]
      a lifecycle hook: runs COMMAND only if the container's worker runs; --no-wait: only if that is known already
  guard-exec wait --container=NAME
      waits for the verdict: 0 for run and skip, else the refusal's code
  guard-exec commit [options]
      commits business writes and the window in one transaction; see guard-exec commit --help
  guard-exec copy --table T [options] < FILE
      puts rows in CSV into a table and completes the window, in one transaction; see guard-exec copy --help
  guard-exec checkpoint [get|put JSON]
      how far the work has come, for jobs that commit in pieces; see guard-exec checkpoint --help
  guard-exec status
      prints the window as JSON

Exit codes: those of COMMAND, 128+n when signal n ended it, 126 not executable, 127 not found;
0 skipped, the window is done or held; 75 try again later; 78 refused, trying again makes no sense.
`

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name, rest := "", args
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, rest = args[0], args[1:]
	}
	var err error
	code := 0
	switch name {
	case "commit":
		code, err = commit(ctx, rest, env, stdin, stdout)
	case "copy":
		code, err = copyRows(ctx, rest, env, stdin, stdout)
	case "checkpoint":
		code, err = checkpoint(ctx, rest, env, stdout)
	case "status":
		code, err = status(ctx, rest, env, stdout)
	case "", "hook", "wait":
		code, err = wrap(ctx, name, rest, env, stdout, stderr)
	default:
		err = usageError{fmt.Errorf("unknown command %q: known are hook, wait, commit, copy, checkpoint and status; a command to run stands behind --", name)}
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "guard-exec: %v\n", err)
	}
	return exitCode(code, err)
}

// wrap runs everything that talks to the guard by package wire.
func wrap(ctx context.Context, name string, args, env []string, stdout, stderr io.Writer) (int, error) {
	o := wrapper.Options{
		Socket: contract.PathExecSocket, Kind: wire.KindWorker, Env: env, Stderr: stderr,
		TerminationLog: "/dev/termination-log",
	}
	fs := flags{"container": text(&o.Container), "socket": text(&o.Socket), "guard-wait": duration(&o.GuardWait)}
	switch name {
	case "hook":
		o.Kind = wire.KindHook
		fs["no-wait"] = yes(&o.NoWait)
	case "wait":
		o.Kind = wire.KindWait
		fs["termination-log"] = text(&o.TerminationLog)
	default:
		fs["kind"] = oneOf(&o.Kind, wire.KindWorker, wire.KindInit)
		fs["termination-log"] = text(&o.TerminationLog)
		fs["ack-wait"] = duration(&o.AckWait)
	}
	argv, err := fs.parse(args)
	switch {
	case errors.Is(err, errHelp):
		_, err = io.WriteString(stdout, usage)
		return 0, err
	case err != nil:
		return 0, err
	case o.Container == "":
		return 0, usageError{fmt.Errorf("--container=NAME is missing: it says which container of the pod this is")}
	case o.Kind != wire.KindWait && len(argv) == 0:
		return 0, usageError{fmt.Errorf("no command to run: it stands behind --")}
	case o.Kind == wire.KindWait && len(argv) > 0:
		return 0, usageError{fmt.Errorf("wait runs no command, but there is %q", argv)}
	}
	o.Argv = argv
	return wrapper.Run(ctx, o), nil
}

// exitCode gives a usage error, which no retry mends, the code of a refusal.
func exitCode(code int, err error) int {
	switch _, usage := errors.AsType[usageError](err); {
	case usage:
		return contract.ExitRefused
	case err != nil && code == 0:
		return 1
	}
	return code
}

func duration(to *time.Duration) flag {
	return flag{set: func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a positive duration like 30s or 5m", v)
		}
		*to = d
		return nil
	}}
}
