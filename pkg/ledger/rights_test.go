package ledger_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/postgres"
)

// grantee is a login with patterns.
func grantee(t *testing.T, ownerURL string, patterns ...string) (role, url string) {
	t.Helper()
	role, url = postgres.Login(t, ownerURL)
	for _, p := range patterns {
		if err := migrate.GrantJob(t.Context(), ownerURL, role, p); err != nil {
			t.Fatal(err)
		}
	}
	return role, url
}

func TestGrants(t *testing.T) {
	owner := database(t)
	for _, c := range []struct {
		pattern, job string
		may          bool
	}{
		{"shop/order-sync", "shop/order-sync", true},
		{"shop/order-sync", "shop/order-sync#3", true},
		{"shop/order-sync", "shop/order-sync@0e2b", true},
		{"shop/order-sync", "shop/order-sync-v2", false},
		{"shop/order-sync", "shop/order", false},
		{"shop/order-sync", "shopping/order-sync", false},
		{"shop/order-sync", "east:shop/order-sync", false},
		{"shop/*", "shop/order-sync", true},
		{"shop/*", "shop/order-sync#0", true},
		{"shop/*", "shopping/order-sync", false},
		{"shop/*", "sho", false},
		{"sho_/*", "shop/a", false},
		{"sho%/*", "shop/a", false},
		{"east:shop/*", "east:shop/a", true},
		{"east:shop/*", "shop/a", false},
		{"*", "any/thing", true},
		{"a/a", "a/a#1@x", true},
		{"a/a", "b/b#a/a", false},
	} {
		_, url := grantee(t, owner, c.pattern)
		got, err := open(t, url).Claim(t.Context(), request(attempt(c.job)))
		if may := err == nil; may != c.may || (!may && !errors.Is(err, ledger.ErrNotGranted)) {
			t.Errorf("%s claims %s: %+v, %v", c.pattern, c.job, got, err)
		}
	}
}

// Without a grant a login can do nothing at all; with one it cannot touch a table, an
// internal function, an operator's function, or another tenant's window by any means.
func TestTenantIsConfined(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	_, stranger := grantee(t, w.url)
	if err := open(t, stranger).CheckSchema(ctx); !errors.Is(err, ledger.ErrNotGranted) || !strings.Contains(err.Error(), "kubectl onceguard grant") {
		t.Errorf("a login without any grant: %v", err)
	}
	role, url := grantee(t, w.url, "tenant/*")
	c := session(t, url)
	for _, sql := range []string{
		"SELECT * FROM onceguard.job_execution", "SELECT * FROM onceguard.windows", "INSERT INTO onceguard.job_grant VALUES (current_user, '*')",
		"UPDATE onceguard.job_execution SET status = 'running'", "DELETE FROM onceguard.armed", "SELECT onceguard.next_token(1)",
		"SELECT onceguard.grant_job(current_user, '*')", "SELECT onceguard.refuse_fence('a/a', now(), NULL, NULL)",
		"SELECT onceguard.check_call('a/a', now(), gen_random_uuid())",
		"SELECT onceguard.prune('a/a', now())", "SELECT onceguard.rerun('a/a', now(), 'me', 'x')", "SELECT onceguard.cancel('a/a', now(), 'me', 'x')",
		"SELECT onceguard.end_window('a/a', now(), 'failed', NULL, NULL)", "SELECT * FROM onceguard.decisions", "CREATE TABLE onceguard.t ()",
	} {
		_, err := c.Exec(ctx, sql)
		wantCode(t, err, "42501")
	}
	id := []any{w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String()}
	for _, sql := range []string{
		"SELECT onceguard.claim($1, $2, $3, '30s')", "SELECT onceguard.heartbeat($1, $2, $3, '30s')", "SELECT onceguard.release($1, $2, $3, 'failed')",
		"SELECT onceguard.begin($1, $2, $3)", "SELECT onceguard.resolve($1, $2, $3, gen_random_uuid())", "SELECT onceguard.record_skip($1, $2, $3, 'busy')",
		"SELECT onceguard.stored($1, $2 ) WHERE $3 <> ''",
	} {
		_, err := c.Exec(ctx, sql, id...)
		wantCode(t, err, "OG005")
	}
	// Both ways to grant it are named, with the login and the job, ready to be pasted.
	_, err := open(t, url).Claim(ctx, request(w.a))
	for _, cure := range []string{"kubectl onceguard grant '" + role + "' '" + w.a.Window.JobName + "'", "SELECT onceguard.grant_job('" + role + "', '" + w.a.Window.JobName + "')"} {
		if !errors.Is(err, ledger.ErrNotGranted) || !strings.Contains(err.Error(), cure) || strings.HasSuffix(err.Error(), ";") {
			t.Errorf("%v does not say %s", err, cure)
		}
	}

	// An operator of the tenant's own must not stand for ours.
	exec(t, w.owner, "CREATE SCHEMA evil")
	exec(t, w.owner, "GRANT ALL ON SCHEMA evil TO "+role)
	exec(t, c, "CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'")
	exec(t, c, "CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes)")
	exec(t, c, "SET search_path = evil, pg_catalog")
	_, err = c.Exec(ctx, "SELECT onceguard.begin($1, $2, $3)", id...)
	wantCode(t, err, "OG005")
	mine := attempt("tenant/a")
	l := open(t, url)
	mustRun(t, l, mine, claim.First)
	begin(t, c, mine)
	wantCode(t, complete(ctx, c, w.a), "OG006")
	exec(t, c, "ROLLBACK")

	// The barrier works for a login without any right on our tables.
	begin(t, c, mine)
	_, err = c.Exec(ctx, "COMMIT")
	wantCode(t, err, "OG006")
	if err := l.Complete(ctx, mine, claim.Completion{}); err != nil {
		t.Fatal(err)
	}
}

// A grant counts for the login that logged in, through its groups too; SET ROLE neither
// adds nor takes anything.
func TestGrantsFollowTheLogin(t *testing.T) {
	ctx := t.Context()
	owner := database(t)
	group, _ := grantee(t, owner, "shop/*")
	member, memberURL := grantee(t, owner)
	stranger, strangerURL := grantee(t, owner, "other/*")
	super := session(t, superURL(t, owner))
	exec(t, super, "GRANT "+group+" TO "+member)
	mustRun(t, open(t, memberURL), attempt("shop/a"), claim.First)

	c := session(t, memberURL)
	exec(t, c, "SET ROLE "+group)
	exec(t, c, "SELECT onceguard.claim('shop/b', $1, gen_random_uuid(), '30s')", noon)
	if _, err := open(t, strangerURL).Claim(ctx, request(attempt("shop/a"))); !errors.Is(err, ledger.ErrNotGranted) {
		t.Fatal(err)
	}
	exec(t, super, "SET ROLE "+stranger) // session_user is still the superuser, a member of every group
	exec(t, super, "SELECT onceguard.claim('shop/c', $1, gen_random_uuid(), '30s')", noon)

	if err := migrate.RevokeJob(ctx, owner, group, "shop/*"); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, memberURL).Claim(ctx, request(attempt("shop/d"))); !errors.Is(err, ledger.ErrNotGranted) {
		t.Fatal(err)
	}
}
