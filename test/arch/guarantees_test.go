package arch_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	namedTest    = regexp.MustCompile("`(Test\\w+)`")
)

// tests are the names of all test functions of the repository, those of its other modules
// and of all build tags too.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	root := os.DirFS("../..")
	found := map[string]bool{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "dist" || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		for _, match := range testFunction.FindAllSubmatch(text, -1) {
			found[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Each test that docs/guarantees.md names exists, and no proof is left out there.
func TestGuaranteesNameTheirTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	there, named := tests(t), map[string]bool{}
	for _, match := range namedTest.FindAllSubmatch(text, -1) {
		named[string(match[1])] = true
	}
	if len(named) < 100 {
		t.Fatalf("only %d tests were found in docs/guarantees.md: does the test read it rightly?", len(named))
	}
	for name := range named {
		if !there[name] {
			t.Errorf("docs/guarantees.md names %s, and there is no such test", name)
		}
	}
	for name := range there {
		if strings.HasPrefix(name, "TestProve") && !named[name] {
			t.Errorf("docs/guarantees.md does not name the proof %s", name)
		}
	}
}
