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
//	                           ▲   │ ▲ │
//	              claim: retry │   │ └─┘ claim: takeover, when the lease ran out
//	                           │   ▼     (the dead attempt is recorded lost)
//	                         failed      release
//
// "Lease ended" is a comparison, never a state. completed is final.
//
// The fence is execution_id: random, made by the guard for each acquisition and
// persisted before the claim is sent, so that a lost answer is found again by asking
// the same question (reason adopted). It is given to a window once: an id that lost its
// hold, was released or replaced is answered fence-lost for ever. fencing_token
// (epoch << 40 | n, growing within a window) is for other systems; epoch grows when the
// database finds itself on another server or timeline.
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
// xid8, commits only if its complete succeeded. A swallowed error, a forgotten
// completion, ROLLBACK AND CHAIN or a second transaction of the same attempt end in an
// error, never in half of the work. begin also bounds idling in the transaction to two
// thirds of the lease, so that a frozen process gives its business locks back.
// complete writes the execution row only, so the lease stays free for heartbeats.
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
// Always in the order job, execution, lease. Only claim (and prune) lock a job row;
// a business transaction never does. claim first looks without any lock: a duplicate
// or a poll writes no WAL. An execution row that is locked belongs to a transaction
// that is committing: claim answers wait, it never waits itself (SKIP LOCKED).
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
//	OG003 payload conflict      OG007 (kept for checkpoints)
//	OG004 closed                OG008 claim in another isolation than READ COMMITTED
//	22023 an argument is wrong
//
// # Rights
//
// The functions are SECURITY DEFINER with a fixed search_path; a job's login has no right
// on any table: what the owner's default privileges, or a hand, give to others is taken
// away whenever the migrations are run and at each grant_job. They look at session_user: its name, or a group it belongs to, must have
// been granted a pattern that covers the job (grant_job). Behind a pooler that logs in as
// another user (user= in PgBouncer's [databases]) that other user needs the grant.
package ledger
