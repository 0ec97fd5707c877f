//go:build e2e

package policies

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/onceguard/onceguard/test/bed"
)

// What is installed by default has no ledger, and so no right to make or delete Jobs.
func TestTheEnginesRightsWithoutALedger(t *testing.T) {
	for _, c := range []struct {
		set      []string
		creating []string // what it may create in other namespaces
	}{
		{nil, nil},
		{[]string{"--set", "engine.ledgers[0].name=default,engine.ledgers[0].secretName=any"}, []string{"events", "jobs"}},
	} {
		out, err := cluster.Run(t.Context(), "", "helm", slices.Concat([]string{
			"template", bed.Release, cluster.Chart, "--namespace", bed.Namespace, "--kube-version", "1.34.0", "--show-only", "templates/engine-rbac.yaml",
		}, c.set)...)
		if err != nil {
			t.Fatal(err)
		}
		var role rbacv1.ClusterRole
		for doc := range strings.SplitSeq(out, "\n---\n") {
			if strings.Contains(doc, "\nkind: ClusterRole\n") {
				if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(role.Rules) == 0 {
			t.Fatalf("no ClusterRole in %s", out)
		}
		var creating []string
		for _, r := range role.Rules {
			if slices.Contains(r.Verbs, "create") || slices.Contains(r.Verbs, "delete") {
				creating = append(creating, r.Resources...)
			}
		}
		if slices.Sort(creating); !slices.Equal(creating, c.creating) {
			t.Errorf("with %v it may create %v, expected %v", c.set, creating, c.creating)
		}
	}
}
