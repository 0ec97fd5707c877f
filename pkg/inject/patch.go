package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Op is one operation of a JSON Patch (RFC 6902).
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patch collects operations and applies each to its own copy of the object, so that
// the next one sees what is there by then.
type patch struct {
	root map[string]any
	ops  []Op
}

func newPatch(raw []byte) (*patch, error) {
	p := &patch{}
	if err := json.Unmarshal(raw, &p.root); err != nil {
		return nil, fmt.Errorf("object is not a JSON object: %w", err)
	}
	return p, nil
}

// path names a place in an object; an index of a list is a decimal number.
type path []string

func (p path) at(more ...string) path { return slices.Concat(p, path(more)) }

func (p path) index(i int) path { return p.at(strconv.Itoa(i)) }

// String gives the JSON Pointer (RFC 6901).
func (p path) String() string {
	var b strings.Builder
	for _, part := range p {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part))
	}
	return b.String()
}

// get gives what stands at p; nil when there is nothing, or null.
func (t *patch) get(p path) any {
	var at any = t.root
	for _, part := range p {
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(v) {
				return nil
			}
			at = v[i]
		default:
			return nil
		}
	}
	return at
}

// set puts value at p, whose last part is a key. Objects on the way that are missing
// are made, in the same operation.
func (t *patch) set(p path, value any) {
	for depth := 1; depth < len(p); depth++ {
		if t.get(p[:depth]) != nil {
			continue
		}
		for i := len(p) - 1; i >= depth; i-- {
			value = map[string]any{p[i]: value}
		}
		p = p[:depth]
		break
	}
	t.ops = append(t.ops, Op{Op: "add", Path: p.String(), Value: value})
	if parent, ok := t.get(p[:len(p)-1]).(map[string]any); ok {
		parent[p[len(p)-1]] = plain(value)
	}
}

// remove takes the key that p ends in away, if it is there.
func (t *patch) remove(p path) {
	parent, ok := t.get(p[:len(p)-1]).(map[string]any)
	if !ok {
		return
	}
	if _, ok := parent[p[len(p)-1]]; !ok {
		return
	}
	delete(parent, p[len(p)-1])
	t.ops = append(t.ops, Op{Op: "remove", Path: p.String()})
}

// insert puts value into the list at p before index i; a missing list is made, and
// an i behind the end appends.
func (t *patch) insert(p path, i int, value any) {
	list, _ := t.get(p).([]any)
	if len(list) == 0 {
		t.set(p, []any{value})
		return
	}
	where := strconv.Itoa(i)
	if i >= len(list) {
		i, where = len(list), "-"
	}
	t.ops = append(t.ops, Op{Op: "add", Path: p.at(where).String(), Value: value})
	if parent, ok := t.get(p[:len(p)-1]).(map[string]any); ok {
		parent[p[len(p)-1]] = slices.Insert(slices.Clone(list), i, plain(value))
	}
}

// replace puts value in the place of element i of the list at p.
func (t *patch) replace(p path, i int, value any) {
	t.ops = append(t.ops, Op{Op: "replace", Path: p.index(i).String(), Value: value})
	if list, ok := t.get(p).([]any); ok {
		list[i] = plain(value)
	}
}

// drop takes element i out of the list at p.
func (t *patch) drop(p path, i int) {
	t.ops = append(t.ops, Op{Op: "remove", Path: p.index(i).String()})
	if list, ok := t.get(p).([]any); ok {
		if parent, ok := t.get(p[:len(p)-1]).(map[string]any); ok {
			parent[p[len(p)-1]] = slices.Delete(slices.Clone(list), i, i+1)
		}
	}
}

// plain gives value as encoding/json would read it back.
func plain(value any) any {
	b, err := json.Marshal(value)
	if err != nil {
		return nil // values are ours: strings, lists and API types
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		return nil
	}
	return out
}
