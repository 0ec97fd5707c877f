package claim_test

import (
	"testing"

	"github.com/onceguard/onceguard/pkg/claim"
)

// The rows of the truth table in Decide's comment.
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name    string
		seen    claim.Seen
		verdict claim.Verdict
		reason  claim.Reason
	}{
		{"nobody ever", claim.Seen{}, claim.Run, claim.First},
		{"no row, but closed", claim.Seen{Closed: true}, claim.Skip, claim.Closed},
		{"failed and closed", claim.Seen{Closed: true, Status: claim.Failed}, claim.Skip, claim.Closed},
		{"done", claim.Seen{Status: claim.Completed}, claim.Skip, claim.AlreadyCompleted},
		{"done by the one who asks", claim.Seen{Status: claim.Completed, Used: true, Leased: true}, claim.Skip, claim.AlreadyCompleted},
		{"our own claim", claim.Seen{Status: claim.Running, Current: true, Leased: true, Alive: true}, claim.Run, claim.Adopted},
		{"our own, lease ended", claim.Seen{Status: claim.Running, Current: true, Leased: true}, claim.Run, claim.Adopted},
		{"our own, being taken over", claim.Seen{Status: claim.Running, Current: true, Alive: true}, claim.Wait, claim.FenceLost},
		{"lost to a live holder", claim.Seen{Status: claim.Running, Used: true, Alive: true}, claim.Wait, claim.FenceLost},
		{"lost to a dead holder", claim.Seen{Status: claim.Running, Used: true}, claim.Wait, claim.FenceLost},
		{"released by us", claim.Seen{Status: claim.Failed, Used: true}, claim.Wait, claim.FenceLost},
		{"held", claim.Seen{Status: claim.Running, Alive: true}, claim.Wait, claim.BusyHeld},
		{"dead", claim.Seen{Status: claim.Running}, claim.Run, claim.Takeover},
		{"dead, committing", claim.Seen{Status: claim.Running, Locked: true}, claim.Wait, claim.Committing},
		{"failed", claim.Seen{Status: claim.Failed}, claim.Run, claim.Retry},
		{"failed, row locked", claim.Seen{Status: claim.Failed, Locked: true}, claim.Wait, claim.Committing},
	} {
		if v, r := claim.Decide(c.seen); v != c.verdict || r != c.reason {
			t.Errorf("%s: %s, %s; want %s, %s", c.name, v, r, c.verdict, c.reason)
		}
	}
}

// What must never be true, over every combination.
func TestDecideNever(t *testing.T) {
	bits := []bool{false, true}
	for _, status := range []claim.Status{"", claim.Running, claim.Completed, claim.Failed} {
		for _, closed := range bits {
			for _, current := range bits {
				for _, leased := range bits {
					for _, used := range bits {
						for _, alive := range bits {
							for _, locked := range bits {
								s := claim.Seen{Closed: closed, Status: status, Current: current, Leased: leased, Used: used, Alive: alive, Locked: locked}
								v, r := claim.Decide(s)
								taken := v == claim.Run && r != claim.Adopted
								if taken && (closed || locked || used || status == claim.Completed || (status == claim.Running && (alive || current))) {
									t.Errorf("%+v was given the window: %s", s, r)
								}
								if v == claim.Run && (closed || status == claim.Completed) {
									t.Errorf("%+v runs", s)
								}
							}
						}
					}
				}
			}
		}
	}
}
