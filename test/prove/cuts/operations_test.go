package cuts_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// operations are the ledger's, as the guard calls them: after an error it asks the same
// question again.
var operations = []operation{
	{name: "claim", prepare: claiming},
	{name: "claim, connecting", cold: true, prepare: claiming},
	{name: "heartbeat", prepare: beating},
	{name: "complete", prepare: completing},
	{name: "release", prepare: releasing},
	{name: "resolve of a commit", prepare: resolvingCommitted},
	{name: "resolve of none", prepare: resolvingNone},
	{name: "record_skip", prepare: skipping},
	{name: "own driver", warm: 1, prepare: resolvingDriver},
	{name: "own driver, released", warm: 1, prepare: releasedDriver},
	{name: "commit", own: true, stubborn: "COMMIT", prepare: committing},
	{name: "commit, asked again", prepare: repeating},
	{name: "piece", own: true, stubborn: "COMMIT", prepare: checkpointing},
	{name: "interactive transaction", own: true, stubborn: "COMMIT", prepare: interacting},
}

func always(context.Context) error { return nil }

// unanswered says whether a call is to be repeated; any other failure is a violation.
func unanswered(err error) (bool, error) {
	if errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, context.Canceled) {
		return true, nil
	}
	return false, err
}

func claiming(_ context.Context, w *worker) (client, error) {
	a := w.fresh()
	var first claim.Answer
	return client{
		ask: func(ctx context.Context) (bool, error) {
			got, err := w.ledger.Claim(ctx, request(a))
			if again, err := unanswered(err); again || err != nil {
				return false, err
			}
			first = got
			if got.Verdict != claim.Run || got.Reason != claim.First && got.Reason != claim.Adopted || got.Attempt != 1 {
				return false, fmt.Errorf("claim of a fresh window: %+v", got)
			}
			return true, nil
		},
		holds: always,
		done: func(ctx context.Context) error {
			r, err := w.row(ctx, a)
			if err == nil && (r.status != "running" || r.id != a.ExecutionID.String() || r.attempt != 1 || r.leases != 1 || r.attempts != 1) {
				err = fmt.Errorf("answered run, and there is %+v", r)
			}
			if err != nil {
				return err
			}
			again, err := w.direct.Claim(ctx, request(a))
			first.Reason = claim.Adopted
			if first.Holder, again.Holder = (claim.Holder{}), (claim.Holder{}); err != nil || again != first {
				return fmt.Errorf("asked again: %+v, %w; first it was %+v", again, err, first)
			}
			other, err := w.direct.Claim(ctx, request(claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}))
			if err != nil || other.Reason != claim.BusyHeld {
				return fmt.Errorf("another attempt was answered %+v, %w", other, err)
			}
			return nil
		},
	}, nil
}

func beating(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	return client{
		ask: func(ctx context.Context) (bool, error) {
			b, err := w.ledger.Heartbeat(ctx, a, 2*lease)
			if again, err := unanswered(err); again || err != nil {
				return false, err
			}
			if b != claim.BeatOK {
				return false, fmt.Errorf("the heartbeat of a held window: %s", b)
			}
			return true, nil
		},
		holds: always,
		done: func(ctx context.Context) error {
			r, err := w.row(ctx, a)
			if err == nil && (r.status != "running" || r.id != a.ExecutionID.String() || r.leases != 1 || r.remaining < lease) {
				err = fmt.Errorf("answered ok, and there is %+v", r)
			}
			return err
		},
	}, err
}

func completing(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	n := int64(7)
	completion := claim.Completion{PayloadDigest: "sha256:p", Result: []byte(`{"n": 7}`), Processed: &n}
	return client{
		ask: func(ctx context.Context) (bool, error) {
			again, err := unanswered(w.ledger.Complete(ctx, a, completion))
			return !again && err == nil, err
		},
		holds: always,
		done: func(ctx context.Context) error {
			if err := w.completed(ctx, a, 1, 0); err != nil {
				return err
			}
			s, err := w.direct.Stored(ctx, a.Window)
			if err != nil || s.ExecutionID != a.ExecutionID || string(s.Result) != `{"n": 7}` || s.Processed == nil || *s.Processed != 7 {
				return fmt.Errorf("stored is %+v, %w", s, err)
			}
			return nil
		},
	}, err
}

// completed is nil when the window is completed by a, which is so many attempts old, with
// so many effects, and asking a second time says the same.
func (w *worker) completed(ctx context.Context, a claim.Attempt, attempts, effects int) error {
	r, err := w.row(ctx, a)
	if err == nil && (r.status != "completed" || r.id != a.ExecutionID.String() || r.effects != effects || r.attempts != attempts) {
		err = fmt.Errorf("answered committed, and there is %+v", r)
	}
	if err != nil {
		return err
	}
	if got, err := w.direct.Resolve(ctx, a, uuid.New()); err != nil || got != claim.ResolvedCommitted {
		return fmt.Errorf("resolved as %s, %w", got, err)
	}
	got, err := w.direct.Claim(ctx, request(claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}))
	if err != nil || got.Reason != claim.AlreadyCompleted || got.Holder.ExecutionID != a.ExecutionID {
		return fmt.Errorf("the next claim was answered %+v, %w", got, err)
	}
	return nil
}

func releasing(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	return client{
		ask: func(ctx context.Context) (bool, error) {
			got, err := w.ledger.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed, Message: "exit code 3"})
			if again, err := unanswered(err); again || err != nil {
				return false, err
			}
			if got != claim.OutcomeFailed {
				return false, fmt.Errorf("release of a held window: %q", got)
			}
			return true, nil
		},
		holds: always,
		done: func(ctx context.Context) error {
			r, err := w.row(ctx, a)
			if err == nil && (r.status != "failed" || r.outcome != "failed" || r.leases != 0 || r.attempts != 1) {
				err = fmt.Errorf("answered failed, and there is %+v", r)
			}
			if err != nil {
				return err
			}
			got, err := w.direct.Claim(ctx, request(claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}))
			if err != nil || got.Reason != claim.Retry || got.Attempt != 2 {
				return fmt.Errorf("the next claim was answered %+v, %w", got, err)
			}
			return nil
		},
	}, err
}

func resolvingCommitted(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	if err == nil {
		err = w.direct.Complete(ctx, a, claim.Completion{})
	}
	next := uuid.New()
	return client{
		ask:   func(ctx context.Context) (bool, error) { return w.resolve(ctx, a, next, claim.ResolvedCommitted) },
		holds: always,
		done:  func(ctx context.Context) error { return w.completed(ctx, a, 1, 0) },
	}, err
}

func (w *worker) resolve(ctx context.Context, a claim.Attempt, next uuid.UUID, want claim.Resolution) (bool, error) {
	got, err := w.ledger.Resolve(ctx, a, next)
	if again, err := unanswered(err); again || err != nil {
		return false, err
	}
	if got != want && got != claim.ResolvedPending {
		return false, fmt.Errorf("resolved as %s, want %s", got, want)
	}
	return got == want, nil
}

func resolvingNone(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	next := claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}
	return client{
		ask: func(ctx context.Context) (bool, error) {
			return w.resolve(ctx, a, next.ExecutionID, claim.ResolvedNotCommitted)
		},
		holds: always,
		done: func(ctx context.Context) error {
			if got, err := w.direct.Resolve(ctx, a, next.ExecutionID); err != nil || got != claim.ResolvedNotCommitted {
				return fmt.Errorf("asked again it is %s, %w", got, err)
			}
			if err := w.direct.Complete(ctx, a, claim.Completion{}); !errors.Is(err, ledger.ErrFenced) {
				return fmt.Errorf("the id that was taken away: %w", err)
			}
			if err := w.direct.Complete(ctx, next, claim.Completion{}); err != nil {
				return fmt.Errorf("the id that replaced it: %w", err)
			}
			return w.completed(ctx, next, 1, 0)
		},
	}, err
}

func skipping(ctx context.Context, w *worker) (client, error) {
	a, err := w.claimed(ctx)
	if err == nil {
		err = w.direct.Complete(ctx, a, claim.Completion{})
	}
	duplicate := claim.Attempt{Window: a.Window, ExecutionID: uuid.New()}
	return client{
		ask: func(ctx context.Context) (bool, error) {
			again, err := unanswered(w.ledger.RecordSkip(ctx, request(duplicate), claim.AlreadyCompleted))
			return !again && err == nil, err
		},
		holds: always,
		done: func(ctx context.Context) error {
			r, err := w.row(ctx, a)
			if err == nil && r.skips != 1 {
				err = fmt.Errorf("%d skips of one pod", r.skips)
			}
			return err
		},
	}, err
}
