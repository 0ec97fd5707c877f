package commit

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// piece inserts n and goes on to it; more is put into the request.
func piece(n int, more string) string {
	return fmt.Sprintf(`{"statements":[{"sql":"INSERT INTO book(n) VALUES ($1)","args":[%d]}],"complete":false,"checkpoint":{"upto":%d}%s}`, n, n, more)
}

// stored is "<seq> <data>" of the checkpoint.
func (b *bench) stored() string {
	b.t.Helper()
	p, err := b.Checkpoint(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", p.Seq, p.Data)
}

// restarted is the Committer of the next guard of this pod.
func (b *bench) restarted() {
	b.Committer = New(b.ledger, b.holder, zap.NewNop())
}

func TestALongJobCommitsInPieces(t *testing.T) {
	b := newBench(t)
	if got := b.stored(); got != "0 " {
		t.Errorf("before: %s", got)
	}
	for n := 1; n <= 3; n++ {
		a := b.must(piece(n, ""))
		if a.Completed || a.Replayed || a.CheckpointSeq != n || len(a.Statements) != 1 {
			t.Errorf("piece %d: %+v", n, a)
		}
		if b.holder.committed {
			t.Fatal("a piece is no completion")
		}
		if a := b.must(piece(n, "")); !a.Replayed || a.CheckpointSeq != n {
			t.Errorf("asked again: %+v", a)
		}
	}
	if got := b.stored() + " " + b.state(); got != `3 {"upto": 3} 3 running` {
		t.Error(got)
	}
	b.restarted()
	if a := b.must(piece(3, "")); !a.Replayed || a.CheckpointSeq != 3 {
		t.Errorf("asked again after a restart: %+v", a)
	}
	if a := b.must(piece(4, "")); a.Replayed || a.CheckpointSeq != 4 {
		t.Errorf("after a restart: %+v", a)
	}
	if a := b.must(`{"statements":[{"sql":"INSERT INTO book(n) VALUES (5)"}]}`); !a.Completed || a.CheckpointSeq != 0 {
		t.Errorf("completion: %+v", a)
	}
	if got := b.state(); got != "5 completed" {
		t.Error(got)
	}
	if a := b.must(piece(4, "")); !a.Replayed || a.Completed || a.CheckpointSeq != 4 {
		t.Errorf("the last piece asked again after the completion: %+v", a)
	}
	_, err := b.post(piece(6, ""))
	b.wants(err, OtherRequest)
}

func TestAPieceSaysWhatItGoesOnFrom(t *testing.T) {
	b := newBench(t)
	b.must(piece(1, `,"checkpoint_seq":0`))
	b.must(piece(2, `,"checkpoint_seq":1`))
	for _, more := range []string{`,"checkpoint_seq":0`, `,"checkpoint_seq":1`, `,"checkpoint_seq":3`} {
		for range 2 { // a guard that knows, and one that does not
			_, err := b.post(piece(3, more))
			if e := b.refusal(err, Conflict); !strings.Contains(e.Message, "checkpoint 2 is stored") {
				t.Errorf("%s: %s", more, e.Message)
			}
			b.restarted()
		}
	}
	if a := b.must(piece(2, `,"checkpoint_seq":1`)); !a.Replayed {
		t.Error("the same piece was not replayed")
	}
	b.must(piece(3, `,"checkpoint_seq":2`))
	if got := b.stored() + " " + b.state(); got != `3 {"upto": 3} 3 running` {
		t.Error(got)
	}
}

func TestPiecesThatAreRefused(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct{ body, cure string }{
		{`{"complete":false}`, "say how far the work has come"},
		{`{"complete":false,"checkpoint":null}`, "checkpoint is missing or null"},
		{`{"complete":false,"checkpoint":1,"result":2}`, "belong to the completion"},
		{`{"complete":false,"checkpoint":1,"payload":2}`, "belong to the completion"},
		{`{"complete":false,"checkpoint":1,"processed":2}`, "belong to the completion"},
		{`{"complete":false,"checkpoint":1,"checkpoint_seq":-1}`, "checkpoint_seq is -1"},
		{`{"checkpoint":1}`, "say complete: false"},
		{`{"checkpoint_seq":1}`, "say complete: false"},
		{`{"complete":false,"checkpoint":"` + strings.Repeat("x", 1<<20) + `"}`, "at most 1048576"},
	} {
		_, err := b.post(c.body)
		if e := b.refusal(err, Invalid); !strings.Contains(e.Message, c.cure) {
			t.Errorf("%.80s: %s", c.body, e.Message)
		}
	}
	for body, cure := range map[string]string{`{}`: "data is missing", `{"data":null}`: "data is missing", `{"data":1,"sek":2}`: "sek", `null`: "null"} {
		if _, err := ParseCheckpoint([]byte(body)); err == nil || !strings.Contains(err.Error(), cure) {
			t.Errorf("%s: %v", body, err)
		}
	}
	// As Postgres writes it this one has a space more for each element.
	_, err := b.post(`{"complete":false,"checkpoint":[1` + strings.Repeat(",1", 400000) + `]}`)
	if e := b.refusal(err, Invalid); !strings.Contains(e.Message, "refused the checkpoint (its bound is on the JSON as Postgres writes it") {
		t.Error(e.Message)
	}
	if got := b.stored() + b.state(); got != "0 0 running" {
		t.Error(got)
	}
}

// A checkpoint that the worker's own driver wrote is not overwritten by what the guard
// remembers.
func TestACheckpointByAnotherWay(t *testing.T) {
	b := newBench(t)
	b.must(piece(1, ""))
	a := claim.Attempt{Window: theWindow, ExecutionID: b.holder.id}
	if _, err := b.ledger.Checkpoint(t.Context(), a, 1, []byte(`"mine"`), ""); err != nil {
		t.Fatal(err)
	}
	for range 2 { // asking again is no cure, reading is
		_, err := b.post(piece(2, ""))
		b.wants(err, Conflict)
		if got := b.text(`SELECT checkpoint_seq || ' ' || checkpoint FROM onceguard.stored('shop/order-sync', '2026-11-30T13:18:00Z')`) + " " + b.state(); got != `2 "mine" 1 running` {
			t.Error(got)
		}
	}
	if got := b.stored(); got != `2 "mine"` {
		t.Error(got)
	}
	b.must(piece(2, ""))
	if got := b.stored(); got != `3 {"upto": 2}` {
		t.Error(got)
	}
}

// Of a worker that sends its pieces side by side an answer may be lost and asked for later.
func TestAnEarlierPieceIsNotRunAgain(t *testing.T) {
	b := newBench(t)
	for n := 1; n <= 3; n++ {
		b.must(piece(n, ""))
	}
	for n := 1; n <= 3; n++ {
		if a := b.must(piece(n, "")); !a.Replayed || a.CheckpointSeq != n {
			t.Errorf("piece %d asked again: %+v", n, a)
		}
	}
	if got := b.stored() + " " + b.state(); got != `3 {"upto": 3} 3 running` {
		t.Error(got)
	}
	// The outcome of one is unknown, and found out when another one asks.
	u, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	cutter := newCutter(t, u.Host, true)
	u.Host = cutter.address
	l := &unresolved{through: through{b.ledger, ledger.New(func(context.Context) (string, error) { return u.String(), nil }, b.log)}}
	l.away.Store(true)
	b.Committer.ledger, b.patience = l, 300*time.Millisecond
	_, err = b.post(piece(4, ""))
	b.wants(err, UnknownResult)
	b.Committer.ledger, b.patience = b.ledger, resolveWait
	b.must(piece(5, ""))
	for n := 1; n <= 5; n++ {
		if a := b.must(piece(n, "")); !a.Replayed || a.CheckpointSeq != n {
			t.Errorf("piece %d asked again: %+v", n, a)
		}
	}
	if got := b.stored() + " " + b.state(); got != `5 {"upto": 5} 5 running` {
		t.Error(got)
	}
}

func TestRememberedPiecesAreBounded(t *testing.T) {
	var k known
	for n := range 2 * rememberedPieces {
		k.add(done{seq: n})
	}
	if len(k.pieces) != rememberedPieces || k.pieces[0].seq != rememberedPieces {
		t.Error(len(k.pieces))
	}
}

// The next attempt goes on from the checkpoint, and the one before writes none any more.
func TestTheNextAttemptGoesOn(t *testing.T) {
	b := newBench(t)
	b.must(piece(1, ""))
	zombie := b.Committer
	old := b.holder.id
	zombie.holder = &holder{id: old, held: true, lost: make(chan struct{})}
	if _, err := b.ledger.Release(t.Context(), claim.Attempt{Window: theWindow, ExecutionID: old}, claim.End{Outcome: claim.OutcomeFailed}); err != nil {
		t.Fatal(err)
	}
	b.holder.id = uuid.New()
	answer, err := b.ledger.Claim(t.Context(), claim.Request{Attempt: claim.Attempt{Window: theWindow, ExecutionID: b.holder.id}, Lease: time.Hour})
	if err != nil || answer.Verdict != claim.Run {
		t.Fatal(answer, err)
	}
	b.restarted()
	if got := b.stored(); got != `1 {"upto": 1}` {
		t.Error(got)
	}
	if a := b.must(piece(2, "")); a.CheckpointSeq != 2 {
		t.Errorf("%+v", a)
	}
	r, err := Parse([]byte(piece(7, "")))
	if err != nil {
		t.Fatal(err)
	}
	_, err = zombie.Commit(t.Context(), r)
	b.wants(err, FenceLost)
	if got := b.stored() + " " + b.state(); got != `2 {"upto": 2} 2 running` {
		t.Error(got)
	}
}

// The connection breaks at the COMMIT of a piece: found out by fencing and by the stored
// checkpoint, at once or by the next request.
func TestConnectionCutAtTheCommitOfAPiece(t *testing.T) {
	for _, after := range []bool{false, true} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("after=%v,away=%v", after, away), func(t *testing.T) {
				b := newBench(t)
				b.must(piece(1, ""))
				u, err := url.Parse(b.url)
				if err != nil {
					t.Fatal(err)
				}
				cutter := newCutter(t, u.Host, after)
				u.Host = cutter.address
				l := &unresolved{through: through{b.ledger, ledger.New(func(context.Context) (string, error) { return u.String(), nil }, b.log)}}
				l.away.Store(away)
				b.Committer.ledger, b.patience = l, 300*time.Millisecond
				before := b.holder.id
				a, err := b.post(piece(2, ""))
				if cutter.cuts.Load() != 1 {
					t.Fatalf("%d cuts", cutter.cuts.Load())
				}
				switch {
				case away:
					b.wants(err, UnknownResult)
				case after && (err != nil || a.Replayed || a.CheckpointSeq != 2):
					t.Errorf("%+v %v", a, err)
				case !after:
					b.wants(err, NotCommitted)
				}
				b.Committer.ledger, b.patience = b.ledger, resolveWait
				if a := b.must(piece(2, "")); a.Replayed != after || a.CheckpointSeq != 2 {
					t.Errorf("asked again: %+v", a)
				}
				if b.holder.id == before || b.holder.fenced {
					t.Error("the transaction in question was not fenced, or the attempt was")
				}
				b.must(piece(3, ""))
				b.must(`{}`)
				if got := b.stored() + " " + b.state(); got != `3 {"upto": 3} 3 completed` {
					t.Error(got)
				}
			})
		}
	}
}

// frames forwards to Postgres and counts the answers that end a round trip.
func frames(t *testing.T, server string) (address string, trips *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	trips = &atomic.Int32{}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				return
			}
			go func() { _, _ = io.Copy(up, client); _ = up.Close() }()
			go func() {
				defer func() { _ = client.Close() }()
				head := make([]byte, 5)
				for {
					if _, err := io.ReadFull(up, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
					if _, err := io.ReadFull(up, body); err != nil {
						return
					}
					if head[0] == 'Z' {
						trips.Add(1)
					}
					_, _ = client.Write(append(append([]byte{}, head...), body...))
				}
			}()
		}
	}()
	return l.Addr().String(), trips
}

// asks counts what is read of the ledger beside the transaction.
type asks struct {
	through
	n atomic.Int32
}

func (l *asks) Stored(ctx context.Context, w window.Window) (claim.Stored, error) {
	l.n.Add(1)
	return l.Ledger.Stored(ctx, w)
}

func TestACommitTakesTwoRoundTrips(t *testing.T) {
	b := newBench(t)
	u, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	address, trips := frames(t, u.Host)
	u.Host = address
	l := &asks{through: through{b.ledger, ledger.New(func(context.Context) (string, error) { return u.String(), nil }, b.log)}}
	b.Committer.ledger = l
	for n, c := range []struct {
		body string
		asks int32
	}{
		{piece(1, ""), 1}, {piece(2, ""), 0}, {piece(3, ""), 0}, {piece(4, `,"checkpoint_seq":3`), 0}, {insert, 0},
	} {
		trips.Store(0)
		l.n.Store(0)
		b.must(c.body)
		if got := trips.Load(); got != 3 || l.n.Load() != c.asks { // one is the connection's
			t.Errorf("commit %d: %d round trips and the connection, %d questions before", n+1, got-1, l.n.Load())
		}
	}
}
