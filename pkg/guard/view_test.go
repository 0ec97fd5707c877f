package guard

import "testing"

// While the ledger is asked, "no attempt" is not final: a worker that commits then
// must be told to ask again, not to stop.
func TestPendingIsToldFromFinal(t *testing.T) {
	for phase, want := range map[Phase]bool{
		"": true, Claiming: true, Adopting: true,
		Held: false, Stopping: false, Settling: false, Skipping: false, Done: false, Idle: false, Refused: false, Left: false,
	} {
		if got := (View{Phase: phase}).pending(); got != want {
			t.Errorf("%q: pending %v", phase, got)
		}
	}
}
