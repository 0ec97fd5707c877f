package guard

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var verb = regexp.MustCompile(`%\[\d\][a-z]`)

// Both languages must take the same arguments, or one of them prints %!d(string=…).
func TestEachSentenceStandsInBothLanguages(t *testing.T) {
	for k, s := range texts {
		en, zh := verb.FindAllString(s.en, -1), verb.FindAllString(s.zh, -1)
		slices.Sort(en)
		slices.Sort(zh)
		if s.en == "" || s.zh == "" || !slices.Equal(en, zh) {
			t.Errorf("%s: en takes %v, zh takes %v", k, en, zh)
		}
		if strings.Contains(s.en, "\n") {
			t.Errorf("%s: more than one line", k)
		}
	}
}
