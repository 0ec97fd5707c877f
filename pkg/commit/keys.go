package commit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// level is an object or array that is being read.
type level struct {
	keys map[string]bool // nil: an array
	key  string          // the last one
	next bool            // what comes is a value
}

// checkKeys refuses an object that says a key twice, at any depth: of two readers one
// would believe the first, another the last, and Go mixes the two. It refuses a field of
// ours in other letters, which Go would take. The body has been decoded before, which
// bounds its depth.
func checkKeys(body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var levels []level
	for {
		before := d.InputOffset()
		token, err := d.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{keys: map[string]bool{}})
			continue
		case json.Delim('['):
			levels = append(levels, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		default:
			if n := len(levels); n > 0 && levels[n-1].keys != nil && !levels[n-1].next {
				key := token.(string) //nolint:forcetypeassert // JSON has no other keys
				if err := levels[n-1].add(key, ours(levels)); err != nil {
					return err
				}
				continue
			}
			if sql, is := token.(string); is && ours(levels) && levels[len(levels)-1].key == "sql" && halved(body[before:d.InputOffset()], sql) {
				return errHalved
			}
		}
		if n := len(levels); n > 0 {
			levels[n-1].next = false // the value is over
		}
	}
}

var errHalved = errors.New(`a "sql" has half of a surrogate pair (like \ud83d alone), which is no character`)

// add takes the next key of an object.
func (l *level) add(key string, ours bool) error {
	if ours && !slices.Contains(names, key) {
		return fmt.Errorf("unknown field %q", shorten(key))
	}
	if l.keys[key] {
		return fmt.Errorf("the key %q stands twice in an object; say it once (a JSON text that must have it twice can be sent as a string)", shorten(key))
	}
	l.keys[key], l.key, l.next = true, key, true
	return nil
}

// ours says whether the innermost object has fields of ours: the request, and each of its
// statements.
func ours(levels []level) bool {
	return len(levels) == 1 || len(levels) == 3 && levels[0].key == "statements" && levels[1].keys == nil
}

// names are those of all our fields; which of them belongs where, the decoder knows.
var names = []string{
	"statements", "sql", "args", "expect_rows", "returning",
	"payload", "result", "processed", "complete", "checkpoint", "checkpoint_seq", "data", "seq",
}
