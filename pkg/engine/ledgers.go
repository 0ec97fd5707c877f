package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/gaps"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/pgurl"
)

const (
	application = "onceguard-engine"
	// connections to one ledger: one worker needs one, and one more while it breaks.
	connections = 2
	// idle is how long a connection rests before it is closed.
	idle = 2 * time.Minute
	// longestURL bounds the file that a URL is read from.
	longestURL = 64 << 10
)

// ErrUnregistered says that the engine was not given the URL of a ledger.
var ErrUnregistered = errors.New("the engine does not know this ledger")

// Ledgers is a directory with a directory for each ledger, named like it, that holds the
// file "url" with a connection URL: a Secret that is mounted. The file is read for every
// connection, so a Secret that is rotated is seen.
type Ledgers string

// url reads the URL of a ledger; errors do not repeat it.
func (l Ledgers) url(name string) (string, error) {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return "", fmt.Errorf("%w: %q is not the name of a ledger", ErrUnregistered, name)
	}
	file := filepath.Join(string(l), name, contract.LedgerKey)
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || l == "":
		return "", fmt.Errorf("%w: %q has no file %s: name it with its Secret in the chart's value engine.ledgers", ErrUnregistered, name, file)
	case err != nil:
		return "", fmt.Errorf("%w: %q: %w", ErrUnregistered, name, err)
	case len(text) > longestURL || strings.TrimSpace(string(text)) == "":
		return "", fmt.Errorf("%w: %q: the file %s must hold one connection URL, it has %d bytes", ErrUnregistered, name, file, len(text))
	}
	return string(text), nil
}

// book is an open ledger; it counts what is sent.
type book struct {
	pool  *pgxpool.Pool
	count func()
}

var _ gaps.DB = (*book)(nil)

// open connects to a ledger and checks that its schema fits this program.
func (l Ledgers) open(ctx context.Context, name string, count func(), log *zap.Logger) (*book, error) {
	text, err := l.url(name)
	if err != nil {
		return nil, err
	}
	// The same check, with the same words, as the guard's.
	check := ledger.New(func(context.Context) (string, error) { return text, nil }, log,
		ledger.Application(application), ledger.ReadFrom(filepath.Join(string(l), name, contract.LedgerKey)))
	defer check.Close(ctx)
	count()
	if err := check.CheckSchema(ctx); err != nil {
		return nil, err
	}
	first, err := pgurl.Parse(text, application)
	if err != nil {
		return nil, err
	}
	// ParseConfig must make the pool's settings; everything about the connection comes from
	// pgurl.
	config, err := pgxpool.ParseConfig("postgres://localhost/")
	if err != nil {
		return nil, err
	}
	config.ConnConfig, config.MaxConns, config.MinConns, config.MaxConnIdleTime = first, connections, 0, idle
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		text, err := l.url(name)
		if err != nil {
			return err
		}
		fresh, err := pgurl.Parse(text, application)
		if err != nil {
			return err
		}
		*c = *fresh
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, pgurl.Reason(err)
	}
	return &book{pool: pool, count: count}, nil
}

func (b *book) close() { b.pool.Close() }

// Query is a statement of package gaps.
func (b *book) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b.count()
	return b.pool.Query(ctx, sql, args...)
}
