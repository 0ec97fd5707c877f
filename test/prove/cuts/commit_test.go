package cuts_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// guard is the part of the guard that a commit speaks to: it holds one attempt.
type guard struct {
	mu        sync.Mutex
	a         claim.Attempt
	next      uuid.UUID
	committed bool
	fenced    bool
}

func (g *guard) Held() (a claim.Attempt, lost <-chan struct{}, held, pending bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.a, nil, !g.committed && !g.fenced, false
}

func (g *guard) Committed(_ context.Context, id uuid.UUID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.committed = g.committed || id == g.a.ExecutionID
	return nil
}

func (g *guard) Fenced(_ context.Context, id uuid.UUID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fenced = g.fenced || id == g.a.ExecutionID
	return nil
}

func (g *guard) Replacing(_ context.Context, _, next uuid.UUID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = next
	return nil
}

func (g *guard) Replaced(_ context.Context, id, next uuid.UUID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id == g.a.ExecutionID && next == g.next {
		g.a.ExecutionID = next
	}
	return nil
}

func (g *guard) attempt() claim.Attempt {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.a
}

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
	guard *guard
	*commit.Committer
	told    told
	unknown bool // it was told so, and not yet what came of it
}

func newAsker(ctx context.Context, w *worker) (*asker, error) {
	a, err := w.claimed(ctx)
	s := &asker{w: w, guard: &guard{a: a}, told: nothing}
	s.Committer = commit.New(resolver{w.ledger, w.proxy.Release}, s.guard, zap.NewNop())
	return s, err
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
	//exhaustive:ignore // the others are violations
	switch e.Code {
	case commit.UnknownResult:
		s.told, s.unknown = nothing, true
	case commit.NotCommitted:
		s.told, s.unknown = denied, false
	case commit.Unavailable:
		if s.told = denied; s.unknown {
			s.told = nothing
		}
	default:
		return false, fmt.Errorf("nobody else is there, and it says %w", e)
	}
	return false, nil
}

// oneShot is the request of one commit.
func oneShot(a claim.Attempt) (commit.Request, error) {
	return commit.Parse(fmt.Appendf(nil,
		`{"statements": [{"sql": "INSERT INTO effect VALUES ($1, $2, $3)", "args": [%q, %q, 1], "expect_rows": 1}], "payload": {"file": 1}, "result": {"n": 7}, "processed": 7}`,
		a.Window.JobName, a.Window.Start.Format("2006-01-02T15:04:05Z07:00")))
}

func committing(ctx context.Context, w *worker) (client, error) {
	s, err := newAsker(ctx, w)
	if err != nil {
		return client{}, err
	}
	r, err := oneShot(s.guard.a)
	ask := func(ctx context.Context) (bool, error) {
		got, err := s.Commit(ctx, r)
		if err == nil && (string(got.Result) != `{"n": 7}` || got.Processed == nil || *got.Processed != 7) {
			return false, fmt.Errorf("answered %+v", got)
		}
		return s.heard(got.Replayed, err)
	}
	return client{
		ask:   ask,
		holds: func(ctx context.Context) error { return w.holds(ctx, s.guard.attempt(), s.told) },
		done: func(ctx context.Context) error {
			if !s.guard.committed || s.guard.fenced {
				return fmt.Errorf("the guard was told: committed %v, fenced %v", s.guard.committed, s.guard.fenced)
			}
			if err := w.completed(ctx, s.guard.a, 1); err != nil {
				return err
			}
			past := commit.New(w.direct, s.guard, zap.NewNop())
			if got, err := past.Commit(ctx, r); err != nil || !got.Replayed || string(got.Result) != `{"n": 7}` {
				return fmt.Errorf("asked again: %+v, %w", got, err)
			}
			other := r
			other.Result = []byte(`{"n": 8}`)
			_, err := past.Commit(ctx, other)
			if e, ok := errors.AsType[*commit.Error](err); !ok || e.Code != commit.OtherRequest {
				return fmt.Errorf("another request: %w", err)
			}
			return nil
		},
	}, err
}
