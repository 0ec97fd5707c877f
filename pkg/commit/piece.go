package commit

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
)

// known is the checkpoint as this guard knows it for an attempt, so that a piece needs no
// round trip to ask for it, and the pieces of the attempt whose commit is certain to last,
// so that none of them is run again.
type known struct {
	id     uuid.UUID
	seq    int
	pieces []done
}

// done is a piece that is committed.
type done struct {
	digest string // of its request
	seq    int
}

// rememberedPieces is how many pieces of an attempt are remembered.
const rememberedPieces = 1000

// replay answers a piece of this attempt that is done already.
func (k *known) replay(want asked) (answer Answer, found bool) {
	i := slices.IndexFunc(k.pieces, func(d done) bool { return d.digest == want.digest })
	if i < 0 || !want.piece() {
		return Answer{}, false
	}
	return Answer{Replayed: true, CheckpointSeq: k.pieces[i].seq}, true
}

// of says which attempt is meant from now on; next is its id if that was replaced.
func (k *known) of(id, next uuid.UUID) {
	if k.id != id {
		*k = known{}
	}
	k.id = next
}

// add remembers a piece, and that it wrote the checkpoint.
func (k *known) add(d done) {
	k.seq = d.seq
	if k.pieces = append(k.pieces, d); len(k.pieces) > rememberedPieces {
		k.pieces = slices.Delete(k.pieces, 0, 1)
	}
}

// Checkpoint reads the last checkpoint of the window; its Seq is 0 when there is none.
func (c *Committer) Checkpoint(ctx context.Context) (claim.Checkpoint, error) {
	a, _, _, _ := c.holder.Held() //nolint:dogsled // the window only
	s, err := c.ledger.Stored(ctx, a.Window)
	if err != nil {
		return claim.Checkpoint{}, newError(Unavailable, err, "the checkpoint cannot be read now; ask again: %s", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Checkpoint.Seq >= c.unread {
		c.unread = 0
	}
	return s.Checkpoint, nil
}

// piece prepares a piece: it learns the stored checkpoint, unless the request or an
// earlier piece says it, and answers a request that has written it already.
func (c *Committer) piece(ctx context.Context, a claim.Attempt, want asked) (answer Answer, replayed bool, err error) {
	if !want.piece() {
		return Answer{}, false, nil
	}
	if c.known.id == a.ExecutionID {
		answer, replayed = c.known.replay(want)
		return answer, replayed, nil
	}
	if want.CheckpointSeq != nil {
		return Answer{}, false, nil // the ledger compares
	}
	s, err := c.learn(ctx, a)
	if err != nil || s.Checkpoint.RequestDigest != want.digest {
		return Answer{}, false, err
	}
	answer, err = c.repeated(ctx, a, want)
	return answer, err == nil, err
}

// learn reads the checkpoint that the attempt goes on from.
func (c *Committer) learn(ctx context.Context, a claim.Attempt) (claim.Stored, error) {
	s, err := c.ledger.Stored(ctx, a.Window)
	if err != nil {
		return s, newError(Unavailable, err, "the checkpoint to go on from cannot be read now; nothing is committed, ask again: %s", err)
	}
	c.known.of(a.ExecutionID, a.ExecutionID)
	c.known.seq = s.Checkpoint.Seq
	return s, nil
}

// repeated answers a piece that the ledger has already. A failover could lose what was only
// read, so it is made safe as an unknown COMMIT is.
func (c *Committer) repeated(ctx context.Context, a claim.Attempt, want asked) (Answer, error) {
	err := c.resolve(ctx, a, want)
	if err == errCommitted { //nolint:errorlint // it is never wrapped
		return Answer{Replayed: true, CheckpointSeq: c.known.seq}, nil
	}
	return Answer{}, err
}

// from is the sequence that the piece goes on from.
func (c *Committer) from(ctx context.Context, a claim.Attempt, want asked) (int, error) {
	switch {
	case want.CheckpointSeq != nil:
		return *want.CheckpointSeq, nil
	case c.known.id != a.ExecutionID:
		c.mustRead(0) // that was another attempt's
		if _, err := c.learn(ctx, a); err != nil {
			return 0, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread > 0 { // to ask again does not mean to know it
		return 0, overtaken(nil, c.unread)
	}
	return c.known.seq, nil
}

// mustRead says which checkpoint must have been read before a piece goes on without
// saying from where; 0: none.
func (c *Committer) mustRead(seq int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread = seq
}

func overtaken(err error, seq int) *Error {
	return newError(Conflict, err, "checkpoint %d was written meanwhile, not by this endpoint; nothing is committed; read GET /v1/checkpoint and go on from there", seq)
}

// next is the sequence of the piece that was made from there.
func (c *Committer) next(want asked) int {
	if want.CheckpointSeq != nil {
		return *want.CheckpointSeq + 1
	}
	return c.known.seq + 1
}

// conflict answers a piece that the ledger refused because another checkpoint is stored:
// perhaps the very one that is asked for.
func (c *Committer) conflict(ctx context.Context, a claim.Attempt, want asked, e *Error) (Answer, error) {
	s, err := c.learn(ctx, a)
	switch {
	case err != nil:
		return Answer{}, err
	case s.Checkpoint.RequestDigest == want.digest:
		return c.repeated(ctx, a, want)
	}
	c.mustRead(s.Checkpoint.Seq)
	if want.CheckpointSeq != nil {
		return Answer{}, newError(Conflict, e, "checkpoint_seq is %d, but checkpoint %d is stored; nothing is committed; read GET /v1/checkpoint and go on from there", *want.CheckpointSeq, s.Checkpoint.Seq)
	}
	return Answer{}, overtaken(e, s.Checkpoint.Seq)
}
