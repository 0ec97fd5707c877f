package commit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
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
	Replayed      bool
	Completed     bool   // the window; false for a piece
	Statements    []Rows // not when replayed
	Result        json.RawMessage
	Processed     *int64
	CheckpointSeq int // of a piece
}

// Limits bound what is held open, in time.
type Limits struct {
	// Idle is how long an interactive transaction may be without a request, and how long a
	// COPY may wait for its client. It is shorter than what begin gives the session, which
	// is two thirds of the lease: who asks too late is told why.
	Idle time.Duration
	// Statement bounds one statement, or COPY, of an interactive transaction.
	Statement time.Duration
	// Transaction bounds a whole transaction up to COMMIT.
	Transaction time.Duration
}

const (
	// resolveWait bounds how long an unknown COMMIT is asked about within one request;
	// the next request goes on asking.
	resolveWait  = 8 * time.Second
	resolvePause = 200 * time.Millisecond
	// closeWait bounds saying goodbye to Postgres.
	closeWait = time.Second
	// defaultLease is the lease when nobody says it.
	defaultLease = 30 * time.Second
)

// Committer makes the commits of one pod, one at a time.
type Committer struct {
	ledger Ledger
	holder Holder
	log    *zap.Logger
	limits Limits
	turn   chan struct{} // held by a commit, or by an interactive transaction as long as it is open

	unknown *unknown // under turn
	known   known    // under turn

	mu     sync.Mutex
	open   *session
	ended  []ended // the last ones, at most remembered
	unread int     // the checkpoint that must be read first; see mustRead

	patience     time.Duration // resolveWait; less in tests
	beforeCommit func()        // tests stop here
}

// Option changes a new Committer.
type Option func(*Committer)

// Lease says how long the attempt's lease is; an interactive transaction may be idle for
// half of it.
func Lease(d time.Duration) Option { return func(c *Committer) { c.limits.Idle = d / 2 } }

// Within sets other limits; those that are 0 stay as they are.
func Within(l Limits) Option {
	return func(c *Committer) {
		for _, p := range []struct{ to, from *time.Duration }{
			{&c.limits.Idle, &l.Idle}, {&c.limits.Statement, &l.Statement}, {&c.limits.Transaction, &l.Transaction},
		} {
			if *p.from > 0 {
				*p.to = *p.from
			}
		}
	}
}

// New makes a Committer.
func New(l Ledger, h Holder, log *zap.Logger, options ...Option) *Committer {
	c := &Committer{
		ledger: l, holder: h, log: log, turn: make(chan struct{}, 1), patience: resolveWait, beforeCommit: func() {},
		limits: Limits{Idle: defaultLease / 2, Statement: time.Hour, Transaction: 6 * time.Hour},
	}
	c.turn <- struct{}{}
	for _, o := range options {
		o(c)
	}
	return c
}

// asked is the end of a transaction as it was asked for.
type asked struct {
	Closing
	digest string
}

// Commit runs the request's statements and completes the window, or writes a checkpoint,
// or answers as before when the same request did so already. Its errors are *Error. The
// end of ctx gives the statements up, but never a COMMIT that was sent.
func (c *Committer) Commit(ctx context.Context, r Request) (Answer, error) {
	want := asked{r.Closing, r.Digest()}
	if err := c.enter(ctx); err != nil {
		return Answer{}, err
	}
	defer c.leave()
	a, lost, err := c.attempt()
	if err != nil {
		return c.replay(ctx, a.Window, want, err)
	}
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	run, stop := context.WithTimeoutCause(run, c.limits.Transaction, tooLong(c.limits.Transaction))
	defer stop()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-lost:
			cancel(errors.New("the attempt lost its right to the window"))
		case <-done:
		}
	}()
	if answer, replayed, err := c.piece(ctx, a, want); err != nil || replayed {
		return answer, err
	}
	answer, err := c.once(run, a, r, want)
	return c.judge(ctx, a, want, answer, err)
}

func tooLong(limit time.Duration) *Error {
	return newError(TooLong, nil, "the transaction took longer than the %s that one may; nothing is committed; do the work in pieces", limit)
}

// enter takes the turn, after what an earlier COMMIT left open was found out. leave gives
// it back.
func (c *Committer) enter(ctx context.Context) error {
	select {
	case <-c.turn:
	default:
		return c.busy()
	}
	if u := c.unknown; u != nil {
		if err := c.settle(ctx, *u); c.unknown != nil || hasCode(err, FenceLost) && !c.past(*u) {
			c.leave()
			return err
		}
	}
	return nil
}

func (c *Committer) leave() { c.turn <- struct{}{} }

func (c *Committer) busy() *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		return newError(InFlight, nil, "transaction %s of this pod is open; commit it, or DELETE /v1/tx/%s", c.open.id, c.open.id)
	}
	return newError(InFlight, nil, "another commit of this pod is under way; wait for its answer")
}

// attempt gives the attempt that may commit; without one the window is given, and an
// *Error.
func (c *Committer) attempt() (a claim.Attempt, lost <-chan struct{}, err error) {
	a, lost, held, pending := c.holder.Held()
	switch {
	case held:
		return a, lost, nil
	case pending:
		return a, nil, newError(Unavailable, nil, "the guard is asking the ledger whether this pod holds window %s; nothing is committed, ask again", a.Window)
	}
	return a, nil, newError(NoAttempt, nil, "this pod holds no attempt at window %s now; nothing is committed", a.Window)
}

// once makes one transaction on a connection of its own: what a worker's statements
// leave in a session is gone with it, unless a pooler in transaction mode keeps the session.
func (c *Committer) once(run context.Context, a claim.Attempt, r Request, want asked) (Answer, error) {
	conn, err := c.connect(run)
	if err != nil {
		return Answer{}, err
	}
	defer bye(run, conn)
	end, err := c.end(run, a, want)
	if err != nil {
		return Answer{}, err
	}
	b := batch{head: opening(a, c.limits.Transaction), statements: r.Statements, tail: []call{end}}
	did, err := b.send(run, conn)
	if err != nil {
		return Answer{}, err
	}
	answer := c.answer(want)
	answer.Statements = did
	return answer, c.commit(run, conn)
}

// end is the call that ends a transaction of the attempt: the completion, or the checkpoint.
func (c *Committer) end(ctx context.Context, a claim.Attempt, want asked) (call, error) {
	if want.piece() {
		from, err := c.from(ctx, a, want)
		return call{ledger.CheckpointSQL, ledger.CheckpointArgs(a, from, want.Checkpoint, want.digest)}, err
	}
	done := claim.Completion{PayloadDigest: want.PayloadDigest(), RequestDigest: want.digest, Processed: want.Processed}
	if !isNull(want.Result) {
		done.Result = want.Result
	}
	return call{ledger.CompleteSQL, ledger.CompleteArgs(a, done)}, nil
}

// answer is that of a request which has just been committed.
func (c *Committer) answer(want asked) Answer {
	if want.piece() {
		return Answer{CheckpointSeq: c.next(want)}
	}
	return Answer{Completed: true, Result: want.Result, Processed: want.Processed}
}

// connect opens a connection for a business transaction.
func (c *Committer) connect(ctx context.Context) (*ledger.Conn, error) {
	conn, err := c.ledger.Connect(ctx)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, gaveUp(ctx)
	}
	if e := ofLedger(err); e != nil {
		return nil, e
	}
	return nil, newError(Unavailable, err, "no connection to the ledger, nothing is committed; ask again: %s", err)
}

// bye closes the connection, which ends its transaction on the server, whatever state it
// is in, and whether ctx has ended or not.
func bye(ctx context.Context, conn *ledger.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	_ = conn.Close(ctx)
}

// commit sends COMMIT unless run has ended; see the function.
func (c *Committer) commit(run context.Context, conn *ledger.Conn) error {
	c.beforeCommit()
	if run.Err() != nil {
		return gaveUp(run)
	}
	return commit(run, conn)
}

// judge finds out what a transaction of a has come to, and tells the guard.
func (c *Committer) judge(ctx context.Context, a claim.Attempt, want asked, answer Answer, err error) (Answer, error) {
	switch {
	case err == nil && want.piece():
		c.known.of(a.ExecutionID, a.ExecutionID)
		c.known.add(done{want.digest, answer.CheckpointSeq})
		return answer, nil
	case err == nil:
		c.committed(ctx, a.ExecutionID)
		return answer, nil
	case errors.Is(err, errUnknown):
		c.log.Warn("the outcome of COMMIT is not known and is being resolved", zap.Error(ledger.Translate(err)))
		if err := c.resolve(ctx, a, want); !errors.Is(err, errCommitted) {
			return Answer{}, err
		}
		return answer, nil
	}
	err = c.failed(ctx, a, err)
	switch e, _ := errors.AsType[*Error](err); {
	case e == nil:
	case e.Code == OtherRequest:
		return c.replay(ctx, a.Window, want, e)
	case e.Code == Conflict:
		return c.conflict(ctx, a, want, e)
	}
	return Answer{}, err
}

// failed tells the guard what it must know of an error, and gives the error.
func (c *Committer) failed(ctx context.Context, a claim.Attempt, err error) error {
	switch {
	case hasCode(err, OtherPayload):
		// Than the one that it was claimed or completed with.
		if s, serr := c.ledger.Stored(ctx, a.Window); serr == nil && s.Status != claim.Completed {
			return err
		}
		fallthrough
	case hasCode(err, OtherRequest):
		// Perhaps by this very attempt, and the guard does not know: it was killed at COMMIT,
		// or the worker has used a driver of its own.
		switch found := c.resolve(ctx, a, asked{}); {
		case hasCode(found, NotCommitted):
			return newError(Forbidden, err, "a statement, or a trigger at COMMIT, completes the window itself (onceguard.complete); that is the endpoint's part, leave it out; nothing is committed")
		case !errors.Is(found, errCommitted) && !hasCode(found, FenceLost):
			return found
		}
	case hasCode(err, FenceLost), hasCode(err, Closed):
		c.fenced(ctx, a.ExecutionID)
	}
	return err
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
