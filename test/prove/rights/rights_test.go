// Package rights_test lets every login call every function for the windows of every other.
package rights_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// tenant is a login with one job, which has a window in each state.
type tenant struct {
	login   string
	session *pgx.Conn
	job     string
	windows []owned
}

// owned is a window of a tenant. Its execution_id is known to everybody here: the fence
// keeps attempts apart, the grants keep tenants apart.
type owned struct {
	state string
	claim.Attempt
}

// world is a ledger with tenants.
type world struct {
	t       *testing.T
	owner   string // the owner's URL
	super   *pgx.Conn
	tenants []tenant
	calls   []call
}

// call is a function that a job's login may call, with the arguments that it must have.
type call struct {
	name string
	sql  string // with {job}, {window} and {id}
}

func newWorld(t *testing.T, tenants int) *world {
	t.Helper()
	ctx := t.Context()
	owner := postgres.Database(t)
	if _, _, err := migrate.Up(ctx, owner, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, owner: owner, super: connect(t, postgres.Shared(t).SocketURL(database(owner)))}
	w.calls = w.functions()
	theirs := ledger.New(func(context.Context) (string, error) { return owner, nil }, zap.NewNop())
	t.Cleanup(func() { theirs.Close(context.Background()) })
	for i := range tenants {
		// Names that begin alike, with and without a cluster, some by pattern.
		k := tenant{job: fmt.Sprintf("shop-%d/sync", i)}
		pattern := k.job
		switch i % 4 {
		case 1:
			k.job, pattern = fmt.Sprintf("shop/sync-%d", i), fmt.Sprintf("shop/sync-%d", i)
		case 2:
			k.job, pattern = fmt.Sprintf("east:shop-%d/sync", i), fmt.Sprintf("east:shop-%d/*", i)
		case 3:
			k.job += "#3"
		}
		role, url := postgres.Login(t, owner)
		if err := migrate.GrantJob(ctx, owner, role, pattern); err != nil {
			t.Fatal(err)
		}
		k.login, k.session = role, connect(t, url)
		for n, state := range []string{"running", "failed", "completed", "without a row"} {
			o := owned{state, claim.Attempt{Window: window.Window{JobName: k.job, Start: time.Unix(1_800_000_000+int64(n)*3600, 0)}, ExecutionID: uuid.New()}}
			k.windows = append(k.windows, o)
			if state == "without a row" {
				continue
			}
			if a, err := theirs.Claim(ctx, claim.Request{Attempt: o.Attempt, Lease: 23 * time.Hour}); err != nil || a.Verdict != claim.Run {
				t.Fatalf("%+v, %v", a, err)
			}
			var err error
			switch state {
			case "failed":
				_, err = theirs.Release(ctx, o.Attempt, claim.End{Outcome: claim.OutcomeFailed})
			case "completed":
				err = theirs.Complete(ctx, o.Attempt, claim.Completion{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		w.tenants = append(w.tenants, k)
	}
	return w
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func database(url string) string {
	return url[strings.LastIndex(url, "/")+1 : strings.Index(url+"?", "?")]
}

// functions are all that act for a window and that some login may call. What stands here
// for an argument is found by its name, so that a new function is in the matrix at once.
func (w *world) functions() []call {
	w.t.Helper()
	stand := map[string]string{
		"job_name": "'{job}'", "window_start": "'{window}'", "execution_id": "'{id}'", "new_execution_id": "gen_random_uuid()",
		"lease": "'1 hour'", "outcome": "'failed'", "reason": "'busy'", "origin": "'{}'", "expected_seq": "0", "data": "'{}'",
	}
	rows, err := w.super.Query(w.t.Context(), `SELECT p.proname, (p.proargnames)[1 : p.pronargs - p.pronargdefaults]
		FROM pg_proc p WHERE p.pronamespace = 'onceguard'::regnamespace AND p.proname = ANY (onceguard.job_functions()) ORDER BY 1`)
	if err != nil {
		w.t.Fatal(err)
	}
	var calls []call
	var name string
	var arguments []string
	_, err = pgx.ForEachRow(rows, []any{&name, &arguments}, func() error {
		var values []string
		for _, a := range arguments {
			if stand[a] == "" {
				return fmt.Errorf("onceguard.%s has the argument %s: say what stands for it", name, a)
			}
			values = append(values, stand[a])
		}
		if len(values) == 0 {
			return nil // it acts for no window
		}
		calls = append(calls, call{name, "SELECT onceguard." + name + "(" + strings.Join(values, ", ") + ")"})
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	// What only works behind another call of the same transaction.
	return append(calls,
		call{"begin, complete", "DO $$ BEGIN PERFORM onceguard.begin('{job}', '{window}', '{id}'); PERFORM onceguard.complete('{job}', '{window}', '{id}'); END $$"},
		call{"begin, checkpoint", "DO $$ BEGIN PERFORM onceguard.begin('{job}', '{window}', '{id}'); PERFORM onceguard.checkpoint('{job}', '{window}', '{id}', 0, '{}'); END $$"})
}

// matrix lets each login make each call for each window of each other, and counts the calls
// and those that were not refused for lack of a right.
func (w *world) matrix() (calls, allowed int) {
	w.t.Helper()
	var batch []string
	for _, attacker := range w.tenants {
		for _, victim := range w.tenants {
			if attacker.login == victim.login {
				continue
			}
			for _, o := range victim.windows {
				name := strings.NewReplacer("{job}", o.Window.JobName, "{window}", o.Window.Start.UTC().Format(time.RFC3339), "{id}", o.ExecutionID.String())
				batch = batch[:0]
				for _, k := range w.calls {
					batch = append(batch, name.Replace(k.sql))
				}
				for i, sql := range batch {
					calls++
					_, err := attacker.session.Exec(w.t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
					pg, ok := errors.AsType[*pgconn.PgError](err)
					switch {
					case err != nil && !ok:
						w.t.Fatal(err)
					case err == nil, pg.Code != "OG005" && !(pg.Code == "OG006" && needsBegin(w.calls[i].name)):
						allowed++
					}
				}
			}
		}
	}
	return calls, allowed
}

// needsBegin names what is refused without begin() in its transaction, which is refused.
func needsBegin(name string) bool { return name == "complete" || name == "checkpoint" }

// rows is all that the ledger holds.
func (w *world) rows() string {
	w.t.Helper()
	rows, err := w.super.Query(w.t.Context(), `SELECT relname::text FROM pg_class WHERE relnamespace = 'onceguard'::regnamespace AND relkind = 'r' ORDER BY 1`)
	if err != nil {
		w.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range tables {
		var s string
		if err := w.super.QueryRow(w.t.Context(), "SELECT coalesce(string_agg(t::text, '|' ORDER BY t::text), '') FROM onceguard."+name+" t").Scan(&s); err != nil {
			w.t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s: %s\n", name, s)
	}
	return all.String()
}

// No login can do or learn anything of a job that it was not granted, though it knows the
// window and the execution_id. With the check of grants taken away the same calls do harm.
func TestProveRights(t *testing.T) {
	w := newWorld(t, 20)
	before := w.rows()
	calls, allowed := w.matrix()
	if allowed != 0 {
		t.Errorf("%d of %d foreign calls were allowed", allowed, calls)
	}
	if w.rows() != before {
		t.Error("a refused call has changed a row")
	}

	// A login still may what it was granted: else everything would be refused.
	for _, k := range w.tenants {
		a := k.windows[0]
		var beat string
		if err := k.session.QueryRow(t.Context(), "SELECT onceguard.heartbeat($1, $2, $3, '1 hour')", k.job, a.Window.Start, a.ExecutionID.String()).Scan(&beat); err != nil || beat != "ok" {
			t.Errorf("%s for its own job: %q, %v", k.login, beat, err)
		}
	}

	open := newWorld(t, 4)
	open.withoutGrants()
	before = open.rows()
	opened, harm := open.matrix()
	if harm == 0 || open.rows() == before {
		t.Errorf("without the check of grants %d of %d calls were allowed, rows changed: %v: the matrix is blind", harm, opened, open.rows() != before)
	}
	prove.Report(t, "logins cannot act for jobs of others", "%d logins, %d functions, %d foreign calls: %d allowed, no row changed; without the check of grants %d of %d are allowed",
		len(w.tenants), len(w.calls), calls, allowed, harm, opened)
}

// withoutGrants takes the check away.
func (w *world) withoutGrants() {
	w.t.Helper()
	w.alter("check_call", "IF session_user <> current_user AND", "IF false AND")
}

// alter changes one place of a function.
func (w *world) alter(function, was, is string) {
	w.t.Helper()
	var old string
	if err := w.super.QueryRow(w.t.Context(), "SELECT pg_get_functiondef(('onceguard.' || $1)::regproc)", function).Scan(&old); err != nil {
		w.t.Fatal(err)
	}
	if strings.Count(old, was) != 1 {
		w.t.Fatalf("%s does not have %q once; say what has to be changed now", function, was)
	}
	w.exec(strings.Replace(old, was, is, 1))
}

func (w *world) exec(sql string) {
	w.t.Helper()
	if _, err := w.super.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatal(err)
	}
}
