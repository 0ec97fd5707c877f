package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/onceguard/onceguard/"

// layer says which way imports may point: a package may import only packages of a
// strictly lower layer. A package that is not listed fails the test.
var layer = map[string]int{
	// Words that every program shares, and what can be computed from them.
	"pkg/contract":    0,
	"pkg/wire":        1,
	"pkg/window":      1,
	"pkg/claim":       2,
	"pkg/inject":      2,
	"pkg/disposition": 2,
	// Edges: one outside thing each.
	"pkg/certs":     3,
	"pkg/kube":      3,
	"pkg/logs":      3,
	"pkg/pgurl":     3,
	"pkg/supervise": 3,
	"pkg/admin":     4,
	"pkg/audit":     4,
	"pkg/migrate":   4,
	"pkg/ledger":    5,
	"pkg/gaps":      5,
	// Loops and protocols over the edges.
	"pkg/admission": 6,
	"pkg/commit":    6,
	"pkg/guard":     6,
	"pkg/wrapper":   6,
	"pkg/engine":    6,
	"pkg/localapi":  7,
	// Programs.
	"cmd/guard":             8,
	"cmd/guard-exec":        8,
	"cmd/kubectl-onceguard": 8,
	"cmd/webhook":           8,
}

// lastPure is the highest layer that computes only.
const lastPure = 2

// doesIO lists standard packages that a pure layer must not import.
var doesIO = []string{"os", "os/exec", "net", "net/http", "database/sql", "log", "log/slog", "syscall"}

// only narrows what a package may import of this module and of other modules,
// beyond the standard library. Layers alone would allow more.
var only = map[string][]string{
	"pkg/contract":    {},
	"pkg/wire":        {module + "pkg/contract"},
	"pkg/window":      {module + "pkg/contract", "github.com/robfig/cron/v3"},
	"pkg/claim":       {module + "pkg/contract", module + "pkg/window", "github.com/google/uuid"},
	"pkg/disposition": {module + "pkg/contract", module + "pkg/window"},
	// The state machine declares the interfaces it needs; cmd/guard joins them.
	"pkg/guard": {
		module + "pkg/contract", module + "pkg/wire", module + "pkg/window", module + "pkg/claim", module + "pkg/logs",
		"github.com/google/uuid", "go.uber.org/zap", "go.uber.org/zap/zapcore",
	},
}

// source is one package directory without its tests.
type source struct {
	imports []string
	doc     bool
}

// packages parses the module's packages; a directory with a go.mod of its own is
// another module.
func packages(t *testing.T) map[string]source {
	t.Helper()
	root := os.DirFS("../..")
	found := map[string]source{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "dist") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); name != "." && err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		p := found[dir]
		p.doc = p.doc || file.Doc != nil
		p.imports = append(p.imports, importsOf(file)...)
		found[dir] = p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 4 {
		t.Fatalf("found only %d packages: is the test looking at the root of the module?", len(found))
	}
	return found
}

func importsOf(file *ast.File) []string {
	var paths []string
	for _, spec := range file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// forTests reports whether a directory only serves tests, and so has no layer.
func forTests(dir string) bool {
	return strings.HasPrefix(dir, "test/") || strings.HasSuffix(dir, "test")
}

func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

func TestImportsPointDown(t *testing.T) {
	for dir, p := range packages(t) {
		if forTests(dir) {
			continue
		}
		for _, broken := range judge(dir, p.imports) {
			t.Error(broken)
		}
	}
}

// judge gives a sentence for each import of a package that breaks a rule.
func judge(dir string, imports []string) []string {
	rank, ok := layer[dir]
	if !ok {
		return []string{dir + " has no layer: add it to the list in test/arch"}
	}
	var broken []string
	allowed, narrow := only[dir]
	for _, imp := range imports {
		to, ours := strings.CutPrefix(imp, module)
		toRank, known := layer[to]
		switch {
		case ours && forTests(to):
			broken = append(broken, dir+" imports "+to+": test helpers stay out of the programs")
		case ours && !known:
			broken = append(broken, dir+" imports "+to+", which has no layer")
		case ours && toRank >= rank:
			broken = append(broken, dir+" (layer "+strconv.Itoa(rank)+") imports "+to+" (layer "+strconv.Itoa(toRank)+")")
		case rank <= lastPure && slices.Contains(doesIO, imp):
			broken = append(broken, "pure package "+dir+" imports "+imp)
		case narrow && !standard(imp) && !slices.Contains(allowed, imp):
			broken = append(broken, dir+" may not import "+imp)
		}
	}
	return broken
}

// The judge itself: a rule that cannot fail guards nothing.
func TestJudgeFindsBrokenRules(t *testing.T) {
	for name, c := range map[string]struct{ dir, imp string }{
		"upward":            {"pkg/ledger", module + "pkg/guard"},
		"sideways":          {"pkg/commit", module + "pkg/wrapper"},
		"pure with I/O":     {"pkg/claim", "os"},
		"unknown package":   {"pkg/util", "fmt"},
		"unknown import":    {"pkg/ledger", module + "pkg/util"},
		"test helper":       {"pkg/ledger", module + "test/postgres"},
		"guard knows SQL":   {"pkg/guard", module + "pkg/ledger"},
		"foreign in window": {"pkg/window", "k8s.io/api/batch/v1"},
	} {
		if len(judge(c.dir, []string{c.imp})) == 0 {
			t.Errorf("%s: %s importing %s was not noticed", name, c.dir, c.imp)
		}
	}
}

// The wrapper lives in the worker's container and its memory limit: the standard
// library without net/http, and golang.org/x/sys, are all it is made of.
func TestWrapperIsSmall(t *testing.T) {
	found := packages(t)
	if _, ok := found["cmd/guard-exec"]; !ok {
		t.Fatal("cmd/guard-exec was not found")
	}
	seen, queue := map[string]bool{}, []string{"cmd/guard-exec"}
	for len(queue) > 0 {
		dir := queue[0]
		queue = queue[1:]
		if seen[dir] {
			continue
		}
		seen[dir] = true
		for _, imp := range found[dir].imports {
			if to, ours := strings.CutPrefix(imp, module); ours {
				queue = append(queue, to)
				continue
			}
			if imp == "net/http" || !standard(imp) && !strings.HasPrefix(imp, "golang.org/x/sys/") {
				t.Errorf("guard-exec is made of %s, which imports %s", dir, imp)
			}
		}
	}
	t.Logf("guard-exec is made of %v", slices.Sorted(maps.Keys(seen)))
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for dir, p := range packages(t) {
		if !p.doc {
			t.Errorf("%s has no package comment", dir)
		}
	}
}
