// Package migrate creates the ledger in a database and brings it up to date. It is run
// with the owner's URL, by the chart's hook or by a person; a guard only checks.
//
// The owner needs CREATE on the database and nothing more. Running it twice, or twice
// at the same time, is harmless.
package migrate

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/pgurl"
)

//go:embed sql/*.sql
var files embed.FS

const (
	// versionTable is where goose keeps what has been applied.
	versionTable = "onceguard.migration"
	// lockKey serialises migrators; the letters of "onceguar".
	lockKey = 0x6f6e636567756172
	// lockWait bounds the wait for another migrator.
	lockWait = 2 * time.Minute
	// oldestServer is the oldest Postgres with all that the schema uses.
	oldestServer = 150000
)

// ErrServer says that this Postgres cannot hold a ledger.
var ErrServer = errors.New("this Postgres server cannot hold a ledger")

// Up applies what is missing and gives the versions before and after. It also takes
// away every right on the ledger that default privileges or a hand gave to others than
// the owner; what the grant functions gave stays.
func Up(ctx context.Context, url string, log *zap.Logger) (from, to int, err error) {
	cfg, err := pgurl.Parse(url, "onceguard-migrate")
	if err != nil {
		return 0, 0, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, 0, pgurl.Reason(err)
	}
	defer closeConn(ctx, conn)
	if err := checkServer(ctx, conn); err != nil {
		return 0, 0, err
	}
	unlock, err := lock(ctx, conn)
	if err != nil {
		return 0, 0, err
	}
	defer unlock()

	db := stdlib.OpenDB(*cfg)
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(2)
	if err := ensureSchema(ctx, db, cfg); err != nil {
		return 0, 0, err
	}
	p, err := provider(db)
	if err != nil {
		return 0, 0, err
	}
	before, err := p.GetDBVersion(ctx)
	if err != nil {
		return 0, 0, explain(err, cfg)
	}
	results, err := p.Up(ctx)
	for _, r := range results {
		log.Info("migration applied", zap.Int64("version", r.Source.Version), zap.Duration("took", r.Duration))
	}
	if err != nil {
		return int(before), 0, explain(err, cfg)
	}
	after, err := p.GetDBVersion(ctx)
	if err != nil {
		return int(before), 0, err
	}
	// Each time: a grant on our tables is a way around the protocol, whoever made it.
	if _, err := db.ExecContext(ctx, "SELECT onceguard.seal()"); err != nil {
		return int(before), int(after), explain(err, cfg)
	}
	if newest := Latest(); int(after) > newest {
		log.Warn("the ledger is newer than this program", zap.Int64("version", after), zap.Int("program", newest))
	}
	return int(before), int(after), nil
}

// Version is the version of the ledger in a database; 0 where there is none.
func Version(ctx context.Context, url string) (int, error) {
	var v int
	err := with(ctx, url, func(c *pgx.Conn) error {
		var exists bool
		if err := c.QueryRow(ctx, "SELECT to_regclass('"+versionTable+"') IS NOT NULL").Scan(&exists); err != nil || !exists {
			return err
		}
		return c.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versionTable+" WHERE is_applied").Scan(&v)
	})
	return v, err
}

// Latest is the version that Up of this program leads to.
func Latest() int {
	names, _ := fs.Glob(files, "sql/*.sql")
	var newest int64
	for _, n := range names {
		if v, err := goose.NumericComponent(n); err == nil {
			newest = max(newest, v)
		}
	}
	return int(newest)
}

// provider reads the embedded files.
func provider(db *sql.DB) (*goose.Provider, error) {
	sub, err := fs.Sub(files, "sql")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, sub, goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
}

func checkServer(ctx context.Context, c *pgx.Conn) error {
	var version int
	var text string
	var standby bool
	if err := c.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery()`).
		Scan(&version, &text, &standby); err != nil {
		return err
	}
	if version < oldestServer {
		return fmt.Errorf("%w: it is version %s, and Onceguard needs 15 or newer", ErrServer, text)
	}
	if standby {
		return fmt.Errorf("%w: it is a standby (read-only); use the URL of the primary", ErrServer)
	}
	return nil
}

// lock keeps other migrators out until unlock. It is a lock of an open transaction, not
// of the session, so that it also works through a pooler and dies with us.
func lock(ctx context.Context, c *pgx.Conn) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	tx, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0"); err == nil {
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockKey))
	}
	if err != nil {
		return nil, fmt.Errorf("waiting for another migration of this database: %w", err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pgurl.ConnectTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}, nil
}

// ensureSchema creates the schema unless it exists: CREATE SCHEMA IF NOT EXISTS would
// ask for the right to create even when there is nothing to do.
func ensureSchema(ctx context.Context, db *sql.DB, cfg *pgx.ConnConfig) error {
	var exists bool
	if err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'onceguard')").Scan(&exists); err != nil {
		return err
	}
	if exists {
		return nil
	}
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA onceguard"); err != nil {
		return explain(err, cfg)
	}
	return nil
}

// explain adds the cure to an error about missing rights.
func explain(err error, cfg *pgx.ConnConfig) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" {
		return fmt.Errorf("role %q may not create the ledger: as an administrator run GRANT CREATE ON DATABASE %s TO %s, or use the role that owns the schema onceguard: %w",
			cfg.User, pgx.Identifier{cfg.Database}.Sanitize(), pgx.Identifier{cfg.User}.Sanitize(), err)
	}
	return err
}

// with runs f on a connection of its own.
func with(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	cfg, err := pgurl.Parse(url, "onceguard-migrate")
	if err != nil {
		return err
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return pgurl.Reason(err)
	}
	defer closeConn(ctx, c)
	return f(c)
}

func closeConn(ctx context.Context, c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pgurl.ConnectTimeout)
	defer cancel()
	_ = c.Close(ctx)
}
