// Package ledgertest helps to test what uses a ledger: a fake in memory, built on the
// rule claim.Decide, and a suite that the fake and Postgres both must pass, so that
// rule, SQL and fake cannot drift apart unnoticed.
package ledgertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// API is what programs use of a ledger. *ledger.Ledger and *Fake implement it.
type API interface {
	Claim(context.Context, claim.Request) (claim.Answer, error)
	Heartbeat(context.Context, claim.Attempt, time.Duration) (claim.Beat, error)
	Complete(context.Context, claim.Attempt, claim.Completion) error
	Checkpoint(ctx context.Context, a claim.Attempt, expectedSeq int, data json.RawMessage, requestDigest string) (int, error)
	Release(context.Context, claim.Attempt, claim.End) (claim.Outcome, error)
	RecordSkip(context.Context, claim.Request, claim.Reason) error
	Resolve(context.Context, claim.Attempt, uuid.UUID) (claim.Resolution, error)
	Stored(context.Context, window.Window) (claim.Stored, error)
	CheckSchema(context.Context) error
}

var (
	_ API = (*ledger.Ledger)(nil)
	_ API = (*Fake)(nil)
)

// Fake is a ledger in memory. The zero value is empty and ready.
type Fake struct {
	// Now is the database's clock; nil is time.Now. Set it before the first call.
	Now func() time.Time

	mu      sync.Mutex
	down    error
	rows    map[string]*execution
	closed  map[string]time.Time // watermarks by base name
	plans   map[string]*plan
	away    map[cronJob]bool // CronJobs that were judged; true: nobody looks at them any more
	gaps    []gap
	skipped map[string][]claim.Reason
	once    map[string]bool
}

// Attempt is one try as the fake remembers it.
type Attempt struct {
	ExecutionID uuid.UUID
	Outcome     claim.Outcome // empty while it runs
	End         claim.End
	Origin      claim.Origin
	former      []uuid.UUID
}

type execution struct {
	claim.Stored
	window   window.Window
	reason   claim.Reason // of a closed one
	closedBy string
	closedAt time.Time // zero while it is not closed
	replaced time.Time // the window that took its place
	decided  int       // attempts up to this one do not count; -1: no person decided
	token    int64
	attempts []Attempt
	lease    *leaseRow
}

type leaseRow struct {
	id      uuid.UUID
	expires time.Time
	cancel  bool
	by      string    // who asked it to stop
	asker   time.Time // the window that asked
}

// SetDown makes every call fail with err, as an unreachable database would; nil ends it.
// Pass an error that wraps a sentinel of package ledger.
func (f *Fake) SetDown(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

// Expire ends the lease of a window, as time would.
func (f *Fake) Expire(w window.Window) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.rows[key(w)]; e != nil && e.lease != nil {
		e.lease.expires = f.now().Add(-time.Second)
	}
}

// Cancel makes the next heartbeats of a window answer BeatCancel.
func (f *Fake) Cancel(w window.Window) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.rows[key(w)]; e != nil && e.lease != nil {
		e.lease.cancel = true
	}
}

// Attempts are the tries at a window, the first one first.
func (f *Fake) Attempts(w window.Window) []Attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.rows[key(w)]; e != nil {
		return append([]Attempt(nil), e.attempts...)
	}
	return nil
}

// Skips are the recorded skips of a window.
func (f *Fake) Skips(w window.Window) []claim.Reason {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]claim.Reason(nil), f.skipped[key(w)]...)
}

// Heartbeat implements API.
func (f *Fake) Heartbeat(ctx context.Context, a claim.Attempt, lease time.Duration) (claim.Beat, error) {
	if err := f.enter(ctx); err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	e := f.rows[key(a.Window)]
	if e == nil || e.lease == nil || e.lease.id != a.ExecutionID {
		return claim.BeatLost, nil
	}
	e.lease.expires = f.now().Add(lease)
	if f.asked(e) {
		return claim.BeatCancel, nil
	}
	return claim.BeatOK, nil
}

// Complete implements API.
func (f *Fake) Complete(ctx context.Context, a claim.Attempt, c claim.Completion) error {
	if err := f.enter(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	e := f.rows[key(a.Window)]
	switch {
	case e == nil && f.isClosed(a.Window):
		return fmt.Errorf("completion of %s: %w", a.Window, ledger.ErrClosed)
	case e == nil || e.ExecutionID != a.ExecutionID && e.Status != claim.Completed:
		return fmt.Errorf("completion of %s: %w", a.Window, ledger.ErrFenced)
	case e.Status == claim.Completed && e.ExecutionID == a.ExecutionID:
		return nil
	case e.Status == claim.Completed:
		return fmt.Errorf("completion of %s: %w", a.Window, ledger.ErrCompleted)
	case differ(e.PayloadDigest, c.PayloadDigest):
		return fmt.Errorf("completion of %s: %w", a.Window, ledger.ErrPayload)
	case c.PayloadDigest == "":
		c.PayloadDigest = e.PayloadDigest
	}
	e.Status, e.Completion, e.CompletedAt = claim.Completed, c, f.now()
	e.Result = bytes.Clone(c.Result)
	return nil
}

// Checkpoint implements API.
func (f *Fake) Checkpoint(ctx context.Context, a claim.Attempt, expectedSeq int, data json.RawMessage, requestDigest string) (int, error) {
	if err := f.enter(ctx); err != nil {
		return 0, err
	}
	defer f.mu.Unlock()
	e := f.rows[key(a.Window)]
	var refused error
	switch {
	case e == nil && f.isClosed(a.Window):
		refused = ledger.ErrClosed
	case e != nil && e.Status == claim.Completed:
		refused = ledger.ErrCompleted
	case e == nil || e.ExecutionID != a.ExecutionID:
		refused = ledger.ErrFenced
	case e.Checkpoint.Seq != expectedSeq:
		refused = ledger.ErrCheckpoint
	}
	if refused != nil {
		return 0, fmt.Errorf("checkpoint of %s: %w", a.Window, refused)
	}
	e.Checkpoint = claim.Checkpoint{Seq: expectedSeq + 1, Data: bytes.Clone(data), RequestDigest: requestDigest}
	return e.Checkpoint.Seq, nil
}

// Release implements API.
func (f *Fake) Release(ctx context.Context, a claim.Attempt, end claim.End) (claim.Outcome, error) {
	if err := f.enter(ctx); err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	e := f.rows[key(a.Window)]
	if e == nil {
		return "", nil
	}
	if e.ExecutionID != a.ExecutionID {
		for _, t := range e.attempts {
			if t.ExecutionID == a.ExecutionID && t.Outcome != claim.OutcomeLost {
				return t.Outcome, nil
			}
		}
		return "", nil
	}
	last := &e.attempts[e.Attempt-1]
	outcome := end.Outcome
	if e.Status == claim.Completed {
		outcome = claim.OutcomeCompleted
	} else if outcome == claim.OutcomeCompleted {
		return "", fmt.Errorf("release of %s: the window is not completed", a.Window)
	} else if f.asked(e) && !f.wanted(e) {
		e.Status, e.reason, e.closedBy, e.ExecutionID = claim.Skipped, claim.Superseded, e.lease.by, uuid.Nil
		e.closedAt, e.replaced = f.now(), e.lease.asker
	} else {
		e.Status, e.ExecutionID = claim.Failed, uuid.Nil
	}
	if e.lease != nil && e.lease.id == a.ExecutionID {
		e.lease = nil
	}
	if last.Outcome == "" {
		last.Outcome, last.End = outcome, end
	}
	return outcome, nil
}

// RecordSkip implements API.
func (f *Fake) RecordSkip(ctx context.Context, r claim.Request, reason claim.Reason) error {
	if err := f.enter(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	who := r.Origin.PodUID
	if who == "" {
		who = r.ExecutionID.String()
	}
	if f.once == nil {
		f.once, f.skipped = map[string]bool{}, map[string][]claim.Reason{}
	}
	if k := key(r.Window); !f.once[k+who] {
		f.once[k+who] = true
		f.skipped[k] = append(f.skipped[k], reason)
	}
	return nil
}

// Resolve implements API.
func (f *Fake) Resolve(ctx context.Context, a claim.Attempt, newID uuid.UUID) (claim.Resolution, error) {
	if err := f.enter(ctx); err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	e := f.rows[key(a.Window)]
	switch {
	case e == nil:
		return claim.ResolvedLost, nil
	case e.Status == claim.Completed && e.ExecutionID == a.ExecutionID:
		return claim.ResolvedCommitted, nil
	case e.Status == claim.Running && e.ExecutionID == newID:
		return claim.ResolvedNotCommitted, nil
	case e.Status != claim.Running || e.ExecutionID != a.ExecutionID:
		return claim.ResolvedLost, nil
	}
	e.ExecutionID = newID
	if e.lease != nil && e.lease.id == a.ExecutionID {
		e.lease.id = newID
	}
	last := &e.attempts[e.Attempt-1]
	last.ExecutionID, last.former = newID, append(last.former, a.ExecutionID)
	return claim.ResolvedNotCommitted, nil
}

// Stored implements API.
func (f *Fake) Stored(ctx context.Context, w window.Window) (claim.Stored, error) {
	if err := f.enter(ctx); err != nil {
		return claim.Stored{}, err
	}
	defer f.mu.Unlock()
	if e := f.rows[key(w)]; e != nil {
		s := e.Stored
		s.Result = json.RawMessage(bytes.Clone(e.Result))
		s.Checkpoint.Data = bytes.Clone(e.Checkpoint.Data)
		return s, nil
	}
	return claim.Stored{}, nil
}

// CheckSchema implements API.
func (f *Fake) CheckSchema(ctx context.Context) error {
	if err := f.enter(ctx); err != nil {
		return err
	}
	f.mu.Unlock()
	return nil
}

// enter locks the fake unless the call must fail.
func (f *Fake) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	if f.down != nil {
		defer f.mu.Unlock()
		return f.down
	}
	return nil
}

func (f *Fake) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

func key(w window.Window) string {
	return fmt.Sprintf("%s\x00%d\x00", w.JobName, w.Start.UnixMicro())
}
