package claim

import (
	"time"

	"github.com/google/uuid"
)

// Stored is what the ledger keeps of a window, for replaying its answer. Only a
// Completed one is final; anything else may have changed when it is read.
type Stored struct {
	Status      Status // empty: the window was never claimed
	ExecutionID uuid.UUID
	Attempt     int
	Generation  int
	Completion            // of a completed window
	CompletedAt time.Time // zero unless completed
}
