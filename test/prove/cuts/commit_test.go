package cuts_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// resolver is the ledger of a commit. The server hears of the end of a silent connection
// only after the first resolve was answered: that one meets the transaction still open.
type resolver struct {
	*ledger.Ledger
	release func()
}

func (r resolver) Resolve(ctx context.Context, a claim.Attempt, next uuid.UUID) (claim.Resolution, error) {
	defer r.release()
	return r.Ledger.Resolve(ctx, a, next)
}

// asker is a worker that commits by the local endpoint, and asks again as its errors say.
type asker struct {
	w     *worker
	guard *rig.Holder
	*commit.Committer
	tx      string // the interactive transaction that is open, or whose commit is asked for
	told    told
	unknown bool // a commit may have been made, and it was said so
}

func newAsker(ctx context.Context, w *worker) (*asker, error) {
	return newAskerOf(ctx, w, resolver{w.ledger, w.proxy.Release})
}

func newAskerOf(ctx context.Context, w *worker, l commit.Ledger) (*asker, error) {
	a, err := w.claimed(ctx)
	g := rig.Hold(a)
	return &asker{w: w, guard: g, Committer: commit.New(l, g, zap.NewNop()), told: nothing}, err
}

// heard takes in an answer, and says whether it was the last one. The error is a violation.
func (s *asker) heard(replayed bool, err error) (done bool, violation error) {
	e, refused := errors.AsType[*commit.Error](err)
	switch {
	case err == nil && replayed && !s.unknown:
		return false, errors.New("replayed, and never was a commit said to be possible")
	case err == nil:
		s.told = committed
		return true, nil
	case !refused:
		return false, fmt.Errorf("not an error of the endpoint: %w", err)
	}
	switch e.Code { //nolint:exhaustive // all others are violations
	case commit.UnknownResult:
		s.told, s.unknown = nothing, true
	case commit.NotCommitted:
		s.told, s.unknown, s.tx = denied, false, ""
	case commit.Unavailable:
		if s.told = denied; s.unknown {
			s.told = nothing // of an earlier commit it says nothing
		} else {
			s.tx = ""
		}
	default:
		return false, fmt.Errorf("nobody else is there, and it says %w", e)
	}
	return false, nil
}

const closing = `"payload": {"file": 1}, "result": {"n": 7}, "processed": 7`

// insert is the statement with the effect, and the request that ends with it.
func insert(a claim.Attempt, end string) (commit.Request, error) {
	return commit.Parse(fmt.Appendf(nil, `{"statements": [{"sql": "INSERT INTO effect VALUES ($1, $2, 1)", "args": [%q, %q], "expect_rows": 1}], %s}`,
		a.Window.JobName, a.Window.Start.Format(time.RFC3339), end))
}

// kept is nil when the result is the one that was given.
func kept(a commit.Answer) error {
	if string(a.Result) != `{"n": 7}` || a.Processed == nil || *a.Processed != 7 || !a.Completed {
		return fmt.Errorf("answered %+v", a)
	}
	return nil
}

// client is the asker's trial; ask is the commit of r or of what came before it.
func (s *asker) client(r commit.Request, ask func(context.Context) (commit.Answer, error)) client {
	piece := r.Checkpoint != nil
	return client{
		ask: func(ctx context.Context) (bool, error) {
			got, err := ask(ctx)
			done, violation := s.heard(got.Replayed, err)
			switch {
			case violation != nil || !done:
			case piece && (got.Completed || got.CheckpointSeq != 1):
				violation = fmt.Errorf("answered %+v", got)
			case !piece:
				violation = kept(got)
			}
			return done, violation
		},
		holds: func(ctx context.Context) error { return s.w.holds(ctx, s.guard.Attempt(), s.told, piece) },
		done: func(ctx context.Context) error {
			a := s.guard.Attempt()
			if committed, fenced := s.guard.Told(); committed == piece || fenced {
				return fmt.Errorf("the guard was told: committed %v, fenced %v", committed, fenced)
			}
			past := commit.New(s.w.direct, s.guard, zap.NewNop())
			if piece { // once more, and then the rest
				if got, err := past.Commit(ctx, r); err != nil || !got.Replayed || got.CheckpointSeq != 1 {
					return fmt.Errorf("asked again: %+v, %w", got, err)
				}
				if _, err := past.Commit(ctx, commit.Request{}); err != nil {
					return fmt.Errorf("completing after the piece: %w", err)
				}
				return s.w.completed(ctx, s.guard.Attempt(), 1, 1)
			}
			if err := s.w.completed(ctx, a, 1, 1); err != nil {
				return err
			}
			if s.tx != "" {
				got, err := past.Finish(ctx, s.tx, r.Closing)
				if err != nil || !got.Replayed || kept(got) != nil {
					return fmt.Errorf("asked again: %+v, %w", got, err)
				}
				return nil
			}
			if got, err := past.Commit(ctx, r); err != nil || !got.Replayed || kept(got) != nil {
				return fmt.Errorf("asked again: %+v, %w", got, err)
			}
			r.Result = []byte(`{"n": 8}`)
			_, err := past.Commit(ctx, r)
			if e, ok := errors.AsType[*commit.Error](err); !ok || e.Code != commit.OtherRequest {
				return fmt.Errorf("another request: %w", err)
			}
			return nil
		},
	}
}

func committing(ctx context.Context, w *worker) (client, error) { return oneShot(ctx, w, closing) }

func checkpointing(ctx context.Context, w *worker) (client, error) {
	return oneShot(ctx, w, `"complete": false, "checkpoint": {"at": 1}`)
}

func oneShot(ctx context.Context, w *worker, end string) (client, error) {
	s, err := newAsker(ctx, w)
	if err != nil {
		return client{}, err
	}
	return s.oneShot(end)
}

func (s *asker) oneShot(end string) (client, error) {
	r, err := insert(s.guard.Attempt(), end)
	return s.client(r, func(ctx context.Context) (commit.Answer, error) { return s.Commit(ctx, r) }), err
}

// repeating is a worker that has lost the answer to its commit and asks again.
func repeating(ctx context.Context, w *worker) (client, error) {
	s, err := newAsker(ctx, w)
	if err != nil {
		return client{}, err
	}
	r, err := insert(s.guard.Attempt(), closing)
	if err != nil {
		return client{}, err
	}
	_, err = commit.New(w.direct, s.guard, zap.NewNop()).Commit(ctx, r)
	s.unknown = true
	return s.client(r, func(ctx context.Context) (commit.Answer, error) { return s.Commit(ctx, r) }), err
}

// interacting is a worker with an interactive transaction. What fails before its commit
// is begun again.
func interacting(ctx context.Context, w *worker) (client, error) {
	s, err := newAsker(ctx, w)
	if err != nil {
		return client{}, err
	}
	r, err := insert(s.guard.Attempt(), closing)
	return s.client(r, func(ctx context.Context) (commit.Answer, error) {
		if !s.unknown {
			tx, err := s.Open(ctx)
			if err != nil {
				return commit.Answer{}, err
			}
			s.tx = tx.ID
			if _, err = s.Query(ctx, s.tx, r.Statements[0]); err != nil {
				return commit.Answer{}, err
			}
		}
		return s.Finish(ctx, s.tx, r.Closing)
	}), err
}
