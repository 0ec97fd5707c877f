package commit

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove"
)

func parametersOf(t *testing.T, args string) (parameters, error) {
	t.Helper()
	var s Statement
	if err := json.Unmarshal([]byte(args), &s.Args); err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	return s.parameters()
}

// What an argument says is what the database has: every type, NULL in it, and nothing lost.
func TestTypedArgumentsArriveAsTheyAre(t *testing.T) {
	b := newBench(t)
	type c struct{ typ, value, sql, want string }
	cases := []c{
		{"bool", `true`, `$1 AND true`, "true"},
		{"int2", `-32768`, `pg_typeof($1) || ' ' || $1`, "smallint -32768"},
		{"int4", `"2147483647"`, `pg_typeof($1) || ' ' || $1`, "integer 2147483647"},
		{"int8", `9223372036854775807`, `pg_typeof($1) || ' ' || $1`, "bigint 9223372036854775807"},
		{"float4", `1.5e-3`, `$1`, "0.0015"},
		{"float8", `0.1`, `$1`, "0.1"},
		{"float8", `"NaN"`, `$1`, "NaN"},
		{"float8", `"-Infinity"`, `$1`, "-Infinity"},
		{"numeric", `12345678901234567890.12345678901234567890`, `$1`, "12345678901234567890.12345678901234567890"},
		{"numeric", `"1E-20"`, `$1`, "0.00000000000000000001"},
		{"numeric", `1.10`, `$1`, "1.10"},
		{"text", `"a'\"\\{},\u00e9\ud83d\ude00\ufffd"`, `$1`, `a'"\{},é😀` + "\uFFFD"},
		{"varchar", `"x"`, `pg_typeof($1) || $1`, "character varyingx"},
		{"uuid", `"6F1C2B9E-0000-4000-8000-0123456789ab"`, `$1`, "6f1c2b9e-0000-4000-8000-0123456789ab"},
		{"date", `"2024-02-29"`, `$1 + 1`, "2024-03-01"},
		{"time", `"13:18:00.123456"`, `$1`, "13:18:00.123456"},
		{"timestamp", `"2026-11-30T13:18:00.000001"`, `$1`, "2026-11-30 13:18:00.000001"},
		{"timestamptz", `"2026-11-30T13:18:00.000001+05:30"`, `$1 AT TIME ZONE 'UTC'`, "2026-11-30 07:48:00.000001"},
		{"timestamptz", `"infinity"`, `$1`, "infinity"},
		{"interval", `"P1DT2H"`, `$1`, "1 day 02:00:00"},
		{"json", `{"b": 1.00, "a": [null]}`, `$1`, `{"b":1.00,"a":[null]}`},
		{"jsonb", `{"$type": "mine", "n": 1.00}`, `$1->>'n'`, "1.00"},
		{"jsonb", `"a string"`, `jsonb_typeof($1)`, "string"},
		{"bytea", `"AP8n"`, `encode($1, 'hex')`, "00ff27"},
		{"bytea", `""`, `length($1)`, "0"},
		{"int8[]", `[1, null, -2]`, `$1`, "{1,NULL,-2}"},
		{"int8[]", `[[1,2],[3,null]]`, `array_dims($1) || $1::text`, "[1:2][1:2]{{1,2},{3,NULL}}"},
		{"int8[]", `[]`, `cardinality($1)`, "0"},
		{"text[]", `["NULL", null, "", "a,\"b\\{}", " "]`, `to_json($1)`, `["NULL",null,"","a,\"b\\{}"," "]`},
		{"bool[]", `[true,false,null]`, `$1`, "{t,f,NULL}"},
		{"numeric[]", `[1.10, "2.20"]`, `$1`, "{1.10,2.20}"},
		{"timestamptz[]", `["2026-11-30T13:18:00Z"]`, `$1[1] AT TIME ZONE 'UTC'`, "2026-11-30 13:18:00"},
		{"bytea[]", `["AP8n", null]`, `encode($1[1], 'hex') || cardinality($1)`, "00ff272"},
		{"jsonb[]", `[{"a":"\"x"}, [1,2], "s", null]`, `to_json($1)`, `[{"a": "\"x"},[1, 2],"s",null]`},
		{"interval[]", `["1 day", null]`, `$1[1]`, "1 day"},
		{"uuid[]", `["6f1c2b9e-0000-4000-8000-0123456789ab"]`, `$1[1]`, "6f1c2b9e-0000-4000-8000-0123456789ab"},
	}
	var known []string
	for name := range scalars {
		known = append(known, name, name+"[]")
	}
	for _, typ := range known { // also shows that every number of a type is right
		cases = append(cases, c{typ, "null", "pg_typeof($1)::text || coalesce($1::text, '∅')", ""})
	}
	statements := make([]string, 0, len(cases))
	for _, c := range cases {
		statements = append(statements, fmt.Sprintf(`{"sql":%s,"args":[{"$type":%q,"value":%s}],"returning":true}`, asJSON(t, "SELECT ("+c.sql+")::text"), c.typ, c.value))
	}
	a := b.must(`{"statements":[` + strings.Join(statements, ",") + `]}`)
	for i, c := range cases {
		want := c.want
		if want == "" {
			want = b.text(`SELECT $q$`+c.typ+`$q$::regtype::text`) + "∅"
		}
		if got := a.Statements[i].Rows[0][0]; got == nil || *got != want {
			t.Errorf("%s %s: %s, want %s", c.typ, c.value, asJSON(t, got), want)
		}
	}
}

// An argument that says no type is text without one, and keeps every digit.
func TestPlainArguments(t *testing.T) {
	p, err := parametersOf(t, `[null, true, 12345678901234567890.10, 1e400, "x", {"a" : [1.50]}, [1, "y"], {"type":"int8"}]`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"", "true", "12345678901234567890.10", "1e400", "x", `{"a":[1.50]}`, `[1,"y"]`, `{"type":"int8"}`}
	for i, w := range want {
		if string(p.values[i]) != w || p.types[i] != 0 || (p.values[i] == nil) != (i == 0) {
			t.Errorf("%d: %q of type %d, want %q", i, p.values[i], p.types[i], w)
		}
	}
}

func TestWrongArgumentsNamePlaceKindAndCure(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{`{"$type":"int9","value":1}`, `args[0]: $type "int9" is not known; known are bool, bytea`},
		{`{"$type":5,"value":1}`, `args[0]: $type is a number; it must be the name of a type`},
		{`{"$type":"int8"}`, `args[0]: an object with "$type" has exactly one more key, "value"`},
		{`{"$type":"int8","value":1,"x":2}`, `exactly one more key`},
		{`{"$type":"int8","value":"canary"}`, `args[0].value: int8 takes a whole number, as a number or in a string, not a string that is none`},
		{`{"$type":"int8","value":1.5}`, `not a number with a fraction or an exponent`},
		{`{"$type":"int8","value":9223372036854775808}`, `too large`},
		{`{"$type":"int2","value":40000}`, `int2 takes a whole number of 16 bits`},
		{`{"$type":"bool","value":"true"}`, `bool takes true or false, not a string`},
		{`{"$type":"numeric","value":true}`, `numeric takes a number`},
		{`{"$type":"text","value":5}`, `text takes a string, not a number`},
		{`{"$type":"text","value":"a\u0000"}`, `NUL`},
		{`{"$type":"text","value":"\ud83d"}`, `surrogate`},
		{`"\ud83d canary"`, `args[0]: has half of a surrogate pair`},
		{`{"$type":"uuid","value":"canary"}`, `uuid takes a string like`},
		{`{"$type":"date","value":"30.11.2026"}`, `date takes a string "2026-11-30"`},
		{`{"$type":"timestamp","value":"2026-11-30T13:18:00Z"}`, `without a zone`},
		{`{"$type":"timestamptz","value":"2026-11-30T13:18:00"}`, `with a zone`},
		{`{"$type":"timestamptz","value":"2026-11-30T13:18:00.1234567Z"}`, `at most 6 digits`},
		{`{"$type":"bytea","value":"canary!"}`, `base64`},
		{`{"$type":"bytea","value":"AP8\nn"}`, `base64`},
		{`{"$type":"int8[]","value":5}`, `args[0].value: int8[] takes an array, not a number`},
		{`{"$type":"int8[]","value":[1,"canary"]}`, `args[0].value[1]: int8 takes a whole number`},
		{`{"$type":"int8[]","value":[[1,2],[3]]}`, `args[0].value[1]: has other dimensions`},
		{`{"$type":"int8[]","value":[[1],null]}`, `args[0].value[1]: has other dimensions`},
		{`{"$type":"int8[]","value":[[[1]],[[null,2]]]}`, `args[0].value[1]: has other dimensions`},
		{`{"$type":"text[]","value":[["a"],["b",["c"]]]}`, `args[0].value[1][1]: has other dimensions`},
		{`{"$type":"int8[]","value":[[],[]]}`, `empty array inside an array`},
		{`{"$type":"int8[]","value":[[[[[[[1]]]]]]]}`, `deeper than 6`},
	} {
		_, err := parametersOf(t, "["+c.arg+"]")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", c.arg, err, c.want)
		}
	}
	_, err := Parse([]byte(`{"statements":[{"sql":"SELECT 1"},{"sql":"SELECT $1","args":[1,{"$type":"int4[]","value":[[1],[true]]}]}]}`))
	if err == nil || !strings.Contains(err.Error(), "statements[1].args[1].value[1][0]: int4 takes a whole number") {
		t.Error(err)
	}
}

// Random values of every type come back as they went: nothing is lost on the way.
func TestProveArgumentsLoseNothing(t *testing.T) {
	url := postgres.Database(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	rnd := rand.New(rand.NewPCG(prove.Seed(t), 1))
	digits := func(n int) string {
		var b strings.Builder
		b.WriteByte("123456789"[rnd.IntN(9)])
		for range rnd.IntN(n) {
			b.WriteByte("0123456789"[rnd.IntN(10)])
		}
		return b.String()
	}
	str := func() string {
		letters := []rune("ab,{}\"\\' \t\n\r;NULL%é😀\uFFFD\u00a0")
		out := make([]rune, rnd.IntN(12))
		for i := range out {
			out[i] = letters[rnd.IntN(len(letters))]
		}
		return string(out)
	}
	// Each gives the JSON of a value and the text that Postgres must give back.
	makers := map[string]func() (value, text string){
		"int8":    func() (string, string) { n := fmt.Sprint(int64(rnd.Uint64())); return n, n },
		"numeric": func() (string, string) { n := "-" + digits(60) + "." + digits(40); return n, n },
		"text":    func() (string, string) { s := str(); return asJSON(t, s), s },
		"bytea": func() (string, string) {
			s := make([]byte, rnd.IntN(20))
			for i := range s {
				s[i] = byte(rnd.Uint32())
			}
			return asJSON(t, base64.StdEncoding.EncodeToString(s)), fmt.Sprintf(`\x%x`, s)
		},
		"timestamp": func() (string, string) {
			s := fmt.Sprintf("%04d-%02d-%02d %02d:%02d:%02d.%05d1", 1900+rnd.IntN(300), 1+rnd.IntN(12), 1+rnd.IntN(28), rnd.IntN(24), rnd.IntN(60), rnd.IntN(60), rnd.IntN(100000))
			return asJSON(t, s), s
		},
	}
	n := prove.Times(400, 20000)
	types := []string{"int8", "numeric", "text", "bytea", "timestamp"}
	for range n {
		name := types[rnd.IntN(len(types))]
		outer, inner := rnd.IntN(4), rnd.IntN(4)
		var rows, want []string
		for range outer {
			var cells []string
			for range max(inner, 1) {
				value, text := "null", "∅"
				if rnd.IntN(5) > 0 {
					value, text = makers[name]()
				}
				cells, want = append(cells, value), append(want, text)
			}
			if inner == 0 {
				rows = append(rows, cells[0])
			} else {
				rows = append(rows, "["+strings.Join(cells, " , ")+"]")
			}
		}
		arg := fmt.Sprintf(`{"$type":"%s[]","value":[%s]}`, name, strings.Join(rows, ","))
		p, err := parametersOf(t, "["+arg+"]")
		if err != nil {
			t.Fatalf("%s: %v", arg, err)
		}
		got := conn.PgConn().ExecParams(t.Context(), "SELECT coalesce(v::text, '∅') FROM unnest($1) v", p.values, p.types, nil, nil).Read()
		if got.Err != nil || len(got.Rows) != len(want) {
			t.Fatalf("%s: %d values, want %d: %v", arg, len(got.Rows), len(want), got.Err)
		}
		for i, w := range want {
			if string(got.Rows[i][0]) != w {
				t.Fatalf("%s: %q, want %q", arg, got.Rows[i][0], w)
			}
		}
	}
	prove.Report(t, "typed arguments lose nothing", "%d random arrays of %d types", n, len(types))
}

func FuzzArgument(f *testing.F) {
	for _, s := range []string{
		`1`, `"x"`, `{"$type":"int8[]","value":[1,null,[2]]}`, `{"$type":"jsonb","value":{"a":[]}}`, `{"$type":"text[]","value":["\"\\"]}`,
		`{"$type":"bytea","value":"AA=="}`, `{"$type":"timestamptz","value":"2026-11-30T13:18:00Z"}`, `[]`, `null`, `{"$type":null,"value":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return
		}
		value, oid, err := argument(raw)
		if err != nil {
			if e := err.Error(); !strings.Contains(e, ": ") {
				t.Errorf("%s: %v", raw, err)
			}
			return
		}
		if strings.ContainsRune(string(value), 0) {
			t.Errorf("%s gives NUL", raw)
		}
		again, oid2, err := argument([]byte(" " + string(raw) + "\n"))
		if err != nil || string(again) != string(value) || oid != oid2 {
			t.Errorf("%s is not stable: %q %q %v", raw, value, again, err)
		}
	})
}
