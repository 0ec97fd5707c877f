// Package ledger speaks to the ledger: the schema onceguard in a Postgres database.
//
// # Who is authoritative
//
// The database, and in it the row of onceguard.job_execution with the primary key
// (job_name, window_start). The SQL functions of package migrate are the primitive; this
// package only calls them, and a driver in any language may do the same. The rule of
// claim stands as a pure function in package claim (Decide); tests hold both together.
// Only the database's clock decides who owns a window. The guard's clock, monotonic,
// decides only when its own worker must be gone.
//
// # States of a window
//
//	               claim                    complete, COMMIT
//	(no row) ───────────────▶ running ───────────────────────▶ completed
//	    │                      ▲   │ ▲ │                           │
//	    │         claim: retry │   │ └─┘ claim: takeover, when     │ rerun: a new
//	    │                      │   ▼     the lease ran out         │ generation
//	    │                     failed ◀─────────────────────────────┘
//	    │                      │   ▲ release
//	    │ claim, release,      │   │ rerun
//	    │ cancel               ▼   │
//	    └───────────▶ skipped, exhausted, held
//	                           claim with reopen_closed_before: running again (not held)
//
// skipped (late, overlap, superseded, cancelled, dst) and exhausted are closed: they run again
// only when a person asks for it: by a claim with reopen_closed_before, the instant at
// which the person asked (what was closed later stands), or by rerun. held waits for a
// person's decision (rerun or cancel). A claim closes the window that it is told not to
// run; asked again it answers from the record and writes nothing.
// "Lease ended" is a comparison, never a state. completed is final but for a rerun.
//
// The fence is execution_id: random, made by the guard for each acquisition and
// persisted before the claim is sent, so that a lost answer is found again by asking
// the same question (reason adopted). It is given to a window once: an id that lost its
// hold, was released or replaced is answered fence-lost for ever. fencing_token
// (epoch << 40 | n, growing within a window) is for other systems; epoch grows when the
// database finds itself on another server or timeline.
//
// # Names and terms
//
// A job_name may carry "#<index>" (of an Indexed Job) and then "@<Job UID>" (a separate
// manual run): windows of their own. Lock, watermark and grants are those of the base,
// without both. The lane, in which windows overlap, is the name without "@...": a separate
// run overlaps with the scheduled windows, the indexes of a window do not with each other,
// nor an index with the job's windows from before it was Indexed. Separate runs stand
// outside of serial order, and they and other windows never close or stop each other:
// under skip and replace too one waits for the other.
//
// Overlap is judged over all running windows of the lane, whoever claimed them and under
// whatever terms. Whoever runs beside a window whose lease has ended fences it in the same
// transaction: it can then never commit, although nobody has taken it over. replace asks
// the older window to stop (its heartbeats answer cancel) and waits until it has released,
// so the two are never at once; if it commits first it is completed. It is asked in the
// middle of a transaction too, which may be a piece. A window that was asked to stop and
// ended is superseded, and the newer one, for which it was stopped, is then not closed as
// late. It is failed, and may be tried again, when a person had asked for it (reran or
// reopened it) or when the newer window was closed meanwhile: the mark to stop ends with
// the window that set it. It does not end with that window's Job: when this is deleted
// before it ran, neither window runs, and rerun brings back the one that is meant.
//
// serial waits while an earlier window is running, failed or held, so a window that fails
// for ever must be closed: by max_attempts, by cancel. Those before since count only while
// they run. It closes a window as superseded only if that never ran and a later one runs or
// is completed; one that was tried began in its turn and runs again, but no two windows of
// a name ever run at once: it waits while a later one runs (reason overlap), and fences it
// when it is dead. previous is not asked of an index that has no earlier window: it is new
// to the job. Nor of a window that a gap says is missed or skipped, unless another CronJob's
// gap says that it is late: it never comes, so the last one before it that is late, and has no
// row, is waited for instead. What is late of a CronJob that is gone, or that no engine has
// written for three hours, is not waited for; nor is a plan that no CronJob would run. A plan
// of a CronJob that is there is waited for however long its engine is away: cancel_backfill
// ends that. serial's look at the earlier windows reads all of the job's since the beginning
// of order, or since history was pruned.
//
// A window with a row in job_plan is wanted, as one that a person asks for: neither its age
// nor what happens around it closes it, and a newer one may stop it but not take its place.
// A later window waits for it in serial order until it is closed, unless it lies before since
// or the watermark. A plan is one for all indexes: each waits for the window of its own name,
// as long as the plan is there. Nothing here deletes a plan, for complete may not lock
// more than its window's row: one whose window is closed says nothing, and the windows engine
// takes it away. So a plan to reprocess a closed window is waited for only once that was
// opened again. A gap, whatever it says, never stops a window from running.
//
// repeats names the earlier window whose civil time this one has again. It closes what never
// ran as skipped, reason dst; superseded_by is then the earlier window.
//
// Attempts count as failures when they failed, crashed, were lost or ended without the
// commit that was asked for; those that were stopped or never started do not. A rerun or a
// reopening starts the count anew. The claim that finds max_attempts reached closes the
// window, so until somebody asks once more it is failed. start_deadline closes what never
// ran: attempts that were not-started are no run.
//
// # The business transaction
//
//	BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
//	SELECT onceguard.begin(job_name, window_start, execution_id)
//	... the worker's statements ...
//	SELECT onceguard.complete(job_name, window_start, execution_id, ...)
//	COMMIT
//
// begin arms a deferred constraint trigger (the barrier): this very transaction, by its
// xid8, commits only if its complete or checkpoint succeeded. A swallowed error, a forgotten
// completion, ROLLBACK AND CHAIN or a second transaction of the same attempt end in an
// error, never in half of the work. begin also bounds idling in the transaction to two
// thirds of the lease, so that a frozen process gives its business locks back.
// complete writes the execution row only, so the lease stays free for heartbeats. It
// keeps the payload digest of the claim; another one is refused.
//
// A long job commits in pieces: checkpoint takes the place of complete, with what the next
// piece or attempt needs to go on, and the number of the checkpoint that it follows. Each
// number commits at most once. It changes the execution row too, so a takeover waits until
// a piece in flight is decided, and a zombie's piece fails.
//
// What it cannot see: statements outside such a transaction; a begin inside a savepoint
// that was rolled back, in a transaction that then commits without complete; dblink and
// foreign tables. PREPARE TRANSACTION after complete holds the window (claims answer
// committing) until somebody ends it. SET CONSTRAINTS ALL IMMEDIATE before complete
// fails. After an error a driver must stop: COMMIT AND CHAIN leaves the session in
// autocommit. In REPEATABLE READ or SERIALIZABLE a complete after a takeover is
// SQLSTATE 40001, and OG001 when it is tried again: right, but harder to read.
//
// # Locks
//
// Always in the order job, execution, lease. Only claim, prune, rerun and cancel lock a
// job row; a business transaction never does. Rows of other windows are locked with SKIP
// LOCKED, never waited for. claim first looks without any lock: a duplicate
// or a poll writes no WAL. An execution row that is locked belongs to a transaction
// that is committing: claim answers wait, it never waits itself (SKIP LOCKED). A claim that
// takes locks may not idle in its transaction for more than 5 s, and begin's for two thirds
// of the lease; begin also makes Postgres notice within half a minute that a client's host
// vanished (TCP keepalives).
// Takeover is judged after execution and lease are locked, so that a heartbeat that
// came between is seen. Claim, heartbeat, release, resolve and a second begin are
// refused (OG006) inside an armed transaction.
//
// # Timing
//
//	trustedUntil = sent + lease − margin
//
// sent is the local monotonic time before the claim or heartbeat was sent, so a slow
// answer cannot stretch it. The database counts the lease from later, so a worker that
// is gone by trustedUntil is gone before anybody may take over. A heartbeat renews a
// lease that has run out too, as long as nobody took over: the id is still the fence.
// claim, begin, complete and resolve lift synchronous_commit off or local to on for their
// transaction; heartbeats use the session's. After a failover that lost one, the
// next attempt may start up to one heartbeat too early; its predecessor is fenced then.
//
// # Failures
//
//	the answer to claim is lost      ask again with the same execution_id
//	the answer to heartbeat is lost  ask again, until trustedUntil
//	the answer to release is lost    ask again: the same outcome
//	the answer to COMMIT is lost     Resolve. It locks the row (locked: pending) and, unless
//	                                 the window is completed by this id, takes the id away;
//	                                 only that makes "not committed" true. It answers
//	                                 "committed" only after a synchronous write of its own.
//	                                 Of a piece it says "not committed": then the last
//	                                 checkpoint, final for that id, tells what happened.
//	COMMIT with a WARNING            unknown, as above: a synchronous standby may lack it
//	a context ends during COMMIT     the socket is abandoned, no cancel request is sent
//	failover that lost the row       claim: first, with a higher epoch; the old attempt gets
//	                                 lost and OG001. Nothing but claim ever inserts.
//	restart, too many connections,   ErrUnavailable: wait, with jitter
//	lock held too long, standby
//	bad URL, login, certificate      ErrConfig: wait too, somebody may mend the Secret
//
// # SQLSTATEs
//
//	OG001 fence lost            OG005 not granted to session_user
//	OG002 already completed     OG006 not begun in this transaction, or begun and not completed
//	OG003 payload conflict      OG007 another checkpoint is the last
//	OG004 closed                OG008 claim in a transaction that is not READ COMMITTED READ WRITE
//	22023 an argument is wrong  55000, P0002 (rerun, cancel, prune) not in this state, not found
//
// # Rights
//
// The functions are SECURITY DEFINER with a fixed search_path; a job's login has no right
// on any table: what the owner's default privileges, or a hand, give to others is taken
// away whenever the migrations are run and at each grant_job. They look at session_user:
// its name, or a group it belongs to, must have been granted a pattern that covers the job
// (grant_job). Behind a pooler that logs in as
// another user (user= in PgBouncer's [databases]) that other user needs the grant.
package ledger
