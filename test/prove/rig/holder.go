package rig

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
)

// Holder is the part of the guard that a commit speaks to (commit.Holder). It believes
// that it holds its attempt until it is told otherwise: only the ledger stands between it
// and a second effect.
type Holder struct {
	mu        sync.Mutex
	a         claim.Attempt
	next      uuid.UUID
	committed bool
	fenced    bool
}

// Hold gives the holder of an attempt.
func Hold(a claim.Attempt) *Holder { return &Holder{a: a} }

// Take makes it the holder of another attempt.
func (h *Holder) Take(a claim.Attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.a, h.next, h.committed, h.fenced = a, uuid.Nil, false, false
}

// Attempt is the one that it holds or held.
func (h *Holder) Attempt() claim.Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.a
}

// Told says what the commit has told it.
func (h *Holder) Told() (committed, fenced bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.committed, h.fenced
}

// Held is of commit.Holder.
func (h *Holder) Held() (a claim.Attempt, lost <-chan struct{}, held, pending bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.a, nil, !h.committed && !h.fenced, false
}

// Committed is of commit.Holder.
func (h *Holder) Committed(_ context.Context, id uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.committed = h.committed || id == h.a.ExecutionID
	return nil
}

// Fenced is of commit.Holder.
func (h *Holder) Fenced(_ context.Context, id uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fenced = h.fenced || id == h.a.ExecutionID
	return nil
}

// Replacing is of commit.Holder.
func (h *Holder) Replacing(_ context.Context, _, next uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = next
	return nil
}

// Replaced is of commit.Holder.
func (h *Holder) Replaced(_ context.Context, id, next uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == h.a.ExecutionID && next == h.next {
		h.a.ExecutionID = next
	}
	return nil
}
