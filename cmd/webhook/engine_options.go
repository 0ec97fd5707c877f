package main

import (
	"flag"
	"io"
	"slices"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/validation"
)

// engineOptions are the options of engine.
type engineOptions struct {
	healthListen         string
	ledgersDir           string
	namespace, leaseName string
	namespaces, excluded []string
	logLevel             zapcore.Level
	kubeconfig           string
	level                string // as text
	only, except         string
}

// readEngineOptions reads flags over the environment over defaults, and checks the whole.
func readEngineOptions(args []string, env map[string]string) (engineOptions, error) {
	var o engineOptions
	flags := flag.NewFlagSet("engine", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	text := textFlags(flags, env)
	text(&o.healthListen, "health-listen", "ONCEGUARD_HEALTH_LISTEN", ":8081")
	text(&o.ledgersDir, "ledgers-dir", "ONCEGUARD_LEDGERS_DIR", "/etc/onceguard/ledgers")
	text(&o.namespace, "namespace", "ONCEGUARD_NAMESPACE", "")
	text(&o.leaseName, "lease-name", "ONCEGUARD_LEASE_NAME", "onceguard-engine")
	text(&o.only, "namespaces", "ONCEGUARD_NAMESPACES", "")
	text(&o.except, "excluded-namespaces", "ONCEGUARD_EXCLUDED_NAMESPACES", "kube-system")
	text(&o.level, "log-level", "ONCEGUARD_LOG_LEVEL", "info")
	text(&o.kubeconfig, "kubeconfig", "KUBECONFIG", "")
	if err := flags.Parse(args); err != nil {
		return o, usageError{err}
	}
	if flags.NArg() > 0 {
		return o, usage("unexpected argument %q", flags.Arg(0))
	}
	return o, o.check()
}

func (o *engineOptions) check() error {
	if o.namespace == "" {
		return usage("--namespace (or ONCEGUARD_NAMESPACE) is missing: the namespace this program runs in")
	}
	if len(validation.IsDNS1123Label(o.namespace)) > 0 {
		return usage("--namespace: %q is not a name that Kubernetes accepts", o.namespace)
	}
	if len(validation.IsDNS1123Subdomain(o.leaseName)) > 0 {
		return usage("--lease-name: %q is not a name that Kubernetes accepts", o.leaseName)
	}
	var err error
	if o.logLevel, err = zapcore.ParseLevel(o.level); err != nil {
		return usage("--log-level: %q is none of debug, info, warn, error", o.level)
	}
	if o.namespaces, err = names("--namespaces", o.only); err != nil {
		return err
	}
	slices.Sort(o.namespaces)
	o.namespaces = slices.Compact(o.namespaces) // each is watched once
	if o.excluded, err = names("--excluded-namespaces", o.except); err != nil {
		return err
	}
	for _, n := range o.namespaces {
		if slices.Contains(o.excluded, n) {
			return usage("--namespaces: %q is also one of --excluded-namespaces: take it out of one of them", n)
		}
	}
	return nil
}
