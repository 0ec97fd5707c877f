package hostile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/test/prove"
)

// Each protection is taken away in turn. What it alone holds must then be broken by the
// attacks of the table: else the table could not see that it is missing.
func TestProveHostileSQLHasPower(t *testing.T) {
	transactions := func(k attack) bool { return k.without || k.after != nil || k.code == commit.Forbidden }
	foreign := func(k attack) bool { return strings.Contains(strings.Join(k.sql, ";"), "{other}") }
	broken := map[string]int{}
	for _, p := range []struct {
		name   string
		remove func(*world)
		which  func(attack) bool
		by     way
	}{
		{"the commit barrier", func(w *world) { w.exec("DROP TRIGGER barrier ON onceguard.armed") }, transactions, ways[0]},
		{"begin() in the same transaction", func(w *world) { w.edit("check_armed", "IF NOT EXISTS (", "IF false AND NOT EXISTS (") }, transactions, ways[0]},
		{"the check of grants", func(w *world) { w.edit("check_call", "IF session_user <> current_user AND", "IF false AND") }, foreign, ways[1]},
		// A pipeline is what the endpoint sends, without its look at the words and tags.
		{"the endpoint's look at commands", func(*world) {}, func(k attack) bool { return k.code == commit.Forbidden }, ways[1]},
	} {
		t.Run(p.name, func(t *testing.T) {
			w := newWorld(t)
			p.remove(w)
			baseline := w.others()
			try := func(n int, k attack) {
				got, _ := w.own(n, k, p.by)
				now := w.others()
				// An armed row stays where the barrier is missing; that by itself is no harm.
				if got == escaped || got == half || strings.Contains(strings.Join(k.sql, ";"), "{other}") && now != baseline {
					broken[p.name]++
				}
				baseline = now
			}
			// Nothing here is left to chance: one attack succeeds or not by what it says. More
			// rounds are for one whose session a busy machine has hindered.
			for round := 0; round < 5 && broken[p.name] == 0; round++ {
				for n, k := range attacks {
					if p.which(k) {
						try(round*len(attacks)+n, k)
					}
				}
			}
			if broken[p.name] == 0 {
				t.Error("nothing was broken without it: the table is blind")
			}
		})
	}
	var counts []string
	for name, n := range broken {
		counts = append(counts, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(counts)
	prove.Report(t, "hostile SQL does harm where a protection is missing", "attacks that succeed without %s", strings.Join(counts, ", without "))
}
