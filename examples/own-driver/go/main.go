// Command credit books ten units with pgx and completes its window in the same
// transaction. It finds its database by the usual PGHOST, PGDATABASE, PGUSER, …
//
// Exit codes: 0 done, now or before; 75 run me again; 1 a mistake of this program.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	exitRetry = 75
	tries     = 5
)

// window is what the guard tells its worker: three arguments of each call.
var window = []any{os.Getenv("ONCEGUARD_JOB_NAME"), os.Getenv("ONCEGUARD_WINDOW_START"), os.Getenv("ONCEGUARD_EXECUTION_ID")}

func main() { os.Exit(run(context.Background())) }

func run(ctx context.Context) int {
	for try := 1; ; try++ {
		err := once(ctx)
		code := sqlstate(err)
		if err != nil {
			fmt.Fprintf(os.Stderr, "credit: %v\n", err)
		}
		switch {
		case err == nil, code == "OG002": // OG002: done already
			return 0
		case code == "40001" || code == "40P01": // the whole transaction again
			if try == tries {
				return exitRetry
			}
			time.Sleep(rand.N(time.Duration(try) * 100 * time.Millisecond))
		case code == "OG001", code == "OG004": // the right to this window is gone: stop
			return exitRetry
		case code == "", strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57"): // the connection
			return exitRetry
		default:
			return 1
		}
	}
}

// book is the business of this window.
func book(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `UPDATE balance SET units = units + 10 WHERE account = 'daily-credit'`); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO booking (account, window_start, units) VALUES ('daily-credit', $1::timestamptz, 10)`, window[1])
	return err
}

// once makes one transaction on a connection of its own; whatever fails, closing the
// connection rolls back.
func once(ctx context.Context) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT onceguard.begin($1, $2::timestamptz, $3::uuid)", window...); err != nil {
		return err
	}
	if err := book(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT onceguard.complete($1, $2::timestamptz, $3::uuid)", window...); err != nil {
		return err
	}
	err = tx.Commit(ctx)
	if err != nil && done(ctx) {
		return nil
	}
	return err
}

// done asks what became of a COMMIT that gave an error. Only a yes is an answer: the
// server may still be at it.
func done(ctx context.Context) bool {
	conn, err := connect(ctx)
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	var mine bool
	err = conn.QueryRow(ctx, "SELECT coalesce(status = 'completed' AND execution_id = $3::uuid, false) FROM onceguard.stored($1, $2::timestamptz)", window...).Scan(&mine)
	return err == nil && mine
}

func connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = 10 * time.Second
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements: PgBouncer may be between
	return pgx.ConnectConfig(ctx, config)
}

// sqlstate is "" when the server did not say why.
func sqlstate(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}
