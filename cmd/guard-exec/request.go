package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

// statement is one of a commit request.
type statement struct {
	SQL        string            `json:"sql"`
	Args       []json.RawMessage `json:"args,omitempty"`
	ExpectRows *int64            `json:"expect_rows,omitempty"`
	Returning  bool              `json:"returning,omitempty"`
}

// statementFlags add to a list of statements; all but --sql say something of the last.
func statementFlags(to *[]statement) flags {
	last := func(v string, say func(*statement)) error {
		if len(*to) == 0 {
			return fmt.Errorf("%q stands before any --sql, and belongs to the one before it", v)
		}
		say(&(*to)[len(*to)-1])
		return nil
	}
	return flags{
		"sql": {set: func(v string) error { *to = append(*to, statement{SQL: v}); return utf(v) }},
		"arg": {set: func(v string) error {
			if err := utf(v); err != nil {
				return err
			}
			b, _ := json.Marshal(v) // a string always marshals
			return last(v, func(s *statement) { s.Args = append(s.Args, b) })
		}},
		"arg-json": {set: func(v string) error {
			b, err := asJSON(v)
			if err != nil {
				return err
			}
			return last(v, func(s *statement) { s.Args = append(s.Args, b) })
		}},
		"expect-rows": {set: func(v string) error {
			n, err := count(v)
			if err != nil {
				return err
			}
			return last(v, func(s *statement) { s.ExpectRows = &n })
		}},
		"returning": {bare: true, set: func(string) error {
			return last("--returning", func(s *statement) { s.Returning = true })
		}},
	}
}

// fields are those of a request, by their names in JSON.
type fields map[string]json.RawMessage

// flags are those that say how a transaction ends.
func (f fields) flags() flags {
	number := func(name string) flag {
		return flag{set: func(v string) error {
			n, err := count(v)
			f[name] = json.RawMessage(strconv.FormatInt(n, 10))
			return err
		}}
	}
	return flags{
		"payload": {set: func(v string) error {
			f["payload"], _ = json.Marshal(v) // a string always marshals
			return utf(v)
		}},
		"result":    {set: func(v string) (err error) { f["result"], err = asJSON(v); return err }},
		"processed": number("processed"),
		"checkpoint": {set: func(v string) (err error) {
			f["complete"] = json.RawMessage("false")
			f["checkpoint"], err = asJSON(v)
			return err
		}},
		"checkpoint-seq": number("checkpoint_seq"),
	}
}

// add adds the request in file to the fields that flags gave.
func (f fields) add(file string, stdin io.Reader) error {
	from := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return usageError{fmt.Errorf("--file: %w", err)}
		}
		defer opened.Close()
		from = opened
	}
	b, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		return fmt.Errorf("--file %s: %w", file, err)
	}
	if len(b) > maxFile {
		return usageError{fmt.Errorf("--file %s: more than %d bytes", file, maxFile)}
	}
	var read fields
	if err := json.Unmarshal(b, &read); err != nil {
		return usageError{fmt.Errorf("--file %s: not a JSON object like %s: %w", file, requestForm, err)}
	}
	if name := twice(b); name != "" {
		return usageError{fmt.Errorf("--file %s: the key %q stands twice: say it once", file, name)}
	}
	if read == nil {
		return usageError{fmt.Errorf("--file %s: null is not a JSON object like %s", file, requestForm)}
	}
	for name, value := range read {
		if _, both := f[name]; both {
			if name == "complete" { // what --checkpoint says
				name = "checkpoint"
			}
			return usageError{fmt.Errorf("--%s is also in --file %s: say it once", strings.ReplaceAll(name, "_", "-"), file)}
		}
		f[name] = value
	}
	return nil
}

// twice gives a key that the object says twice, of which a map keeps the last; the guard
// looks into its values.
func twice(object []byte) (key string) {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // it is an object, which has been read before
	seen := map[string]bool{}
	for d.More() {
		name, _ := d.Token()
		key, _ = name.(string)
		var value json.RawMessage
		if seen[key] || d.Decode(&value) != nil {
			return key
		}
		seen[key] = true
	}
	return ""
}

// asJSON refuses what is not one JSON value.
func asJSON(v string) (json.RawMessage, error) {
	if !json.Valid([]byte(v)) {
		return nil, fmt.Errorf("%q is not JSON; a text needs quotes of its own: '\"text\"'", v)
	}
	return json.RawMessage(v), utf(v)
}

func count(v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a whole number of 0 or more", v)
	}
	return n, nil
}

// utf refuses bytes that JSON cannot carry and would silently replace.
func utf(v string) error {
	if !utf8.ValidString(v) {
		return fmt.Errorf("%q is not UTF-8; encode it, for example with base64 and decode() in SQL", v)
	}
	return nil
}
