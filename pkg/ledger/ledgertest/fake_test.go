package ledgertest_test

import (
	"testing"

	"github.com/onceguard/onceguard/pkg/ledger/ledgertest"
)

func TestFake(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) ledgertest.Subject {
		f := &ledgertest.Fake{}
		return ledgertest.Subject{API: f, People: f, Engine: f, Expire: f.Expire}
	})
}
