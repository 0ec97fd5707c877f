package commit

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/test/postgres"
)

func TestKeyword(t *testing.T) {
	for sql, want := range map[string]string{
		"":                               "",
		"SELECT 1":                       "SELECT",
		"rollback;":                      "ROLLBACK",
		" \t\n\r\f;; ; Abort and chain":  "ABORT",
		"-- END\nCOMMIT":                 "COMMIT",
		"--\rEND":                        "END",
		"-- COMMIT":                      "",
		"/* a /* b */ -- */COMMIT":       "COMMIT",
		"/* a /* b */ COMMIT":            "",
		"/*/**/*/COMMIT":                 "COMMIT",
		"/***/START TRANSACTION":         "START",
		"/*":                             "",
		"/*/":                            "",
		"ROLLBACK/**/TO s":               "ROLLBACK",
		"ROLLBACK--":                     "ROLLBACK",
		"rollback_all()":                 "ROLLBACK_ALL",
		`"ROLLBACK"`:                     "",
		"(SELECT 1)":                     "",
		"- - COMMIT":                     "",
		"prepare transaction 'x'":        "PREPARE",
		"é COMMIT":                       "É",
		"\u00a0COMMIT":                   "\u00a0COMMIT", // a letter for Postgres
		"WITH x AS (SELECT 1) SELECT 1;": "WITH",
	} {
		if got := keyword(sql); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}

// What Postgres runs as a command of transaction control must be seen as one before it
// is sent, however it is dressed up.
func TestKeywordAgreesWithPostgres(t *testing.T) {
	c, err := pgx.Connect(t.Context(), postgres.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	parts := []string{"/*", "*/", "/", "*", "--", "-", "\n", "\r", "\t", "\f", "\v", " ", ";", "'", "x", "$", "\\", `"`, "ROLLBACK", "commit", "End"}
	rnd := rand.New(rand.NewPCG(1, 2))
	tags := []string{"ROLLBACK", "COMMIT"}
	met := 0
	for range 6000 {
		var b strings.Builder
		for range rnd.IntN(9) {
			b.WriteString(parts[rnd.IntN(len(parts))])
		}
		b.WriteString([]string{"ROLLBACK", "COMMIT", "end", "Abort"}[rnd.IntN(4)])
		sql := b.String()
		got := c.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, nil).Read()
		if got.Err != nil || !slices.Contains(tags, got.CommandTag.String()) {
			continue
		}
		met++
		if (Statement{SQL: sql}).control() == nil {
			t.Errorf("%q is %s for Postgres and %q for us", sql, got.CommandTag, keyword(sql))
		}
	}
	if met < 300 {
		t.Errorf("only %d statements were commands: the test is blind", met)
	}
}

func FuzzKeyword(f *testing.F) {
	for _, s := range []string{"", "/*/*", "--", ";ROLLBACK", "/**/ROLLBACK", "\xff", "-- \n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		word := keyword(sql)
		if word != strings.ToUpper(word) || strings.ContainsAny(word, " \t\n\r\f\v;/*-'\"") {
			t.Errorf("%q gives %q", sql, word)
		}
		// What comes before a statement and is skipped does not hide it.
		for _, skipped := range []string{" ", ";", "--" + strings.NewReplacer("\n", "", "\r", "").Replace(sql) + "\n", "/* /**/ */"} {
			if got := keyword(skipped + sql); got != word {
				t.Errorf("%q gives %q, without the beginning %q", skipped+sql, got, word)
			}
		}
	})
}
