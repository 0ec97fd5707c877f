// Package window knows logical windows: their identity, how a Kubernetes Job says
// which window it means, and the instants of a schedule. It computes only; the
// clock is a parameter.
package window

import (
	"fmt"
	"time"
)

// Window is one logical period of a job: the unit of work that must happen once.
type Window struct {
	// JobName is "<namespace>/<name>", see contract.Settings.JobName; "#<index>" follows for
	// a piece of an Indexed Job, then "@<Job UID>" for a manual run of its own.
	JobName string
	Start   time.Time // the nominal schedule instant, UTC
}

// String gives the window as people read it: "shop/order-sync 2026-11-30T13:18:00Z".
func (w Window) String() string {
	return fmt.Sprintf("%s %s", w.JobName, w.Start.UTC().Format(time.RFC3339))
}
