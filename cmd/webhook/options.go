package main

import (
	"flag"
	"io"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/inject"
)

// options of serve.
type options struct {
	listen, healthListen      string
	namespace, service        string
	certSecret                string
	webhookConfigs            []string
	webhookConfigsText        string
	guard                     inject.Guard
	excluded                  []string
	logLevel                  zapcore.Level
	drain                     time.Duration
	kubeconfig                string
	pullPolicy, resources     string // as text
	pullSecrets, excludedText string
	level                     string
}

// serveOptions reads flags over the environment over defaults, and checks the whole.
func serveOptions(args []string, env map[string]string) (options, error) {
	o := options{guard: inject.Guard{Resources: inject.DefaultResources()}}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	text := textFlags(flags, env)
	var drain string
	text(&o.listen, "listen", "ONCEGUARD_LISTEN", ":9443")
	text(&o.healthListen, "health-listen", "ONCEGUARD_HEALTH_LISTEN", ":8081")
	text(&o.namespace, "namespace", "ONCEGUARD_NAMESPACE", "")
	text(&o.service, "service", "ONCEGUARD_SERVICE", "onceguard-webhook")
	text(&o.webhookConfigsText, "webhook-config", "ONCEGUARD_WEBHOOK_CONFIG", "onceguard")
	text(&o.certSecret, "cert-secret", "ONCEGUARD_CERT_SECRET", "onceguard-webhook-ca")
	text(&o.guard.Image, "guard-image", "ONCEGUARD_GUARD_IMAGE", "")
	text(&o.pullPolicy, "guard-pull-policy", "ONCEGUARD_GUARD_PULL_POLICY", string(corev1.PullIfNotPresent))
	text(&o.pullSecrets, "guard-pull-secrets", "ONCEGUARD_GUARD_PULL_SECRETS", "")
	text(&o.resources, "guard-resources", "ONCEGUARD_GUARD_RESOURCES", "")
	text(&o.guard.LedgerSecretPrefix, "ledger-secret-prefix", "ONCEGUARD_LEDGER_SECRET_PREFIX", contract.LedgerSecretPrefix)
	text(&o.guard.Cluster, "cluster", "ONCEGUARD_CLUSTER", "")
	text(&o.guard.LogLanguage, "log-language", "ONCEGUARD_LOG_LANGUAGE", "en")
	text(&o.excludedText, "excluded-namespaces", "ONCEGUARD_EXCLUDED_NAMESPACES", "kube-system")
	text(&o.level, "log-level", "ONCEGUARD_LOG_LEVEL", "info")
	text(&drain, "drain", "ONCEGUARD_DRAIN", "5s")
	text(&o.kubeconfig, "kubeconfig", "KUBECONFIG", "")
	if err := flags.Parse(args); err != nil {
		return o, usageError{err}
	}
	if flags.NArg() > 0 {
		return o, usage("unexpected argument %q", flags.Arg(0))
	}
	return o, o.check(drain)
}

func (o *options) check(drain string) error {
	var err error
	if o.drain, err = time.ParseDuration(drain); err != nil || o.drain < 0 || o.drain > 5*time.Minute {
		return usage("--drain: %q is not a duration from 0s to 5m", drain)
	}
	if o.guard.Image == "" {
		return usage("--guard-image (or ONCEGUARD_GUARD_IMAGE) is missing: the image of the injected containers")
	}
	if o.namespace == "" {
		return usage("--namespace (or ONCEGUARD_NAMESPACE) is missing: the namespace this program runs in")
	}
	for name, value := range map[string]string{"--namespace": o.namespace, "--service": o.service} {
		if len(validation.IsDNS1123Label(value)) > 0 {
			return usage("%s: %q is not a name that Kubernetes accepts", name, value)
		}
	}
	for name, value := range map[string]string{"--cert-secret": o.certSecret, "--ledger-secret-prefix (with a ledger's name)": o.guard.LedgerSecretPrefix + contract.DefaultLedger} {
		if len(validation.IsDNS1123Subdomain(value)) > 0 {
			return usage("%s: %q is not a name that Kubernetes accepts", name, value)
		}
	}
	if o.guard.Cluster != "" && len(validation.IsDNS1123Subdomain(o.guard.Cluster)) > 0 {
		return usage("--cluster: %q is not a name; use lower-case letters, digits, '-' and '.'", o.guard.Cluster)
	}
	o.guard.PullPolicy = corev1.PullPolicy(o.pullPolicy)
	if !slices.Contains([]corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}, o.guard.PullPolicy) {
		return usage("--guard-pull-policy: %q is none of Always, IfNotPresent, Never", o.pullPolicy)
	}
	if !slices.Contains([]string{"en", "zh"}, o.guard.LogLanguage) {
		return usage("--log-language: %q is none of en, zh", o.guard.LogLanguage)
	}
	if o.logLevel, err = zapcore.ParseLevel(o.level); err != nil {
		return usage("--log-level: %q is none of debug, info, warn, error", o.level)
	}
	if o.resources != "" {
		o.guard.Resources = corev1.ResourceRequirements{}
		if err := yaml.UnmarshalStrict([]byte(o.resources), &o.guard.Resources); err != nil {
			return usage("--guard-resources: %q are no ResourceRequirements: %v", o.resources, err)
		}
	}
	if o.webhookConfigs, err = names("--webhook-config", o.webhookConfigsText); err != nil {
		return err
	}
	if len(o.webhookConfigs) == 0 {
		return usage("--webhook-config: %q names no MutatingWebhookConfiguration", o.webhookConfigsText)
	}
	if o.guard.PullSecrets, err = names("--guard-pull-secrets", o.pullSecrets); err != nil {
		return err
	}
	o.excluded, err = names("--excluded-namespaces", o.excludedText)
	return err
}

// textFlags gives a function that defines a flag whose default the environment may replace.
func textFlags(flags *flag.FlagSet, env map[string]string) func(to *string, name, variable, def string) {
	return func(to *string, name, variable, def string) {
		if v, ok := env[variable]; ok && v != "" {
			def = v
		}
		flags.StringVar(to, name, def, variable)
	}
}

// names reads a comma-separated list of Kubernetes names.
func names(flag, text string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if len(validation.IsDNS1123Subdomain(part)) > 0 {
			return nil, usage("%s: %q is not a name that Kubernetes accepts", flag, part)
		}
		out = append(out, part)
	}
	return out, nil
}
