package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

const (
	// SchemaVersion is the version of the functions that this program was written for.
	SchemaVersion = 7
	// callTimeout bounds a call whose context has no earlier deadline.
	callTimeout = 10 * time.Second
	// idleCheck is how long a connection may rest before it is looked at again.
	idleCheck = time.Second
	// maxMessage is how many characters of an attempt's message are kept.
	maxMessage = 1024
)

// Ledger speaks to the ledger over one connection, made at the first use and made again
// when it broke. Its methods may be called concurrently; they take turns.
type Ledger struct {
	source      func(context.Context) (string, error)
	log         *zap.Logger
	application string
	where       string        // the source, for people
	turn        chan struct{} // holds the connection's one token
	conn        *Conn
	used        time.Time
}

// Option changes a new Ledger.
type Option func(*Ledger)

// Application is the name in pg_stat_activity, like "onceguard-guard/<pod>".
func Application(name string) Option { return func(l *Ledger) { l.application = name } }

// ReadFrom names the place that the URL is read from, for people: errors that somebody
// may mend there say so.
func ReadFrom(where string) Option { return func(l *Ledger) { l.where = where } }

// New makes a Ledger without connecting. source gives the URL and is asked again for
// every connection, so that a Secret that was mended or rotated is seen; its error names
// the place and is reported as ErrConfig.
func New(source func(context.Context) (string, error), log *zap.Logger, options ...Option) *Ledger {
	l := &Ledger{source: source, log: log, application: "onceguard-guard", turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	for _, o := range options {
		o(l)
	}
	return l
}

// Connect opens another connection to the ledger's database, for a business
// transaction. The caller closes it. Errors are translated.
func (l *Ledger) Connect(ctx context.Context) (*Conn, error) {
	url, err := l.source(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c, err := dial(ctx, url, l.application)
	return c, l.placed(Translate(err))
}

// placed adds where the URL comes from.
func (l *Ledger) placed(err error) error {
	if err == nil || l.where == "" {
		return err
	}
	return fmt.Errorf("%w (the ledger's URL is read from %s)", err, l.where)
}

// Close ends the connection; a later call makes a new one.
func (l *Ledger) Close(ctx context.Context) {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return
	}
	defer func() { l.turn <- struct{}{} }()
	if l.conn != nil {
		_ = l.conn.Close(ctx)
		l.conn = nil
	}
}

// Claim asks whether the attempt may run its window. Asking again with the same
// execution_id is the same question: after an error, ask again with it.
func (l *Ledger) Claim(ctx context.Context, r claim.Request) (claim.Answer, error) {
	origin, err := json.Marshal(r.Origin)
	if err != nil {
		return claim.Answer{}, fmt.Errorf("claim of %s: %w", r.Window, err)
	}
	v, err := l.quickly(ctx, call{
		`SELECT verdict, reason, attempt, fencing_token, generation, holder_job_name, ` + micros("holder_window_start") +
			`, holder_execution_id, holder_attempt, holder_pod, ` + micros("holder_completed_at") + ", " + micros("holder_lease_expires") +
			`, holder_payload_digest FROM onceguard.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
		identity(r.Attempt, append([][]byte{term(r.Lease), text(string(origin))}, terms(r.Terms)...)...),
	})
	if err != nil {
		return claim.Answer{}, fmt.Errorf("claim of %s: %w", r.Window, err)
	}
	a := claim.Answer{
		Verdict: claim.Verdict(v.string()), Reason: claim.Reason(v.string()), Attempt: int(v.int64()),
		FencingToken: v.int64(), Generation: int(v.int64()),
		Holder: claim.Holder{
			Window:      window.Window{JobName: v.string(), Start: v.instant()},
			ExecutionID: v.uuid(), Attempt: int(v.int64()), Pod: v.string(), CompletedAt: v.instant(), LeaseExpires: v.instant(),
			PayloadDigest: v.string(),
		},
	}
	return a, v.err
}

// terms are the arguments of claim() from overlap on.
func terms(t claim.Terms) [][]byte {
	overlap := t.Overlap
	if overlap == "" {
		overlap = contract.OverlapAllow
	}
	var deadline, attempts []byte
	if t.StartDeadline != 0 {
		deadline = term(t.StartDeadline)
	}
	if t.MaxAttempts != 0 {
		attempts = strconv.AppendInt(nil, int64(t.MaxAttempts), 10)
	}
	return [][]byte{
		text(string(overlap)), truth(t.Serial), moment(t.Since), moment(t.Previous), deadline,
		optional(t.PayloadDigest), attempts, truth(t.HoldOnCrash), moment(t.ReopenBefore), moment(t.Repeats),
	}
}

// Heartbeat renews the lease. The caller's right lasts for lease from the moment before
// the call, by its own monotonic clock.
func (l *Ledger) Heartbeat(ctx context.Context, a claim.Attempt, lease time.Duration) (claim.Beat, error) {
	v, err := l.quickly(ctx, call{`SELECT onceguard.heartbeat($1, $2, $3, $4)`, identity(a, term(lease))})
	if err != nil {
		return "", fmt.Errorf("heartbeat of %s: %w", a.Window, err)
	}
	return claim.Beat(v.string()), v.err
}

// Complete marks the window completed in a transaction of its own. After ErrUnavailable
// it may be called again: a window that this very attempt completed is a success.
func (l *Ledger) Complete(ctx context.Context, a claim.Attempt, c claim.Completion) error {
	_, err := l.durably(ctx,
		call{BeginSQL, BeginArgs(a)},
		call{CompleteSQL, CompleteArgs(a, c)})
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrCompleted) {
		// By us? resolve also makes sure that the earlier commit is on the standby.
		if r, rerr := l.Resolve(ctx, a, uuid.New()); rerr != nil {
			return rerr
		} else if r == claim.ResolvedCommitted {
			return nil
		} else if r == claim.ResolvedPending {
			return fmt.Errorf("completion of %s: %w: its row is locked", a.Window, ErrUnavailable)
		}
	}
	return fmt.Errorf("completion of %s: %w", a.Window, err)
}

// Checkpoint commits in a transaction of its own how far the attempt has come.
// expectedSeq is the checkpoint that this one follows, 0 for none; the answer is its own
// Seq. ErrCheckpoint says that another one is the last. After ErrUnavailable the
// outcome is unknown: Resolve, then compare the last one's RequestDigest (Stored).
func (l *Ledger) Checkpoint(ctx context.Context, a claim.Attempt, expectedSeq int, data json.RawMessage, requestDigest string) (int, error) {
	v, err := l.durably(ctx,
		call{BeginSQL, BeginArgs(a)},
		call{CheckpointSQL, CheckpointArgs(a, expectedSeq, data, requestDigest)})
	if err != nil {
		return 0, fmt.Errorf("checkpoint of %s: %w", a.Window, err)
	}
	return int(v.int64()), v.err
}

// CompleteSQL is the last statement of a business transaction; CompleteArgs are its
// arguments. BeginSQL and BeginArgs are the first. CheckpointSQL stands for CompleteSQL
// where a transaction commits a piece of the work; it answers the checkpoint's Seq.
const (
	BeginSQL      = `SELECT onceguard.begin($1, $2, $3)`
	CheckpointSQL = `SELECT onceguard.checkpoint($1, $2, $3, $4, $5, $6)`
	CompleteSQL   = `SELECT onceguard.complete($1, $2, $3, $4, $5, $6, $7)`
)

// BeginArgs are the arguments of BeginSQL, in text form.
func BeginArgs(a claim.Attempt) [][]byte { return identity(a) }

// CheckpointArgs are the arguments of CheckpointSQL, in text form. data is any JSON; no
// bytes are NULL, which is refused.
func CheckpointArgs(a claim.Attempt, expectedSeq int, data json.RawMessage, requestDigest string) [][]byte {
	var d []byte
	if len(data) > 0 {
		d = data
	}
	return identity(a, strconv.AppendInt(nil, int64(expectedSeq), 10), d, optional(requestDigest))
}

// CompleteArgs are the arguments of CompleteSQL, in text form. Without PayloadDigest the
// window keeps the one of its claim.
func CompleteArgs(a claim.Attempt, c claim.Completion) [][]byte {
	var result, processed []byte
	if len(c.Result) > 0 {
		result = c.Result
	}
	if c.Processed != nil {
		processed = strconv.AppendInt(nil, *c.Processed, 10)
	}
	return identity(a, optional(c.PayloadDigest), optional(c.RequestDigest), result, processed)
}

// Release ends the attempt: its outcome is recorded, its lease given back, and the
// window, unless this attempt completed it, may be tried again at once. It belongs after
// a completion too. The answer is the outcome as recorded: OutcomeCompleted, whatever e
// says, when this attempt had completed the window; empty when it held it no longer.
func (l *Ledger) Release(ctx context.Context, a claim.Attempt, e claim.End) (claim.Outcome, error) {
	var code []byte
	if e.ExitCode != nil {
		code = strconv.AppendInt(nil, int64(*e.ExitCode), 10)
	}
	v, err := l.do(ctx, call{
		`SELECT onceguard.release($1, $2, $3, $4, $5, $6)`,
		identity(a, text(string(e.Outcome)), code, optional(shorten(e.Message))),
	})
	if err != nil {
		return "", fmt.Errorf("release of %s: %w", a.Window, err)
	}
	return claim.Outcome(v.string()), v.err
}

// shorten cuts as release does in SQL, so that no more is sent than is kept.
func shorten(s string) string {
	n := 0
	for i := range s {
		if n == maxMessage {
			return s[:i]
		}
		n++
	}
	return s
}

// RecordSkip records that this pod did not run, once however often it is called. reason
// is AlreadyCompleted, Closed or BusyHeld.
func (l *Ledger) RecordSkip(ctx context.Context, r claim.Request, reason claim.Reason) error {
	origin, err := json.Marshal(r.Origin)
	if err == nil {
		_, err = l.do(ctx, call{
			`SELECT onceguard.record_skip($1, $2, $3, $4, $5)`,
			identity(r.Attempt, text(string(reason)), text(string(origin))),
		})
	}
	if err != nil {
		return fmt.Errorf("recording the skip of %s: %w", r.Window, err)
	}
	return nil
}

// Resolve says what became of a COMMIT whose answer was lost. After ResolvedNotCommitted
// the attempt goes on under newID, and only under it: persist newID before calling, and
// after an error call again with the same one.
func (l *Ledger) Resolve(ctx context.Context, a claim.Attempt, newID uuid.UUID) (claim.Resolution, error) {
	v, err := l.durably(ctx, call{`SELECT onceguard.resolve($1, $2, $3, $4)`, identity(a, []byte(newID.String()))})
	if err != nil {
		return "", fmt.Errorf("resolving the commit of %s: %w", a.Window, err)
	}
	return claim.Resolution(v.string()), v.err
}

// Stored is what the ledger keeps of a window; its Status is empty when there is nothing.
func (l *Ledger) Stored(ctx context.Context, w window.Window) (claim.Stored, error) {
	v, err := l.do(ctx, call{`SELECT status, execution_id, attempt, generation, payload_digest, request_digest, result, processed, ` +
		micros("completed_at") + `, checkpoint_seq, checkpoint, checkpoint_request_digest FROM onceguard.stored($1, $2)`, [][]byte{text(w.JobName), instant(w.Start)}})
	if err != nil {
		return claim.Stored{}, fmt.Errorf("reading %s: %w", w, err)
	}
	s := claim.Stored{
		Status: claim.Status(v.string()), ExecutionID: v.uuid(), Attempt: int(v.int64()), Generation: int(v.int64()),
		Completion: claim.Completion{PayloadDigest: v.string(), RequestDigest: v.string()},
	}
	if result := v.next(); result != nil {
		s.Result = append(json.RawMessage(nil), result...)
	}
	if v.at < len(v.values) && v.values[v.at] == nil {
		v.at++
	} else {
		n := v.int64()
		s.Processed = &n
	}
	s.CompletedAt = v.instant()
	s.Checkpoint.Seq = int(v.int64())
	if data := v.next(); data != nil {
		s.Checkpoint.Data = append(json.RawMessage(nil), data...)
	}
	s.Checkpoint.RequestDigest = v.string()
	return s, v.err
}

// CheckSchema is nil when this program and the database's functions fit together.
func (l *Ledger) CheckSchema(ctx context.Context) error {
	v, err := l.do(ctx, call{`SELECT version, min_compatible FROM onceguard.schema_version()`, nil})
	if err != nil {
		return err
	}
	version, oldest := v.int64(), v.int64()
	switch {
	case v.err != nil:
		return v.err
	case version < SchemaVersion:
		return fmt.Errorf("%w: the database has version %d, this program needs %d; migrate it with the owner's URL (kubectl onceguard migrate)", ErrSchema, version, SchemaVersion)
	case oldest > SchemaVersion:
		return fmt.Errorf("%w: the database has version %d and serves programs from version %d on, this program has %d; use a newer image", ErrSchema, version, oldest, SchemaVersion)
	}
	return nil
}

// do runs one call and gives its row, translated errors included.
func (l *Ledger) do(ctx context.Context, c call) (*row, error) {
	return l.turnFor(ctx, func(ctx context.Context, conn *Conn) ([][]byte, error) { return conn.transaction(ctx, c) })
}

// quickly is do for claim and heartbeat, which are called often.
func (l *Ledger) quickly(ctx context.Context, c call) (*row, error) {
	return l.turnFor(ctx, func(ctx context.Context, conn *Conn) ([][]byte, error) { return conn.statement(ctx, c) })
}

// durably is do for what must survive a failover once it was answered.
func (l *Ledger) durably(ctx context.Context, calls ...call) (*row, error) {
	return l.turnFor(ctx, func(ctx context.Context, conn *Conn) ([][]byte, error) {
		v, err := conn.transaction(ctx, calls...)
		if err != nil {
			return nil, err
		}
		if w := conn.TakeWarnings(); len(w) > 0 {
			return nil, fmt.Errorf("%w: COMMIT came with a warning: %s", ErrUnavailable, w[0].Message)
		}
		return v, nil
	})
}

// turnFor waits for the connection, makes one if there is none that works, and drops it
// after an error that broke it.
func (l *Ledger) turnFor(ctx context.Context, f func(context.Context, *Conn) ([][]byte, error)) (*row, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	select {
	case <-l.turn:
	case <-ctx.Done():
		return nil, Translate(ctx.Err())
	}
	defer func() { l.turn <- struct{}{} }()
	//nolint:staticcheck // Ping costs a round trip; what this misses is an ErrUnavailable and a new connection
	if l.conn != nil && time.Since(l.used) > idleCheck && l.conn.CheckConn() != nil {
		l.drop(ctx)
	}
	if l.conn == nil {
		c, err := l.Connect(ctx)
		if err != nil {
			return nil, err
		}
		l.conn = c
		l.log.Debug("connected to the ledger")
	}
	v, err := f(ctx, l.conn)
	l.used = time.Now()
	if l.conn.IsClosed() {
		l.conn = nil
	}
	if err = Translate(err); errors.Is(err, ErrSchema) {
		return nil, l.placed(err) // perhaps it is another database that is meant
	}
	if err != nil {
		return nil, err
	}
	return &row{values: v}, nil
}

// drop closes a broken connection; nothing waits for the other side.
func (l *Ledger) drop(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = l.conn.Close(ctx)
	l.conn = nil
}
