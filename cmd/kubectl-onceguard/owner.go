package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/migrate"
)

func (p *program) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Create the ledger in a database, or bring it up to date",
		Long: `Create the ledger in a database, or bring it up to date.

Needs the URL of a role that may create schemas in the database, or that owns the
schema onceguard: not the login of the jobs. Running it again is harmless.`,
		Example: "  kubectl onceguard migrate --ledger-url-file owner.url",
		Args:    exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			return p.asOwner(c.Context(), func(ctx context.Context, src source) error {
				from, to, err := migrate.Up(ctx, src.url, zap.NewNop())
				if err != nil {
					return err
				}
				if from == to {
					fmt.Fprintf(p.stdout, "The ledger is up to date: version %d.\n", to)
				} else {
					fmt.Fprintf(p.stdout, "The ledger went from version %d to %d.\n", from, to)
				}
				return nil
			})
		},
	}
}

func (p *program) grantCommand() *cobra.Command {
	var audit, engine, revoke bool
	c := &cobra.Command{
		Use:   "grant ROLE [PATTERN]",
		Short: "Let a login act for jobs, read the record, or judge windows",
		Long: `Let a login act for the jobs of a pattern: "shop/order-sync", "shop/*" or "*".
With --audit the login may read the record of all jobs: what windows and show need.
With --engine it may judge the windows of all jobs: what the windows engine needs.
With --revoke the same is taken away again; other patterns of the login stand.

Needs the URL of the ledger's owner.`,
		Example: `  kubectl onceguard grant shop_jobs 'shop/*' --ledger-url-file owner.url
  kubectl onceguard grant oncall --audit --ledger-url-file owner.url
  kubectl onceguard grant onceguard_engine --engine --ledger-url-file owner.url
  kubectl onceguard grant shop_jobs 'shop/*' --revoke --ledger-url-file owner.url`,
		Args: func(c *cobra.Command, args []string) error {
			if (audit || engine) && len(args) == 1 {
				return nil
			}
			return exactly("ROLE", "PATTERN")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			return p.asOwner(c.Context(), func(ctx context.Context, src source) error {
				role, may := args[0], "may"
				job, read, judge := migrate.GrantJob, migrate.GrantAudit, migrate.GrantEngine
				if revoke {
					may, job, read, judge = "may no longer", migrate.RevokeJob, migrate.RevokeAudit, migrate.RevokeEngine
				}
				if len(args) > 1 {
					if err := job(ctx, src.url, role, args[1]); err != nil {
						return err
					}
					fmt.Fprintf(p.stdout, "%s %s act for jobs %s.\n", role, may, args[1])
				}
				if audit {
					if err := read(ctx, src.url, role); err != nil {
						return err
					}
					fmt.Fprintf(p.stdout, "%s %s read the record.\n", role, may)
				}
				if engine {
					if err := judge(ctx, src.url, role); err != nil {
						return err
					}
					fmt.Fprintf(p.stdout, "%s %s judge the windows of all jobs.\n", role, may)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&audit, "audit", false, "let the login read the record of all jobs")
	c.Flags().BoolVar(&engine, "engine", false, "let the login judge the windows of all jobs, as the windows engine does")
	c.Flags().BoolVar(&revoke, "revoke", false, "take the pattern, or what --audit and --engine give, away again")
	return c
}

// asOwner runs f with the ledger's URL; errors name where that was found.
func (p *program) asOwner(ctx context.Context, f func(context.Context, source) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	src, err := p.ledgerSource(ctx)
	if err != nil {
		return err
	}
	if err := f(ctx, src); err != nil {
		return fmt.Errorf("ledger of %s: %w", src.found, err)
	}
	return nil
}
