package guard

import (
	"context"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
)

// View is what others may know of the guard at an instant.
type View struct {
	Phase          Phase
	ExecutionID    uuid.UUID
	Attempt        int
	FencingToken   int64
	Generation     int
	IdempotencyKey string
	Committed      bool
	Message        string // why there is no attempt, for people

	lost chan struct{}
}

// holding says whether the local endpoint may commit.
func (v View) holding() bool { return v.Phase == Held && !v.Committed }

// pending says whether it is not known yet if the attempt is held: the guard has just
// been started, or asks the ledger.
func (v View) pending() bool { return v.Phase == "" || v.Phase == Claiming || v.Phase == Adopting }

// publish renews the view after a step; only the loop calls it.
func (g *Guard) publish() {
	s := g.state
	v := &View{
		Phase: s.Phase, ExecutionID: s.ExecutionID, Attempt: s.Attempt, FencingToken: s.FencingToken,
		Generation: s.Generation, IdempotencyKey: idempotencyKey(s.conf, s.Generation), Committed: s.Committed,
		Message: s.why,
	}
	if s.Phase == Done {
		v.Message = s.Skip
	}
	if s.Phase == Stopping {
		v.Message = s.stopWhy
	}
	switch {
	case v.holding() && g.lost == nil:
		g.lost = make(chan struct{})
	case !v.holding() && !s.Committed && g.lost != nil:
		close(g.lost)
		g.lost = nil
	case s.Committed:
		g.lost = nil // the right has been used, not lost
	}
	v.lost = g.lost
	g.view.Store(v)
}

// View gives the guard's present view.
func (g *Guard) View() View { return *g.view.Load() }

// Held gives the attempt that may commit now and a channel that is closed when it
// may no longer. held is false while there is none; pending then says that there may be
// one as soon as the ledger has answered.
func (g *Guard) Held() (a claim.Attempt, lost <-chan struct{}, held, pending bool) {
	v := g.view.Load()
	return g.attempt(v.ExecutionID), v.lost, v.holding(), v.pending()
}

// Committed tells that id completed the window through the local endpoint. When it
// returns nil that is saved.
func (g *Guard) Committed(ctx context.Context, id uuid.UUID) error {
	return g.tell(ctx, Committed{id})
}

// Fenced tells that id no longer holds the window: its worker is stopped.
func (g *Guard) Fenced(ctx context.Context, id uuid.UUID) error {
	return g.tell(ctx, Fenced{id})
}

// Replacing saves that a resolve is about to be sent that may put next in id's place.
func (g *Guard) Replacing(ctx context.Context, id, next uuid.UUID) error {
	return g.tell(ctx, Replacing{id, next})
}

// Replaced tells that it did; the attempt goes on as next.
func (g *Guard) Replaced(ctx context.Context, id, next uuid.UUID) error {
	return g.tell(ctx, Replaced{id, next})
}
