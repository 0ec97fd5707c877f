package commit

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// session is an interactive transaction. It holds the Committer's turn until it is gone.
// Its connection belongs to whoever holds use; the watcher takes it last and closes.
type session struct {
	id      string
	conn    *ledger.Conn
	attempt claim.Attempt
	use     chan struct{}
	run     context.Context //nolint:containedctx // ends with the right to go on; the cause is an *Error
	end     context.CancelCauseFunc
	idle    *time.Timer
	sent    atomic.Bool   // COMMIT may have been sent
	gone    chan struct{} // closed when the connection is closed and the turn given back
}

// ended is what is remembered of an interactive transaction that is over.
type ended struct {
	id     string
	why    *Error
	digest string // of the commit that was made, with its answer
	answer Answer
}

// remembered is how many transactions are remembered.
const remembered = 16

// Transaction is an interactive transaction that has been opened.
type Transaction struct {
	ID   string
	Idle time.Duration // how long it may be without a request
}

// Open begins an interactive transaction. Its errors, as those of all methods about
// interactive transactions, are *Error.
func (c *Committer) Open(ctx context.Context) (Transaction, error) {
	if err := c.enter(ctx); err != nil {
		return Transaction{}, err
	}
	a, lost, err := c.attempt()
	if err != nil {
		defer c.leave()
		if s, serr := c.ledger.Stored(ctx, a.Window); hasCode(err, NoAttempt) && serr == nil && s.Status == claim.Completed {
			err = newError(NoAttempt, nil, "window %s is completed; nothing more is committed for it", a.Window)
		}
		return Transaction{}, err
	}
	s, err := c.begin(ctx, a)
	if err != nil {
		err = c.failed(ctx, a, err)
		c.leave()
		return Transaction{}, err
	}
	go c.watch(s, lost)
	return Transaction{s.id, c.limits.Idle}, nil
}

// begin makes the session's connection and sends the beginning of the transaction.
func (c *Committer) begin(ctx context.Context, a claim.Attempt) (*session, error) {
	s := &session{id: newID(a.ExecutionID), attempt: a, use: make(chan struct{}, 1), gone: make(chan struct{})}
	// The transaction outlives the request that opened it.
	limited, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), c.limits.Transaction, tooLong(c.limits.Transaction))
	run, end := context.WithCancelCause(limited)
	s.run, s.end = run, func(why error) {
		end(why)
		stop()
	}
	both, done := joined(ctx, s.run)
	defer done()
	var err error
	if s.conn, err = c.connect(both); err == nil {
		if _, err = (batch{head: opening(a, c.limits.Statement)}).send(both, s.conn); err != nil {
			bye(ctx, s.conn)
		}
	}
	if err != nil {
		s.end(nil)
		return nil, err
	}
	s.idle = time.NewTimer(c.limits.Idle)
	s.use <- struct{}{}
	c.mu.Lock()
	c.open = s
	c.mu.Unlock()
	return s, nil
}

// randomPart is how many bytes of a transaction's id are random; the others tell that it
// was given out for an attempt.
const randomPart = 6

// newID makes the id of a transaction of the attempt.
func newID(attempt uuid.UUID) string {
	random := uuid.New()
	return idOf(attempt, random[:randomPart]).String()
}

// isID says whether id was given out for the attempt, by this guard or one before.
func isID(id string, attempt uuid.UUID) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed == idOf(attempt, parsed[:randomPart])
}

func idOf(attempt uuid.UUID, random []byte) (id uuid.UUID) {
	sum := sha256.Sum256(slices.Concat(attempt[:], random))
	copy(id[copy(id[:], random):], sum[:])
	id[6] = id[6]&0x0f | 0x80 // version 8: of one's own making
	id[8] = id[8]&0x3f | 0x80
	return id
}

// joined is run until ctx ends, too.
func joined(ctx, run context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(run)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return both, func() {
		stop()
		cancel(nil)
	}
}

// watch ends the session when its time is over or its right is lost, and closes it as
// soon as no request uses it.
func (c *Committer) watch(s *session, lost <-chan struct{}) {
	select {
	case <-lost:
		s.end(newError(NoAttempt, nil, "the attempt has lost its right to the window; nothing is committed, the worker should stop"))
	case <-s.idle.C:
		s.end(newError(Ended, nil, "there was no request for %s", c.limits.Idle))
	case <-s.run.Done():
	}
	<-s.use
	s.idle.Stop()
	bye(s.run, s.conn)
	c.mu.Lock()
	if !slices.ContainsFunc(c.ended, func(e ended) bool { return e.id == s.id }) { // finish knows more
		c.ended = append(c.ended, ended{id: s.id, why: reason(context.Cause(s.run))})
	}
	if len(c.ended) > remembered {
		c.ended = slices.Delete(c.ended, 0, 1)
	}
	c.open = nil
	c.mu.Unlock()
	c.leave()
	close(s.gone)
}

// find gives the open session, or what is remembered of it, or an *Error.
func (c *Committer) find(id string) (*session, *ended, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil && c.open.id == id {
		return c.open, nil, nil
	}
	for _, e := range c.ended {
		if e.id == id {
			return nil, &e, nil
		}
	}
	return nil, nil, newError(Unknown, nil, "no transaction %q is known; POST /v1/tx opens one", shorten(id))
}

// over says that the transaction has ended.
func (e ended) over() *Error {
	if e.digest != "" {
		return newError(Ended, nil, "transaction %s was committed; open another one for more", e.id)
	}
	return newError(Ended, e.why, "transaction %s is over, nothing of it is committed: %s", e.id, e.why.Message)
}

// with lets f use the session. An error of f ends the transaction.
func (c *Committer) with(ctx context.Context, id string, f func(run context.Context, s *session) error) error {
	s, was, err := c.find(id)
	switch {
	case err != nil:
		return err
	case was != nil:
		return was.over()
	}
	select {
	case <-s.use:
	case <-s.gone:
		return c.with(ctx, id, f) // it is among the ended now
	default:
		return newError(InFlight, nil, "another request of transaction %s is under way; wait for its answer", id)
	}
	s.idle.Stop()
	both, done := joined(ctx, s.run)
	err = f(both, s)
	done()
	if err != nil {
		s.end(reason(err))
	}
	if s.run.Err() == nil {
		s.idle.Reset(c.limits.Idle)
	}
	s.use <- struct{}{}
	if s.run.Err() != nil {
		<-s.gone // who hears of the end may open the next one
	}
	return err
}

// reason makes an *Error of what ends a session.
func reason(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return newError(Ended, err, "it has ended")
}

// Query runs one statement in the transaction.
func (c *Committer) Query(ctx context.Context, id string, q Statement) (did Rows, err error) {
	err = c.with(ctx, id, func(run context.Context, s *session) error {
		rows, err := (batch{statements: []Statement{q}, tail: []call{nothing}, alone: true}).send(run, s.conn)
		if err == nil {
			did = rows[0]
		}
		return err
	})
	return did, err
}

// Finish commits the transaction. Asked again it answers as before.
func (c *Committer) Finish(ctx context.Context, id string, end Closing) (answer Answer, err error) {
	want := asked{end, end.digestIn(id)}
	switch _, was, err := c.find(id); {
	case was != nil && was.digest == want.digest:
		answer = was.answer
		answer.Replayed = true
		return answer, nil
	case was != nil && was.why == nil:
		lost := ended{id: id, why: newError(Ended, nil, "its connection was lost at COMMIT")}
		if answer, err = c.again(ctx, id, want, lost.over()); hasCode(err, Ended) {
			c.mu.Lock()
			if i := slices.IndexFunc(c.ended, func(e ended) bool { return e.id == id }); i >= 0 {
				c.ended[i] = lost
			}
			c.mu.Unlock()
		}
		return answer, err
	case err != nil:
		return c.again(ctx, id, want, err)
	}
	err = c.with(ctx, id, func(run context.Context, s *session) (err error) {
		answer, err = c.finish(ctx, run, s, want)
		if err == nil {
			s.end(newError(Ended, nil, "it was committed"))
		}
		return err
	})
	return answer, err
}

func (c *Committer) finish(ctx, run context.Context, s *session, want asked) (answer Answer, err error) {
	end, err := c.end(run, s.attempt, want)
	if err != nil {
		return Answer{}, err
	}
	if _, err = (batch{tail: []call{end}}).send(run, s.conn); err == nil {
		answer = c.answer(want)
		s.sent.Store(true)
		err = c.commit(run, s.conn)
	}
	if err != nil {
		bye(ctx, s.conn) // its locks would keep the outcome from being found out
	}
	answer, err = c.judge(ctx, s.attempt, want, answer, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.ended = append(c.ended, ended{id: s.id, why: newError(Ended, nil, "it was committed"), digest: want.digest, answer: answer})
	case hasCode(err, UnknownResult):
		c.ended = append(c.ended, ended{id: s.id}) // again finds it out
	case hasCode(err, NotCommitted):
		err = newError(NotCommitted, err, "the connection was lost and nothing is committed; open another transaction and do the work again")
	default:
		// "Ask again" is no cure where the transaction is gone.
		if e, ok := errors.AsType[*Error](err); ok && e.Code == Unavailable {
			why, _, _ := strings.Cut(e.Message, "; nothing is committed")
			again := newError(Unavailable, err, "%s; nothing is committed; open another transaction and do the work again", why)
			again.SQLState = e.SQLState
			err = again
		}
	}
	return answer, err
}

// again answers a commit whose transaction this guard does not know, or does not know the
// outcome of: it may have been killed at COMMIT.
func (c *Committer) again(ctx context.Context, id string, want asked, otherwise error) (Answer, error) {
	if err := c.enter(ctx); err != nil {
		return Answer{}, err
	}
	defer c.leave()
	a, _, err := c.attempt()
	if hasCode(err, NoAttempt) {
		return c.replay(ctx, a.Window, want, otherwise)
	}
	if err != nil {
		return c.replay(ctx, a.Window, want, err)
	}
	if answer, found := c.known.replay(want); found && c.known.id == a.ExecutionID {
		return answer, nil
	}
	// To find out takes the execution_id away, which a driver of the worker's own may be
	// using: that is for a transaction of this attempt only, not for any id. One that was
	// given out under an id that the attempt had before is found at its checkpoint.
	if !isID(id, a.ExecutionID) {
		s, err := c.ledger.Stored(ctx, a.Window)
		switch {
		case err != nil:
			return Answer{}, newError(Unavailable, err, "whether transaction %s was committed cannot be read now; ask again", shorten(id))
		case !want.piece() || s.Checkpoint.RequestDigest != want.digest:
			return Answer{}, otherwise
		}
	}
	switch err := c.resolve(ctx, a, want); {
	case hasCode(err, NotCommitted):
		return Answer{}, otherwise
	case !errors.Is(err, errCommitted):
		return Answer{}, err
	case want.piece():
		return Answer{Replayed: true, CheckpointSeq: c.known.seq}, nil
	}
	return c.replay(ctx, a.Window, want, otherwise)
}

// Drop rolls the transaction back. One that has ended without a commit is what was asked for.
func (c *Committer) Drop(_ context.Context, id string) error {
	s, was, err := c.find(id)
	if err != nil {
		return err
	}
	if s != nil {
		if s.sent.Load() {
			return newError(InFlight, nil, "transaction %s is being committed; ask for its commit again", id)
		}
		s.end(newError(Ended, nil, "it was rolled back on request"))
		<-s.gone
		if _, was, err = c.find(id); err != nil {
			return err
		}
	}
	switch {
	case was.why == nil:
		return newError(UnknownResult, nil, "it is not known yet whether transaction %s was committed; ask for its commit again", id)
	case was.digest != "":
		return was.over()
	}
	return nil
}

// Close rolls an open transaction back: the guard leaves. The end of ctx ends the wait.
func (c *Committer) Close(ctx context.Context) {
	c.mu.Lock()
	s := c.open
	c.mu.Unlock()
	if s == nil {
		return
	}
	s.end(newError(Unavailable, nil, "the guard is leaving"))
	select {
	case <-s.gone:
	case <-ctx.Done():
	}
}
