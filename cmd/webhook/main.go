// Command webhook is Onceguard's control-plane program.
//
//	webhook serve    answer the API server, stamp CronJobs, write Events
//	webhook engine   give every due window its answer, and make Jobs for those to be run later
//	webhook migrate  bring a ledger to this version's schema (the owner's URL from a file)
//	webhook version
//
// # serve
//
// Each flag may come from the environment instead; the flag wins.
//
//	--listen                ONCEGUARD_LISTEN                :9443, HTTPS for the API server
//	--health-listen         ONCEGUARD_HEALTH_LISTEN         :8081, HTTP: /healthz, /readyz
//	--namespace             ONCEGUARD_NAMESPACE             required; where this program runs
//	--service               ONCEGUARD_SERVICE               onceguard-webhook; its Service, for the certificate's names
//	--webhook-config        ONCEGUARD_WEBHOOK_CONFIG        onceguard; the MutatingWebhookConfigurations whose caBundle it keeps, comma-separated, that of pods first
//	--cert-secret           ONCEGUARD_CERT_SECRET           onceguard-webhook-ca; made by itself
//	--guard-image           ONCEGUARD_GUARD_IMAGE           required; the image of the injected containers
//	--guard-pull-policy     ONCEGUARD_GUARD_PULL_POLICY     IfNotPresent; Always or Never
//	--guard-pull-secrets    ONCEGUARD_GUARD_PULL_SECRETS    names, comma-separated; Secrets in the pods' own namespace
//	--guard-resources       ONCEGUARD_GUARD_RESOURCES       ResourceRequirements as JSON or YAML
//	--ledger-secret-prefix  ONCEGUARD_LEDGER_SECRET_PREFIX  onceguard-ledger-; with the ledger's name: the Secret in the pods' namespace
//	--cluster               ONCEGUARD_CLUSTER               empty; prefix of job names where clusters must not share windows
//	--log-language          ONCEGUARD_LOG_LANGUAGE          en; or zh, for the guard's fixed texts
//	--excluded-namespaces   ONCEGUARD_EXCLUDED_NAMESPACES   kube-system; comma-separated, same as in the webhook configuration
//	--log-level             ONCEGUARD_LOG_LEVEL             info; debug, warn, error
//	--drain                 ONCEGUARD_DRAIN                 5s; how long to serve on after SIGTERM, while endpoints are updated
//	--kubeconfig            KUBECONFIG                      empty: the pod's ServiceAccount
//
// Annotating a CronJob in an excluded namespace must not be ignored, but the hooks
// are not called there: the chart's ValidatingAdmissionPolicy refuses it.
//
// # engine
//
// It runs beside serve, under a ServiceAccount of its own. Of several one leads, by a Lease.
//
//	--ledgers-dir           ONCEGUARD_LEDGERS_DIR           /etc/onceguard/ledgers; a directory per ledger, with the file url
//	--namespaces            ONCEGUARD_NAMESPACES            empty: all; comma-separated, those whose CronJobs it looks after
//	--excluded-namespaces   ONCEGUARD_EXCLUDED_NAMESPACES   kube-system; comma-separated, those that it leaves alone
//	--namespace             ONCEGUARD_NAMESPACE             required; where this program runs, and its Lease is
//	--lease-name            ONCEGUARD_LEASE_NAME            onceguard-engine
//	--health-listen         ONCEGUARD_HEALTH_LISTEN         :8081, HTTP: /healthz, /readyz
//	--log-level             ONCEGUARD_LOG_LEVEL             info; debug, warn, error
//	--kubeconfig            KUBECONFIG                      empty: the pod's ServiceAccount
//
// # migrate
//
//	--url-file FILE           the URL of the ledger's owner; never an argument, never in the log
//	--grant ROLE=PATTERN      let a role use the jobs that match, like shop_jobs=shop/*; may be repeated
//	--grant-audit ROLE        let a role read all of the record; may be repeated
//	--grant-engine ROLE       let a role be the windows engine's; may be repeated
//	--timeout                 5m for everything
//
// Exit codes: 0 done, 1 failed, 2 a wrong command line.
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
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is a command line that cannot be carried out as it is written.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run executes one command line and returns the exit code.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	err := command(ctx, args, environ(env), stdout, stderr)
	var wrong usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintln(stderr, "error:", err)
		return 2
	default:
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
}

func command(ctx context.Context, args []string, env map[string]string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usage("give a command: serve, engine, migrate or version")
	}
	switch args[0] {
	case "serve":
		o, err := serveOptions(args[1:], env)
		if err != nil {
			return err
		}
		return serve(ctx, o, stderr)
	case "engine":
		o, err := readEngineOptions(args[1:], env)
		if err != nil {
			return err
		}
		return runEngine(ctx, o, stderr)
	case "migrate":
		o, err := migrateOptions(args[1:])
		if err != nil {
			return err
		}
		return runMigrate(ctx, o, stderr)
	case "version", "--version":
		_, err := fmt.Fprintln(stdout, version)
		return err
	default:
		return usage("unknown command %q; there are serve, engine, migrate and version", args[0])
	}
}

func environ(env []string) map[string]string {
	out := map[string]string{}
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok {
			out[k] = v
		}
	}
	return out
}
