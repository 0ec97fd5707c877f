package migrate_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/pgurl"
	"github.com/onceguard/onceguard/test/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// Many programs may migrate the same empty database at once, and again later.
func TestConcurrentUp(t *testing.T) {
	owner := postgres.Database(t)
	if v, err := migrate.Version(t.Context(), owner); err != nil || v != 0 {
		t.Fatal(v, err)
	}
	var g sync.WaitGroup
	for range 6 {
		g.Go(func() {
			if _, to, err := migrate.Up(t.Context(), owner, zap.NewNop()); err != nil || to != migrate.Latest() {
				t.Error(to, err)
			}
		})
	}
	g.Wait()
	from, to, err := migrate.Up(t.Context(), owner, zap.NewNop())
	if err != nil || from != migrate.Latest() || to != from {
		t.Fatal(from, to, err)
	}
	if v, err := migrate.Version(t.Context(), owner); err != nil || v != migrate.Latest() {
		t.Fatal(v, err)
	}
}

// A role with CREATE on the database, or with the schema already made for it, is
// enough; one with neither is told what it lacks.
func TestRights(t *testing.T) {
	ctx := t.Context()
	owner := postgres.Database(t)
	role, roleURL := postgres.Login(t, owner)
	_, _, err := migrate.Up(ctx, roleURL, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "GRANT CREATE ON DATABASE") || !strings.Contains(err.Error(), role) {
		t.Fatal(err)
	}
	u, _ := url.Parse(owner)
	if _, err := connect(t, owner).Exec(ctx, "GRANT CREATE ON DATABASE "+u.Path[1:]+" TO "+role); err != nil {
		t.Fatal(err)
	}
	if _, _, err := migrate.Up(ctx, roleURL, zap.NewNop()); err != nil {
		t.Fatal(err)
	}

	other := postgres.Database(t)
	role, roleURL = postgres.Login(t, other)
	u, _ = url.Parse(other)
	postgres.Shared(t).Exec(t, u.Path[1:], "CREATE SCHEMA onceguard AUTHORIZATION "+role)
	if _, _, err := migrate.Up(ctx, roleURL, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
}

// Nothing is open to PUBLIC, every function that jobs may call is a definer function
// with a fixed search_path, and everything has a comment.
func TestSchemaIsClosedAndDocumented(t *testing.T) {
	ctx := t.Context()
	owner := postgres.Database(t)
	if _, _, err := migrate.Up(ctx, owner, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	c := connect(t, owner)
	for what, query := range map[string]string{
		"open to PUBLIC": `SELECT proname FROM pg_proc p WHERE pronamespace = 'onceguard'::regnamespace
			AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) x WHERE x.grantee = 0))
			UNION SELECT relname FROM pg_class r WHERE relnamespace = 'onceguard'::regnamespace
			AND EXISTS (SELECT FROM aclexplode(relacl) x WHERE x.grantee = 0)`,
		"without a fixed search_path": `SELECT proname FROM pg_proc WHERE pronamespace = 'onceguard'::regnamespace
			AND NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']`,
		"without a comment": `SELECT proname FROM pg_proc WHERE pronamespace = 'onceguard'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
			UNION SELECT relname FROM pg_class WHERE relnamespace = 'onceguard'::regnamespace AND relkind IN ('r', 'v')
			AND relname <> 'migration' AND obj_description(oid, 'pg_class') IS NULL`,
	} {
		rows, err := c.Query(ctx, query)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(names) > 0 {
			t.Errorf("%s: %v, %v", what, names, err)
		}
	}
}

func TestGrantErrors(t *testing.T) {
	ctx := t.Context()
	empty, owner := postgres.Database(t), postgres.Database(t)
	if _, _, err := migrate.Up(ctx, owner, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	role, roleURL := postgres.Login(t, owner)
	for name, c := range map[string]struct{ url, role, pattern, cure string }{
		"no ledger":   {empty, role, "*", "migrate it first"},
		"no role":     {owner, "nobody_here", "*", "CREATE ROLE"},
		"bad pattern": {owner, role, "shop", `"shop" must be "namespace/name"`},
		"two stars":   {owner, role, "*/*", `"namespace/*"`},
		"an index":    {owner, role, "shop/a#1", "without #index"},
		"a run":       {owner, role, "shop/a@7f", "@run"},
		"not owner":   {roleURL, role, "*", "only the owner"},
	} {
		if err := migrate.GrantJob(ctx, c.url, c.role, c.pattern); err == nil || !strings.Contains(err.Error(), c.cure) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		if err := migrate.GrantJob(ctx, owner, role, "shop/*"); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrate.GrantAudit(ctx, owner, role); err != nil {
		t.Fatal(err)
	}
	c := connect(t, roleURL)
	for _, view := range []string{"windows", "attempts", "skips", "jobs", "decisions", "gaps", "plans", "schedules"} {
		if _, err := c.Exec(ctx, "SELECT * FROM onceguard."+view); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := migrate.Up(ctx, "nonsense", zap.NewNop()); !errors.Is(err, pgurl.ErrInvalid) {
		t.Fatal(err)
	}
}

// Default privileges of the owner, meant for its business tables, must not open the
// ledger to the job's login: whoever may write its tables passes by every check.
func TestDefaultPrivilegesDoNotOpenTheLedger(t *testing.T) {
	ctx := t.Context()
	owner := postgres.Database(t)
	role, roleURL := postgres.Login(t, owner)
	reader, readerURL := postgres.Login(t, owner)
	o := connect(t, owner)
	must := func(sql string) {
		t.Helper()
		if _, err := o.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for _, what := range []string{"TABLES", "SEQUENCES", "FUNCTIONS", "SCHEMAS"} {
		must("ALTER DEFAULT PRIVILEGES GRANT ALL ON " + what + " TO " + role)
		must("ALTER DEFAULT PRIVILEGES GRANT ALL ON " + what + " TO PUBLIC")
	}
	up := func() {
		t.Helper()
		if _, _, err := migrate.Up(ctx, owner, zap.NewNop()); err != nil {
			t.Fatal(err)
		}
	}
	up()
	if err := migrate.GrantAudit(ctx, owner, reader); err != nil {
		t.Fatal(err)
	}
	// What a login has beside the grants: relation and function names with the privilege.
	rights := func(role string) (has []string) {
		t.Helper()
		rows, err := o.Query(ctx, `
			SELECT c.relname || ' ' || p FROM pg_class c, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
			WHERE c.relnamespace = 'onceguard'::regnamespace AND c.relkind IN ('r', 'v') AND (has_table_privilege($1, c.oid, p)
				OR p IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege($1, c.oid, p))
			UNION ALL SELECT c.relname || ' ' || p FROM pg_class c, unnest('{SELECT,USAGE,UPDATE}'::text[]) p
			WHERE c.relnamespace = 'onceguard'::regnamespace AND c.relkind = 'S' AND has_sequence_privilege($1, c.oid, p)
			UNION ALL SELECT p.proname || ' EXECUTE' FROM pg_proc p WHERE pronamespace = 'onceguard'::regnamespace AND has_function_privilege($1, p.oid, 'EXECUTE')
			UNION ALL SELECT 'CREATE' WHERE has_schema_privilege($1, 'onceguard', 'CREATE')
			ORDER BY 1`, role)
		if err != nil {
			t.Fatal(err)
		}
		has, err = pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return has
	}
	const views = "answers EXECUTE,attempts SELECT,decisions SELECT,gaps SELECT,jobs SELECT,plans SELECT,schedules SELECT,schema_version EXECUTE,skips SELECT,windows SELECT"
	const functions = "begin EXECUTE,checkpoint EXECUTE,claim EXECUTE,complete EXECUTE,heartbeat EXECUTE,record_skip EXECUTE,release EXECUTE,resolve EXECUTE,schema_version EXECUTE,stored EXECUTE"
	wants := func(when, role, want string) {
		t.Helper()
		if got := strings.Join(rights(role), ","); got != want {
			t.Errorf("%s: %s may %q, want %q", when, role, got, want)
		}
	}
	wants("at once", role, "")
	wants("at once", reader, views)
	if err := migrate.GrantJob(ctx, owner, role, "shop/*"); err != nil {
		t.Fatal(err)
	}
	wants("granted", role, functions)
	judge, _ := postgres.Login(t, owner)
	const judging = "engine_gone EXECUTE,engine_judge EXECUTE,engine_look EXECUTE,engine_making EXECUTE,engine_schedules EXECUTE"
	if err := migrate.GrantEngine(ctx, owner, judge); err != nil {
		t.Fatal(err)
	}
	engines := strings.Split(views+","+judging, ",")
	slices.Sort(engines)
	wants("granted", judge, strings.Join(engines, ","))

	for _, again := range []struct {
		when string
		seal func()
	}{
		{"after Up", up},
		{"after a grant", func() {
			if err := migrate.GrantJob(ctx, owner, role, "shop/*"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		must("GRANT ALL ON ALL TABLES IN SCHEMA onceguard TO " + role + " WITH GRANT OPTION")
		must("GRANT UPDATE (status) ON onceguard.job_execution TO " + reader)
		must("GRANT ALL ON ALL FUNCTIONS IN SCHEMA onceguard TO " + role)
		must("GRANT ALL ON ALL FUNCTIONS IN SCHEMA onceguard TO PUBLIC")
		must("GRANT ALL ON ALL SEQUENCES IN SCHEMA onceguard TO PUBLIC")
		must("GRANT CREATE ON SCHEMA onceguard TO " + role)
		if _, err := connect(t, roleURL).Exec(ctx, "GRANT INSERT ON onceguard.job_grant TO "+reader); err != nil {
			t.Fatal(err)
		}
		again.seal()
		wants(again.when, reader, views)
		wants(again.when, judge, strings.Join(engines, ","))
		// Reading is the owner's to give, and to take.
		must("REVOKE SELECT ON onceguard.attempts, onceguard.decisions, onceguard.jobs, onceguard.skips, onceguard.windows, onceguard.gaps, onceguard.plans, onceguard.schedules FROM " + role + " CASCADE")
		must("REVOKE EXECUTE ON FUNCTION onceguard.answers FROM " + role + " CASCADE")
		wants(again.when, role, functions)
	}
	for range 2 { // the second time there is nothing to take
		if err := migrate.RevokeEngine(ctx, owner, judge); err != nil {
			t.Fatal(err)
		}
		wants("the engine no more", judge, views)
	}
	if _, err := connect(t, readerURL).Exec(ctx, "SELECT * FROM onceguard.windows"); err != nil {
		t.Error(err)
	}
}
