package commit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// Ledger is what a commit needs of package ledger; its errors are that package's.
type Ledger interface {
	Connect(ctx context.Context) (*ledger.Conn, error)
	Resolve(ctx context.Context, a claim.Attempt, newID uuid.UUID) (claim.Resolution, error)
	Stored(ctx context.Context, w window.Window) (claim.Stored, error)
}

// Holder is the guard, which holds the attempt.
type Holder interface {
	// Held gives the attempt that may commit now, and a channel that is closed when it
	// may no longer; held is false while there is none, and pending then says that there
	// may be one as soon as the ledger has answered. The window is always given.
	Held() (a claim.Attempt, lost <-chan struct{}, held, pending bool)
	// Committed saves that id completed the window.
	Committed(ctx context.Context, id uuid.UUID) error
	// Fenced stops the worker of id, which lost the window.
	Fenced(ctx context.Context, id uuid.UUID) error
	// Replacing saves that next may be put in the place of id; Replaced that it was.
	Replacing(ctx context.Context, id, next uuid.UUID) error
	Replaced(ctx context.Context, id, next uuid.UUID) error
}

// Answer is a commit that was made, now or before.
type Answer struct {
	Replayed   bool
	Statements []Rows // not when replayed
	Result     json.RawMessage
	Processed  *int64
}

const (
	// resolveWait bounds how long an unknown COMMIT is asked about within one request;
	// the next request goes on asking.
	resolveWait  = 8 * time.Second
	resolvePause = 200 * time.Millisecond
	// closeWait bounds saying goodbye to Postgres.
	closeWait = time.Second
)

// Committer makes the commits of one pod, one at a time.
type Committer struct {
	ledger Ledger
	holder Holder
	log    *zap.Logger
	turn   chan struct{}

	unknown *unknown // under turn

	patience     time.Duration // resolveWait; less in tests
	beforeCommit func()        // tests stop here
}

// unknown is a COMMIT whose outcome is still to be found out.
type unknown struct {
	attempt claim.Attempt
	next    uuid.UUID
}

// New makes a Committer.
func New(l Ledger, h Holder, log *zap.Logger) *Committer {
	c := &Committer{ledger: l, holder: h, log: log, turn: make(chan struct{}, 1), patience: resolveWait, beforeCommit: func() {}}
	c.turn <- struct{}{}
	return c
}

// Commit runs the request's statements and completes the window, or answers as before
// when the same request completed it already. Its errors are *Error. The end of ctx
// gives the statements up, but never a COMMIT that was sent.
func (c *Committer) Commit(ctx context.Context, r Request) (Answer, error) {
	select {
	case <-c.turn:
	default:
		return Answer{}, newError(InFlight, nil, "another commit of this pod is under way; wait for its answer")
	}
	defer func() { c.turn <- struct{}{} }()

	if u := c.unknown; u != nil {
		if err := c.settle(ctx, *u); !errors.Is(err, errCommitted) && !hasCode(err, NotCommitted) && !c.past(err, *u) {
			return Answer{}, err
		}
	}
	a, lost, held, pending := c.holder.Held()
	switch {
	case held:
	case pending:
		return c.replay(ctx, a.Window, r, newError(Unavailable, nil, "the guard is asking the ledger whether this pod holds window %s; nothing is committed, ask again", a.Window))
	default:
		return c.replay(ctx, a.Window, r, newError(NoAttempt, nil, "this pod holds no attempt at window %s now; nothing is committed", a.Window))
	}
	answer, err := c.attempt(ctx, a, lost, r)
	switch e := (*Error)(nil); {
	case err == nil:
		c.committed(ctx, a.ExecutionID)
		return answer, nil
	case errors.Is(err, errUnknown):
		c.log.Warn("the outcome of COMMIT is not known and is being resolved", zap.Error(ledger.Translate(err)))
		if err := c.resolve(ctx, a); !errors.Is(err, errCommitted) {
			return Answer{}, err
		}
		return answer, nil
	case errors.As(err, &e) && e.Code == OtherRequest:
		// Perhaps by this very attempt, and the guard does not know: it was killed at COMMIT,
		// or the worker has used a driver of its own.
		if err := c.resolve(ctx, a); !errors.Is(err, errCommitted) && !hasCode(err, FenceLost) {
			return Answer{}, err
		}
		return c.replay(ctx, a.Window, r, e)
	case errors.As(err, &e) && (e.Code == FenceLost || e.Code == Closed):
		c.fenced(ctx, a.ExecutionID)
	}
	return Answer{}, err
}

// past says whether the unknown COMMIT belonged to an attempt that has lost the window
// and that another one of this pod has followed.
func (c *Committer) past(err error, u unknown) bool {
	a, _, held, _ := c.holder.Held()
	return hasCode(err, FenceLost) && held && a.ExecutionID != u.attempt.ExecutionID
}

// attempt makes one transaction on a connection of its own: what a worker's statements
// leave in a session is gone with it.
func (c *Committer) attempt(ctx context.Context, a claim.Attempt, lost <-chan struct{}, r Request) (Answer, error) {
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-lost:
			cancel(errors.New("the attempt lost its right to the window"))
		case <-done:
		}
	}()

	conn, err := c.ledger.Connect(run)
	if err != nil {
		if e := ofLedger(err); e != nil {
			return Answer{}, e
		}
		return Answer{}, newError(Unavailable, err, "no connection to the ledger, nothing is committed; ask again: %s", err)
	}
	defer func() {
		// Closing ends the transaction on the server, whatever state it is in.
		bye, stop := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer stop()
		_ = conn.Close(bye)
	}()
	did, err := transaction(run, conn, a, r)
	if err != nil {
		return Answer{}, err
	}
	c.beforeCommit()
	answer := Answer{Statements: did, Result: r.Result, Processed: r.Processed}
	if run.Err() != nil {
		return Answer{}, newError(Unavailable, run.Err(), "given up before COMMIT: %s; nothing is committed", context.Cause(run))
	}
	return answer, commit(ctx, conn)
}

// resolve asks what became of a COMMIT of a; see settle.
func (c *Committer) resolve(ctx context.Context, a claim.Attempt) error {
	c.unknown = &unknown{attempt: a, next: uuid.New()}
	return c.settle(ctx, *c.unknown)
}

// errCommitted: the resolve found the commit.
var errCommitted = errors.New("committed")

// settle resolves by fencing, within resolveWait. It gives errCommitted or an *Error.
func (c *Committer) settle(ctx context.Context, u unknown) error {
	// The client's patience does not matter: whoever asks next needs the answer too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.patience)
	defer cancel()
	// Saved first: should the guard die now, its successor knows both ids.
	if err := c.holder.Replacing(ctx, u.attempt.ExecutionID, u.next); err != nil {
		return newError(UnknownResult, err, "it is not known yet whether the commit was made; ask again with the same request, it is not run twice")
	}
	for {
		r, err := c.ledger.Resolve(ctx, u.attempt, u.next)
		switch {
		case err != nil:
			c.log.Warn("resolving a commit failed", zap.Error(err))
		case r == claim.ResolvedCommitted:
			c.unknown = nil
			c.committed(ctx, u.attempt.ExecutionID)
			return errCommitted
		case r == claim.ResolvedNotCommitted:
			c.unknown = nil
			c.note("replaced", c.holder.Replaced(context.WithoutCancel(ctx), u.attempt.ExecutionID, u.next))
			return newError(NotCommitted, nil, "the connection was lost and nothing is committed; send the same request again")
		case r == claim.ResolvedLost:
			c.unknown = nil
			c.fenced(ctx, u.attempt.ExecutionID)
			return newError(FenceLost, nil, "this attempt no longer holds the window; the worker should stop")
		}
		select {
		case <-ctx.Done():
			return newError(UnknownResult, err, "it is not known yet whether the commit was made; ask again with the same request, it is not run twice")
		case <-time.After(resolvePause):
		}
	}
}

// replay answers from the completed window, or with otherwise when it is not completed.
func (c *Committer) replay(ctx context.Context, w window.Window, r Request, otherwise *Error) (Answer, error) {
	s, err := c.ledger.Stored(ctx, w)
	switch {
	case err != nil && otherwise.Code != OtherRequest:
		return Answer{}, otherwise
	case err != nil:
		return Answer{}, newError(Unavailable, err, "the window is completed, but how cannot be read now; ask again: %s", err)
	case s.Status != claim.Completed:
		return Answer{}, otherwise
	case s.RequestDigest == r.Digest():
		// Resolve makes it safe first: the commit may be one that no standby has yet.
		old := claim.Attempt{Window: w, ExecutionID: s.ExecutionID}
		if found, err := c.ledger.Resolve(ctx, old, uuid.New()); err != nil || found != claim.ResolvedCommitted {
			return Answer{}, newError(Unavailable, err, "the window is completed by this request, but whether a failover could lose it is not known yet; ask again")
		}
		return Answer{Replayed: true, Result: s.Result, Processed: s.Processed}, nil
	case s.PayloadDigest != r.PayloadDigest():
		return Answer{}, newError(OtherPayload, nil, "window %s was completed with payload %s, this request has %s",
			w, orNone(s.PayloadDigest), orNone(r.PayloadDigest()))
	}
	return Answer{}, newError(OtherRequest, nil, "window %s was completed by another request (%s, this one is %s)", w, orNone(s.RequestDigest), r.Digest())
}

func orNone(digest string) string {
	if digest == "" {
		return "none"
	}
	return digest
}

// committed and fenced tell the guard, whatever has become of the client.
func (c *Committer) committed(ctx context.Context, id uuid.UUID) {
	c.note("committed", c.holder.Committed(context.WithoutCancel(ctx), id))
}

func (c *Committer) fenced(ctx context.Context, id uuid.UUID) {
	c.note("fence lost", c.holder.Fenced(context.WithoutCancel(ctx), id))
}

// note logs that the guard could not be told. It is no reason to answer otherwise: the
// ledger has the truth, and the guard asks it before it judges an exit.
func (c *Committer) note(what string, err error) {
	if err != nil {
		c.log.Warn(fmt.Sprintf("the guard could not be told: %s", what), zap.Error(err))
	}
}

func hasCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
