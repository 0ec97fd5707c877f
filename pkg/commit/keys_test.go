package commit

import (
	"strings"
	"testing"
)

func TestKeysThatAreSaidTwice(t *testing.T) {
	parsers := map[string]func(string) error{
		"commit":     func(s string) error { _, err := Parse([]byte(s)); return err },
		"query":      func(s string) error { _, err := ParseStatement([]byte(s)); return err },
		"end":        func(s string) error { _, err := ParseClosing([]byte(s)); return err },
		"checkpoint": func(s string) error { _, err := ParseCheckpoint([]byte(s)); return err },
	}
	for _, c := range []struct{ parser, body, word string }{
		{"commit", `{"statements":[{"sql":"SELECT $1","args":["leak"]}],"statements":[{"sql":"SELECT 1"}]}`, `"statements" stands twice`},
		{"commit", `{"complete":false,"checkpoint":1,"complete":true}`, `"complete" stands twice`},
		{"commit", `{"complete":false,"checkpoint":1,"\u0063omplete":true}`, `"complete" stands twice`},
		{"commit", `{"statements":[{"sql":"SELECT 1"},{"sql":"SELECT 1","sql":"SELECT 2"}]}`, `"sql" stands twice`},
		{"commit", `{"statements":[{"sql":"SELECT $1","args":[{"$type":"int8","value":1,"value":2}]}]}`, `"value" stands twice`},
		{"commit", `{"payload":{"a":[{"b":1,"b":2}]}}`, `"b" stands twice`},
		{"commit", `{"STATEMENTS":[]}`, `unknown field "STATEMENTS"`},
		{"commit", `{"\u017ftatements":[]}`, "unknown field"},
		{"commit", `{"statements":[{"SQL":"SELECT 1"}]}`, `unknown field "SQL"`},
		{"query", `{"sql":"SELECT 1","Returning":true}`, `unknown field "Returning"`},
		{"query", `{"sql":"SELECT '\ud83d'"}`, "surrogate"},
		{"commit", `{"statements":[{"sql":"SELECT '\ud83d\ud83d\ude00'"}]}`, "surrogate"},
		{"end", `{"Result":1}`, `unknown field "Result"`},
		{"checkpoint", `{"data":1,"data":2}`, `"data" stands twice`},
		{"checkpoint", `{"data":1,"Seq":2}`, `unknown field "Seq"`},
	} {
		if err := parsers[c.parser](c.body); !hasCode(err, Invalid) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s %s: %v", c.parser, c.body, err)
		}
	}
	for parser, body := range map[string]string{
		"commit": `{"statements":[{"sql":"SELECT $1","args":[{"A":{"A":1},"B":[{"A":1},{"A":1}],"a":"A"}]},{"sql":"SELECT 1"}],"payload":{"SQL":"sql"},"result":[{"SQL":1},{"SQL":2}]}`,
		"query":  `{"sql":"SELECT $1, '\ud83d\ude00\ufffd�'","args":[{"$type":"jsonb","value":{"$type":1,"Value":2}}]}`,
		"end":    `{"result":{"Result":1,"result":2}}`,
	} {
		if err := parsers[parser](body); err != nil {
			t.Errorf("%s %s: %v", parser, body, err)
		}
	}
}
