package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// later is another window of the same job.
func later(a claim.Attempt, by time.Duration) claim.Attempt {
	return claim.Attempt{Window: window.Window{JobName: a.Window.JobName, Start: a.Window.Start.Add(by)}, ExecutionID: uuid.New()}
}

// under is a request with terms.
func under(a claim.Attempt, t claim.Terms) claim.Request {
	r := request(a)
	r.Terms = t
	return r
}

func (w *world) asks(t *testing.T, r claim.Request, verdict claim.Verdict, reason claim.Reason) claim.Answer {
	t.Helper()
	got, err := w.l.Claim(t.Context(), r)
	if err != nil || got.Verdict != verdict || got.Reason != reason {
		t.Fatalf("claim of %s: %+v, %v; want %s, %s", r.Window, got, err, verdict, reason)
	}
	return got
}

// A window that runs beside a dead one fences it first: the zombie's commit fails, also
// when nobody has claimed its window again.
func TestOverlapFencesTheDead(t *testing.T) {
	zombie := func(t *testing.T, w *world) error {
		c := session(t, w.url)
		begin(t, c, w.a)
		effect(t, c, "zombie")
		age(t, w.owner, w.a)
		w.asks(t, under(later(w.a, time.Hour), claim.Terms{Overlap: contract.OverlapWait}), claim.Run, claim.First)
		if err := complete(t.Context(), c, w.a); err != nil {
			return err
		}
		_, err := c.Exec(t.Context(), "COMMIT")
		return err
	}
	t.Run("fenced", func(t *testing.T) {
		w := newWorld(t)
		wantCode(t, zombie(t, w), "OG001")
		if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatLost {
			t.Fatal(b, err)
		}
		if w.effects(t) != 0 || w.status(t) != "failed" {
			t.Fatal(w.effects(t), w.status(t))
		}
	})
	t.Run("without the fence", func(t *testing.T) {
		w := newWorld(t)
		mutate(t, w.owner, "claim", "IF fence THEN", "IF false THEN")
		if err := zombie(t, w); err != nil || w.effects(t) != 1 {
			t.Fatalf("%v: the test would not notice a missing fence", err)
		}
	})
}

// Two windows of a job ask at the same moment and see each other not running: the job's
// row lets one of them run.
func TestOverlapWriteSkew(t *testing.T) {
	url := database(t)
	owner := session(t, url)
	for _, overlap := range []contract.Overlap{contract.OverlapSkip, contract.OverlapWait} {
		for round := range 10 {
			var runs atomic.Int32
			var g sync.WaitGroup
			start := make(chan struct{})
			for k := range 4 {
				l := open(t, url)
				a := later(attempt(fmt.Sprintf("shop/%s-%d", overlap, round)), time.Duration(k)*time.Minute)
				if _, err := l.Stored(t.Context(), a.Window); err != nil { // connected before the start
					t.Fatal(err)
				}
				g.Go(func() {
					<-start
					got, err := l.Claim(context.Background(), under(a, claim.Terms{Overlap: overlap}))
					if err != nil {
						t.Error(err)
					}
					if got.Verdict == claim.Run {
						runs.Add(1)
					}
				})
			}
			close(start)
			g.Wait()
			if n := runs.Load(); n != 1 {
				t.Fatalf("%s: %d windows run at once", overlap, n)
			}
		}
	}
	if n := value[int](t, owner, "SELECT count(*) FROM onceguard.job_execution WHERE reason = 'overlap' AND closed_by IS NOT NULL"); n != 30 {
		t.Fatalf("%d windows were closed as overlap, 30 were to be", n)
	}
}

// The other window is committing: the claim waits for what becomes of it, without
// blocking, and neither fences nor skips.
func TestOverlapWithACommittingWindow(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	begin(t, c, w.a)
	effect(t, c, "a")
	if err := complete(t.Context(), c, w.a); err != nil {
		t.Fatal(err)
	}
	age(t, w.owner, w.a)
	next := later(w.a, time.Hour)
	for _, o := range []contract.Overlap{contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace} {
		got := w.asks(t, under(next, claim.Terms{Overlap: o}), claim.Wait, claim.Committing)
		if got.Holder.Window != w.a.Window {
			t.Fatalf("%+v", got)
		}
	}
	exec(t, c, "COMMIT")
	w.asks(t, under(next, claim.Terms{Overlap: contract.OverlapSkip}), claim.Run, claim.First)
	if w.effects(t) != 1 {
		t.Fatal(w.effects(t))
	}
}

// replace: the older window is asked to stop and runs until it has released; the two are
// never at once, and if it commits first it is completed.
func TestReplace(t *testing.T) {
	replace := claim.Terms{Overlap: contract.OverlapReplace}
	t.Run("it stops", func(t *testing.T) {
		w := newWorld(t)
		next := later(w.a, time.Hour)
		for range 2 {
			got := w.asks(t, under(next, replace), claim.Wait, claim.Replacing)
			if got.Holder.Window != w.a.Window || got.Holder.ExecutionID != w.a.ExecutionID {
				t.Fatalf("%+v", got)
			}
			if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatCancel {
				t.Fatal(b, err)
			}
		}
		if got, err := w.l.Release(t.Context(), w.a, claim.End{Outcome: claim.OutcomeStopped}); err != nil || got != claim.OutcomeStopped {
			t.Fatal(got, err)
		}
		w.asks(t, under(next, replace), claim.Run, claim.First)
		got := w.asks(t, under(later(w.a, 0), replace), claim.Skip, claim.Superseded)
		if got.Holder.Pod != "shop/order-sync-1-abc" {
			t.Fatalf("who closed it: %+v", got.Holder)
		}
	})
	t.Run("it commits first", func(t *testing.T) {
		w := newWorld(t)
		next := later(w.a, time.Hour)
		w.asks(t, under(next, replace), claim.Wait, claim.Replacing)
		if err := w.l.Complete(t.Context(), w.a, claim.Completion{}); err != nil {
			t.Fatal(err)
		}
		w.asks(t, under(next, replace), claim.Run, claim.First)
		w.asks(t, under(later(w.a, 0), replace), claim.Skip, claim.AlreadyCompleted)
	})
	t.Run("it is dead", func(t *testing.T) {
		w := newWorld(t)
		c := session(t, w.url)
		begin(t, c, w.a)
		age(t, w.owner, w.a)
		w.asks(t, under(later(w.a, time.Hour), replace), claim.Run, claim.First)
		wantCode(t, complete(t.Context(), c, w.a), "OG001")
		w.asks(t, under(later(w.a, 0), replace), claim.Skip, claim.Superseded)
	})
	t.Run("a newer one runs", func(t *testing.T) {
		w := newWorld(t)
		old := later(w.a, -time.Hour)
		w.asks(t, under(old, replace), claim.Skip, claim.Superseded)
		w.asks(t, under(old, claim.Terms{}), claim.Skip, claim.Superseded)
	})
}

// serial: each window waits until the earlier ones are closed, the unknown one before it
// too; claims of several windows at once never deadlock, and they run in order.
func TestSerial(t *testing.T) {
	url := database(t)
	owner := session(t, url)
	exec(t, owner, "CREATE TABLE done (n serial, window_start timestamptz)")
	const windows, guards = 12, 6
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var g sync.WaitGroup
	for k := range guards {
		l, c := open(t, url), session(t, url)
		g.Go(func() {
			for n := range windows {
				n = windows - 1 - (n+k)%windows // in another order for each
				for tries := 0; ctx.Err() == nil; tries++ {
					a := later(attempt("shop/serial"), time.Duration(n)*time.Minute)
					terms := claim.Terms{Serial: true, Overlap: contract.OverlapWait, Since: noon, MaxAttempts: 2}
					if n > 0 {
						terms.Previous = a.Window.Start.Add(-time.Minute)
					}
					got, err := l.Claim(ctx, under(a, terms))
					if err != nil {
						t.Error(err)
						return
					}
					if got.Verdict == claim.Wait && tries < 3 && n > 0 {
						continue
					}
					if got.Verdict == claim.Run && n%4 == 3 { // it never succeeds: exhausted, and the next goes on
						_, err = l.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed})
					} else if got.Verdict == claim.Run {
						if _, err = c.Exec(ctx, "INSERT INTO done (window_start) VALUES ($1)", a.Window.Start); err == nil {
							err = l.Complete(ctx, a, claim.Completion{})
						}
					}
					if err != nil {
						t.Error(err)
						return
					}
					break
				}
			}
		})
	}
	g.Wait()
	// The rest, in order.
	l := open(t, url)
	for n := range windows {
		for range 3 {
			a := later(attempt("shop/serial"), time.Duration(n)*time.Minute)
			got, err := l.Claim(ctx, under(a, claim.Terms{Serial: true, Since: noon, MaxAttempts: 2}))
			switch {
			case err != nil:
				t.Fatal(err)
			case got.Verdict == claim.Run && n%4 == 3:
				_, err = l.Release(ctx, a, claim.End{Outcome: claim.OutcomeFailed})
			case got.Verdict == claim.Run:
				exec(t, owner, "INSERT INTO done (window_start) VALUES ($1)", a.Window.Start)
				err = l.Complete(ctx, a, claim.Completion{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := value[int](t, owner, "SELECT count(*) FROM (SELECT window_start < lag(window_start) OVER (ORDER BY n) AS back FROM done) x WHERE back"); n != 0 {
		t.Fatalf("%d windows ran before an earlier one", n)
	}
	if got := value[string](t, owner, "SELECT string_agg(DISTINCT state || ' ' || coalesce(reason, ''), ', ') || count(*) FROM onceguard.windows"); got != "done , exhausted exhausted12" {
		t.Fatal(got)
	}
}

// A dead guard writes nothing; the next claim records its attempt as lost and judges it.
// The view says meanwhile that the lease has ended.
func TestHeldAfterACrash(t *testing.T) {
	w := newWorld(t)
	hold := claim.Terms{HoldOnCrash: true}
	age(t, w.owner, w.a)
	if s := value[string](t, w.owner, "SELECT state FROM onceguard.windows"); s != "lease ended" {
		t.Fatal(s)
	}
	w.asks(t, under(later(w.a, 0), hold), claim.Refuse, claim.IsHeld)
	if s := value[string](t, w.owner, "SELECT state || ' ' || last_outcome || ' ' || closed_by FROM onceguard.windows"); s != "held lost shop/order-sync-1-abc" {
		t.Fatal(s)
	}
	w.asks(t, under(later(w.a, 0), claim.Terms{ReopenBefore: time.Now().Add(time.Hour)}), claim.Refuse, claim.IsHeld) // only a decision frees it
	if g, err := admin.Rerun(t.Context(), w.owner, w.a.Window, "alice", "the node died"); err != nil || g != 1 {
		t.Fatal(g, err)
	}
	if s := value[string](t, w.owner, "SELECT state || ' ' || reason FROM onceguard.windows"); s != "failed rerun" {
		t.Fatal(s)
	}
	b := later(w.a, 0)
	w.asks(t, under(b, hold), claim.Run, claim.Retry)
	if _, err := w.l.Release(t.Context(), b, claim.End{Outcome: claim.OutcomeCrashed}); err != nil {
		t.Fatal(err)
	}
	w.asks(t, under(later(w.a, 0), hold), claim.Refuse, claim.IsHeld)
}

// Another payload for the same window: refused with both digests, at claim and at
// completion.
func TestPayload(t *testing.T) {
	w := newWorld(t)
	a := later(w.a, time.Hour)
	w.asks(t, under(a, claim.Terms{PayloadDigest: "sha256:one"}), claim.Run, claim.First)
	got := w.asks(t, under(later(a, 0), claim.Terms{PayloadDigest: "sha256:two"}), claim.Refuse, claim.PayloadConflict)
	if got.Holder.PayloadDigest != "sha256:one" {
		t.Fatalf("%+v", got)
	}
	c := session(t, w.url)
	begin(t, c, a)
	_, err := c.Exec(t.Context(), "SELECT onceguard.complete($1, $2, $3, payload_digest => 'sha256:two')", a.Window.JobName, a.Window.Start, a.ExecutionID.String())
	wantCode(t, err, "OG003")
	for _, digest := range []string{"sha256:one", "sha256:two"} {
		if !strings.Contains(err.Error(), digest) {
			t.Errorf("%v does not name %s", err, digest)
		}
	}
	exec(t, c, "ROLLBACK")
	if err := w.l.Complete(t.Context(), a, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	if s, err := w.l.Stored(t.Context(), a.Window); err != nil || s.PayloadDigest != "sha256:one" {
		t.Fatal(s, err)
	}
	w.asks(t, under(later(a, 0), claim.Terms{PayloadDigest: "sha256:two"}), claim.Refuse, claim.PayloadConflict)
}

// Terms that make no sense are refused, with the field and the value.
func TestBadTerms(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	for arg, words := range map[string][]string{
		"overlap => 'often'":                       {"overlap", "often"},
		"overlap => NULL":                          {"overlap"},
		"serial => NULL":                           {"serial"},
		"serial => true, previous => '2030-01-01'": {"previous", "2030"},
		"repeats => '2026-01-01'":                  {"repeats", "2026"},
		"repeats => '-infinity'":                   {"repeats", "-infinity"},
		"start_deadline => '-1 second'":            {"start_deadline", "-00:00:01"},
		"max_attempts => 0":                        {"max_attempts", "0"},
	} {
		_, err := c.Exec(t.Context(), "SELECT onceguard.claim('shop/x', '2026-01-01', gen_random_uuid(), '30s', "+arg+")")
		wantCode(t, err, "22023")
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", arg, err, word)
			}
		}
	}
}
