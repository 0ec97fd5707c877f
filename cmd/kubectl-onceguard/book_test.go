package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/test/postgres"
)

// hour gives windows that have begun long ago, so that they can be pruned.
func hour(h int) time.Time { return time.Date(2020, 5, 4, h, 0, 0, 0, time.UTC) }

func at(h int) string { return hour(h).Format(time.RFC3339) }

// book writes a ledger by the functions that guards call.
type book struct {
	t                  *testing.T
	conn               *pgx.Conn
	owner, login, role string // owner and login: files with the URL
	ownerURL           string
}

func newBook(t *testing.T) *book {
	t.Helper()
	ownerURL := postgres.Database(t)
	role, loginURL := postgres.Login(t, ownerURL)
	b := &book{t: t, ownerURL: ownerURL, owner: urlFile(t, ownerURL), login: urlFile(t, loginURL), role: role}
	plugin(t, nil, "migrate", "--ledger-url-file", b.owner).ok(t)
	plugin(t, nil, "grant", role, "*", "--audit", "--ledger-url-file", b.owner).ok(t)
	conn, err := pgx.Connect(t.Context(), loginURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	b.conn = conn
	return b
}

func (b *book) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// origin of the pod of a Job that the CronJob controller made, or as the words in extra say.
func originOf(job string, w time.Time, extra ...string) string {
	namespace, name, _ := strings.Cut(job, "/")
	o := map[string]string{
		"trigger": "scheduled", "source": "timestamp", "namespace": namespace, "job": fmt.Sprintf("%s-%d", name, w.Unix()/60),
		"pod": fmt.Sprintf("%s-%d-x", name, w.Unix()/60), "podUID": uuid.NewString(), "node": "n1", "schedule": "0 * * * *", "timeZone": "Asia/Shanghai",
	}
	for i := 0; i < len(extra); i += 2 {
		if o[extra[i]] = extra[i+1]; extra[i+1] == "" {
			delete(o, extra[i])
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// claim gives the execution_id; terms are further arguments in SQL, like
// "max_attempts => 1".
func (b *book) claim(job string, w time.Time, terms ...string) uuid.UUID {
	b.t.Helper()
	return b.claimFrom(originOf(job, w), job, w, "1 hour", terms...)
}

func (b *book) claimFrom(origin, job string, w time.Time, lease string, terms ...string) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.exec("SELECT onceguard.claim("+strings.Join(append([]string{"$1, $2, $3, $4::text::interval, $5::text::jsonb"}, terms...), ", ")+")", job, w, id, lease, origin)
	return id
}

func (b *book) release(job string, w time.Time, id uuid.UUID, outcome string, code int) {
	b.t.Helper()
	b.exec("SELECT onceguard.release($1, $2, $3, $4, $5, $6)", job, w, id, outcome, code, "")
}

func (b *book) commit(job string, w time.Time, id uuid.UUID) {
	b.t.Helper()
	b.exec("BEGIN")
	b.exec("SELECT onceguard.begin($1, $2, $3)", job, w, id)
	b.exec("SELECT onceguard.complete($1, $2, $3, processed => 7)", job, w, id)
	b.exec("COMMIT")
}

func (b *book) done(job string, w time.Time) {
	b.t.Helper()
	id := b.claim(job, w)
	b.commit(job, w, id)
	b.release(job, w, id, "completed", 0)
}

func (b *book) checkpoint(job string, w time.Time, id uuid.UUID, seq int) {
	b.t.Helper()
	b.exec("BEGIN")
	b.exec("SELECT onceguard.begin($1, $2, $3)", job, w, id)
	b.exec("SELECT onceguard.checkpoint($1, $2, $3, $4, '{\"row\": 1000}')", job, w, id, seq-1)
	b.exec("COMMIT")
}

func (b *book) skip(job string, w time.Time, reason string) {
	b.t.Helper()
	b.exec("SELECT onceguard.record_skip($1, $2, $3, $4, $5::text::jsonb)", job, w, uuid.New(), reason, originOf(job, w))
}

// states makes a window of shop/order-sync in each state: hour 1 done, 2 failed at
// checkpoint 2, 3 exhausted, 4 held, 5 late, 6 superseded, 7 died, 8 done with its worker
// still there, 9 running with a payload.
func (b *book) states() {
	b.t.Helper()
	const job = "shop/order-sync"
	b.done(job, hour(1))
	b.skip(job, hour(1), "completed")
	b.skip(job, hour(1), "completed")
	b.skip(job, hour(1), "busy")
	id := b.claim(job, hour(2))
	b.checkpoint(job, hour(2), id, 1)
	b.checkpoint(job, hour(2), id, 2)
	b.release(job, hour(2), id, "failed", 42)
	b.release(job, hour(3), b.claim(job, hour(3)), "failed", 1)
	b.claim(job, hour(3), "max_attempts => 1")
	b.release(job, hour(4), b.claim(job, hour(4)), "crashed", 137)
	b.claim(job, hour(4), "hold_on_crash => true")
	b.claim(job, hour(5), "start_deadline => '1 minute'")
	old := b.claim(job, hour(6))
	b.claim(job, hour(7), "overlap => 'replace'")
	b.release(job, hour(6), old, "stopped", 143)
	b.claimFrom(originOf(job, hour(7)), job, hour(7), "1 millisecond")
	b.waitFor(job, 7, "lease ended")
	b.commit(job, hour(8), b.claim(job, hour(8)))
	b.claim(job, hour(9), "payload_digest => 'sha256:0123456789abcdef'")
}

// waitFor polls until a window is in a state.
func (b *book) waitFor(job string, h int, state string) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); b.state(job, h) != state; {
		if time.Now().After(deadline) {
			b.t.Fatalf("window %s of %s is %q, want %q", at(h), job, b.state(job, h), state)
		}
	}
}

// state is that of the view; empty without a row.
func (b *book) state(job string, h int) string {
	b.t.Helper()
	var s string
	err := b.conn.QueryRow(b.t.Context(), "SELECT coalesce((SELECT state FROM onceguard.windows WHERE job_name = $1 AND window_start = $2), '')", job, hour(h)).Scan(&s)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// run runs a command line with the owner's URL.
func (b *book) run(args ...string) result {
	b.t.Helper()
	return plugin(b.t, nil, append(args, "--ledger-url-file", b.owner)...)
}

// fails wants an exit code and words.
func (r result) fails(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d:\n%s%s", r.code, code, r.stdout, r.stderr)
	}
	r.has(t, words...)
}
