package commit

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/window"
)

// unknown is a COMMIT whose outcome is still to be found out.
type unknown struct {
	attempt claim.Attempt
	next    uuid.UUID
	want    asked // a piece is looked for at the checkpoint
}

// errCommitted: the resolve found the commit.
var errCommitted = errors.New("committed")

// past says whether another attempt of this pod has followed the one of an unknown COMMIT.
func (c *Committer) past(u unknown) bool {
	a, _, held, _ := c.holder.Held()
	return held && a.ExecutionID != u.attempt.ExecutionID
}

// resolve asks what became of a COMMIT of a; see settle.
func (c *Committer) resolve(ctx context.Context, a claim.Attempt, want asked) error {
	c.unknown = &unknown{attempt: a, next: uuid.New(), want: want}
	return c.settle(ctx, *c.unknown)
}

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
			c.committed(ctx, u.attempt.ExecutionID)
			if err = c.found(ctx, u, u.attempt.ExecutionID); err != nil {
				return c.settled(err)
			}
		case r == claim.ResolvedNotCommitted:
			c.note("replaced", c.holder.Replaced(context.WithoutCancel(ctx), u.attempt.ExecutionID, u.next))
			if err = c.found(ctx, u, u.next); err != nil {
				return c.settled(err)
			}
		case r == claim.ResolvedLost:
			c.fenced(ctx, u.attempt.ExecutionID)
			return c.settled(newError(FenceLost, nil, "this attempt no longer holds the window; the worker should stop"))
		}
		select {
		case <-ctx.Done():
			return newError(UnknownResult, err, "it is not known yet whether the commit was made; ask again with the same request, it is not run twice")
		case <-time.After(resolvePause):
		}
	}
}

// settled: nothing is unknown any more.
func (c *Committer) settled(err error) error {
	c.unknown = nil
	return err
}

// found reads what a fenced COMMIT has left: no other transaction of its id can commit any
// more, so that a read is enough. id is the attempt's now. nil: it could not be read.
func (c *Committer) found(ctx context.Context, u unknown, id uuid.UUID) error {
	replaced := id == u.next
	if !u.want.piece() {
		if !replaced {
			return errCommitted
		}
		c.known.of(u.attempt.ExecutionID, id)
		return newError(NotCommitted, nil, "the connection was lost and nothing is committed; send the same request again")
	}
	s, err := c.ledger.Stored(ctx, u.attempt.Window)
	if err != nil {
		c.log.Warn("reading the checkpoint failed", zap.Error(err))
		return nil
	}
	c.known.of(u.attempt.ExecutionID, id)
	c.known.seq = s.Checkpoint.Seq
	switch {
	case s.Checkpoint.RequestDigest == u.want.digest:
		c.known.add(done{u.want.digest, s.Checkpoint.Seq})
		return errCommitted
	case !replaced:
		return newError(OtherRequest, nil, "the window is completed already, without this piece")
	}
	return newError(NotCommitted, nil, "the connection was lost and nothing is committed; send the same request again")
}

// replay answers from what is kept of the window, or with otherwise.
func (c *Committer) replay(ctx context.Context, w window.Window, want asked, otherwise error) (Answer, error) {
	s, err := c.ledger.Stored(ctx, w)
	switch {
	case err != nil: // whatever else is wrong, the window may be completed by this very request
		return Answer{}, newError(Unavailable, err, "whether the window is completed, and how, cannot be read now; ask again: %s", err)
	case s.Status != claim.Completed:
		return Answer{}, otherwise
	case want.piece() && s.Checkpoint.RequestDigest == want.digest:
		return c.promised(ctx, w, s, Answer{Replayed: true, CheckpointSeq: s.Checkpoint.Seq})
	case s.RequestDigest == want.digest:
		return c.promised(ctx, w, s, Answer{Replayed: true, Completed: true, Result: s.Result, Processed: s.Processed})
	case hasCode(otherwise, Unknown) || hasCode(otherwise, Ended):
		return Answer{}, otherwise
	case !isNull(want.Payload) && s.PayloadDigest != want.PayloadDigest():
		return Answer{}, newError(OtherPayload, nil, "window %s was completed with payload %s, this request has %s",
			w, orNone(s.PayloadDigest), want.PayloadDigest())
	}
	return Answer{}, newError(OtherRequest, nil, "window %s was completed by another request (%s, this one is %s)", w, orNone(s.RequestDigest), want.digest)
}

// promised makes what is kept of a completed window safe before it is answered: the commit
// may be one that no standby has yet.
func (c *Committer) promised(ctx context.Context, w window.Window, s claim.Stored, answer Answer) (Answer, error) {
	old := claim.Attempt{Window: w, ExecutionID: s.ExecutionID}
	if found, err := c.ledger.Resolve(ctx, old, uuid.New()); err != nil || found != claim.ResolvedCommitted {
		return Answer{}, newError(Unavailable, err, "the window is completed by this request, but whether a failover could lose it is not known yet; ask again")
	}
	return answer, nil
}

func orNone(digest string) string {
	if digest == "" {
		return "none"
	}
	return digest
}
