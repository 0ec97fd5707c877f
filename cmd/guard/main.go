// Command guard holds a pod's right to work on its window.
//
//	guard sidecar   in a pod, as the injected container; configured by the environment:
//	                  ONCEGUARD_CONFIG    what the webhook decided (JSON, no secret)
//	                  ONCEGUARD_POD_NAME, ONCEGUARD_POD_UID, ONCEGUARD_NODE
//	                and by the ledger's Secret, mounted at /etc/onceguard/ledger
//	guard install   copies guard-exec into the volume that workers mount
//	guard run …     one command, without Kubernetes; see guard run -h. The ledger's URL is
//	                read from the file of --ledger-url-file or ONCEGUARD_LEDGER_URL_FILE,
//	                else from ONCEGUARD_LEDGER_URL
//	guard version
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// version is set by the linker.
var version = "dev"

// exitUsage is for a command line that is not understood.
const exitUsage = 64

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), time.Now(), os.Stdout, os.Stderr))
}

func run(ctx context.Context, args, env []string, started time.Time, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "sidecar":
		return sidecar(ctx, environment(env), inPod, stderr)
	case "install":
		return install(stderr)
	case "run":
		return runCommand(ctx, args, env, started, stderr)
	case "version", "--version":
		_, _ = fmt.Fprintln(stdout, version)
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "guard: %q is not a command; use sidecar, install, run or version\n", command)
	return exitUsage
}

// environment looks a variable up; the last of equal names counts, as in exec.
func environment(env []string) func(string) string {
	return func(name string) string {
		value := ""
		for _, e := range env {
			if len(e) > len(name) && e[len(name)] == '=' && e[:len(name)] == name {
				value = e[len(name)+1:]
			}
		}
		return value
	}
}
