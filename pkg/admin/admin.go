// Package admin is what people decide about windows: run one again, cancel one, delete
// old history. Each decision but pruning is recorded with who and why. It needs the
// connection of the ledger's owner; a job's login may do none of it.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/window"
)

// DB is what of the owner's connection or pool is needed here.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// The ledger takes a name and a reason of at most so many characters.
const (
	MaxWho = 200
	MaxWhy = 1000
)

// What a caller can branch on, with errors.Is; the texts say more.
var (
	// ErrNotFound: the record has no such window, or no such job.
	ErrNotFound = errors.New("not in the record")
	// ErrState: as the window stands this cannot be decided; the text says how it stands.
	ErrState = errors.New("not possible as the window stands")
	// ErrPruned: the window is older than the job's pruned history; it never runs.
	ErrPruned = errors.New("the window is closed")
	// ErrInvalid: an argument is missing or wrong; the text names it.
	ErrInvalid = errors.New("not accepted")
	// ErrForbidden: this login does not own the ledger.
	ErrForbidden = errors.New("only the owner of the ledger may do that")
	// ErrBusy: the job's row is locked for long; try again.
	ErrBusy = errors.New("the job is being claimed: try again")
	// ErrSchema: there is no ledger of this version in the database.
	ErrSchema = errors.New("the database holds no ledger of this version: migrate it with the owner's URL (kubectl onceguard migrate)")
)

// Rerun makes the next claim of a window run, whatever became of it before, and gives
// its generation. A completed window gets a new generation (and with it another
// idempotency key), and its former completion is kept with the decision; any other goes
// on from its checkpoint. While a worker runs it is refused with ErrState.
func Rerun(ctx context.Context, db DB, w window.Window, who, why string) (generation int, err error) {
	err = db.QueryRow(ctx, "SELECT onceguard.rerun($1, $2, $3, $4)", w.JobName, w.Start, who, why).Scan(&generation)
	return generation, translate("rerun of "+w.String(), err)
}

// Cancel closes a window that shall not run, also one that nobody has claimed yet. It is
// refused with ErrState while a worker runs, and when the window is completed or skipped.
func Cancel(ctx context.Context, db DB, w window.Window, who, why string) error {
	var nothing any
	err := db.QueryRow(ctx, "SELECT onceguard.cancel($1, $2, $3, $4)", w.JobName, w.Start, who, why).Scan(&nothing)
	return translate("cancel of "+w.String(), err)
}

// Prune closes the windows of a job before upto for ever, and deletes what is kept of
// them; decisions stay. It gives how far it came: earlier than upto means that the window
// of that instant may still run (it is running, failed, held or planned). jobName is the job's,
// without index and separate run: those go with it.
func Prune(ctx context.Context, db DB, jobName string, upto time.Time) (time.Time, error) {
	var came time.Time
	for {
		var now *time.Time // NULL cannot happen; infinity is read as the zero time below
		err := db.QueryRow(ctx, "SELECT nullif(onceguard.prune($1, $2), '-infinity')", jobName, upto).Scan(&now)
		if err != nil {
			return came, translate("prune of "+jobName, err)
		}
		if now == nil || !now.After(came) {
			return came, nil
		}
		if came = now.UTC(); !came.Before(upto) {
			return came, nil
		}
	}
}

// translate is the one place here that knows SQLSTATEs.
func translate(what string, err error) error {
	if err == nil {
		return nil
	}
	kind := map[string]error{
		"P0002": ErrNotFound, "55000": ErrState, "OG004": ErrPruned, "22023": ErrInvalid, "42501": ErrForbidden,
		"55P03": ErrBusy, "40P01": ErrBusy, "3F000": ErrSchema, "42883": ErrSchema, "42P01": ErrSchema,
	}
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || kind[server.Code] == nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	text := server.Message
	if server.Hint != "" {
		text += ". " + server.Hint
	}
	return fmt.Errorf("%s: %w: %s", what, kind[server.Code], text)
}
