// Package inject computes what the webhook changes: which settings a CronJob stamps
// on its Jobs, and how a guarded pod gets its guard. It reads objects as they came,
// answers with the fewest JSON Patch operations, and does no I/O.
//
// Operations are built by hand on the raw object. Types of our API version are used
// to read only: an object is never decoded and encoded again, so fields that our
// version does not know survive.
//
// What may be refused when a CronJob is applied is a [contract.Problem]. A pod is
// never refused for good, because a pod that cannot be created hangs its Job and,
// under Forbid, its CronJob: it is admitted with a guard that tells every wrapped
// container to print the reason and to exit with contract.ExitRefused. The only
// exception is [Impossible].
package inject
