package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/guard"
	"github.com/onceguard/onceguard/pkg/logs"
	"github.com/onceguard/onceguard/pkg/window"
)

// sidecar is the injected container. It ends after SIGTERM only.
func sidecar(ctx context.Context, env func(string) string, at paths, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A log that nobody reads any more is no reason to end.
	signal.Ignore(syscall.SIGPIPE)
	log := logs.New(stderr, zapcore.InfoLevel)
	config, err := guard.ParseConfig(env(contract.EnvConfig))
	if err != nil {
		// To end would be a crash loop that hangs the Job. Every wrapped container says
		// the reason instead and exits as refused.
		config.Refusal = fmt.Sprintf("the guard's configuration is not valid: %s", err)
	}
	if config.Refusal != "" {
		log.Error("refused", zap.String(logs.FieldJobName, config.JobName), zap.String("reason", config.Refusal))
	} else {
		log.Info(guard.Meaning(config), append(logs.Window(window.Window{JobName: config.JobName, Start: config.WindowStart}),
			zap.String("trigger", string(config.Trigger)), zap.String("source", string(config.Source)), zap.String("job", config.Job),
			zap.String("schedule", config.Schedule), zap.String("time_zone", config.TimeZone))...)
	}
	name := env(contract.EnvPodName)
	p := pod{
		config: config, origin: originOf(config, env), name: config.Namespace + "/" + name,
		source: secretFile(config, at.ledger), where: secretPlace(config), paths: at, log: log,
	}
	o, err := p.open()
	if err != nil {
		log.Error("the guard cannot start", zap.Error(err))
		return 1
	}
	o.serve(ctx)
	return 0
}

func originOf(c contract.GuardConfig, env func(string) string) claim.Origin {
	return claim.Origin{
		Trigger: c.Trigger, Source: c.Source, WindowEnd: c.WindowEnd, Schedule: c.Schedule, TimeZone: c.TimeZone, DST: c.DST,
		Namespace: c.Namespace, Job: c.Job, JobUID: c.JobUID,
		Pod: env(contract.EnvPodName), PodUID: env(contract.EnvPodUID), Node: env(contract.EnvNode),
	}
}

// secretFile reads the ledger's URL from the mounted Secret, anew for each connection,
// so that a Secret that is created or changed later is seen. The mount is optional:
// kubelet would only say that a volume is missing, the guard can name the cure.
func secretFile(c contract.GuardConfig, dir string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		key := secretKey(c)
		b, err := os.ReadFile(filepath.Join(dir, filepath.Base(key)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("Secret %q in namespace %q is missing or has no key %q; create it: kubectl -n %s create secret generic %s --from-file=%s=FILE_WITH_THE_URL", //nolint:staticcheck // Secret is a name
				c.Secret, c.Namespace, key, c.Namespace, c.Secret, key)
		case err != nil:
			return "", fmt.Errorf("%s cannot be read: %w", secretPlace(c), err)
		}
		return string(b), nil
	}
}

func secretKey(c contract.GuardConfig) string { return cmp.Or(c.SecretKey, contract.LedgerKey) }

// secretPlace names the place of the ledger's URL for people.
func secretPlace(c contract.GuardConfig) string {
	return fmt.Sprintf("key %q of Secret %q in namespace %q", secretKey(c), c.Secret, c.Namespace)
}
