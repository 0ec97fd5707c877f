package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
)

// Eight guards ask at the same moment: one runs, seven wait for it.
func TestConcurrentClaims(t *testing.T) {
	url := database(t)
	for round := range 5 {
		start := make(chan struct{})
		verdicts := make(chan claim.Answer, 8)
		var g sync.WaitGroup
		for range 8 {
			l := open(t, url)
			a := attempt(fmt.Sprintf("shop/job-%d", round))
			if _, err := l.Stored(t.Context(), a.Window); err != nil { // connected before the start
				t.Fatal(err)
			}
			g.Go(func() {
				<-start
				got, err := l.Claim(context.Background(), request(a))
				if err != nil {
					t.Error(err)
				}
				verdicts <- got
			})
		}
		close(start)
		g.Wait()
		close(verdicts)
		runs := 0
		for v := range verdicts {
			if v.Verdict == claim.Run {
				runs++
			} else if v.Verdict != claim.Wait {
				t.Errorf("%+v", v)
			}
		}
		if runs != 1 {
			t.Fatalf("round %d: %d of 8 run", round, runs)
		}
	}
}

// A takeover is judged under the locks. While the holder's heartbeat is being written
// the claim does not take over, although the committed lease has run out.
func TestHeartbeatAgainstTakeover(t *testing.T) {
	w := newWorld(t)
	age(t, w.owner, w.a)
	c := session(t, w.url)
	exec(t, c, "BEGIN")
	if b := value[string](t, c, "SELECT onceguard.heartbeat($1, $2, $3, '30s')", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String()); b != "ok" {
		t.Fatal(b)
	}
	b := claim.Attempt{Window: w.a.Window, ExecutionID: uuid.New()}
	for range 2 {
		got, err := w.l.Claim(t.Context(), request(b))
		if err != nil || got.Verdict != claim.Wait || got.Reason != claim.BusyHeld {
			t.Fatalf("%+v, %v", got, err)
		}
		if !c.PgConn().IsClosed() && c.PgConn().TxStatus() == 'T' {
			exec(t, c, "COMMIT")
		}
	}
}

// The other way round: a heartbeat that meets a takeover in flight waits for it and is
// told "lost", never "ok".
func TestTakeoverAgainstHeartbeat(t *testing.T) {
	w := newWorld(t)
	age(t, w.owner, w.a)
	c := session(t, w.url)
	exec(t, c, "BEGIN")
	if v := value[string](t, c, "SELECT verdict || ' ' || reason FROM onceguard.claim($1, $2, $3, '30s')",
		w.a.Window.JobName, w.a.Window.Start, uuid.NewString()); v != "run takeover" {
		t.Fatal(v)
	}
	beat := make(chan claim.Beat, 1)
	go func() {
		b, err := w.l.Heartbeat(context.Background(), w.a, lease)
		if err != nil {
			t.Error(err)
		}
		beat <- b
	}()
	waitFor(t, w, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%heartbeat%')")
	exec(t, c, "COMMIT")
	if b := <-beat; b != claim.BeatLost {
		t.Fatal(b)
	}
}

// waitFor polls until a query is true.
func waitFor(t *testing.T, w *world, query string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !value[bool](t, w.owner, query); {
		if time.Now().After(end) {
			t.Fatalf("never true: %s", query)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A transaction that has called complete() holds its row: claims answer "committing" at
// once, other windows of the job are not disturbed, heartbeats pass, and resolve says
// pending. The same holds when it was prepared for two-phase commit.
func TestCommitting(t *testing.T) {
	ctx := t.Context()
	for name, end := range map[string][2]string{
		"open":     {"", "COMMIT"},
		"prepared": {"PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := session(t, w.url)
			begin(t, c, w.a)
			effect(t, c, "a")
			if err := complete(ctx, c, w.a); err != nil {
				t.Fatal(err)
			}
			if end[0] != "" {
				exec(t, c, end[0])
			}
			age(t, w.owner, w.a)
			other := claim.Attempt{Window: w.a.Window, ExecutionID: uuid.New()}
			got, err := w.l.Claim(ctx, request(other))
			if err != nil || got.Verdict != claim.Wait || got.Reason != claim.Committing || got.Holder.ExecutionID != w.a.ExecutionID {
				t.Fatalf("%+v, %v", got, err)
			}
			next := attempt(w.a.Window.JobName)
			next.Window.Start = noon.Add(time.Hour)
			mustRun(t, w.l, next, claim.First)
			if b, err := w.l.Heartbeat(ctx, w.a, lease); err != nil || b != claim.BeatOK {
				t.Fatal(b, err)
			}
			if r, err := w.l.Resolve(ctx, w.a, uuid.New()); err != nil || r != claim.ResolvedPending {
				t.Fatal(r, err)
			}
			exec(t, c, end[1])
			if r, err := w.l.Resolve(ctx, w.a, uuid.New()); err != nil || r != claim.ResolvedCommitted {
				t.Fatal(r, err)
			}
		})
	}
}

// The client is gone, its backend still runs an earlier statement, complete and COMMIT
// are on their way: neither reading nor locking the row tells what will happen. resolve
// takes the id away, and then nothing can.
func TestResolveFencesARunningBackend(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	begin(t, c, w.a)
	effect(t, c, "a")
	newID := uuid.New()
	if r, err := w.l.Resolve(t.Context(), w.a, newID); err != nil || r != claim.ResolvedNotCommitted {
		t.Fatal(r, err)
	}
	wantCode(t, complete(t.Context(), c, w.a), "OG001")
	_, _ = c.Exec(t.Context(), "COMMIT")
	if w.effects(t) != 0 || w.status(t) != "running" {
		t.Fatal(w.effects(t), w.status(t))
	}
	if err := w.l.Complete(t.Context(), claim.Attempt{Window: w.a.Window, ExecutionID: newID}, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
}

// A frozen process inside its business transaction loses it before its lease would end,
// so that the heir does not wait for the business rows.
func TestFrozenTransactionGivesItsLocksBack(t *testing.T) {
	w := newWorld(t)
	exec(t, w.owner, "INSERT INTO balance VALUES ('x', 0)")
	if b, err := w.l.Heartbeat(t.Context(), w.a, 600*time.Millisecond); err != nil || b != claim.BeatOK {
		t.Fatal(b, err)
	}
	frozen := session(t, w.url)
	begin(t, frozen, w.a)
	exec(t, frozen, "UPDATE balance SET units = units + 10")
	if idle := value[string](t, frozen, "SHOW idle_in_transaction_session_timeout"); idle != "402ms" {
		t.Fatal(idle)
	}
	exec(t, w.owner, "SET lock_timeout = '20s'")
	exec(t, w.owner, "UPDATE balance SET units = units + 1") // waits for the frozen one
	if n := value[int](t, w.owner, "SELECT units FROM balance"); n != 1 {
		t.Fatal(n)
	}
	// It is the transaction's setting only, and a shorter one of the role stays.
	c := session(t, w.url)
	exec(t, c, "SET idle_in_transaction_session_timeout = '300ms'")
	begin(t, c, w.a)
	if idle := value[string](t, c, "SHOW idle_in_transaction_session_timeout"); idle != "300ms" {
		t.Fatal(idle)
	}
	exec(t, c, "ROLLBACK")
	exec(t, c, "SET idle_in_transaction_session_timeout = 0")
	begin(t, c, w.a)
	exec(t, c, "ROLLBACK")
	if idle := value[string](t, c, "SHOW idle_in_transaction_session_timeout"); idle != "0" {
		t.Fatal(idle)
	}
}

// Inside an armed transaction nothing may take the lease or a job.
func TestArmedTransactionRefusesTheRest(t *testing.T) {
	w := newWorld(t)
	for name, sql := range map[string]string{
		"claim":       "SELECT onceguard.claim($1, $2, $3, '30s')",
		"heartbeat":   "SELECT onceguard.heartbeat($1, $2, $3, '30s')",
		"release":     "SELECT onceguard.release($1, $2, $3, 'failed')",
		"resolve":     "SELECT onceguard.resolve($1, $2, $3, gen_random_uuid())",
		"record_skip": "SELECT onceguard.record_skip($1, $2, $3, 'busy')",
		"begin":       "SELECT onceguard.begin($1, $2, $3)",
	} {
		c := session(t, w.url)
		begin(t, c, w.a)
		_, err := c.Exec(t.Context(), sql, w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
		t.Log(name)
		wantCode(t, err, "OG006")
		exec(t, c, "ROLLBACK")
	}
}

func TestIsolation(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	role, roleURL := grantee(t, w.url, "*")
	exec(t, session(t, superURL(t, w.url)), "ALTER ROLE "+role+" SET default_transaction_isolation = 'serializable'")

	// A driver that does not name the level is told so; ours names it.
	c := session(t, roleURL)
	const sql = "SELECT onceguard.claim('shop/b', $1, gen_random_uuid(), '30s')"
	_, err := c.Exec(ctx, sql, noon)
	wantCode(t, err, "OG008")
	l := open(t, roleURL)
	a := attempt("shop/b")
	mustRun(t, l, a, claim.First)

	// The same for a login that only reads by default. What a standby knows may be old: also
	// a claim that would write nothing is refused.
	reads, readerURL := grantee(t, w.url, "*")
	exec(t, session(t, superURL(t, w.url)), "ALTER ROLE "+reads+" SET default_transaction_read_only = on")
	_, err = session(t, readerURL).Exec(ctx, sql, noon)
	wantCode(t, err, "OG008")
	reader := open(t, readerURL)
	if beat, err := reader.Heartbeat(ctx, a, lease); err != nil || beat != claim.BeatOK {
		t.Errorf("heartbeat of a login that only reads by default: %s, %v", beat, err)
	}
	mustRun(t, open(t, readerURL), attempt("shop/c"), claim.First)
	if err := l.Complete(ctx, a, claim.Completion{}); err != nil {
		t.Fatal(err)
	}

	// A zombie in REPEATABLE READ: 40001, and OG001 when its driver retries.
	exec(t, w.owner, "GRANT ALL ON balance TO "+role)
	begin(t, c, w.a)
	effect(t, c, "zombie")
	w.takeover(t)
	wantCode(t, complete(ctx, c, w.a), "40001")
	exec(t, c, "ROLLBACK")
	exec(t, c, "BEGIN")
	_, err = c.Exec(ctx, "SELECT onceguard.begin($1, $2, $3)", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
	wantCode(t, err, "OG001")
}

// Another server or timeline under the same ledger: tokens grow all the same, also for
// a window whose row came along.
func TestFencingTokenGrowsWithTheEpoch(t *testing.T) {
	w := newWorld(t)
	token := func() int64 {
		a := w.takeover(t)
		w.a = a
		return value[int64](t, w.owner, "SELECT fencing_token FROM onceguard.job_execution")
	}
	before := token()
	if before>>40 != 1 {
		t.Fatalf("epoch %d on the first timeline", before>>40)
	}
	exec(t, w.owner, "UPDATE onceguard.epoch SET timeline = 7, epoch = 7") // as if restored from timeline 7
	after := token()
	if after>>40 != 8 || after <= before {
		t.Fatalf("epoch %d, token %d after %d", after>>40, after, before)
	}
	exec(t, w.owner, "UPDATE onceguard.epoch SET system_identifier = 1")
	if again := token(); again>>40 != 9 {
		t.Fatalf("epoch %d", again>>40)
	}
	if next := token(); next>>40 != 9 {
		t.Fatalf("epoch %d: it must not grow by itself", next>>40)
	}
	// Other claims that find the mismatch at the same time must not each raise it.
	exec(t, w.owner, "UPDATE onceguard.epoch SET timeline = 3")
	var g sync.WaitGroup
	for i := range 6 {
		l := open(t, w.url)
		g.Go(func() {
			if _, err := l.Claim(context.Background(), request(attempt(fmt.Sprintf("shop/j%d", i)))); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	if e := value[int](t, w.owner, "SELECT epoch FROM onceguard.epoch"); e != 10 {
		t.Fatal(e)
	}
}

// After a failover that lost the row nothing inserts it again but a claim.
func TestVanishedRowIsLost(t *testing.T) {
	w := newWorld(t)
	exec(t, w.owner, "DELETE FROM onceguard.job_execution")
	exec(t, w.owner, "DELETE FROM onceguard.job_lease")
	exec(t, w.owner, "DELETE FROM onceguard.job_attempt")
	if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatLost {
		t.Fatal(b, err)
	}
	c := session(t, w.url)
	exec(t, c, "BEGIN")
	_, err := c.Exec(t.Context(), "SELECT onceguard.begin($1, $2, $3)", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
	wantCode(t, err, "OG001")
	if got, err := w.l.Release(t.Context(), w.a, claim.End{Outcome: claim.OutcomeFailed}); err != nil || got != "" {
		t.Fatal(got, err)
	}
	if n := value[int](t, w.owner, "SELECT count(*) FROM onceguard.job_execution"); n != 0 {
		t.Fatal(n)
	}
}

// A window below the job's watermark is closed, and says so on every way in.
func TestClosed(t *testing.T) {
	w := newWorld(t)
	exec(t, w.owner, "UPDATE onceguard.job SET closed_before = $1", noon.Add(time.Hour))
	for _, a := range []claim.Attempt{w.a, attempt(w.a.Window.JobName)} {
		if got, err := w.l.Claim(t.Context(), request(a)); err != nil || got.Verdict != claim.Skip || got.Reason != claim.Closed {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	exec(t, w.owner, "DELETE FROM onceguard.job_execution")
	c := session(t, w.url)
	exec(t, c, "BEGIN")
	_, err := c.Exec(t.Context(), "SELECT onceguard.begin($1, $2, $3)", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
	wantCode(t, err, "OG004")
}

// A login whose default is to answer commits before they are safe does not weaken ours.
func TestCommitsAreDurable(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	for setting, want := range map[string]string{"off": "on", "local": "on", "remote_apply": "remote_apply"} {
		exec(t, c, "SET synchronous_commit = "+setting)
		begin(t, c, w.a)
		if got := value[string](t, c, "SHOW synchronous_commit"); got != want {
			t.Errorf("%s became %s", setting, got)
		}
		exec(t, c, "ROLLBACK")
		if got := value[string](t, c, "SHOW synchronous_commit"); got != setting {
			t.Errorf("%s stays %s", setting, got)
		}
	}
}
