package hostile_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
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

const (
	job   = "shop/hostile"
	other = "bank/victim"
)

// world is a database with a ledger, a login that may act for shop/*, a table for the
// effects of its business, a schema in which it may do as it likes, and the windows of
// others that it must not touch.
type world struct {
	t        *testing.T
	super    *pgx.Conn
	owner    string // URLs
	login    string
	names    *strings.Replacer
	ledger   *ledger.Ledger // of the login
	next     time.Time      // the next window
	baseline string
}

func start(hours int) time.Time {
	return time.Unix(1_800_000_000, 0).UTC().Add(time.Duration(hours) * time.Hour)
}

// business is what the login's administrator made: the effects, and a schema of the login's.
const business = `
CREATE TABLE effect (attack int, part text);
GRANT INSERT, SELECT ON effect TO {login};
CREATE SCHEMA mine AUTHORIZATION {login};
SET ROLE {login};
CREATE TABLE mine.t (n int);
CREATE TABLE mine.parent (id int PRIMARY KEY);
CREATE TABLE mine.child (id int REFERENCES mine.parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE mine.late (what text);
CREATE FUNCTION mine.late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE NEW.what; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mine.late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION mine.late();
CREATE PROCEDURE mine.commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
CREATE PROCEDURE mine.rolls_back() LANGUAGE plpgsql AS $$ BEGIN ROLLBACK; END $$;
CREATE FUNCTION mine.always(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION mine.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$;
CREATE FUNCTION mine.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '1'::xid8 $$;
CREATE FUNCTION mine.nil(text) RETURNS uuid LANGUAGE sql AS $$ SELECT '00000000-0000-0000-0000-000000000000'::uuid $$;
CREATE FUNCTION mine.deep(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN mine.deep(n + 1); END $$;
CREATE FUNCTION mine.event() RETURNS void LANGUAGE sql AS '';
RESET ROLE;
CREATE EXTENSION IF NOT EXISTS dblink;
CREATE ROLE {group};
GRANT {group} TO {login};
`

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := t.Context()
	w := &world{t: t, owner: postgres.Database(t), next: start(0)}
	if _, _, err := migrate.Up(ctx, w.owner, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	login, loginURL := postgres.Login(t, w.owner)
	w.login = loginURL
	for _, job := range []string{"shop/*"} {
		if err := migrate.GrantJob(ctx, w.owner, login, job); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(w.owner)
	if err != nil {
		t.Fatal(err)
	}
	l, err := url.Parse(loginURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := l.User.Password()
	database := u.Path[1:]
	group := "g_" + login
	spare, spareID := claim.Attempt{Window: window.Window{JobName: job, Start: start(-1)}, ExecutionID: uuid.New()}, ""
	spareID = spare.ExecutionID.String()
	victim := claim.Attempt{Window: window.Window{JobName: other, Start: start(0)}, ExecutionID: uuid.New()}
	w.names = strings.NewReplacer("{login}", login, "{group}", group, "{owner}", u.User.Username(), "{database}", database,
		"{job}", job, "{spare}", rfc(spare.Window.Start), "{spareID}", spareID,
		"{other}", other, "{its}", rfc(victim.Window.Start), "{whose}", victim.ExecutionID.String(),
		"{dsn}", "host="+l.Hostname()+" port="+l.Port()+" dbname="+database+" user="+login+" password="+password)

	if w.super, err = pgx.Connect(ctx, postgres.Shared(t).SocketURL(database)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.super.Close(context.Background()) })
	w.exec(w.names.Replace(business))
	t.Cleanup(func() { postgres.Shared(t).Exec(t, database, "DROP OWNED BY "+login+" CASCADE", "DROP ROLE "+group) })

	w.ledger = w.open(loginURL)
	w.claim(w.ledger, spare)
	// Windows of others in every state.
	theirs := w.open(w.owner)
	w.claim(theirs, victim)
	done := claim.Attempt{Window: window.Window{JobName: other, Start: start(1)}, ExecutionID: uuid.New()}
	w.claim(theirs, done)
	failed := claim.Attempt{Window: window.Window{JobName: other, Start: start(2)}, ExecutionID: uuid.New()}
	w.claim(theirs, failed)
	if err := theirs.Complete(ctx, done, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Release(ctx, failed, claim.End{Outcome: claim.OutcomeFailed}); err != nil {
		t.Fatal(err)
	}
	w.baseline = w.others()
	return w
}

func (w *world) open(url string) *ledger.Ledger {
	l := ledger.New(func(context.Context) (string, error) { return url, nil }, zap.NewNop())
	w.t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

func (w *world) claim(l *ledger.Ledger, a claim.Attempt) {
	w.t.Helper()
	r := claim.Request{Attempt: a, Lease: 23 * time.Hour}
	got, err := l.Claim(w.t.Context(), r)
	if errors.Is(err, ledger.ErrUnavailable) { // an attack has ended its session
		got, err = l.Claim(w.t.Context(), r)
	}
	if err != nil || got.Verdict != claim.Run {
		w.t.Fatalf("claim of %s: %+v, %v", a.Window, got, err)
	}
}

// fresh is an attempt at the next window.
func (w *world) fresh() claim.Attempt {
	w.t.Helper()
	w.next = w.next.Add(time.Hour)
	a := claim.Attempt{Window: window.Window{JobName: job, Start: w.next}, ExecutionID: uuid.New()}
	w.claim(w.ledger, a)
	return a
}

func (w *world) exec(sql string) {
	w.t.Helper()
	if _, err := w.super.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) text(sql string, args ...any) (s string) {
	w.t.Helper()
	if err := w.super.QueryRow(w.t.Context(), sql, args...).Scan(&s); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// edit changes the text of a function of the ledger's, as somebody could who weakens it.
func (w *world) edit(function, was, is string) {
	w.t.Helper()
	old := w.text("SELECT pg_get_functiondef(('onceguard.' || $1)::regproc)", function)
	if strings.Count(old, was) != 1 {
		w.t.Fatalf("%s does not have %q once; say what has to be changed now", function, was)
	}
	w.exec(strings.Replace(old, was, is, 1))
}

// others is everything that no attack may change: all rows of other jobs and of the spare
// window, the grants, and the ledger's functions, triggers and rights themselves.
func (w *world) others() string {
	w.t.Helper()
	return w.text(`SELECT md5(concat(
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_execution e WHERE job_name <> $1 OR window_start = $2),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_lease e WHERE job_name <> $1 OR window_start = $2),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_attempt e WHERE job_name <> $1 OR window_start = $2),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_skip e WHERE job_name <> $1 OR window_start = $2),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_checkpoint e WHERE job_name <> $1 OR window_start = $2),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_decision e),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job e),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.job_grant e),
		(SELECT string_agg(e::text, '|' ORDER BY e::text) FROM onceguard.armed e),
		(SELECT string_agg(p::text, '|' ORDER BY p.oid) FROM pg_proc p WHERE pronamespace = 'onceguard'::regnamespace),
		(SELECT string_agg(concat(c.oid, relname, relacl, relhastriggers, relrowsecurity, relkind), '|' ORDER BY c.oid) FROM pg_class c WHERE relnamespace = 'onceguard'::regnamespace),
		(SELECT string_agg(t::text, '|' ORDER BY t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = 'onceguard'::regnamespace),
		(SELECT n::text FROM pg_namespace n WHERE nspname = 'onceguard'), (SELECT count(*) FROM pg_event_trigger)))`, job, start(-1))
}

// became judges an attack by what it left: the two-way invariant.
func (w *world) became(n int, a claim.Attempt) outcome {
	w.t.Helper()
	status := w.text(`SELECT status FROM onceguard.job_execution WHERE job_name = $1 AND window_start = $2`, a.Window.JobName, a.Window.Start)
	parts := w.text(`SELECT coalesce(string_agg(part, ' ' ORDER BY part), '') FROM effect WHERE attack = $1`, n)
	whole := strings.Contains(parts, "before") && strings.Contains(parts, "behind")
	switch done := status == string(claim.Completed); {
	case done && whole:
		return committed
	case !done && parts == "":
		return refused
	case !done:
		return escaped
	}
	return half
}

// half is a window that is done without all that belongs to it. It never happens.
const half outcome = "half"

func rfc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// statements are an attack's, from the effect before it to the one behind it.
func (w *world) statements(n int, a claim.Attempt, sql []string) []string {
	own := strings.NewReplacer("{case}", strconv.Itoa(n), "{window}", rfc(a.Window.Start), "{id}", a.ExecutionID.String(),
		"{own}", "'"+job+"', '"+rfc(a.Window.Start)+"', '"+a.ExecutionID.String()+"'")
	all := []string{"INSERT INTO effect VALUES ({case}, 'before')"}
	all = append(all, sql...)
	all = append(all, "INSERT INTO effect VALUES ({case}, 'behind')")
	for i := range all {
		all[i] = w.names.Replace(own.Replace(all[i]))
	}
	return all
}
