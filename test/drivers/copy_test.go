package drivers_test

import (
	"strings"
	"testing"
)

// guard-exec copy: all rows and the window, or nothing.
func TestGuardExecCopy(t *testing.T) {
	const rows = `yes daily-credit,1,2026-11-30T09:00:00Z | head -n 200000`
	s := newShop(t)
	for name, c := range map[string]struct {
		script string
		code   int
		says   string
		units  string
		status string
	}{
		"many rows":          {rows + " | $COPY --rows 200000", 0, `"processed":200000`, "200000", "completed"},
		"a bad row first":    {"(echo x,y,z; " + rows + ") | $COPY", 1, `"code":"statement_failed"`, "0", "failed"},
		"a bad row last":     {"(" + rows + "; echo x,y,z) | $COPY", 1, "line 200001", "0", "failed"},
		"too few rows":       {rows + " | head -n 7 | $COPY --rows 200000", 1, "there are 7 rows", "0", "failed"},
		"no such table":      {"echo 1 | $COPY --table nothere", 1, "42P01", "0", "failed"},
		"a statement behind": {rows + " | head -n 3 | $COPY --sql 'INSERT INTO booking SELECT account, window_start, 10 * units FROM booking' --expect-rows 3", 0, `"processed":3`, "33", "completed"},
		"a failing one":      {rows + " | head -n 3 | $COPY --sql 'INSERT INTO booking SELECT account, window_start, 10 * units FROM booking' --expect-rows 4", 1, "unexpected_rows", "0", "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			s.clear(t)
			script := "COPY='" + built(t, "cmd/guard-exec") + " copy --table booking --columns account,units,window_start'\n" + c.script
			if said := s.guarded(worker{}, "sh", "-c", script).exits(c.code); !strings.Contains(said, c.says) {
				t.Errorf("it said %s, want %s", said, c.says)
			}
			if got := s.value("SELECT coalesce(sum(units), 0) || ' ' || (SELECT status FROM onceguard.job_execution) FROM booking"); got != c.units+" "+c.status {
				t.Errorf("there are %s, want %s %s", got, c.units, c.status)
			}
		})
	}
}
