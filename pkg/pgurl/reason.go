package pgurl

import (
	"slices"
	"strings"
)

// Reason makes the error of a failed connection short: one line that says each cause
// once. pgx tries an address with TLS and then without (sslmode=prefer, the default),
// and joins what it heard, a line for each. errors.Is and errors.As still find all of it.
func Reason(err error) error {
	if err == nil {
		return nil
	}
	var said []string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		// The first line may carry a heading before what the next ones say again.
		if !slices.ContainsFunc(said, func(earlier string) bool { return strings.HasSuffix(earlier, line) }) {
			said = append(said, line)
		}
	}
	if len(said) > 1 && strings.HasSuffix(said[0], ":") {
		said[1] = said[0] + " " + said[1]
		said = said[1:]
	}
	return reason{err, strings.Join(said, "; ")}
}

type reason struct {
	error
	text string
}

func (r reason) Error() string { return r.text }

func (r reason) Unwrap() error { return r.error }
