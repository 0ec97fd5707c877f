package rights_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove"
)

// judging are calls of the windows engine's functions that would change or tell something of
// a window, with {job} and {window}.
var judging = map[string]string{
	"engine_schedules": "SELECT * FROM onceguard.engine_schedules()",
	"engine_look":      `SELECT * FROM onceguard.engine_look('[{"job": "{job}", "from": "2020-01-01", "upto": "2030-01-01"}]')`,
	"engine_judge": `SELECT onceguard.engine_judge('[{"job": "{job}", "uid": "u", "cron_job": "shop/sync", "since": "2020-01-01", "from": "2020-01-01", "judged_before": "2020-01-01",
		"exhaust": [{"first": "{window}", "last": "{window}", "windows": 1, "status": "missed", "reason": "job-failed"}]}]')`,
	"engine_making": "SELECT onceguard.engine_making('{job}', '{window}', 'u', 'j')",
	"engine_gone":   "SELECT onceguard.engine_gone('u')",
}

// attempt makes calls for each window of each tenant, and counts them and those that were
// not refused for lack of a right.
func (w *world) attempt(session *pgx.Conn, calls []string) (made, allowed int) {
	w.t.Helper()
	for _, victim := range w.tenants {
		for _, o := range victim.windows {
			job := strings.Split(o.Window.JobName, "#")[0]
			for _, sql := range calls {
				made++
				_, err := session.Exec(w.t.Context(), strings.NewReplacer("{job}", job, "{window}", o.Window.Start.UTC().Format(time.RFC3339), "{id}", o.ExecutionID.String()).Replace(sql), pgx.QueryExecModeSimpleProtocol)
				pg, ok := errors.AsType[*pgconn.PgError](err)
				if err != nil && !ok {
					w.t.Fatal(err)
				}
				if err == nil || pg.Code != "OG005" && pg.Code != "42501" {
					allowed++
				}
			}
		}
	}
	return made, allowed
}

// The windows engine's login judges the windows of all jobs and does nothing else: it claims,
// decides and writes nothing. A job's login can do nothing of what the engine does, even with
// EXECUTE on its functions. Without the check of who is the engine, it can.
func TestProveEngineRights(t *testing.T) {
	w := newWorld(t, 6)
	var functions []string
	if err := w.super.QueryRow(t.Context(), "SELECT onceguard.engine_functions()").Scan(&functions); err != nil {
		t.Fatal(err)
	}
	var theirs []string
	for _, f := range functions {
		if judging[f] == "" {
			t.Fatalf("onceguard.%s is the engine's: say how it is called", f)
		}
		theirs = append(theirs, judging[f])
	}
	role, url := postgres.Login(t, w.owner)
	w.exec("SELECT onceguard.grant_engine('" + role + "')")
	engine := connect(t, url)

	// What the engine may not: the functions of jobs, of the owner, of nobody, and all tables.
	var forbidden []string
	for _, c := range w.calls {
		forbidden = append(forbidden, c.sql)
	}
	rows, err := w.super.Query(t.Context(), `SELECT format('SELECT onceguard.%I(%s)', p.proname, (SELECT string_agg('NULL::' || format_type(a, NULL), ', ') FROM unnest(p.proargtypes) a))
		FROM pg_proc p WHERE p.pronamespace = 'onceguard'::regnamespace AND p.prorettype <> 'trigger'::regtype AND NOT p.proisstrict -- with NULL such a one is not called
		  AND p.proname <> ALL (onceguard.engine_functions() || onceguard.job_functions() || '{schema_version,answers}')
		UNION ALL SELECT format(s, c.relname) FROM pg_class c, unnest(ARRAY['TABLE onceguard.%1$I', 'DELETE FROM onceguard.%1$I', 'INSERT INTO onceguard.%1$I DEFAULT VALUES']) s
		WHERE c.relnamespace = 'onceguard'::regnamespace AND c.relkind = 'r'`)
	if err != nil {
		t.Fatal(err)
	}
	more, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	forbidden = append(forbidden, more...)
	before := w.rows()
	calls, allowed := w.attempt(engine, forbidden)

	// What jobs' logins may not, though a hand gave them EXECUTE.
	for _, k := range w.tenants {
		for _, f := range functions {
			w.exec(fmt.Sprintf("GRANT EXECUTE ON FUNCTION onceguard.%s TO %s", f, k.login))
		}
		n, ok := w.attempt(k.session, theirs)
		calls, allowed = calls+n, allowed+ok
	}
	if allowed != 0 {
		t.Errorf("%d of %d calls were allowed", allowed, calls)
	}
	if w.rows() != before {
		t.Error("a refused call has changed a row")
	}
	if n, ok := w.attempt(engine, theirs); ok != n {
		t.Errorf("the engine itself may %d of %d calls", ok, n)
	}

	w.alter("check_engine", "IF session_user <> current_user AND", "IF false AND")
	before = w.rows()
	opened, harm := w.attempt(w.tenants[0].session, theirs)
	if harm == 0 || w.rows() == before {
		t.Errorf("without the check of who is the engine %d of %d calls were allowed, rows changed: %v: the matrix is blind", harm, opened, w.rows() != before)
	}
	prove.Report(t, "the windows engine judges and nothing else, and nobody else does", "%d calls of its login and of %d jobs' logins: %d allowed, no row changed; without the check of who is the engine %d of %d are allowed",
		calls, len(w.tenants), allowed, harm, opened)
}
