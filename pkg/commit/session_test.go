package commit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/ledger"
)

const soon = time.Minute

func (b *bench) begun() string {
	b.t.Helper()
	tx, err := b.Open(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return tx.ID
}

func (b *bench) query(id, body string) (Rows, error) {
	b.t.Helper()
	s, err := ParseStatement([]byte(body))
	if err != nil {
		return Rows{}, err
	}
	return b.Query(b.t.Context(), id, s)
}

func (b *bench) does(id, body string) Rows {
	b.t.Helper()
	r, err := b.query(id, body)
	if err != nil {
		b.t.Fatalf("%s: %v", body, err)
	}
	return r
}

func (b *bench) finish(id, body string) (Answer, error) {
	b.t.Helper()
	end, err := ParseClosing([]byte(body))
	if err != nil {
		return Answer{}, err
	}
	return b.Finish(b.t.Context(), id, end)
}

// eventually waits until f is true.
func (b *bench) eventually(what string, f func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(soon); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within %s", what, soon)
		}
	}
}

// over checks that the transaction is over, for a reason that has the word, that no
// connection of it is left and that another one can be opened.
func (b *bench) over(id, word string) {
	b.t.Helper()
	_, err := b.query(id, `{"sql":"SELECT 1"}`)
	if e := b.refusal(err, Ended); !strings.Contains(e.Message, word) {
		b.t.Errorf("it is over because %q, want %q", e.Message, word)
	}
	b.eventually("the end of its session", func() bool {
		return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'`) == "0"
	})
}

const add = `{"sql":"INSERT INTO book(n) VALUES ($1)","args":[{"$type":"numeric","value":1.50}]}`

func TestAnInteractiveTransaction(t *testing.T) {
	b := newBench(t)
	id := b.begun()
	b.does(id, add)
	if r := b.does(id, `{"sql":"SELECT n, note FROM book","returning":true,"expect_rows":1}`); asJSON(t, r) != `{"tag":"SELECT 1","rows_affected":1,"columns":["n","note"],"rows":[["1.50",null]]}` {
		t.Errorf("%s", asJSON(t, r))
	}
	if got := b.state(); got != "0 running" {
		t.Errorf("others see %s", got)
	}
	a, err := b.finish(id, `{"result":{"id":7},"processed":1,"payload":"p"}`)
	if err != nil || !a.Completed || a.Replayed || string(a.Result) != `{"id":7}` || *a.Processed != 1 {
		t.Fatalf("%+v %v", a, err)
	}
	if b.state() != "1 completed" || !b.holder.committed {
		t.Errorf("%s, the guard was told: %v", b.state(), b.holder.committed)
	}
	// The same end again is answered as before, by this guard and by the next one.
	for range 2 {
		a, err = b.finish(id, `{ "processed":1, "payload":"p","complete":true,"result":{"id": 7}}`)
		if err != nil || !a.Completed || !a.Replayed || *a.Processed != 1 {
			t.Errorf("%+v %v", a, err)
		}
		b.restarted()
	}
	_, err = b.finish(id, `{"processed":2}`)
	b.wants(err, Unknown)
	_, err = b.post(`{}`)
	b.wants(err, OtherRequest)
	_, err = b.Open(t.Context())
	if e := b.refusal(err, NoAttempt); !strings.Contains(e.Message, "is completed") {
		t.Error(e.Message)
	}
}

func TestAfterItsEndATransactionSaysWhy(t *testing.T) {
	b := newBench(t)
	id := b.begun()
	b.does(id, add)
	if a, err := b.finish(id, `{"complete":false,"checkpoint":[1]}`); err != nil || a.Completed || a.CheckpointSeq != 1 {
		t.Fatalf("%+v %v", a, err)
	}
	b.over(id, "was committed")
	_, err := b.finish(id, `{}`)
	b.wants(err, Ended)
	b.wants(b.Drop(t.Context(), id), Ended)
	for range 2 {
		if a, err := b.finish(id, `{"complete":false,"checkpoint":[ 1 ]}`); err != nil || !a.Replayed || a.CheckpointSeq != 1 {
			t.Errorf("%+v %v", a, err)
		}
		b.restarted()
	}

	id = b.begun()
	b.does(id, add)
	if err := b.Drop(t.Context(), id); err != nil {
		t.Error(err)
	}
	b.over(id, "on request")
	if err := b.Drop(t.Context(), id); err != nil {
		t.Error("what has ended without a commit cannot be ended again:", err)
	}
	if got := b.state() + " " + b.stored(); got != "1 running 1 [1]" {
		t.Error(got)
	}
	for _, id := range []string{"x", uuid.NewString()} {
		_, err = b.query(id, add)
		b.wants(err, Unknown)
		_, err = b.finish(id, `{}`)
		b.wants(err, Unknown)
		b.wants(b.Drop(t.Context(), id), Unknown)
	}
	b.must(insert)
}

func TestOneTransactionAtATime(t *testing.T) {
	b := newBench(t)
	id := b.begun()
	_, err := b.Open(t.Context())
	if e := b.refusal(err, InFlight); !strings.Contains(e.Message, id) {
		t.Error(e.Message)
	}
	_, err = b.post(insert)
	b.wants(err, InFlight)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := b.Query(ctx, id, Statement{SQL: "SELECT pg_sleep(600)"})
		done <- err
	}()
	b.eventually("the statement", func() bool { return b.sleeping() })
	_, err = b.query(id, add)
	b.wants(err, InFlight)
	_, err = b.finish(id, `{}`)
	b.wants(err, InFlight)
	// Its client gives up: the statement is cancelled, and nothing is held any longer.
	cancel()
	b.wants(<-done, Unavailable)
	b.over(id, "the client has left")
	b.must(insert)
}

func (b *bench) sleeping() bool {
	return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()`) != "0"
}

// Whatever fails, or would escape, rolls the transaction back; nothing of it can be saved.
func TestWhatEndsATransaction(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE PROCEDURE committing() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$`)
	for _, c := range []struct {
		what, body string
		code       Code
		sqlstate   string
	}{
		{"syntax error", `{"sql":"INSRT"}`, Failed, "42601"},
		{"bad argument", `{"sql":"INSERT INTO book(n) VALUES ($1)","args":["x"]}`, Failed, "22P02"},
		{"two statements", `{"sql":"SELECT 1; COMMIT"}`, Failed, "42601"},
		{"rows unexpected", `{"sql":"UPDATE book SET n=2 WHERE n=99","expect_rows":1}`, Unexpected, ""},
		{"too many rows", `{"sql":"SELECT repeat('x', 1000) FROM generate_series(1,2000)","returning":true}`, TooLarge, ""},
		{"a huge row", `{"sql":"SELECT repeat('x', 150000000)"}`, TooLarge, ""},
		{"SAVEPOINT", `{"sql":"SAVEPOINT s"}`, Forbidden, ""},
		{"RELEASE", `{"sql":"/**/ ; release s"}`, Forbidden, ""},
		{"ROLLBACK", `{"sql":"ROLLBACK"}`, Forbidden, ""},
		{"ROLLBACK AND CHAIN", `{"sql":"ROLLBACK AND CHAIN"}`, Forbidden, ""},
		{"COMMIT", `{"sql":";-- \nCOMMIT"}`, Forbidden, ""},
		{"COMMIT AND CHAIN", `{"sql":"COMMIT AND CHAIN"}`, Forbidden, ""},
		{"END", `{"sql":"end"}`, Forbidden, ""},
		{"PREPARE TRANSACTION", `{"sql":"PREPARE TRANSACTION 'x'"}`, Forbidden, ""},
		{"COMMIT in a procedure", `{"sql":"CALL committing()"}`, Failed, "2D000"},
		{"SET", `{"sql":"SET LOCAL statement_timeout = 0"}`, Forbidden, ""},
		{"LISTEN", `{"sql":"LISTEN x"}`, Forbidden, ""},
		{"barrier fired early", `{"sql":"SET CONSTRAINTS ALL IMMEDIATE"}`, Forbidden, "OG006"},
		{"completing by hand", `{"sql":"SELECT onceguard.heartbeat('shop/order-sync', now(), gen_random_uuid(), '1s')"}`, Forbidden, "OG006"},
		{"COPY", `{"sql":"COPY book FROM STDIN"}`, Failed, ""},
		{"killed", `{"sql":"SELECT pg_terminate_backend(pg_backend_pid())"}`, Unavailable, "57P01"},
	} {
		id := b.begun()
		b.does(id, add)
		_, err := b.query(id, c.body)
		if e := b.refusal(err, c.code); e.Statement != nil || c.sqlstate != "" && e.SQLState != c.sqlstate {
			t.Errorf("%s: %+v", c.what, e)
		}
		_, err = b.finish(id, `{}`)
		b.wants(err, Ended)
		if got := b.state(); got != "0 running" {
			t.Fatalf("%s: left %q", c.what, got)
		}
	}
	// What is no statement at all was never sent, and ends nothing.
	id := b.begun()
	b.does(id, add)
	for _, body := range []string{`{"sql":""}`, `{"sql":"SELECT $1","args":[{"$type":"int8","value":"x"}]}`, `null`, `{"statements":[]}`, `{"sql":1}`} {
		_, err := b.query(id, body)
		e := b.refusal(err, Invalid)
		if strings.HasPrefix(e.Message, ".") || strings.HasPrefix(e.Message, " ") {
			t.Errorf("%q", e.Message)
		}
	}
	if _, err := b.finish(id, `{}`); err != nil || b.state() != "1 completed" {
		t.Error(err, b.state())
	}
}

// A savepoint or ROLLBACK that no word gives away: nothing but the whole can be committed.
func TestTheBarrierIsTheLastLineOfAnInteractiveTransaction(t *testing.T) {
	b := newBench(t)
	for _, sql := range []string{"ROLLBACK AND CHAIN", "ROLLBACK", "SAVEPOINT s", "COMMIT"} {
		id := b.begun()
		b.does(id, add)
		// As if no word and no tag had told it.
		if _, err := b.open.conn.Exec(t.Context(), sql).ReadAll(); (err == nil) != (sql != "COMMIT") {
			t.Fatalf("%s: %v", sql, err)
		}
		_, err := b.finish(id, `{}`)
		if sql == "SAVEPOINT s" {
			if err != nil || b.state() != "1 completed" {
				t.Errorf("%s: %v %s", sql, err, b.state())
			}
			b = newBench(t)
			continue
		}
		b.wants(err, Forbidden)
		if got := b.state(); got != "0 running" {
			t.Fatalf("%s: left %q", sql, got)
		}
	}
}

func TestAnIdleTransactionGivesItsLocksBack(t *testing.T) {
	b := newBench(t)
	b.exec(`INSERT INTO parent VALUES (1)`)
	b.limits.Idle = 200 * time.Millisecond
	id := b.begun()
	b.does(id, `{"sql":"DELETE FROM parent"}`)
	b.eventually("its end", func() bool { _, was, _ := b.find(id); return was != nil })
	b.over(id, "no request for 200ms")
	b.exec(`SET lock_timeout = '60s'; UPDATE parent SET id = 2`)
	b.must(insert)
}

// A request that takes longer than the idle limit is not idle.
func TestARequestIsNotIdle(t *testing.T) {
	b := newBench(t)
	b.limits.Idle = 50 * time.Millisecond
	id := b.begun()
	if _, err := b.query(id, `{"sql":"SELECT pg_sleep(0.5)"}`); hasCode(err, Ended) && strings.Contains(err.Error(), "no request") {
		t.Error(err)
	}
}

func TestTimeLimits(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		limits Limits
		word   string
	}{
		{Limits{Statement: 300 * time.Millisecond, Transaction: soon, Idle: soon}, "than a statement may"},
		{Limits{Statement: soon, Transaction: time.Second, Idle: soon}, "the transaction took longer than the 1s"},
	} {
		Within(c.limits)(b.Committer)
		id := b.begun()
		_, err := b.query(id, `{"sql":"SELECT pg_sleep(600)"}`)
		if e := b.refusal(err, TooLong); !strings.Contains(e.Message, c.word) {
			t.Errorf("%s, want %s", e.Message, c.word)
		}
		b.over(id, "took longer")
	}
	_, err := b.post(`{"statements":[{"sql":"INSERT INTO book(n) VALUES (1)"},{"sql":"SELECT pg_sleep(600)"}]}`)
	b.wants(err, TooLong)
	if got := b.state(); got != "0 running" {
		t.Error(got)
	}
	// A limit that the session has already is kept when it is shorter.
	b.exec(`ALTER DATABASE "` + b.text(`SELECT current_database()`) + `" SET statement_timeout = '7s'`)
	Within(Limits{Transaction: soon})(b.Committer)
	a := b.must(`{"statements":[{"sql":"SELECT current_setting('statement_timeout')","returning":true}]}`)
	if got := *a.Statements[0].Rows[0][0]; got != "7s" {
		t.Errorf("statement_timeout is %s", got)
	}
}

// The end of the attempt ends its transaction: the worker's exit, a lease that is over.
func TestALostRightEndsTheTransaction(t *testing.T) {
	b := newBench(t)
	id := b.begun()
	b.does(id, add)
	done := make(chan error, 1)
	go func() {
		_, err := b.Query(context.Background(), id, Statement{SQL: "SELECT pg_sleep(600)"})
		done <- err
	}()
	b.eventually("the statement", b.sleeping)
	close(b.holder.lost)
	b.wants(<-done, NoAttempt)
	b.over(id, "lost its right")
	if got := b.state(); got != "0 running" {
		t.Error(got)
	}
}

func TestALeavingGuardRollsBack(t *testing.T) {
	b := newBench(t)
	id := b.begun()
	b.does(id, add)
	b.Close(t.Context())
	b.over(id, "guard is leaving")
	b.Close(t.Context())
	if got := b.state(); got != "0 running" {
		t.Error(got)
	}
}

// Another attempt takes the window while the transaction is open: its commit is refused.
func TestTakeoverDuringATransaction(t *testing.T) {
	for _, end := range []string{`{}`, `{"complete":false,"checkpoint":1}`} {
		b := newBench(t)
		id := b.begun()
		b.does(id, add)
		b.exec(`UPDATE onceguard.job_execution SET execution_id = gen_random_uuid()`)
		b.does(id, add) // it cannot see it
		_, err := b.finish(id, end)
		b.wants(err, FenceLost)
		if b.state() != "0 running" || !b.holder.fenced {
			t.Errorf("%s, the guard was told: %v", b.state(), b.holder.fenced)
		}
		b.over(id, "no longer holds the window")
	}
	b := newBench(t)
	b.exec(`UPDATE onceguard.job_execution SET execution_id = gen_random_uuid()`)
	_, err := b.Open(t.Context())
	b.wants(err, FenceLost)
	if !b.holder.fenced {
		t.Error("the guard was not told")
	}
	b = newBench(t)
	b.must(insert)
	b.holder.committed = false // the guard missed it
	_, err = b.Open(t.Context())
	b.wants(err, OtherRequest)
	if !b.holder.committed {
		t.Error("the guard was not told")
	}
}

func TestConnectionCutAtTheCommitOfATransaction(t *testing.T) {
	for _, end := range []string{`{"result":1}`, `{"complete":false,"checkpoint":1}`} {
		for _, after := range []bool{false, true} {
			for _, away := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s after=%v,away=%v", end, after, away), func(t *testing.T) {
					b := newBench(t)
					u, err := url.Parse(b.url)
					if err != nil {
						t.Fatal(err)
					}
					u.Host = newCutter(t, u.Host, after).address
					l := &unresolved{through: through{b.ledger, ledger.New(func(context.Context) (string, error) { return u.String(), nil }, b.log)}}
					l.away.Store(away)
					b.Committer.ledger, b.patience = l, 300*time.Millisecond
					id := b.begun()
					b.does(id, add)
					a, err := b.finish(id, end)
					switch {
					case away:
						b.wants(err, UnknownResult)
						_, err = b.finish(id, end)
						b.wants(err, UnknownResult)
						b.wants(b.Drop(t.Context(), id), UnknownResult)
					case after && (err != nil || a.Replayed):
						t.Errorf("%+v %v", a, err)
					case !after:
						b.wants(err, NotCommitted)
					}
					b.Committer.ledger, b.patience = b.ledger, resolveWait
					a, err = b.finish(id, end)
					if after && (err != nil || !a.Replayed) {
						t.Errorf("asked again: %+v %v", a, err)
					}
					if !after {
						b.wants(err, Ended)
						id = b.begun()
						b.does(id, add)
						if _, err = b.finish(id, end); err != nil {
							t.Error(err)
						}
					}
					if got := b.state() + " " + b.stored(); !strings.HasPrefix(got, "1 ") || b.holder.fenced {
						t.Errorf("%s, fenced %v", got, b.holder.fenced)
					}
				})
			}
		}
	}
}

// late makes COMMIT wait for an advisory lock that the test holds; release ends the wait.
func (b *bench) late() (release func()) {
	b.t.Helper()
	b.exec(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$`)
	b.exec(`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
	c, err := pgx.Connect(b.t.Context(), b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close(context.Background()) })
	if _, err := c.Exec(b.t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		b.t.Fatal(err)
	}
	return func() { _ = c.Close(context.Background()) }
}

func (b *bench) committing() bool {
	return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`) != "0"
}

// A COMMIT in flight is never cancelled: not by a client that is gone, the end of the
// right, or DELETE. Who asks again hears that it is under way, and then what it answered.
func TestACommitInFlightIsLeftAlone(t *testing.T) {
	b := newBench(t)
	release := b.late()
	id := b.begun()
	b.does(id, add)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Finish(ctx, id, Closing{})
		done <- err
	}()
	b.eventually("COMMIT", b.committing)
	cancel()
	close(b.holder.lost)
	b.wants(b.Drop(t.Context(), id), InFlight)
	_, err := b.finish(id, `{}`)
	b.wants(err, InFlight)
	release()
	if err := <-done; err != nil || !b.holder.committed || b.state() != "1 completed" {
		t.Errorf("%v, the guard was told: %v, state %s", err, b.holder.committed, b.state())
	}
	if a, err := b.finish(id, `{}`); err != nil || !a.Replayed {
		t.Errorf("%+v %v", a, err)
	}
}

// The guard is killed at COMMIT; the next one does not know the transaction, but what has
// become of it, as soon as that is certain.
func TestACommitThatTheGuardDidNotSurvive(t *testing.T) {
	for _, end := range []string{`{"result":1}`, `{"complete":false,"checkpoint":1}`} {
		for _, lives := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s lives=%v", end, lives), func(t *testing.T) {
				b := newBench(t)
				release := b.late()
				id := b.begun()
				b.does(id, add)
				first := b.Committer
				first.holder = &holder{id: b.holder.id, held: true, lost: make(chan struct{})}
				first.patience = 0
				closing, err := ParseClosing([]byte(end))
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = first.Finish(context.Background(), id, closing)
				}()
				b.eventually("COMMIT", b.committing)
				b.restarted()
				b.patience = 300 * time.Millisecond
				_, err = b.finish(id, end)
				b.wants(err, UnknownResult)
				if !lives {
					b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`)
				}
				release()
				<-done
				b.patience = soon
				a, err := b.finish(id, end)
				switch {
				case lives && (err != nil || !a.Replayed || b.stored() == "0 " != a.Completed || !strings.HasPrefix(b.state(), "1 ")):
					t.Errorf("%+v %v %s %s", a, err, b.state(), b.stored())
				case !lives:
					b.wants(err, Unknown)
					if got := b.state(); got != "0 running" {
						t.Error(got)
					}
				}
			})
		}
	}
}

// An id that was never given out for this attempt is unknown, and changes nothing: a
// driver of the worker's own goes on with its execution_id.
func TestAnIDOfNobody(t *testing.T) {
	b := newBench(t)
	before := b.holder.id
	other := newID(uuid.New())
	for _, id := range []string{uuid.NewString(), uuid.Nil.String(), other, "x"} {
		for _, end := range []string{`{}`, `{"complete":false,"checkpoint":1}`} {
			_, err := b.finish(id, end)
			b.wants(err, Unknown)
		}
	}
	if b.holder.id != before || b.text(`SELECT execution_id::text FROM onceguard.job_execution`) != before.String() {
		t.Error("the attempt has another execution_id")
	}
	if id := newID(before); !isID(id, before) || isID(other, before) || uuid.Validate(id) != nil {
		t.Error(id)
	}
}

// A COMMIT that Postgres refuses for now ends the transaction: asking again is no cure.
func TestATransientFailureAtTheCommitOfATransaction(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'later' USING ERRCODE = '40001'; END $$`)
	b.exec(`CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON book DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`)
	id := b.begun()
	b.does(id, add)
	_, err := b.finish(id, `{}`)
	if e := b.refusal(err, Unavailable); e.Message != "at COMMIT: later; nothing is committed; open another transaction and do the work again" || e.SQLState != "40001" {
		t.Errorf("%+v", e)
	}
	b.over(id, "")
}

// While the guard asks the ledger, nothing is opened, and it is no reason to stop.
func TestNoTransactionWithoutAnAttempt(t *testing.T) {
	b := newBench(t)
	b.holder.pending = true
	_, err := b.Open(t.Context())
	b.wants(err, Unavailable)
	b.holder.pending, b.holder.held = false, false
	_, err = b.Open(t.Context())
	b.wants(err, NoAttempt)
	b.holder.held = true
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	_, err = b.Open(ctx)
	b.wants(err, Unavailable)
	b.must(insert)
}
