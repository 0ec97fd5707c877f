// Package pgurl reads the connection URL of a ledger, so that every program treats it
// alike: the same default time-outs, no prepared statements (poolers), and error texts
// that help without repeating any part of a URL, which may hold a password.
package pgurl

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ConnectTimeout is used when the URL has no connect_timeout.
const ConnectTimeout = 5 * time.Second

// ErrInvalid is wrapped by every error of Parse. Its text holds nothing of the URL but
// the names of files and parameters.
var ErrInvalid = errors.New("the connection URL is not valid")

const (
	form  = "postgres://user:password@host:5432/database?sslmode=verify-full"
	shape = "it must look like " + form +
		"; in a password or a parameter write # as %23, & as %26, / as %2F, ? as %3F, @ as %40, % as %25 and a space as %20"
)

// Parse reads a URL, ignoring white space around it (a trailing newline is common in
// a Secret). application names the program in pg_stat_activity unless the URL does.
func Parse(text, application string) (*pgx.ConnConfig, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, fmt.Errorf("%w: it is empty; it must look like %s", ErrInvalid, form)
	}
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return nil, fmt.Errorf("%w: it must begin with postgres:// and look like %s", ErrInvalid, form)
	}
	if misread(text) { // before pgx opens the files that it names
		return nil, fmt.Errorf("%w: %s", ErrInvalid, shape)
	}
	cfg, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, explain(err))
	}
	if !query(text, cfg) {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, shape)
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = ConnectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = application
	}
	// No named prepared statements: they break behind a pooler in transaction mode.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	return cfg, nil
}

// misread says whether pgx would take a piece of an unescaped password for something
// else, which messages about the connection then show: the host, the port, the database
// or a parameter. pgx ends the password at the first @, unless a / comes before it, and
// drops spaces around it. So the only @ must come before any /: all of the password
// stands before it, as every URL with a password has one behind it.
func misread(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	before, after, found := strings.Cut(rest, "@")
	return found && (strings.Contains(before, "/") || strings.Contains(after, "@")) ||
		strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// query says whether the parameters can be told from a password that is one of them:
// an unescaped & would begin a parameter, whose name the server repeats if it does not
// know it. Beside a password only well-known names are taken.
func query(text string, cfg *pgx.ConnConfig) bool {
	if !strings.Contains(text, "password=") {
		return true
	}
	for name := range cfg.RuntimeParams {
		switch strings.ToLower(name) {
		case "application_name", "options", "client_encoding", "timezone", "search_path", "statement_timeout", "lock_timeout":
		default:
			return false
		}
	}
	return true
}

// explain says what is wrong without the texts of pgx and net/url, which repeat the
// part of the URL that they could not read: often a piece of the password.
func explain(err error) string {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Sprintf("cannot read the file %s that it names (%v)", file.Path, file.Err)
	}
	// Only what pgx says behind the connection string, and of that only a known name.
	said := err.Error()[strings.LastIndex(err.Error(), "`: ")+1:]
	for _, name := range []string{
		"sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "target_session_attrs",
		"channel_binding", "require_auth", "min_protocol_version", "max_protocol_version", "sslnegotiation",
	} {
		if strings.Contains(said, name) {
			return fmt.Sprintf("the parameter %s has a bad value", name)
		}
	}
	return shape
}
