package commit

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

var theWindow = window.Window{JobName: "shop/order-sync", Start: time.Date(2026, 11, 30, 13, 18, 0, 0, time.UTC)}

// holder is a guard that holds one attempt.
type holder struct {
	mu        sync.Mutex
	id        uuid.UUID
	next      uuid.UUID
	held      bool
	pending   bool
	committed bool
	fenced    bool
	lost      chan struct{}
}

func (h *holder) Held() (a claim.Attempt, lost <-chan struct{}, held, pending bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return claim.Attempt{Window: theWindow, ExecutionID: h.id}, h.lost, h.held && !h.committed && !h.pending, h.pending
}

func (h *holder) Committed(ctx context.Context, id uuid.UUID) error {
	if ctx.Err() != nil { // as the guard does
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.committed = h.committed || id == h.id
	return nil
}

func (h *holder) Fenced(_ context.Context, id uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == h.id {
		h.fenced, h.held = true, false
	}
	return nil
}

func (h *holder) Replacing(_ context.Context, _, next uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = next
	return nil
}

func (h *holder) Replaced(_ context.Context, id, next uuid.UUID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == h.id && next == h.next {
		h.id = next
	}
	return nil
}

// bench is a claimed window with a table of business.
type bench struct {
	*Committer
	t      *testing.T
	url    string
	holder *holder
	ledger *ledger.Ledger
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return benchAt(t, postgres.Database(t))
}

func benchAt(t *testing.T, url string) *bench {
	t.Helper()
	if _, _, err := migrate.Up(t.Context(), url, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	l := ledger.New(func(context.Context) (string, error) { return url, nil }, zap.NewNop())
	t.Cleanup(func() { l.Close(context.Background()) })
	h := &holder{id: uuid.New(), held: true, lost: make(chan struct{})}
	a, err := l.Claim(t.Context(), claim.Request{Attempt: claim.Attempt{Window: theWindow, ExecutionID: h.id}, Lease: time.Hour})
	if err != nil || a.Verdict != claim.Run {
		t.Fatalf("claim: %+v %v", a, err)
	}
	b := &bench{Committer: New(l, h, zap.NewNop()), t: t, url: url, holder: h, ledger: l}
	b.exec(`CREATE TABLE book (n numeric, note text, at timestamptz, doc jsonb, list int[], ok boolean, raw bytea)`)
	b.exec(`CREATE TABLE parent (id int PRIMARY KEY)`)
	b.exec(`CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	return b
}

func (b *bench) exec(sql string) {
	b.t.Helper()
	c, err := pgx.Connect(b.t.Context(), b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if _, err := c.Exec(b.t.Context(), sql); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

func (b *bench) text(sql string) (s string) {
	b.t.Helper()
	c, err := pgx.Connect(b.t.Context(), b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if err := c.QueryRow(b.t.Context(), sql).Scan(&s); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// state is "<rows of business> <status of the window>".
func (b *bench) state() string {
	b.t.Helper()
	return b.text(`SELECT (SELECT count(*) FROM book) || ' ' || status FROM onceguard.job_execution`)
}

func (b *bench) post(body string) (Answer, error) {
	b.t.Helper()
	r, err := Parse([]byte(body))
	if err != nil {
		return Answer{}, err
	}
	return b.Commit(b.t.Context(), r)
}

func (b *bench) must(body string) Answer {
	b.t.Helper()
	a, err := b.post(body)
	if err != nil {
		b.t.Fatalf("%s: %v", body, err)
	}
	return a
}

// wants checks the code of an error.
func (b *bench) wants(err error, code Code) {
	b.t.Helper()
	if !hasCode(err, code) {
		b.t.Fatalf("got %v, want %s", err, code)
	}
}

// refusal checks the code of an error and gives it.
func (b *bench) refusal(err error, code Code) *Error {
	b.t.Helper()
	b.wants(err, code)
	e, _ := errors.AsType[*Error](err)
	return e
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
