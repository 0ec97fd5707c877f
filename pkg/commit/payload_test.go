package commit

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/onceguard/onceguard/pkg/contract"
)

// The payload that a CronJob's annotation names, a worker may name again: as text, or as
// JSON whose canonical form is that text.
func TestAPayloadIsNamedLikeTheAnnotation(t *testing.T) {
	for _, c := range []struct {
		annotation, payload string
		same                bool
	}{
		{"acme", `"acme"`, true},
		{"acme", `"other"`, false},
		{`{"tenant":"acme"}`, `{ "tenant": "acme" }`, true},
		{`{"tenant":"acme"}`, `"{\"tenant\":\"acme\"}"`, true},
		{`{"tenant": "acme"}`, `{"tenant":"acme"}`, false}, // not canonical
		{"7", "7", true},
		{"ä<&>", `"ä<&>"`, true},
	} {
		got := Closing{Payload: json.RawMessage(c.payload)}.PayloadDigest()
		if same := got == contract.PayloadDigest(c.annotation); same != c.same {
			t.Errorf("annotation %s and payload %s: the same %v", c.annotation, c.payload, same)
		}
	}
}

// A window that was claimed for a payload is completed with it, or without a word of it.
func TestThePayloadOfTheClaim(t *testing.T) {
	for payload, same := range map[string]bool{`"acme"`: true, `"other"`: false, `null`: true} {
		b := newBench(t)
		b.exec(fmt.Sprintf(`UPDATE onceguard.job_execution SET payload_digest = '%s'`, contract.PayloadDigest("acme")))
		a, err := b.post(`{"payload":` + payload + `}`)
		switch {
		case !same:
			b.wants(err, OtherPayload)
		case err != nil || !a.Completed:
			t.Errorf("payload %s: %+v %v", payload, a, err)
		default:
			if got := b.text(`SELECT payload_digest FROM onceguard.job_execution`); got != contract.PayloadDigest("acme") {
				t.Errorf("payload %s: the window's is %s", payload, got)
			}
			// Who says no payload has no other one.
			_, err := b.post(`{"processed":7}`)
			b.wants(err, OtherRequest)
		}
	}
}
