package commit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/postgres"
)

const insert = `{"statements":[{"sql":"INSERT INTO book(n) VALUES ($1)","args":[10],"expect_rows":1}],"processed":1,"result":{"id":7}}`

func TestStatementsAndCompletionAreOneTransaction(t *testing.T) {
	b := newBench(t)
	a := b.must(`{"statements":[
		{"sql":"CREATE TABLE fresh (id int GENERATED ALWAYS AS IDENTITY, note text)"},
		{"sql":"INSERT INTO fresh(note) VALUES ($1), ($2) RETURNING id, note","args":["a",null],"returning":true,"expect_rows":2},
		{"sql":"INSERT INTO book(n, at, doc, list, ok, raw) VALUES ($1,$2,$3,$4,$5,$6)",
		 "args":[12345678901234567890.123, "2026-11-30T13:18:00Z", {"a":[1, 2.50]}, "{1,2,3}", true, "\\x00ff"]},
		{"sql":"INSERT INTO book(doc) VALUES ($1)","args":[[1,"x"]]},
		{"sql":"SELECT 1"}]}`)
	want := `[{"tag":"CREATE TABLE","rows_affected":0},` +
		`{"tag":"INSERT 0 2","rows_affected":2,"columns":["id","note"],"rows":[["1","a"],["2",null]]},` +
		`{"tag":"INSERT 0 1","rows_affected":1},{"tag":"INSERT 0 1","rows_affected":1},{"tag":"SELECT 1","rows_affected":1}]`
	if got := asJSON(t, a.Statements); got != want {
		t.Errorf("answer\n%s\nwant\n%s", got, want)
	}
	if got := b.text(`SELECT n || ' ' || (doc->'a'->>1) || ' ' || list::text || ' ' || ok || ' ' || raw::text FROM book WHERE n IS NOT NULL`); got != `12345678901234567890.123 2.50 {1,2,3} true \x00ff` {
		t.Errorf("stored %s", got)
	}
	if got := b.state(); got != "2 completed" {
		t.Error(got)
	}
	if !b.holder.committed {
		t.Error("the guard was not told")
	}
}

// Nothing of a refused request may remain, and the same attempt may try again.
func TestRefusedRequestsLeaveNothing(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE PROCEDURE committing() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$`)
	book := `{"sql":"INSERT INTO book(n) VALUES (1)"},`
	for _, c := range []struct {
		what, body string
		code       Code
		statement  int // -1: none is named
		sqlstate   string
	}{
		{"not JSON", `{"statements":`, Invalid, -1, ""},
		{"empty body", ``, Invalid, -1, ""},
		{"two values", `{} {}`, Invalid, -1, ""},
		{"null", ` null `, Invalid, -1, ""},
		{"unknown field", `{"statments":[]}`, Invalid, -1, ""},
		{"wrong type", `{"statements":[{"sql":1}]}`, Invalid, -1, ""},
		{"no SQL", `{"statements":[` + book + `{"sql":" "}]}`, Invalid, 1, ""},
		{"NUL in an argument", `{"statements":[{"sql":"SELECT $1::text","args":["a\u0000"]}]}`, Invalid, 0, ""},
		{"negative processed", `{"processed":-1}`, Invalid, -1, ""},
		{"complete false", `{"complete":false}`, Invalid, -1, ""},
		{"result that jsonb refuses", `{"result":"\u0000"}`, Invalid, -1, "22P05"},
		{"syntax error", `{"statements":[` + book + `{"sql":"INSRT"}]}`, Failed, 1, "42601"},
		{"bad argument", `{"statements":[` + book + `{"sql":"INSERT INTO book(n) VALUES ($1)","args":["x"]}]}`, Failed, 1, "22P02"},
		{"too few arguments", `{"statements":[{"sql":"INSERT INTO book(n) VALUES ($1)"}]}`, Failed, 0, "08P01"},
		{"two statements in one", `{"statements":[` + book + `{"sql":"SELECT 1; SELECT 2"}]}`, Failed, 1, "42601"},
		{"COPY FROM STDIN", `{"statements":[` + book + `{"sql":"COPY book FROM STDIN"}]}`, Failed, 1, ""},
		{"rows unexpected", `{"statements":[` + book + `{"sql":"UPDATE book SET n=2 WHERE n=99","expect_rows":1}]}`, Unexpected, 1, ""},
		{"deferred constraint", `{"statements":[` + book + `{"sql":"INSERT INTO child VALUES (1)"}]}`, Refused, -1, "23503"},
		{"COMMIT", `{"statements":[` + book + `{"sql":"COMMIT"}]}`, Forbidden, 1, ""},
		{"COMMIT AND CHAIN", `{"statements":[` + book + `{"sql":"COMMIT AND CHAIN"},` + strings.TrimSuffix(book, ",") + `]}`, Forbidden, 1, ""},
		{"ROLLBACK", `{"statements":[` + book + `{"sql":"ROLLBACK"},` + strings.TrimSuffix(book, ",") + `]}`, Forbidden, 1, ""},
		{"ROLLBACK AND CHAIN", `{"statements":[` + book + `{"sql":"ROLLBACK AND CHAIN"},` + strings.TrimSuffix(book, ",") + `]}`, Forbidden, 1, ""},
		{"END", `{"statements":[` + book + `{"sql":"END"}]}`, Forbidden, 1, ""},
		{"ABORT", `{"statements":[` + book + `{"sql":"ABORT"}]}`, Forbidden, 1, ""},
		{"ROLLBACK TO", `{"statements":[` + book + `{"sql":"/**/rollback to s"}]}`, Forbidden, 1, ""},
		{"ROLLBACK first, then a transaction of its own", `{"statements":[{"sql":"ROLLBACK"},{"sql":"BEGIN"},` + book + `{"sql":"COMMIT"}]}`, Forbidden, 0, ""},
		{"ROLLBACK first, then COMMIT", `{"statements":[{"sql":"-- x\nROLLBACK"},` + book + `{"sql":";COMMIT"}]}`, Forbidden, 0, ""},
		{"ABORT AND CHAIN first, then END", `{"statements":[{"sql":"abort and chain"},` + book + `{"sql":"END"}]}`, Forbidden, 0, ""},
		{"COMMIT in a procedure", `{"statements":[` + book + `{"sql":"CALL committing()"}]}`, Failed, 1, "2D000"},
		{"ROLLBACK in DO", `{"statements":[` + book + `{"sql":"DO $$ BEGIN ROLLBACK; END $$"}]}`, Failed, 1, "2D000"},
		{"SAVEPOINT", `{"statements":[` + book + `{"sql":"SAVEPOINT s"}]}`, Forbidden, 1, ""},
		{"PREPARE TRANSACTION", `{"statements":[` + book + `{"sql":"PREPARE TRANSACTION 'x'"}]}`, Forbidden, 1, ""},
		{"SET", `{"statements":[` + book + `{"sql":"/* innocent */ SET lock_timeout = 1"}]}`, Forbidden, 1, ""},
		{"SET ROLE", `{"statements":[` + book + `{"sql":"SET LOCAL ROLE NONE"}]}`, Forbidden, 1, ""},
		{"RESET", `{"statements":[` + book + `{"sql":"RESET ALL"}]}`, Forbidden, 1, ""},
		{"LISTEN", `{"statements":[` + book + `{"sql":"LISTEN x"}]}`, Forbidden, 1, ""},
		{"PREPARE", `{"statements":[` + book + `{"sql":"PREPARE p AS SELECT 1"}]}`, Forbidden, 1, ""},
		{"cursor with hold", `{"statements":[` + book + `{"sql":"DECLARE c CURSOR WITH HOLD FOR SELECT 1"}]}`, Forbidden, 1, ""},
		{"barrier fired early", `{"statements":[` + book + `{"sql":"SET CONSTRAINTS ALL IMMEDIATE"}]}`, Forbidden, 1, "OG006"},
		{"completing by hand", `{"statements":[` + book + `{"sql":"SELECT onceguard.heartbeat('shop/order-sync', now(), gen_random_uuid(), '1s')"}]}`, Forbidden, 1, "OG006"},
		{"too many rows", `{"statements":[` + book + `{"sql":"SELECT repeat('x', 1000) FROM generate_series(1,2000)","returning":true}]}`, TooLarge, 1, ""},
		{"too many rows without columns", `{"statements":[` + book + `{"sql":"SELECT FROM generate_series(1,100000)","returning":true}]}`, TooLarge, 1, ""},
		{"rows of COPY", `{"statements":[` + book + `{"sql":"COPY book TO STDOUT","returning":true}]}`, Failed, 1, ""},
		{"a huge row", `{"statements":[` + book + `{"sql":"SELECT repeat('x', 150000000)","returning":true}]}`, TooLarge, 1, ""},
		{"a huge row that nobody wants", `{"statements":[` + book + `{"sql":"SELECT repeat('x', 150000000)"}]}`, TooLarge, 1, ""},
	} {
		_, err := b.post(c.body)
		e := b.refusal(err, c.code)
		if (e.Statement == nil) != (c.statement < 0) || e.Statement != nil && *e.Statement != c.statement {
			t.Errorf("%s: statement %v, want %d: %v", c.what, e.Statement, c.statement, e)
		}
		if c.sqlstate != "" && e.SQLState != c.sqlstate {
			t.Errorf("%s: SQLSTATE %q, want %q: %v", c.what, e.SQLState, c.sqlstate, e)
		}
		if got := b.state(); got != "0 running" {
			t.Fatalf("%s: left %q", c.what, got)
		}
	}
	_, err := b.post(`{"statements":[{"sql":"SELECT * FROM nowhere"}]}`)
	if e := b.refusal(err, Failed); e.Position != 15 {
		t.Errorf("position %d", e.Position)
	}
	b.must(insert)
	if got := b.state(); got != "1 completed" {
		t.Error(got)
	}
}

func TestTheSameRequestIsAnsweredAsBefore(t *testing.T) {
	b := newBench(t)
	b.must(insert)
	// Other white space and order of keys, the same meaning.
	a := b.must(`{ "result": {"id": 7}, "processed": 1, "complete": true, "statements": [{"expect_rows":1,"args":[10],"sql":"INSERT INTO book(n) VALUES (\u0024\u0031)"}]}`)
	if !a.Replayed || string(a.Result) != `{"id": 7}` || a.Processed == nil || *a.Processed != 1 {
		t.Errorf("answer %+v", a)
	}
	_, err := b.post(`{"statements":[{"sql":"INSERT INTO book(n) VALUES (11)"}]}`)
	b.wants(err, OtherRequest)
	_, err = b.post(`{"payload":"other"}`)
	b.wants(err, OtherPayload)
	if got := b.state(); got != "1 completed" {
		t.Error(got)
	}
}

// null says the same as nothing.
func TestNullIsNothingInTheDigest(t *testing.T) {
	var digests []string
	for _, body := range []string{`{}`, `{"payload":null,"result": null ,"checkpoint":null}`} {
		r, err := Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, r.Digest(), r.digestIn(""))
	}
	if digests[0] != digests[2] || digests[1] != digests[3] {
		t.Error(digests)
	}
}

func TestArgumentsOfARequestAreBounded(t *testing.T) {
	args := func(n int) string { return `{"sql":"SELECT 1","args":[1` + strings.Repeat(",1", n-1) + `]}` }
	for body, word := range map[string]string{
		`{"statements":[` + args(maxArgs) + `,` + args(maxAllArgs-maxArgs) + `]}`:   "",
		`{"statements":[` + args(maxArgs) + `,` + args(maxAllArgs-maxArgs+1) + `]}`: "statements[1].args: with these the request has 100001 arguments",
		`{"statements":[` + args(maxArgs+1) + `]}`:                                  "statements[0].args has 65536 elements",
	} {
		_, err := Parse([]byte(body))
		if (word == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%.40s: %v", body, err)
		}
	}
}

func TestAnotherPayloadNamesBothDigests(t *testing.T) {
	b := newBench(t)
	b.must(`{"payload":{"day":1}}`)
	_, err := b.post(`{"payload":{"day":2}}`)
	e := b.refusal(err, OtherPayload)
	if strings.Count(e.Message, "sha256:") != 2 {
		t.Errorf("message %q", e.Message)
	}
}

func TestAFencedAttemptCommitsNothing(t *testing.T) {
	b := newBench(t)
	b.exec(`UPDATE onceguard.job_execution SET execution_id = gen_random_uuid()`)
	_, err := b.post(insert)
	b.wants(err, FenceLost)
	if got := b.state(); got != "0 running" {
		t.Error(got)
	}
	if !b.holder.fenced {
		t.Error("the guard was not told, so the worker goes on")
	}
	_, err = b.post(insert)
	b.wants(err, NoAttempt)
}

// The fence is checked last: a takeover while the statements run is noticed.
func TestTakeoverWhileStatementsRun(t *testing.T) {
	b := newBench(t)
	b.exec(`CREATE FUNCTION takeover() RETURNS int LANGUAGE sql AS $$
		WITH u AS (UPDATE onceguard.job_execution SET execution_id = gen_random_uuid() RETURNING 1) SELECT count(*)::int FROM u $$`)
	_, err := b.post(`{"statements":[{"sql":"INSERT INTO book(n) VALUES (1)"},{"sql":"SELECT takeover()"}]}`)
	b.wants(err, FenceLost)
	if got := b.state(); got != "0 running" {
		t.Error(got)
	}
}

func TestOneCommitAtATime(t *testing.T) {
	b := newBench(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	b.beforeCommit = func() { close(entered); <-leave }
	done := make(chan error, 1)
	go func() {
		_, err := b.post(insert)
		done <- err
	}()
	<-entered
	_, err := b.post(insert)
	b.wants(err, InFlight)
	close(leave)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A server that ends the session between the statements and COMMIT keeps nothing; the
// worker hears so for certain, and asking again works.
func TestSessionEndedBetweenStatementsAndCommit(t *testing.T) {
	b := newBench(t)
	before := b.holder.id
	b.beforeCommit = func() {
		b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'`)
	}
	_, err := b.post(insert)
	b.wants(err, NotCommitted)
	if got := b.state(); got != "0 running" {
		t.Error(got)
	}
	if b.holder.id == before {
		t.Error("not committed was answered, but the transaction still has its right")
	}
	b.beforeCommit = func() {}
	if a := b.must(insert); a.Replayed {
		t.Error("replayed")
	}
	if got := b.state(); got != "1 completed" {
		t.Error(got)
	}
}

// The worker that asked is gone, or its attempt lost its right, before COMMIT.
func TestGivenUpBeforeCommit(t *testing.T) {
	for _, c := range []struct {
		what string
		stop func(b *bench, cancel func())
	}{
		{"client gone", func(_ *bench, cancel func()) { cancel() }},
		{"right lost", func(b *bench, _ func()) { close(b.holder.lost) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := newBench(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := Parse([]byte(`{"statements":[{"sql":"INSERT INTO book(n) VALUES (1)"},{"sql":"SELECT pg_sleep(600)"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := b.Commit(ctx, r)
				done <- err
			}()
			for b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'`) == "0" {
				time.Sleep(10 * time.Millisecond)
			}
			c.stop(b, cancel)
			b.wants(<-done, Unavailable)
			if got := b.state(); got != "0 running" {
				t.Error(got)
			}
		})
	}
}

// cutter forwards to Postgres and breaks the connection when COMMIT passes: before
// the server has it, or before the client has the answer.
type cutter struct {
	address string
	after   bool
	cuts    atomic.Int32
}

func newCutter(t *testing.T, server string, after bool) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c := &cutter{address: l.Addr().String(), after: after}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go c.forward(client, server)
		}
	}()
	return c
}

func (c *cutter) forward(client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	var silent atomic.Bool
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := up.Read(buf)
			if err != nil {
				return
			}
			if silent.Load() {
				_ = client.Close() // the server has answered COMMIT; nobody hears it
				return
			}
			_, _ = client.Write(buf[:n])
		}
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if strings.Contains(string(buf[:n]), "COMMIT\x00") {
			c.cuts.Add(1)
			if !c.after {
				return
			}
			silent.Store(true)
		}
		_, _ = up.Write(buf[:n])
	}
}

// through makes business connections pass the cutter; everything else goes straight.
type through struct {
	*ledger.Ledger
	cut *ledger.Ledger
}

func (l through) Connect(ctx context.Context) (*ledger.Conn, error) { return l.cut.Connect(ctx) }

func TestConnectionCutAtCommit(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after=%v", after), func(t *testing.T) {
			b := newBench(t)
			u, err := url.Parse(b.url)
			if err != nil {
				t.Fatal(err)
			}
			cutter := newCutter(t, u.Host, after)
			u.Host = cutter.address
			cut := ledger.New(func(context.Context) (string, error) { return u.String(), nil }, b.log)
			b.Committer.ledger = through{b.ledger, cut}
			before := b.holder.id
			a, err := b.post(insert)
			if cutter.cuts.Load() != 1 {
				t.Fatalf("%d cuts", cutter.cuts.Load())
			}
			if after {
				if err != nil || a.Replayed || !b.holder.committed || b.state() != "1 completed" {
					t.Errorf("%+v %v, state %s", a, err, b.state())
				}
				if a := b.must(insert); !a.Replayed {
					t.Error("not replayed")
				}
				return
			}
			b.wants(err, NotCommitted)
			if b.state() != "0 running" || b.holder.id == before {
				t.Errorf("state %s, id replaced: %v", b.state(), b.holder.id != before)
			}
			b.Committer.ledger = b.ledger
			b.must(insert)
			if b.state() != "1 completed" {
				t.Error(b.state())
			}
		})
	}
}

// unresolved is a ledger that cannot be reached when the outcome is asked for.
type unresolved struct {
	through
	away atomic.Bool
	asks atomic.Int32
}

func (l *unresolved) Resolve(ctx context.Context, a claim.Attempt, id uuid.UUID) (claim.Resolution, error) {
	l.asks.Add(1)
	if l.away.Load() {
		return "", ledger.ErrUnavailable
	}
	return l.Ledger.Resolve(ctx, a, id)
}

// While the outcome is not known nothing is run again; the next request finds it out.
func TestUnknownOutcomeIsFoundOutByTheNextRequest(t *testing.T) {
	b := newBench(t)
	u, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = newCutter(t, u.Host, true).address
	l := &unresolved{through: through{b.ledger, ledger.New(func(context.Context) (string, error) { return u.String(), nil }, b.log)}}
	l.away.Store(true)
	b.Committer.ledger, b.patience = l, 300*time.Millisecond
	_, err = b.post(insert)
	b.wants(err, UnknownResult)
	_, err = b.post(insert)
	b.wants(err, UnknownResult)
	l.away.Store(false)
	b.patience = resolveWait
	if a := b.must(insert); !a.Replayed {
		t.Error("not replayed")
	}
	if b.state() != "1 completed" {
		t.Error(b.state())
	}
}

// A commit whose wait for the standby was cancelled is there, but a failover may lose
// it: never a success before a later write has passed the standby.
func TestCancelledWaitForTheStandbyIsNoSuccess(t *testing.T) {
	s, err := postgres.Start(t.Context(), postgres.Options{NoSync: true})
	if err != nil {
		postgres.Unavailable(t, err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), postgres.Immediate) })
	b := benchAt(t, s.NewDatabase(t))
	b.patience = time.Second
	standby := func(names string) {
		s.Exec(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
		for b.text(`SHOW synchronous_standby_names`) != names {
			time.Sleep(10 * time.Millisecond)
		}
	}
	standby("missing")
	waits := func() string {
		return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	}
	done := make(chan error, 1)
	go func() {
		r, err := Parse([]byte(insert))
		if err == nil {
			_, err = b.Commit(context.Background(), r)
		}
		done <- err
	}()
	for waits() == "0" {
		time.Sleep(10 * time.Millisecond)
	}
	s.Exec(t, "postgres", `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	err = <-done
	if err == nil {
		t.Fatal("200 for a commit that a failover may lose")
	}
	b.wants(err, UnknownResult)
	standby("")
	b.patience = resolveWait
	if a := b.must(insert); !a.Replayed {
		t.Error("not replayed")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		insert, piece(1, `,"checkpoint_seq":0`), `{"sql":"SELECT $1","args":[{"$type":"int8[]","value":[1,null]}],"returning":true}`, `{"data":{"upto":1},"seq":3}`,
		`{"statements":[{"sql":"SELECT $1","args":[null,1e400,{"a":[]},"\u0024"]}],"payload":0}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		refused := func(err error) bool {
			if err == nil {
				return false
			}
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Code != Invalid && e.Code != Forbidden || e.Message == "" || strings.ContainsAny(e.Message[:1], ". ") {
				t.Errorf("%v", err)
			}
			return true
		}
		if r, err := Parse(body); !refused(err) {
			again, err := Parse([]byte(asJSON(t, r)))
			if err != nil || again.Digest() != r.Digest() || again.PayloadDigest() != r.PayloadDigest() || again.piece() != r.piece() {
				t.Errorf("%s is not stable: %v", body, err)
			}
		}
		if c, err := ParseClosing(body); !refused(err) {
			again, err := ParseClosing([]byte(asJSON(t, c)))
			if err != nil || again.digestIn("x") != c.digestIn("x") || c.digestIn("x") == c.digestIn("y") {
				t.Errorf("%s is not stable: %v", body, err)
			}
		}
		if s, err := ParseStatement(body); !refused(err) {
			if _, err := ParseStatement([]byte(asJSON(t, s))); err != nil {
				t.Errorf("%s is not stable: %v", body, err)
			}
		}
		if r, err := ParseCheckpoint(body); !refused(err) && !r.piece() {
			t.Errorf("%s is no piece", body)
		}
	})
}
