package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/ledger/ledgertest"
	"github.com/onceguard/onceguard/pkg/window"
)

func TestSuite(t *testing.T) {
	url := database(t)
	owner := session(t, url)
	ledgertest.Run(t, func(t *testing.T) ledgertest.Subject {
		empty(t, owner)
		return ledgertest.Subject{API: open(t, url), Expire: func(w window.Window) {
			age(t, owner, claim.Attempt{Window: w})
		}}
	})
}

// Random sequences of operations by three guards at one window: Postgres and the model
// (the fake, built on claim.Decide) answer the same, at every step.
func TestSQLAgreesWithModel(t *testing.T) {
	sequences, workers := 5200, 4
	if testing.Short() {
		sequences = 400
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	url := database(t)
	var g sync.WaitGroup
	for k := range workers {
		l, owner := open(t, url), session(t, url)
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(k)))
			for i := range sequences / workers {
				w := window.Window{JobName: fmt.Sprintf("model/w%d", k), Start: noon.Add(time.Duration(i) * time.Minute)}
				expire := func() error {
					_, err := owner.Exec(context.Background(), "UPDATE onceguard.job_lease SET expires_at = clock_timestamp() - interval '1 second' WHERE job_name = $1 AND window_start = $2", w.JobName, w.Start)
					return err
				}
				if err := compare(t.Context(), l, expire, w, rnd); err != nil {
					t.Errorf("sequence %d of worker %d: %v", i, k, err)
					return
				}
			}
		})
	}
	g.Wait()
}

func compare(ctx context.Context, real *ledger.Ledger, expire func() error, w window.Window, rnd *rand.Rand) error {
	model := &ledgertest.Fake{}
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	var trace []string
	for range 4 + rnd.IntN(8) {
		i := rnd.IntN(len(ids))
		a := claim.Attempt{Window: w, ExecutionID: ids[i]}
		op := "claim"
		both := func(l ledgertest.API) string {
			got, err := l.Claim(ctx, request(a))
			return fmt.Sprint(got.Verdict, got.Reason, got.Attempt, got.FencingToken&(1<<40-1), got.Generation, got.Holder.ExecutionID,
				got.Holder.Attempt, got.Holder.CompletedAt.IsZero(), got.Holder.LeaseExpires.IsZero(), kind(err))
		}
		switch n := rnd.IntN(20); {
		case n < 7:
		case n < 9:
			op = "heartbeat"
			both = func(l ledgertest.API) string { b, err := l.Heartbeat(ctx, a, lease); return fmt.Sprint(b, kind(err)) }
		case n < 11:
			op = "complete"
			both = func(l ledgertest.API) string {
				return fmt.Sprint(kind(l.Complete(ctx, a, claim.Completion{RequestDigest: "d"})))
			}
		case n < 14:
			op = "release"
			both = func(l ledgertest.API) string {
				recorded, err := l.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed})
				return fmt.Sprint(recorded, kind(err))
			}
		case n < 16:
			op = "expire"
			if err := expire(); err != nil {
				return err
			}
			model.Expire(w)
			both = func(ledgertest.API) string { return "" }
		case n < 18:
			op = "resolve"
			id := uuid.New()
			both = func(l ledgertest.API) string { r, err := l.Resolve(ctx, a, id); return fmt.Sprint(r, kind(err)) }
			if rnd.IntN(2) == 0 {
				ids[i] = id
			}
		default:
			op, ids[i] = "new id", uuid.New()
			both = func(l ledgertest.API) string {
				s, err := l.Stored(ctx, w)
				return fmt.Sprint(s.Status, s.ExecutionID, s.Attempt, s.RequestDigest, kind(err))
			}
		}
		got, want := both(real), both(model)
		trace = append(trace, fmt.Sprintf("%s by %d (%s): %s", op, i, a.ExecutionID, got))
		if got != want {
			return fmt.Errorf("the database and the model disagree after\n%s\nmodel: %s", strings.Join(trace, "\n"), want)
		}
	}
	return nil
}

// kind reduces an error to what a caller branches on.
func kind(err error) error {
	for _, k := range []error{ledger.ErrFenced, ledger.ErrCompleted} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}

// With a rule of the SQL broken the comparison must say so.
func TestModelNoticesABrokenRule(t *testing.T) {
	for name, c := range map[string][3]string{
		"a live lease is taken":           {"claim", "l.expires_at >= clock_timestamp()", "false"},
		"an id is given twice":            {"was_used", "a.execution_id = was_used.execution_id OR", "false AND"},
		"a heartbeat without its id":      {"heartbeat", "AND t.execution_id = heartbeat.execution_id", ""},
		"a resolve that leaves the id":    {"resolve", "SET execution_id = resolve.new_execution_id, updated_at", "SET updated_at"},
		"a release by anybody":            {"release", "AND t.execution_id = release.execution_id\n    FOR NO KEY UPDATE", "FOR NO KEY UPDATE"},
		"a completion that is no end":     {"claim", "ELSIF e.status = 'completed' THEN", "ELSIF false THEN"},
		"adoption only of a living lease": {"claim", "IF FOUND THEN\n                verdict := 'run'; reason := 'adopted';", "IF FOUND AND l.expires_at >= clock_timestamp() THEN\n verdict := 'run'; reason := 'adopted';"},
	} {
		t.Run(name, func(t *testing.T) {
			url := database(t)
			l, owner := open(t, url), session(t, url)
			source := value[string](t, owner, "SELECT pg_get_functiondef(('onceguard.' || $1)::regproc)", c[0])
			broken := strings.Replace(source, c[1], c[2], 1)
			if broken == source {
				t.Fatalf("%s has no longer: %s", c[0], c[1])
			}
			exec(t, owner, broken)
			rnd := rand.New(rand.NewPCG(1, 2))
			for i := range 2000 {
				w := window.Window{JobName: "model/w", Start: noon.Add(time.Duration(i) * time.Minute)}
				expire := func() error { age(t, owner, claim.Attempt{Window: w}); return nil }
				if err := compare(t.Context(), l, expire, w, rnd); err != nil {
					return
				}
			}
			t.Fatal("2000 sequences did not notice it")
		})
	}
}
