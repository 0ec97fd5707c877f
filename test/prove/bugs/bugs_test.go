// Package bugs_test seeds the ledger, and programs that use it, with bugs that somebody
// could write, one at a time. A short battery of interleavings passes with the product
// as it is and must find each of them.
package bugs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/test/postgres"
	"github.com/onceguard/onceguard/test/prove"
	"github.com/onceguard/onceguard/test/prove/rig"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// The product passes every check; with a bug seeded, the check that the table names
// fails. In the long form every check is tried against every bug.
func TestProveSeededBugs(t *testing.T) {
	w := newWorld(t)
	w.passes(t)
	caught, tried := 0, 0
	useful := map[string]bool{}
	for _, b := range bugs {
		useful[b.by] = true
		t.Run(b.name, func(t *testing.T) {
			tried++
			by := w.catchers(t, b)
			if !slices.Contains(by, b.by) {
				t.Errorf("it was not seen by: %s", b.by)
				return
			}
			caught++
			t.Logf("caught by: %s", strings.Join(by, "; "))
		})
	}
	w.passes(t) // each bug is mended again
	for _, c := range checks {
		if !useful[c.name] {
			t.Errorf("no bug needs: %s", c.name)
		}
	}
	prove.Report(t, "seeded bugs are caught", "%d of %d caught by %d checks, which the product passes", caught, tried, len(checks))
}

// passes demands that the battery finds nothing.
func (w *world) passes(t *testing.T) {
	t.Helper()
	for _, c := range checks {
		if err := w.check(t.Context(), c.run); err != nil {
			t.Fatalf("the product fails: %s: %v", c.name, err)
		}
	}
}

// catchers seeds a bug, gives the names of the checks that see it, and mends it.
func (w *world) catchers(t *testing.T, b bug) (by []string) {
	t.Helper()
	mend, err := b.seed(t.Context(), w)
	defer func() {
		if err := mend(); err != nil {
			t.Fatalf("mending it: %v", err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if c.name != b.by && !prove.Long() {
			continue
		}
		err := w.check(t.Context(), c.run)
		if _, seen := errors.AsType[violation](err); seen {
			by = append(by, c.name)
		} else if err != nil {
			t.Errorf("it only breaks the SQL: %s: %v", c.name, err)
		}
	}
	return by
}

// bug is something that somebody could get wrong.
type bug struct {
	name string
	by   string    // the check that must see it
	in   []edit    // of functions of the ledger
	sql  [2]string // or SQL that makes it, and SQL that mends it
	use  func(*client)
}

// edit replaces text in the definition of one function.
type edit struct{ function, old, instead string }

// seed makes the bug; mend must be called also after an error.
func (b bug) seed(ctx context.Context, w *world) (mend func() error, err error) {
	var sources []string
	w.client = product
	mend = func() error {
		w.client = product
		sql := slices.Clone(sources)
		slices.Reverse(sql) // a function that was edited twice ends as it began
		if b.sql[1] != "" {
			sql = append(sql, b.sql[1])
		}
		return run(context.WithoutCancel(ctx), w.owner, sql...)
	}
	for _, e := range b.in {
		source, err := rig.Break(ctx, w.owner, e.function, e.old, e.instead)
		if err != nil {
			return mend, err
		}
		sources = append(sources, source)
	}
	if b.sql[0] != "" {
		if err := run(ctx, w.owner, b.sql[0]); err != nil {
			return mend, err
		}
	}
	if b.use != nil {
		b.use(&w.client)
	}
	return mend, nil
}

func run(ctx context.Context, c *pgx.Conn, sql ...string) error {
	for _, s := range sql {
		if _, err := c.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}
