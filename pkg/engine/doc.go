// Package engine gives every due window of the guarded CronJobs its answer, and makes Jobs
// for those that are to run later: the loop around [disposition.Decide].
//
// One leader, chosen by a Lease, watches CronJobs and the metadata of Jobs. For each ledger
// it has one worker with a heap of CronJobs by the time of their next look. A look takes up
// to two hundred of them: one statement reads what the ledger knows, each is decided, one
// statement writes what has changed; for most nothing has. Only for windows that nobody has
// run it asks the cluster why, live: the Job, its pods, Events.
//
// Two leaders at once do no harm: what they write is the same or is judged again, and the
// name of a Job is made from its window.
package engine
