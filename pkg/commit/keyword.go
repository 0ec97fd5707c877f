package commit

import (
	"slices"
	"strings"
)

// endings are the words that a statement which ends, begins or splits a transaction starts
// with. They must not even reach the server: behind a ROLLBACK, which takes the barrier
// away with all else, a COMMIT of the worker's would commit before any command tag is
// looked at. CALL and DO are no way around: in a transaction block their COMMIT is an error.
var endings = []string{"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE"}

// control refuses a statement that would end the transaction; see Error.of.
func (s Statement) control() *Error {
	if word := keyword(s.SQL); slices.Contains(endings, word) {
		return newError(Forbidden, nil, " begins with %s; the endpoint owns the transaction, leave it out; nothing is committed", word)
	}
	return nil
}

// keyword gives the first word of a statement in capitals, or "" when it begins with
// something else. It skips what Postgres' scanner skips, and empty statements, which
// its grammar skips: the extended protocol takes one statement, but any number of ";".
func keyword(sql string) string {
	rest := sql
	for rest != "" {
		switch {
		case strings.IndexByte(" \t\n\r\f\v;", rest[0]) >= 0:
			rest = rest[1:]
		case strings.HasPrefix(rest, "--"):
			end := strings.IndexAny(rest, "\n\r")
			if end < 0 {
				return ""
			}
			rest = rest[end:]
		case strings.HasPrefix(rest, "/*"):
			rest = afterComment(rest)
		default:
			end := strings.IndexFunc(rest, func(c rune) bool { return !inWord(c) })
			if end < 0 {
				end = len(rest)
			}
			return strings.ToUpper(rest[:end])
		}
	}
	return ""
}

// afterComment skips a comment with those nested in it; one that does not end is the rest.
func afterComment(s string) string {
	depth := 0
	for i := 0; i+1 < len(s); i++ {
		switch s[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return s[i+1:]
		}
	}
	return ""
}

// inWord says whether c goes on with a word in Postgres' scanner.
func inWord(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}
