package hostile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// endless is SQL that does not end by itself.
var endless = []struct {
	name, sql string
	code      commit.Code
}{
	{"a loop", "DO $$ BEGIN LOOP END LOOP; END $$", commit.Unavailable},
	{"a sleep", "SELECT pg_sleep(1e6)", commit.Unavailable},
	{"a flood of rows", "SELECT generate_series(1, 9000000000)", commit.Unavailable},
	{"a COPY", "COPY (SELECT generate_series(1, 9000000000)) TO STDOUT", commit.Unavailable},
	{"a flood of warnings", "DO $$ BEGIN LOOP RAISE WARNING 'no'; END LOOP; END $$", commit.Unavailable},
	{"a recursion", "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT count(*) FROM r", commit.Unavailable},
	{"a lock that is never free", "SELECT pg_advisory_lock(1)", commit.Unavailable},
	{"a loop that swallows its cancellation", "DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(1e6); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$", commit.Unavailable},
	// It is waited for, for half a minute, and found out by the next request: only the long
	// form tries it.
	{"a sleep at COMMIT", "INSERT INTO mine.late VALUES ('SELECT pg_sleep(1e6)')", commit.UnknownResult},
}

// SQL that does not end is given up with the client's patience, and ends on the server too:
// nothing of it is kept, and the same pod can go on.
func TestProveEndlessSQL(t *testing.T) {
	w := newWorld(t)
	if _, err := w.super.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	h := &rig.Holder{}
	c := commit.New(w.ledger, h, zap.NewNop())
	tried := endless
	if !prove.Long() {
		tried = tried[:len(tried)-1]
	}
	for i, k := range tried {
		n := 1000 + 2*i
		a := w.fresh()
		h.Take(a)
		var body struct {
			Statements []statement `json:"statements"`
		}
		for _, sql := range w.statements(n, a, []string{k.sql}) {
			body.Statements = append(body.Statements, statement{sql})
		}
		r, err := commit.Parse(marshal(t, body))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = c.Commit(ctx, r)
		cancel()
		if e, ok := errors.AsType[*commit.Error](err); !ok || e.Code != k.code {
			t.Errorf("%s: %v, want %s", k.name, err, k.code)
		}
		w.left()
		if got := w.became(n, a); got != refused {
			t.Errorf("%s: %s", k.name, got)
		}
		a = h.Attempt()
		if err := oneRequest(t, c, w.statements(n+1, a, nil)); err != nil {
			t.Errorf("after %q an honest commit fails: %v", k.name, err)
		}
	}
	prove.Report(t, "SQL that does not end is ended", "%d kinds, no session of them is left", len(tried))
}
