package commit

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parameters are the arguments of a statement as Postgres gets them: text, nil for NULL,
// and 0 where it is to find the type itself.
type parameters struct {
	values [][]byte
	types  []uint32
}

// scalar is a type that an argument may name.
type scalar struct {
	oid, array uint32
	// text gives the text form of a JSON value that is not null.
	text func(raw json.RawMessage) (string, error)
}

// scalars are the types by the name that $type gives; the numbers are those of pg_type,
// which Postgres never changes.
var scalars = map[string]scalar{
	"bool":        {16, 1000, boolean},
	"int2":        {21, 1005, integer(16)},
	"int4":        {23, 1007, integer(32)},
	"int8":        {20, 1016, integer(64)},
	"float4":      {700, 1021, number},
	"float8":      {701, 1022, number},
	"numeric":     {1700, 1231, number},
	"text":        {25, 1009, words("")},
	"varchar":     {1043, 1015, words("")},
	"uuid":        {2950, 2951, shaped(uuidForm, "like \"6f1c…-…\", 32 hexadecimal digits in groups of 8-4-4-4-12")},
	"date":        {1082, 1182, shaped(dateForm, `"2026-11-30"`)},
	"time":        {1083, 1183, shaped(timeForm, `"13:18:00.123456", without a zone and with at most 6 digits of a second, which Postgres keeps`)},
	"timestamp":   {1114, 1115, shaped(timestampForm, `"2026-11-30T13:18:00.123456", without a zone (that is timestamptz) and with at most 6 digits of a second, which Postgres keeps`)},
	"timestamptz": {1184, 1185, shaped(timestamptzForm, `"2026-11-30T13:18:00.123456Z", with a zone and with at most 6 digits of a second, which Postgres keeps`)},
	"interval":    {1186, 1187, words(`like "1 day 02:00:00" or "P1DT2H"`)},
	"json":        {114, 199, document},
	"jsonb":       {3802, 3807, document},
	"bytea":       {17, 1001, base64Bytes},
}

const (
	clockPart = `([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?`
	datePart  = `\d{4}-\d\d-\d\d`
)

var (
	replacement     = regexp.MustCompile(`\\u[fF]{3}[dD]`)
	integerForm     = regexp.MustCompile(`^-?\d+$`)
	numberForm      = regexp.MustCompile(`^([+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|NaN|[+-]?Infinity)$`)
	uuidForm        = regexp.MustCompile(`^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$`)
	dateForm        = regexp.MustCompile(`^(` + datePart + `|-?infinity)$`)
	timeForm        = regexp.MustCompile(`^` + clockPart + `$`)
	timestampForm   = regexp.MustCompile(`^(` + datePart + `[T ]` + clockPart + `|-?infinity)$`)
	timestamptzForm = regexp.MustCompile(`^(` + datePart + `[T ]` + clockPart + `(Z|[+-]\d\d(:?\d\d)?)|-?infinity)$`)
)

// maxDimensions is how deep Postgres nests arrays.
const maxDimensions = 6

// typeKey marks an argument that says its type: {"$type":"int8[]","value":[1,null]}.
const typeKey = "$type"

// parameters gives the arguments. An error begins with the argument, like "args[2]: ", and
// names what kind of value it has, never the value.
func (s Statement) parameters() (parameters, error) {
	p := parameters{values: make([][]byte, len(s.Args)), types: make([]uint32, len(s.Args))}
	for i, raw := range s.Args {
		var err error
		if p.values[i], p.types[i], err = argument(raw); err != nil {
			return p, fmt.Errorf("args[%d]%w", i, err)
		}
	}
	return p, nil
}

// argumentError says what is wrong at a place within an argument.
type argumentError struct{ at, what string }

func (e *argumentError) Error() string { return e.at + ": " + e.what }

func wrong(format string, args ...any) error {
	return &argumentError{what: fmt.Sprintf(format, args...)}
}

// within puts a place in front.
func within(at string, err error) error {
	if e, ok := errors.AsType[*argumentError](err); ok {
		return &argumentError{at + e.at, e.what}
	}
	return err
}

func argument(raw json.RawMessage) (value []byte, oid uint32, err error) {
	raw = bytes.TrimSpace(raw)
	if isNull(raw) {
		return nil, 0, nil
	}
	switch raw[0] {
	case '"':
		s, err := words("")(raw)
		return []byte(s), 0, err
	case '{':
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, 0, wrong("is no JSON")
		}
		if _, typed := fields[typeKey]; typed {
			return typedArgument(fields)
		}
	}
	s, err := document(raw) // a number, true and false as they are written, too
	return []byte(s), 0, err
}

func typedArgument(fields map[string]json.RawMessage) ([]byte, uint32, error) {
	value, has := fields["value"]
	if len(fields) != 2 || !has {
		return nil, 0, wrong(`an object with %q has exactly one more key, "value"; to send an object that has the key itself: {%q:"jsonb","value":{…}}`, typeKey, typeKey)
	}
	var name string
	if err := json.Unmarshal(fields[typeKey], &name); err != nil || isNull(fields[typeKey]) {
		return nil, 0, wrong("%s is %s; it must be the name of a type, like \"int8\"", typeKey, kind(fields[typeKey]))
	}
	base, array := strings.CutSuffix(name, "[]")
	t, known := scalars[base]
	if !known {
		return nil, 0, wrong("%s %q is not known; known are %s, each also as an array with []; without %s Postgres finds the type", typeKey, shorten(name), strings.Join(slices.Sorted(maps.Keys(scalars)), ", "), typeKey)
	}
	oid := t.oid
	if array {
		oid = t.array
	}
	switch {
	case isNull(value):
		return nil, oid, nil
	case !array:
		s, err := t.text(value)
		if e, ok := errors.AsType[*argumentError](err); ok {
			return nil, oid, &argumentError{".value" + e.at, base + " " + e.what}
		}
		return []byte(s), oid, err
	}
	var b bytes.Buffer
	_, err := appendArray(&b, base, t, value, 1)
	return b.Bytes(), oid, within(".value", err)
}

// appendArray writes an array in Postgres' text form and gives its dimensions; arrays in
// it must have the same ones. For json and jsonb an array inside is a document.
func appendArray(b *bytes.Buffer, base string, t scalar, raw json.RawMessage, depth int) (dimensions []int, err error) {
	// One element at a time: a list of them would take many times the text.
	elements := json.NewDecoder(bytes.NewReader(raw))
	if start, err := elements.Token(); err != nil || start != json.Delim('[') {
		return nil, wrong("%s[] takes an array, not %s", base, kind(raw))
	}
	if depth > maxDimensions {
		return nil, wrong("arrays are nested deeper than %d, which Postgres does not take", maxDimensions)
	}
	nests := base != "json" && base != "jsonb"
	b.WriteByte('{')
	var e json.RawMessage
	n := 0
	for ; elements.More(); n++ {
		if err := elements.Decode(&e); err != nil {
			return nil, wrong("is no JSON")
		}
		if n > 0 {
			b.WriteByte(',')
		}
		var inner []int
		switch {
		case isNull(e):
			b.WriteString("NULL")
		case nests && e[0] == '[':
			inner, err = appendArray(b, base, t, e, depth+1)
			if err == nil && len(inner) > 0 && inner[0] == 0 {
				err = wrong("an empty array inside an array is nothing that Postgres keeps")
			}
		default:
			var s string
			if s, err = t.text(e); err == nil {
				quote(b, s)
			} else if a, ok := errors.AsType[*argumentError](err); ok {
				err = &argumentError{a.at, base + " " + a.what}
			}
		}
		if err == nil && n > 0 && !slices.Equal(inner, dimensions) {
			err = wrong("has other dimensions than the elements before it; Postgres' arrays are rectangular")
		}
		if err != nil {
			return nil, within(fmt.Sprintf("[%d]", n), err)
		}
		dimensions = inner
	}
	b.WriteByte('}')
	return append([]int{n}, dimensions...), nil
}

// quote writes an element of an array.
func quote(b *bytes.Buffer, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
}

// The text forms.

func boolean(raw json.RawMessage) (string, error) {
	if s := string(bytes.TrimSpace(raw)); s == "true" || s == "false" {
		return s, nil
	}
	return "", wrong("takes true or false, not %s", kind(raw))
}

func integer(bits int) func(json.RawMessage) (string, error) {
	return func(raw json.RawMessage) (string, error) {
		s, ok := numeral(raw)
		if !ok || !integerForm.MatchString(s) {
			return "", wrong("takes a whole number, as a number or in a string, not %s", otherKind(raw))
		}
		if _, err := strconv.ParseInt(s, 10, bits); err != nil {
			return "", wrong("takes a whole number of %d bits, this one is too large; use a larger type, numeric has no bound", bits)
		}
		return s, nil
	}
}

func number(raw json.RawMessage) (string, error) {
	s, ok := numeral(raw)
	if !ok || !numberForm.MatchString(s) {
		return "", wrong(`takes a number, as a number or in a string ("NaN" and "Infinity" in a string), not %s`, otherKind(raw))
	}
	return s, nil
}

// numeral gives a number as it is written, in quotes or not: many programs cannot write
// every number outside them.
func numeral(raw json.RawMessage) (s string, ok bool) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return "", false
	case raw[0] == '"':
		s, err := unquote(raw)
		return s, err == nil
	}
	return string(raw), raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9'
}

func words(form string) func(json.RawMessage) (string, error) {
	return func(raw json.RawMessage) (string, error) {
		if raw = bytes.TrimSpace(raw); raw[0] != '"' {
			return "", wrong("takes a string%s, not %s", space(form), kind(raw))
		}
		return unquote(raw)
	}
}

// unquote gives what a JSON string says, if Postgres can keep it.
func unquote(raw json.RawMessage) (s string, err error) {
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", wrong("is no JSON string")
	}
	if strings.ContainsRune(s, 0) {
		return "", wrong("has a NUL character, which Postgres does not take")
	}
	if halved(raw, s) {
		return "", wrong("has half of a surrogate pair (like \\ud83d alone), which is no character")
	}
	return s, nil
}

// halved says whether a JSON string has half of a surrogate pair, which became another
// character silently in s.
func halved(raw []byte, s string) bool {
	written := bytes.Count(raw, []byte("\uFFFD")) + len(replacement.FindAll(raw, -1))
	return strings.Count(s, "\uFFFD") > written
}

func shaped(form *regexp.Regexp, like string) func(json.RawMessage) (string, error) {
	return func(raw json.RawMessage) (string, error) {
		s, err := words(like)(raw)
		if err == nil && !form.MatchString(s) {
			err = wrong("takes a string %s; this string is not of that form", like)
		}
		return s, err
	}
}

func document(raw json.RawMessage) (string, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return "", wrong("is no JSON")
	}
	return b.String(), nil
}

func base64Bytes(raw json.RawMessage) (string, error) {
	s, err := words("in base64")(raw)
	if err != nil {
		return "", err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") { // which the decoder skips
		return "", wrong("takes a string in base64 (the standard alphabet, with padding); this string is not")
	}
	return `\x` + hex.EncodeToString(b), nil
}

// kind names what a JSON value is, without the value.
func kind(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '"':
		return "a string"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "an array"
	case raw[0] == 'n':
		return "null"
	case raw[0] == 't', raw[0] == 'f':
		return string(raw)
	case bytes.ContainsAny(raw, ".eE"):
		return "a number with a fraction or an exponent"
	}
	return "a number"
}

// otherKind is kind for what may come in a string too.
func otherKind(raw json.RawMessage) string {
	if k := kind(raw); k != "a string" {
		return k
	}
	return "a string that is none"
}

func space(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}

// shorten keeps a name from outside short in messages.
func shorten(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}

func isNull(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

var errMore = errors.New("it has more than one JSON value")

// decode reads one JSON value and knows every field.
func decode(body []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errMore
	}
	return checkKeys(body)
}
