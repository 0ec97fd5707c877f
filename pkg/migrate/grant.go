package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// GrantJob lets a login, or the members of a group role, act for the jobs of a pattern:
// an exact job_name, "namespace/*" or "*". url is the owner's.
func GrantJob(ctx context.Context, url, role, pattern string) error {
	return grant(ctx, url, role, "SELECT onceguard.grant_job($1, $2)", role, pattern)
}

// RevokeJob takes a pattern away again; it is no error if the login did not have it.
func RevokeJob(ctx context.Context, url, role, pattern string) error {
	return grant(ctx, url, role, "SELECT onceguard.revoke_job($1, $2)", role, pattern)
}

// GrantAudit lets a login read the views, and nothing else. url is the owner's.
func GrantAudit(ctx context.Context, url, role string) error {
	return grant(ctx, url, role, "SELECT onceguard.grant_audit($1)", role)
}

// GrantEngine lets a login be the windows engine: judge the windows of all jobs, and read
// the views. url is the owner's.
func GrantEngine(ctx context.Context, url, role string) error {
	return grant(ctx, url, role, "SELECT onceguard.grant_engine($1)", role)
}

// RevokeEngine ends that, but for the views; it is no error if the login was not the engine's.
func RevokeEngine(ctx context.Context, url, role string) error {
	return grant(ctx, url, role, "SELECT onceguard.revoke_engine($1)", role)
}

// RevokeAudit takes the views away again; it is no error if the login could not read
// them. url is the owner's.
func RevokeAudit(ctx context.Context, url, role string) error {
	return grant(ctx, url, role, "REVOKE SELECT ON onceguard.windows, onceguard.attempts, onceguard.skips, onceguard.jobs, onceguard.decisions, onceguard.gaps, onceguard.plans, onceguard.schedules FROM "+pgx.Identifier{role}.Sanitize())
}

func grant(ctx context.Context, url, role, statement string, args ...any) error {
	return with(ctx, url, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, statement, args...)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case !ok:
			return err
		case pg.Code == "22023": // the text says all
			return errors.New(pg.Message)
		case pg.Code == "42704":
			return fmt.Errorf("role %q does not exist: create it first, with CREATE ROLE ... LOGIN PASSWORD ...: %w", role, err)
		case pg.Code == "3F000" || pg.Code == "42883" || pg.Code == "42P01":
			return fmt.Errorf("this database has no ledger, or an older one: migrate it first: %w", err)
		case pg.Code == "42501":
			return fmt.Errorf("only the owner of the ledger may grant: %w", err)
		}
		return err
	})
}
