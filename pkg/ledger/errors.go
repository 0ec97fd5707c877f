package ledger

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/pgurl"
)

// What a caller can branch on, with errors.Is.
var (
	// ErrFenced: this execution_id does not hold the window. The worker should stop.
	ErrFenced = errors.New("fence lost: another attempt, or nobody, holds the window")
	// ErrCompleted: the window is completed already.
	ErrCompleted = errors.New("the window is already completed")
	// ErrPayload: the window belongs to another payload; the text has both digests.
	ErrPayload = errors.New("the window belongs to another payload")
	// ErrClosed: the window is older than the job's watermark and never runs.
	ErrClosed = errors.New("the window is closed")
	// ErrNotGranted: this login may not act for this job.
	ErrNotGranted = errors.New("the ledger's login may not act for this job")
	// ErrNotBegun: begin was not called in this transaction, or must not have been.
	ErrNotBegun = errors.New("the transaction was not begun for this window")
	// ErrCheckpoint: another checkpoint than the expected one is the last.
	ErrCheckpoint = errors.New("the checkpoint was replaced already")
	// ErrSchema: the database has no ledger, or one that does not fit this program.
	ErrSchema = errors.New("the ledger's schema does not fit this program")
	// ErrUnavailable: network, start-up, failover, too many connections, a lock held too
	// long. Worth waiting; what was asked may or may not have happened.
	ErrUnavailable = errors.New("the ledger is not available")
	// ErrConfig: the URL, the login or the certificate is wrong. Waiting helps only when
	// somebody mends the Secret (or the file) meanwhile; the text says which.
	ErrConfig = errors.New("the ledger's connection is configured wrongly")
)

// sqlstates maps what the server says to what callers branch on. A class of two
// characters is looked up when the whole code is not listed.
var sqlstates = map[string]error{
	"OG001": ErrFenced,
	"OG002": ErrCompleted,
	"OG003": ErrPayload,
	"OG004": ErrClosed,
	"OG005": ErrNotGranted,
	"OG006": ErrNotBegun,
	"OG007": ErrCheckpoint,
	"42501": ErrNotGranted, // insufficient_privilege: no USAGE on the schema
	"3F000": ErrSchema,     // no schema onceguard
	"42883": ErrSchema,     // no such function
	"42P01": ErrSchema,     // no such table
	"3D000": ErrConfig,     // no such database
	"28":    ErrConfig,     // authentication
	"08":    ErrUnavailable,
	"25006": ErrUnavailable, // a standby: the primary has moved
	"25P03": ErrUnavailable, // the server ended a session that stood still in its transaction
	"40":    ErrUnavailable, // serialization, deadlock
	"53":    ErrUnavailable, // too many connections, disk, memory
	"55P03": ErrUnavailable, // lock timeout
	"57":    ErrUnavailable, // shutdown, starting up, cancelled
	"58":    ErrUnavailable,
	"XX":    ErrUnavailable,
}

// Translate gives every error of a connection to the ledger a sentinel of this package
// that errors.Is finds, keeping the original below it (errors.As finds *pgconn.PgError).
// An error of a worker's own SQL keeps its SQLSTATE and gets no sentinel. It is the only
// place that knows what a SQLSTATE means.
func Translate(err error) error {
	if err == nil {
		return nil
	}
	for _, done := range []error{ErrFenced, ErrCompleted, ErrPayload, ErrClosed, ErrNotGranted, ErrNotBegun, ErrCheckpoint, ErrSchema, ErrUnavailable, ErrConfig} {
		if errors.Is(err, done) {
			return err
		}
	}
	if errors.Is(err, pgurl.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		kind := sqlstates[pg.Code]
		if kind == nil && len(pg.Code) == 5 {
			kind = sqlstates[pg.Code[:2]]
		}
		switch {
		case kind == nil:
			return err
		case errors.Is(kind, ErrNotGranted) && pg.Hint != "":
			return fmt.Errorf("%w: %w. %s", kind, err, pg.Hint)
		case errors.Is(kind, ErrNotGranted):
			// Without any grant the server knows neither the function nor the job.
			return fmt.Errorf("%w: %w. As the owner of the ledger: kubectl onceguard grant ROLE NAMESPACE/NAME", kind, err)
		case errors.Is(kind, ErrSchema):
			return fmt.Errorf("%w: there is no ledger in this database, or an older one; migrate it with the owner's URL (kubectl onceguard migrate): %w", kind, err)
		}
		return fmt.Errorf("%w: %w", kind, err)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
