package drivers_test

import (
	"strings"
	"testing"
)

// Work in pieces goes on behind the last committed piece, and the window is completed
// with the last one.
func TestPieces(t *testing.T) {
	w := workers["python"](t)
	argv := []string{w.credit[0], example(t, "python/pieces.py")}
	w.env = append(w.env, "PYTHONDONTWRITEBYTECODE=1")
	s := newShop(t)
	s.exec("DELETE FROM balance", "INSERT INTO balance SELECT 'account-' || n, 0 FROM generate_series(1, 5) n")
	state := `SELECT string_agg(units::text, ' ' ORDER BY account) || ', ' || (SELECT status FROM onceguard.job_execution) || ', checkpoint ' || coalesce((SELECT seq || ' ' || (data->>'after') FROM onceguard.job_checkpoint), '-') FROM balance`

	// Killed in its second piece.
	s.exec("BEGIN", "SELECT FROM balance WHERE account = 'account-4' FOR UPDATE")
	p, kill := s.killable(w, argv...)
	s.waits("transactionid")
	kill()
	p.exits(137)
	s.exec("ROLLBACK")
	s.alone()
	if got := s.value(state); got != "10 10 0 0 0, failed, checkpoint 1 account-2" {
		t.Fatal(got)
	}

	s.guarded(w, argv...).exits(0)
	if got := s.value(state); !strings.HasPrefix(got, "10 10 10 10 10, completed, ") {
		t.Fatal(got)
	}
	s.guarded(w, argv...).exits(0)
	if got := s.value(state); !strings.HasPrefix(got, "10 10 10 10 10, completed, ") {
		t.Fatal(got)
	}
}

// Another attempt that took the window over ends the pieces of the former one.
func TestPiecesOfAnAttemptThatWasTakenOver(t *testing.T) {
	w := workers["python"](t)
	w.env = append(w.env, "PYTHONDONTWRITEBYTECODE=1")
	s := newShop(t)
	execution := s.claim()
	s.exec("BEGIN", "SELECT FROM balance FOR UPDATE")
	p := s.start(w, []string{w.credit[0], example(t, "python/pieces.py")}, s.url, execution)
	s.waits("transactionid")
	s.expire()
	s.claim()
	s.exec("ROLLBACK")
	if said := p.exits(75); !strings.Contains(said, "OG001") {
		t.Error(said)
	}
	s.is(nothing + "running")
}
