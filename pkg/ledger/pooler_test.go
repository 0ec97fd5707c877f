package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger/ledgertest"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

// Everything works through PgBouncer in transaction mode: migrating, the suite, and
// twenty guards on two server connections.
func TestThroughAPooler(t *testing.T) {
	ownerURL := postgres.Database(t)
	pooled := postgres.Pooler(t, ownerURL)
	if _, to, err := migrate.Up(t.Context(), pooled, zaptest.NewLogger(t)); err != nil || to != migrate.Latest() {
		t.Fatal(to, err)
	}
	owner := session(t, ownerURL)
	ledgertest.Run(t, func(t *testing.T) ledgertest.Subject {
		empty(t, owner)
		return ledgertest.Subject{API: open(t, pooled), People: people{t.Context(), owner}, Engine: people{t.Context(), owner}, Expire: func(w window.Window) { age(t, owner, claim.Attempt{Window: w}) }}
	})
	var g sync.WaitGroup
	for i := range 20 {
		l := open(t, pooled)
		a := attempt(fmt.Sprintf("pool/%d", i))
		g.Go(func() {
			ctx := context.Background()
			if got, err := l.Claim(ctx, request(a)); err != nil || got.Verdict != claim.Run {
				t.Error(got, err)
				return
			}
			for range 5 {
				if b, err := l.Heartbeat(ctx, a, lease); err != nil || b != claim.BeatOK {
					t.Error(b, err)
				}
			}
			if err := l.Complete(ctx, a, claim.Completion{}); err != nil {
				t.Error(err)
			}
			if r, err := l.Resolve(ctx, a, uuid.New()); err != nil || r != claim.ResolvedCommitted {
				t.Error(r, err)
			}
		})
	}
	g.Wait()
	// What begin sets ends with its transaction: the next client of the server connection
	// does not inherit it.
	if idle := value[string](t, session(t, pooled+"&default_query_exec_mode=exec"), "SHOW idle_in_transaction_session_timeout"); idle != "0" {
		t.Fatal(idle)
	}
}
