package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/logs"
	"github.com/onceguard/onceguard/pkg/migrate"
)

// grant lets role use the jobs that match pattern.
type grant struct{ role, pattern string }

type migration struct {
	urlFile string
	grants  []grant
	audit   []string
	engine  []string
	timeout time.Duration
}

func migrateOptions(args []string) (migration, error) {
	var m migration
	flags := flag.NewFlagSet("migrate", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&m.urlFile, "url-file", "", "")
	flags.DurationVar(&m.timeout, "timeout", 5*time.Minute, "")
	flags.Func("grant", "", func(v string) error {
		role, pattern, ok := strings.Cut(v, "=")
		if !ok || role == "" || pattern == "" {
			return errors.New("give ROLE=PATTERN, like shop_jobs=shop/*")
		}
		m.grants = append(m.grants, grant{role, pattern})
		return nil
	})
	for name, roles := range map[string]*[]string{"grant-audit": &m.audit, "grant-engine": &m.engine} {
		flags.Func(name, "", func(v string) error {
			if v == "" {
				return errors.New("give the name of a role")
			}
			*roles = append(*roles, v)
			return nil
		})
	}
	if err := flags.Parse(args); err != nil {
		return m, usageError{err}
	}
	switch {
	case flags.NArg() > 0:
		return m, usage("unexpected argument %q", flags.Arg(0))
	case m.urlFile == "":
		return m, usage("--url-file is missing: the file with the connection URL of the ledger's owner")
	case m.timeout <= 0:
		return m, usage("--timeout: %s is not positive", m.timeout)
	}
	return m, nil
}

func runMigrate(ctx context.Context, m migration, stderr io.Writer) error {
	log := logs.New(stderr, zapcore.InfoLevel)
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	text, err := os.ReadFile(m.urlFile)
	if err != nil {
		return fmt.Errorf("--url-file: %w", err)
	}
	url := strings.TrimSpace(string(text))
	if url == "" {
		return fmt.Errorf("--url-file: %s is empty; it must hold a connection URL like postgres://owner:password@host:5432/database", m.urlFile)
	}
	from, to, err := migrate.Up(ctx, url, log)
	if err != nil {
		return fmt.Errorf("migrating the ledger: %w", err)
	}
	log.Info("ledger migrated", zap.Int("from", from), zap.Int("to", to))
	for _, g := range m.grants {
		if err := migrate.GrantJob(ctx, url, g.role, g.pattern); err != nil {
			return fmt.Errorf("--grant %s=%s: %w", g.role, g.pattern, err)
		}
		log.Info("jobs granted", zap.String("role", g.role), zap.String("pattern", g.pattern))
	}
	for _, role := range m.audit {
		if err := migrate.GrantAudit(ctx, url, role); err != nil {
			return fmt.Errorf("--grant-audit %s: %w", role, err)
		}
		log.Info("record granted", zap.String("role", role))
	}
	for _, role := range m.engine {
		if err := migrate.GrantEngine(ctx, url, role); err != nil {
			return fmt.Errorf("--grant-engine %s: %w", role, err)
		}
		log.Info("windows engine granted", zap.String("role", role))
	}
	return nil
}
