package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/onceguard/onceguard/pkg/disposition"
)

// Each reason and each rule that the record may have is told in words.
func TestReasonsAndRulesHaveAMeaning(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../pkg/disposition/disposition.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons, rules := constants(t, file, "Reason"), constants(t, file, "Rule")
	if len(reasons) < 16 || len(rules) < 9 {
		t.Fatalf("found only %q and %q", reasons, rules)
	}
	for _, r := range reasons {
		if reasonMeaning[disposition.Reason(r)] == "" {
			t.Errorf("reason %q means nothing", r)
		}
	}
	for _, r := range rules {
		if r := disposition.Rule(r); r != disposition.NotAsked && ruleMeaning[r] == "" {
			t.Errorf("rule %q means nothing", r)
		}
	}
}

// constants gives the values of the string constants of a type.
func constants(t *testing.T, file *ast.File, kind string) (values []string) {
	t.Helper()
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		if name, is := spec.Type.(*ast.Ident); !is || name.Name != kind {
			return false
		}
		for _, v := range spec.Values {
			s, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, s)
		}
		return false
	})
	return values
}
