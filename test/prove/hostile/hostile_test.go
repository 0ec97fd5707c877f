// Package hostile_test sends SQL that a worker should not send.
package hostile_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// patience bounds one attack.
const patience = 2 * time.Minute

// tally counts outcomes.
type tally map[outcome]int

// No window is done without its commit and no commit is made without its window, whatever
// SQL a worker sends, by whichever way; nothing of anybody else is changed; and the next
// honest request of the same pod works. Where that cannot be held, the table says so.
func TestProveHostileSQL(t *testing.T) {
	names := map[string]bool{}
	for _, a := range attacks {
		if names[a.name] {
			t.Fatalf("two attacks are called %q", a.name)
		}
		names[a.name] = true
	}
	seed := prove.Seed(t)
	// In the short form each attack takes one way besides one request, another by another seed.
	turn := func(way int) func(int) bool {
		return func(n int) bool { return prove.Long() || (uint64(n)+seed)%uint64(len(ways)+1) == uint64(way) }
	}
	once, tx, own := tally{}, tally{}, make([]tally, len(ways))
	t.Run("by", func(t *testing.T) {
		t.Run("the endpoint", func(t *testing.T) {
			t.Parallel()
			throughEndpoint(t, once, oneRequest, func(k attack) commit.Code { return k.code }, func(int) bool { return true })
		})
		t.Run("an interactive transaction", func(t *testing.T) {
			t.Parallel()
			throughEndpoint(t, tx, manyRequests, func(k attack) commit.Code { return cmp.Or(k.tx, k.code) }, turn(len(ways)))
		})
		for i, way := range ways {
			own[i] = tally{}
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				for n := range attacks {
					if turn(i)(n) {
						w.byOwnDriver(n, way, own[i])
					}
				}
				w.left()
			})
		}
	})
	prove.Report(t, "hostile SQL makes no window done without its commit, and no commit without its window", "%d attacks; by the endpoint %v, by its interactive transactions %v, by an own driver %v (%s), %v (%s), %v (%s)",
		len(attacks), once, tx, own[0], ways[0].name, own[1], ways[1].name, own[2], ways[2].name)
}

// throughEndpoint sends the attacks as one pod, in one request or in many.
func throughEndpoint(t *testing.T, counts tally, send sender, codeOf func(attack) commit.Code, turn func(int) bool) {
	t.Helper()
	w := newWorld(t)
	h := &rig.Holder{}
	c := commit.New(w.ledger, h, zap.NewNop())
	for n, k := range attacks {
		if !turn(n) || k.after != nil || k.without && k.sql == nil {
			continue
		}
		a := w.fresh()
		h.Take(a)
		err := send(t, c, w.statements(n, a, k.sql))
		got := w.became(n, a)
		counts[got]++
		code := codeOf(k)
		want := k.once
		if want == "" && code == "" {
			want = committed
		} else if want == "" {
			want = refused
		}
		e, _ := errors.AsType[*commit.Error](err)
		switch {
		case err != nil && e == nil:
			t.Errorf("%s: an error without a code: %v", k.name, err)
		case got != want:
			t.Errorf("%s: %s, want %s; answered %v", k.name, got, want, err)
		case (e == nil) != (code == "") || e != nil && e.Code != code:
			t.Errorf("%s: answered %v, want %q", k.name, err, code)
		}
		w.unchanged(k.name)
		if p := w.text("SELECT count(*)::text FROM pg_prepared_xacts WHERE database = current_database()"); p != "0" {
			t.Fatalf("%s: a prepared transaction is left", k.name)
		}
		w.honest(n, c, h, got)
		w.reset()
	}
	w.left()
}

// honest lets the same pod do its work after an attack: the same window, or the next.
func (w *world) honest(n int, c *commit.Committer, h *rig.Holder, after outcome) {
	w.t.Helper()
	name := attacks[n].name
	a := h.Attempt()
	_, fenced := h.Told()
	switch {
	case after == committed:
		a = w.fresh()
		h.Take(a)
	case fenced: // the guard gave the window up, and a later attempt takes it
		if _, err := w.ledger.Release(w.t.Context(), a, claim.End{Outcome: claim.OutcomeFailed}); err != nil {
			w.t.Fatal(err)
		}
		a.ExecutionID = uuid.New()
		w.claim(w.ledger, a)
		h.Take(a)
	}
	n += len(attacks)
	if err := oneRequest(w.t, c, w.statements(n, a, []string{"INSERT INTO mine.child VALUES (-{case})", "INSERT INTO mine.parent VALUES (-{case})"})); err != nil {
		w.t.Fatalf("after %q an honest commit fails: %v", name, err)
	}
	if got := w.became(n, a); got != committed {
		w.t.Fatalf("after %q an honest commit is %s", name, got)
	}
}

// sender sends the statements of a transaction to a pod's endpoint.
type sender func(*testing.T, *commit.Committer, []string) error

type statement struct {
	SQL string `json:"sql"`
}

func oneRequest(t *testing.T, c *commit.Committer, statements []string) error {
	t.Helper()
	var body struct {
		Statements []statement `json:"statements"`
	}
	for _, s := range statements {
		body.Statements = append(body.Statements, statement{s})
	}
	r, err := commit.Parse(marshal(t, body))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = c.Commit(ctx, r)
	return err
}

// manyRequests uses an interactive transaction, which ends with the first error.
func manyRequests(t *testing.T, c *commit.Committer, statements []string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tx, err := c.Open(ctx)
	if err != nil {
		return err
	}
	for _, sql := range statements {
		s, err := commit.ParseStatement(marshal(t, statement{sql}))
		if err == nil {
			_, err = c.Query(ctx, tx.ID, s)
		}
		if err != nil {
			_ = c.Drop(ctx, tx.ID) // after an error that was found before it was sent
			return err
		}
	}
	_, err = c.Finish(ctx, tx.ID, commit.Closing{})
	return err
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	// Marshal has put this in the place of a byte that is not UTF-8.
	return bytes.ReplaceAll(b, []byte(`\ufffd`), []byte("\xff"))
}

// unchanged: an attack has touched nothing of anybody else.
func (w *world) unchanged(name string) {
	w.t.Helper()
	if now := w.others(); now != w.baseline {
		w.t.Errorf("%s: something of others was changed", name)
		w.baseline = now
	}
}

// left: no session of the login goes on, but the one of the ledger.
func (w *world) left() {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		n := w.text(w.names.Replace("SELECT greatest(0, count(*) - 1)::text FROM pg_stat_activity WHERE usename = '{login}'"))
		if n == "0" {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s sessions are left", n)
		}
	}
}

// way is how a driver sends the statements of a transaction; it stops at an error.
type way struct {
	name string
	send func(context.Context, *pgconn.PgConn, []string) error
	// want is what an attack says of this way in particular.
	want func(attack) outcome
}

var ways = []way{
	{"one by one", oneByOne, func(attack) outcome { return "" }},
	{"in a pipeline", pipelined, func(k attack) outcome { return k.batch }},
	{"as one text", asText, func(k attack) outcome { return k.text }},
}

// byOwnDriver sends an attack in a transaction of a driver of the worker's own.
func (w *world) byOwnDriver(n int, by way, counts tally) {
	w.t.Helper()
	k := attacks[n]
	if k.endpoint {
		return
	}
	want := refused
	switch {
	case by.want(k) != "":
		want = by.want(k)
	case k.own != "":
		want = k.own
	case k.code == "":
		want = committed
	}
	got, err := w.own(n, k, by)
	counts[got]++
	if got != want {
		w.t.Errorf("%s: %s, want %s; answered %v", k.name, got, want, err)
	}
	w.unchanged(k.name)
	w.reset()
}

// reset takes back what an attack has set for the login's sessions to come.
func (w *world) reset() {
	w.t.Helper()
	w.exec(w.names.Replace("ALTER ROLE {login} RESET ALL"))
}

// own runs one attack in a session of its own and says what became of it.
func (w *world) own(n int, k attack, by way) (outcome, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	c, err := pgconn.Connect(ctx, w.login)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	a := w.fresh()
	identity := w.names.Replace(fmt.Sprintf("('%s', '%s', '%s')", job, rfc(a.Window.Start), a.ExecutionID))
	all := append([]string{ledger.Isolation, "SELECT onceguard.begin" + identity}, w.statements(n, a, k.sql)...)
	if !k.without {
		all = append(all, "SELECT onceguard.complete"+identity)
	}
	rest := w.statements(n, a, k.after)
	all = append(append(all, rest[1:len(rest)-1]...), "COMMIT")
	err = by.send(ctx, c, all)
	_ = c.Close(ctx) // before judging: what is left open is rolled back
	for w.text("SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", c.PID()) != "0" && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	w.finishPrepared()
	return w.became(n, a), err
}

// finishPrepared ends what PREPARE TRANSACTION left, as an administrator would.
func (w *world) finishPrepared() {
	w.t.Helper()
	if gid := w.text("SELECT coalesce(max(gid), '') FROM pg_prepared_xacts WHERE database = current_database()"); gid != "" {
		w.exec("ROLLBACK PREPARED '" + gid + "'")
	}
}

// errRolledBack: COMMIT was answered, with ROLLBACK.
var errRolledBack = errors.New("COMMIT was answered with ROLLBACK")

func oneByOne(ctx context.Context, c *pgconn.PgConn, all []string) error {
	for i, s := range all {
		r := c.ExecParams(ctx, s, nil, nil, nil, nil).Read()
		if r.Err != nil {
			return r.Err
		}
		if i == len(all)-1 && r.CommandTag.String() != "COMMIT" {
			return errRolledBack
		}
	}
	return nil
}

func pipelined(ctx context.Context, c *pgconn.PgConn, all []string) error {
	var b pgconn.Batch
	for _, s := range all {
		b.ExecParams(s, nil, nil, nil, nil)
	}
	return last(c.ExecBatch(ctx, &b).ReadAll())
}

func asText(ctx context.Context, c *pgconn.PgConn, all []string) error {
	return last(c.Exec(ctx, strings.Join(all, "\n;\n")).ReadAll())
}

func last(results []*pgconn.Result, err error) error {
	if err != nil {
		return err
	}
	if len(results) == 0 || results[len(results)-1].CommandTag.String() != "COMMIT" {
		return errRolledBack
	}
	return nil
}
