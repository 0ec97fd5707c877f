package claim

import (
	"encoding/json"
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
	Completion             // of a completed window
	Checkpoint  Checkpoint // the last one committed; its Seq is 0 when there is none
	CompletedAt time.Time  // zero unless completed
}

// Checkpoint is how far a long job has come: committed together with a piece of its
// work, and given to the next attempt. Each Seq of a window commits at most once.
type Checkpoint struct {
	Seq           int             // from 1
	Data          json.RawMessage // the worker's
	RequestDigest string          // digest of the request that committed it
}
