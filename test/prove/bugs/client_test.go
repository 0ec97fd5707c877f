package bugs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// client is what a program does when the answer to its COMMIT is lost.
type client struct {
	// commit makes the effect and completes the window over connections to through, until
	// it can say "committed" or why not.
	commit func(ctx context.Context, direct *ledger.Ledger, through string, a claim.Attempt) (string, error)
	// outcome says what became of a COMMIT: "committed", "not-committed", or another word.
	outcome func(l *ledger.Ledger, a claim.Attempt) (string, error)
}

// product is the client of Onceguard: package commit, and Resolve.
var product = client{
	commit: func(ctx context.Context, direct *ledger.Ledger, through string, a claim.Attempt) (string, error) {
		over := ledger.New(func(context.Context) (string, error) { return through, nil }, zap.NewNop())
		defer over.Close(ctx)
		h := &holder{attempt: a}
		c := commit.New(split{Ledger: direct, over: over}, h, zap.NewNop())
		for {
			_, err := c.Commit(ctx, effect(a))
			e, ok := errors.AsType[*commit.Error](err)
			switch {
			case err == nil:
				return "committed", nil
			case !ok:
				return "", err
			case e.Code != commit.NotCommitted && e.Code != commit.Unavailable && e.Code != commit.UnknownResult || ctx.Err() != nil:
				return string(e.Code), nil
			}
		}
	},
	outcome: func(l *ledger.Ledger, a claim.Attempt) (string, error) {
		r, err := l.Resolve(context.Background(), a, uuid.New())
		return string(r), err
	},
}

// split makes business connections over another way than the ledger's own.
type split struct {
	*ledger.Ledger
	over *ledger.Ledger
}

func (s split) Connect(ctx context.Context) (*ledger.Conn, error) { return s.over.Connect(ctx) }

// effect is a worker's request.
func effect(a claim.Attempt) commit.Request {
	text := func(s string) json.RawMessage { b, _ := json.Marshal(s); return b }
	return commit.Request{Statements: []commit.Statement{{SQL: rig.EffectSQL, Args: []json.RawMessage{
		text(a.Window.JobName), text(a.Window.Start.Format("2006-01-02T15:04:05Z07:00")), text(a.ExecutionID.String()),
	}}}}
}

// holder is a guard that holds one attempt.
type holder struct {
	mu      sync.Mutex
	attempt claim.Attempt
	over    bool
}

func (h *holder) Held() (a claim.Attempt, lost <-chan struct{}, held, pending bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attempt, nil, !h.over, false
}

func (h *holder) Committed(context.Context, uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return nil
}

func (h *holder) Fenced(ctx context.Context, id uuid.UUID) error { return h.Committed(ctx, id) }

func (h *holder) Replacing(context.Context, uuid.UUID, uuid.UUID) error { return nil }

func (h *holder) Replaced(_ context.Context, _, next uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempt.ExecutionID = next
	return nil
}

// transact is a business transaction in a driver of one's own; the error is COMMIT's.
func transact(ctx context.Context, through string, a claim.Attempt) (unknown, err error) {
	c, err := pgx.Connect(ctx, through)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close(ctx) }()
	if _, err := c.Exec(ctx, "BEGIN"); err != nil {
		return nil, err
	}
	for _, sql := range []string{rig.BeginSQL, rig.EffectSQL, rig.CompleteSQL} {
		if _, err := c.Exec(ctx, sql, rig.Args(a)...); err != nil {
			return nil, err
		}
	}
	_, unknown = c.Exec(ctx, "COMMIT")
	return unknown, nil
}

// blindCommit is the client that sends COMMIT again on a new connection.
func blindCommit(ctx context.Context, _ *ledger.Ledger, through string, a claim.Attempt) (string, error) {
	unknown, err := transact(ctx, through, a)
	if err != nil || unknown == nil {
		return "committed", err
	}
	c, err := pgx.Connect(ctx, through)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close(ctx) }()
	_, err = c.Exec(ctx, "COMMIT") // a WARNING, and success
	return "committed", err
}

// giveUp is the client that takes a lost answer for a failure.
func giveUp(ctx context.Context, _ *ledger.Ledger, through string, a claim.Attempt) (string, error) {
	unknown, err := transact(ctx, through, a)
	if err != nil || unknown == nil {
		return "committed", err
	}
	return "failed", nil
}

// readOutcome is the client that reads the row and takes "running" for "not committed".
func readOutcome(l *ledger.Ledger, a claim.Attempt) (string, error) {
	s, err := l.Stored(context.Background(), a.Window)
	if s.Status == claim.Completed {
		return "committed", err
	}
	return "not-committed", err
}

// moment is when a connection is cut, once.
type moment bool

const (
	beforeCommit moment = false // the server never hears the COMMIT
	afterCommit  moment = true  // it does it, and the client never hears so
)

// lost lets the client commit over a connection that is cut at its first COMMIT.
func (w *world) lost(a claim.Attempt, at moment) string {
	if w.err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	u, err := url.Parse(w.url)
	if err != nil {
		w.note(err)
		return ""
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.note(err)
		return ""
	}
	server := u.Host
	u.Host = l.Addr().String()
	var g sync.WaitGroup
	var cut atomic.Bool
	g.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.Go(func() { carry(c, server, at, &cut) })
		}
	})
	said, err := w.client.commit(ctx, w.ledger, u.String(), a)
	_ = l.Close()
	g.Wait()
	w.note(err)
	if w.err == nil && !cut.Load() {
		w.err = errors.New("the connection was not cut: COMMIT was not seen")
	}
	return said
}

// carry is one connection.
func carry(client net.Conn, server string, at moment, cut *atomic.Bool) {
	defer func() { _ = client.Close() }()
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	answers := make(chan struct{})
	var silent atomic.Bool
	go func() {
		defer close(answers)
		defer func() { _ = client.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := s.Read(buf)
			if err != nil || silent.Load() {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			break
		}
		if bytes.Contains(buf[:n], []byte("COMMIT\x00")) && cut.CompareAndSwap(false, true) {
			if at == beforeCommit {
				break
			}
			silent.Store(true)
		}
		if _, err := s.Write(buf[:n]); err != nil {
			break
		}
	}
	_ = s.Close()
	<-answers
}
