package engine

import "sync/atomic"

// Counters say what the engine has cost so far. They only grow.
type Counters struct {
	Looks      atomic.Int64 // CronJobs looked at
	Statements atomic.Int64 // SQL statements sent to ledgers
	Judged     atomic.Int64 // CronJobs written to ledgers
	Reads      atomic.Int64 // GET and LIST requests for evidence, and before a Job is made
	Writes     atomic.Int64 // Jobs and Events sent to the API server
	Made       atomic.Int64 // Jobs made
}
