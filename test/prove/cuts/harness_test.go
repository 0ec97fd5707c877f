package cuts_test

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
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
	"github.com/onceguard/onceguard/test/prove/pgproxy"
)

func TestMain(m *testing.M) { postgres.Main(m) }

const (
	// lease outlives every trial: nobody takes over here.
	lease = 10 * time.Minute
	// patience bounds one question of a client over a connection that works, and every
	// wait of the harness.
	patience = 2 * time.Minute
	// impatience is how long a client waits for a connection that says nothing any more.
	impatience = 60 * time.Millisecond
	// askedAtMost bounds how often a client asks.
	askedAtMost = 12
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// bed is a database with a ledger and a business table.
func bed(t *testing.T) (ownerURL string) {
	t.Helper()
	u := postgres.Database(t)
	if _, _, err := migrate.Up(t.Context(), u, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	for _, q := range []string{
		cheap(t, u),
		`CREATE TABLE effect (job text, at timestamptz, n int)`,
		`CREATE INDEX ON effect (job, at)`,
		`CREATE TABLE naive (job text, at timestamptz, done boolean, PRIMARY KEY (job, at))`,
	} {
		if _, err := c.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// cheap is the statement that lets the URL's login keep its password with one round of
// hashing. Nearly all of a trial's time would go into the usual 4096, not into messages.
func cheap(t *testing.T, loginURL string) string {
	t.Helper()
	u, err := url.Parse(loginURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	salt := []byte("0123456789abcdef")
	salted, err := pbkdf2.Key(sha256.New, password, salt, 1, sha256.Size)
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(name))
		return h.Sum(nil)
	}
	stored, text := sha256.Sum256(key("Client Key")), base64.StdEncoding.EncodeToString
	return fmt.Sprintf("ALTER ROLE %s PASSWORD 'SCRAM-SHA-256$1:%s$%s:%s'", pgx.Identifier{u.User.Username()}.Sanitize(),
		text(salt), text(stored[:]), text(key("Server Key")))
}

// worker makes one trial after the other: a proxy with the connections through it, and
// connections past it for preparing and for looking.
type worker struct {
	job    string // also the application_name of what goes through the proxy
	url    string // through the proxy
	proxy  *pgproxy.Proxy
	ledger *ledger.Ledger // through the proxy
	direct *ledger.Ledger
	db     *pgx.Conn
	n      int // windows so far
}

func newWorker(t *testing.T, ownerURL string, n int, sslmode string) *worker {
	t.Helper()
	u, err := url.Parse(ownerURL)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{job: fmt.Sprintf("shop/cuts-%d", n)}
	secure, err := pgproxy.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	if w.proxy, err = pgproxy.Start(u.Host, secure); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.proxy.Close)
	q := u.Query()
	q.Set("application_name", w.job)
	q.Set("sslmode", sslmode)
	u.RawQuery = q.Encode()
	if w.url, err = w.proxy.URL(u.String()); err != nil {
		t.Fatal(err)
	}
	open := func(url string) *ledger.Ledger {
		l := ledger.New(func(context.Context) (string, error) { return url, nil }, zap.NewNop())
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			l.Close(ctx)
		})
		return l
	}
	w.ledger, w.direct = open(w.url), open(ownerURL)
	if w.db, err = pgx.Connect(t.Context(), ownerURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close(context.Background()) })
	return w
}

// fresh names an attempt at a window that nobody knows yet.
func (w *worker) fresh() claim.Attempt {
	w.n++
	return claim.Attempt{Window: window.Window{JobName: w.job, Start: start.Add(time.Duration(w.n) * time.Minute)}, ExecutionID: uuid.New()}
}

// request is the claim of an attempt.
func request(a claim.Attempt) claim.Request {
	return claim.Request{Attempt: a, Lease: lease, Origin: claim.Origin{
		Trigger: "scheduled", Source: "timestamp", Namespace: "shop", Job: "cuts", Pod: "cuts-1", PodUID: a.ExecutionID.String(),
	}}
}

// claimed is a window that the attempt holds.
func (w *worker) claimed(ctx context.Context) (claim.Attempt, error) {
	a := w.fresh()
	got, err := w.direct.Claim(ctx, request(a))
	if err == nil && got.Verdict != claim.Run {
		err = fmt.Errorf("claim of a fresh window: %+v", got)
	}
	return a, err
}

// row is what the database has of a window.
type row struct {
	effects    int // of the business
	status     string
	id         string
	attempt    int
	checkpoint int // its sequence
	leases     int
	attempts   int
	outcome    string // of the last attempt
	skips      int
	remaining  time.Duration // of the lease
}

func (w *worker) row(ctx context.Context, a claim.Attempt) (r row, err error) {
	var seconds float64
	err = w.db.QueryRow(ctx, `SELECT (SELECT count(*) FROM effect WHERE job = $1 AND at = $2),
		coalesce(e.status, ''), coalesce(e.execution_id::text, ''), coalesce(e.attempt, 0),
		coalesce((SELECT c.seq FROM onceguard.job_checkpoint c WHERE c.job_name = $1 AND c.window_start = $2), 0),
		(SELECT count(*) FROM onceguard.job_lease l WHERE l.job_name = $1 AND l.window_start = $2),
		(SELECT count(*) FROM onceguard.job_attempt t WHERE t.job_name = $1 AND t.window_start = $2),
		coalesce((SELECT t.outcome FROM onceguard.job_attempt t WHERE t.job_name = $1 AND t.window_start = $2 ORDER BY t.attempt DESC LIMIT 1), ''),
		(SELECT count(*) FROM onceguard.job_skip s WHERE s.job_name = $1 AND s.window_start = $2),
		coalesce((SELECT extract(epoch FROM l.expires_at - clock_timestamp()) FROM onceguard.job_lease l WHERE l.job_name = $1 AND l.window_start = $2), 0)::float8
		FROM (SELECT) x LEFT JOIN onceguard.job_execution e ON e.job_name = $1 AND e.window_start = $2`,
		a.Window.JobName, a.Window.Start).Scan(&r.effects, &r.status, &r.id, &r.attempt, &r.checkpoint, &r.leases, &r.attempts, &r.outcome, &r.skips, &seconds)
	r.remaining = time.Duration(seconds * float64(time.Second))
	return r, err
}

// told is what a client was told of its transaction.
type told string

const (
	nothing   told = "nothing"       // or that it is not known
	denied    told = "not committed" // now and, by what was asked, for ever
	committed told = "committed"
)

// holds is nil when what was told of a's transaction is true, and it is there as a whole
// or not at all: the effect, and the completion or else the checkpoint.
func (w *worker) holds(ctx context.Context, a claim.Attempt, t told, piece bool) error {
	r, err := w.row(ctx, a)
	done := r.status == string(claim.Completed)
	if piece {
		done = r.checkpoint == 1
	}
	switch {
	case err != nil:
		return err
	case piece && r.status != string(claim.Running) || r.checkpoint > 1:
		return fmt.Errorf("one piece was asked for, and there is %+v", r)
	case r.effects > 1:
		return fmt.Errorf("%d effects", r.effects)
	case done != (r.effects == 1):
		return fmt.Errorf("the effect without the rest, or the rest without the effect: %+v", r)
	case t == committed && !done:
		return errors.New("answered committed, and it is not")
	case t == denied && done:
		return errors.New("answered not committed, and it is")
	}
	return nil
}

// client is somebody who asks for one thing until it is answered.
type client struct {
	// ask asks once; done: it is answered. Its error is a violation: an answer that must
	// not be. A call that failed is none.
	ask func(ctx context.Context) (done bool, err error)
	// holds is nil when all that was answered is true now. No other transaction is open.
	holds func(ctx context.Context) error
	// done is nil when the whole is as it must be, after it was answered.
	done func(ctx context.Context) error
}

// operation is what is cut.
type operation struct {
	name string
	// cold: the ledger's connection is opened by the operation itself.
	cold bool
	// warm is how many connections prepare opens beside the ledger's; own: the operation
	// opens one itself, and ends it.
	warm int
	own  bool
	// stubborn is the SQL from which on the client waits longer than a short proof can.
	stubborn string
	prepare  func(ctx context.Context, w *worker) (client, error)
}

// patient says whether the client waits long for an answer after m.
func (op operation) patient(seen []pgproxy.Message, m pgproxy.Message) bool {
	if op.stubborn == "" {
		return false
	}
	for _, before := range seen {
		if before.Conn == m.Conn && before.Direction == m.Direction && before.Index <= m.Index && before.Text == op.stubborn {
			return true
		}
	}
	return false
}

// trial runs the operation once under the rule and gives what came by up to the first
// answer, and whether a fault happened. The error is a violation, or the harness's own.
func (w *worker) trial(ctx context.Context, op operation, rule pgproxy.Rule, silent bool) (seen, fired []pgproxy.Message, err error) {
	c, err := op.prepare(ctx, w)
	if err != nil {
		return nil, nil, fmt.Errorf("preparing: %w", err)
	}
	if err := w.rest(ctx, op); err != nil {
		return nil, nil, fmt.Errorf("preparing: %w", err)
	}
	w.proxy.Watch(rule)
	defer func() {
		w.proxy.Watch(nil)
		w.proxy.Release() // after a violation too: the next trial must not meet it
	}()
	err = w.ask(ctx, op, c, silent)
	if seen, fired = w.proxy.Seen(), w.proxy.Fired(); err == nil {
		w.proxy.Watch(nil)
		err = c.done(ctx)
	}
	if err == nil {
		err = w.proxy.Err()
	}
	return seen, fired, err
}

func (w *worker) ask(ctx context.Context, op operation, c client, silent bool) error {
	for n := range askedAtMost {
		turn, cancel := context.WithTimeout(ctx, patience)
		if silent && n < 2 { // the second time while the first is still open
			go w.give(turn, cancel, n)
		}
		done, err := c.ask(turn)
		cancel()
		if err != nil {
			return fmt.Errorf("asked %d times: %w", n+1, err)
		}
		if n == 0 && !done && silent {
			continue
		}
		if done && op.own {
			if err := w.wait(ctx, "the end of the operation's connection", func() bool { return ended(w.proxy.Seen()) || len(w.proxy.Fired()) > 0 }); err != nil {
				return err
			}
		}
		if err := w.quiet(ctx); err != nil {
			return err
		}
		if err := c.holds(ctx); err != nil {
			return fmt.Errorf("asked %d times: %w", n+1, err)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("no answer after asking %d times", askedAtMost)
}

// give gives up a question that gets no answer: the first one when the connection has
// fallen silent, the second one soon.
func (w *worker) give(ctx context.Context, up context.CancelFunc, n int) {
	_ = w.wait(ctx, "silence", func() bool { return n > 0 || len(w.proxy.Fired()) > 0 })
	select {
	case <-ctx.Done():
	case <-time.After(impatience):
		up()
	}
}

func ended(seen []pgproxy.Message) bool {
	for _, m := range seen {
		if m.Type == "Terminate" {
			return true
		}
	}
	return false
}

// rest brings the connections into the state that the operation begins with.
func (w *worker) rest(ctx context.Context, op operation) error {
	want := op.warm
	if op.cold {
		w.ledger.Close(ctx)
	} else {
		want++
		// Its connection may be cut, or silent.
		short, cancel := context.WithTimeout(ctx, impatience)
		defer cancel()
		if w.ledger.CheckSchema(short) != nil {
			if err := w.ledger.CheckSchema(ctx); err != nil {
				return err
			}
		}
	}
	var live, broken int
	if err := w.wait(ctx, "the connections to rest", func() bool { live, broken = w.proxy.Live(); return live == want }); err != nil {
		return fmt.Errorf("%w: %d connections, %d of them broken, want %d", err, live, broken, want)
	}
	return nil
}

// quiet tells the server of every connection that is broken, and waits until its backend
// is gone and nobody has a transaction open: what is decided then is decided.
func (w *worker) quiet(ctx context.Context) error {
	w.proxy.Release()
	if err := w.wait(ctx, "backends of broken connections to end", func() bool { _, broken := w.proxy.Live(); return broken == 0 }); err != nil {
		return err
	}
	var open string
	var err error
	if werr := w.wait(ctx, "transactions to end", func() bool {
		err = w.db.QueryRow(ctx, `SELECT coalesce(string_agg(concat_ws(' ', pid, state, 'for', clock_timestamp() - state_change, wait_event, query), '; '), '')
			FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle'`, w.job).Scan(&open)
		return err != nil || open == ""
	}); werr != nil {
		return fmt.Errorf("%w: %s", werr, open)
	}
	return err
}

func (w *worker) wait(ctx context.Context, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !ready() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// each gives every task to one of the workers.
func each[T any](workers []*worker, tasks []T, do func(*worker, T)) {
	queue := make(chan T)
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			for task := range queue {
				do(w, task)
			}
		})
	}
	for _, task := range tasks {
		queue <- task
	}
	close(queue)
	all.Wait()
}
