package ledger_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
)

// A window in the middle of a transaction is asked to stop too: it may be only a piece of
// its work. The heartbeat, which such a transaction never blocks, tells it.
func TestReplaceAsksWhoeverCommits(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	begin(t, c, w.a)
	exec(t, c, "SELECT onceguard.checkpoint($1, $2, $3, 0, '1')", w.a.Window.JobName, w.a.Window.Start, w.a.ExecutionID.String())
	next := later(w.a, time.Hour)
	w.asks(t, under(next, claim.Terms{Overlap: contract.OverlapReplace}), claim.Wait, claim.Committing)
	if b, err := w.l.Heartbeat(t.Context(), w.a, lease); err != nil || b != claim.BeatCancel {
		t.Fatal(b, err)
	}
	exec(t, c, "COMMIT")
	if _, err := w.l.Release(t.Context(), w.a, claim.End{Outcome: claim.OutcomeStopped}); err != nil {
		t.Fatal(err)
	}
	w.asks(t, under(next, claim.Terms{Overlap: contract.OverlapReplace}), claim.Run, claim.First)
}

// A claim whose client stands still in its transaction would block the claims of the whole
// job; so it may not. A stricter setting stays. begin has a host that vanished noticed too.
func TestAClaimDoesNotIdle(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	claims := func(a claim.Attempt) {
		exec(t, c, "SELECT onceguard.claim($1, $2, $3, '30s')", a.Window.JobName, a.Window.Start, a.ExecutionID.String())
	}
	show := func(name string) string { return value[string](t, c, "SELECT current_setting($1)", name) }
	exec(t, c, "BEGIN")
	claims(later(w.a, time.Minute))
	if got := show("idle_in_transaction_session_timeout"); got != "5s" {
		t.Error(got)
	}
	exec(t, c, "COMMIT")
	if got := show("idle_in_transaction_session_timeout"); got != "0" {
		t.Error("afterwards:", got)
	}
	exec(t, c, "SET idle_in_transaction_session_timeout = '50ms'")
	exec(t, c, "BEGIN")
	claims(later(w.a, 2*time.Minute))
	if got := show("idle_in_transaction_session_timeout"); got != "50ms" {
		t.Error(got)
	}
	tx := session(t, w.url)
	begin(t, tx, w.a)
	if got := value[string](t, tx, "SELECT current_setting('tcp_keepalives_idle')"); got != "10" && got != "0" { // 0: a Unix socket
		t.Error(got)
	}
	exec(t, tx, "ROLLBACK")
	waitFor(t, w, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database())")
	w.asks(t, request(later(w.a, 2*time.Minute)), claim.Run, claim.First)
}

// A deadline is as long whatever the session's time zone makes of a day.
func TestStartDeadlineInAnyTimeZone(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	exec(t, c, "SET TimeZone = 'Europe/Berlin'")
	// So many days ago the clocks there went otherwise, so that many of its days are an hour
	// more or less than they are of 24 hours.
	days := value[int](t, c, `SELECT min(n) FROM generate_series(1, 300) n
		WHERE extract(timezone FROM now() - n * interval '24 hours') <> extract(timezone FROM now())`)
	for minutes, want := range map[int]string{-30: "skip late", 30: "run first"} {
		got := value[string](t, c, `SELECT c.verdict || ' ' || c.reason FROM onceguard.claim('shop/zone',
			now() - $1::int * interval '24 hours' + $2::int * interval '1 minute', gen_random_uuid(), '30s', start_deadline => make_interval(days => $1)) c`, days, minutes)
		if got != want {
			t.Errorf("%d days and %d minutes: %s; want %s", days, minutes, got, want)
		}
	}
}

// Bad arguments are refused by name before anything is written.
func TestBadArguments(t *testing.T) {
	w := newWorld(t)
	c := session(t, w.url)
	call := "('shop/x', '2026-01-01', gen_random_uuid(), "
	for sql, words := range map[string][]string{
		"claim" + call + "'30s', hold_on_crash => NULL)":                           {"hold_on_crash"},
		"claim" + call + "'30s', serial => true, previous => '-infinity')":         {"previous", "-infinity"},
		"claim" + call + "'30s', serial => true, since => 'infinity')":             {"since"},
		"claim" + call + "'30s', start_deadline => '200000000 days')":              {"start_deadline", "200000000"},
		"claim" + call + "'30s', payload_digest => '')":                            {"payload_digest"},
		"claim" + call + `'30s', '{"windowEnd": "tomorrowish"}')`:                  {"windowEnd", "tomorrowish"},
		"claim" + call + `'30s', '{"windowEnd": "2026-02-31T00:00:00Z"}')`:         {"windowEnd", "2026-02-31"},
		"claim" + call + `'30s', '{"windowEnd": ""}', start_deadline => '1 hour')`: {"windowEnd"},
		"record_skip" + call + "NULL)":                                             {"reason"},
		"record_skip" + call + "'order')":                                          {"reason", "order"},
		"complete" + call + "'')":                                                  {"payload_digest"},
	} {
		_, err := c.Exec(t.Context(), "SELECT onceguard."+sql)
		wantCode(t, err, "22023")
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", sql, err, word)
			}
		}
	}
	if n := value[int](t, c, "SELECT count(*) FROM onceguard.job_execution WHERE job_name = 'shop/x'"); n != 0 {
		t.Error(n)
	}
	exec(t, c, "SELECT onceguard.claim"+call+"'30s', serial => true, since => '-infinity')")
}

// The hint of a refusal can be followed: a name without a namespace has no pattern but "*".
func TestHintOfAMissingGrant(t *testing.T) {
	w := newWorld(t)
	c := session(t, superURL(t, w.url))
	exec(t, c, "CREATE ROLE hinted LOGIN")
	t.Cleanup(func() {
		if _, err := c.Exec(context.Background(), "RESET SESSION AUTHORIZATION; DROP OWNED BY hinted; DROP ROLE hinted"); err != nil {
			t.Error(err)
		}
	})
	exec(t, w.owner, "SELECT onceguard.grant_job('hinted', 'other/job')")
	exec(t, c, "SET SESSION AUTHORIZATION hinted")
	for job, pattern := range map[string]string{"foo": "'*'", "shop/a#1": "'shop/a'"} {
		_, err := c.Exec(t.Context(), "SELECT onceguard.claim($1, '2026-01-01', gen_random_uuid(), '30s')", job)
		wantCode(t, err, "OG005")
		pg, _ := errors.AsType[*pgconn.PgError](err)
		if pg == nil || !strings.Contains(pg.Hint, "grant hinted "+pattern) && !strings.Contains(pg.Hint, "grant 'hinted' "+pattern) {
			t.Errorf("%s: %v", job, pg.Hint)
		}
	}
}
