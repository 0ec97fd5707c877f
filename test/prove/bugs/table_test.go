package bugs_test

// soon is an edit for a bug that waits for a lock: it is seen as well when the wait is
// given up earlier.
func soon(function string) edit {
	return edit{function, "lock_timeout TO '2s'", "lock_timeout TO '200ms'"}
}

// bugs are the ways to get the protocol wrong.
var bugs = []bug{
	// The fence.
	{name: "complete does not look at the execution_id", by: "a zombie's commit is refused", in: []edit{
		{"complete", "AND t.execution_id = complete.execution_id AND t.status = 'running'", "AND t.status = 'running'"},
	}},
	{name: "no fence at all", by: "a zombie's commit is refused after its heir's", in: []edit{
		{"complete", "AND t.execution_id = complete.execution_id AND t.status = 'running'", ""},
		{"barrier", "AND t.execution_id = NEW.execution_id", ""},
	}},
	{name: "complete does not look at the status", by: "an attempt commits once", in: []edit{
		{"complete", "AND t.execution_id = complete.execution_id AND t.status = 'running'", "AND t.execution_id = complete.execution_id"},
	}},
	{name: "begin does not look at the execution_id", by: "a zombie cannot begin", in: []edit{
		{"begin", "AND t.status = 'running' AND t.execution_id = begin.execution_id", "AND t.status = 'running'"},
	}},
	{name: "a takeover keeps the old id on the window", by: "a zombie's commit is refused", in: []edit{
		{"claim", "SET status = 'running', execution_id = claim.execution_id,", "SET status = 'running', execution_id = coalesce(t.execution_id, claim.execution_id),"},
	}},
	{name: "a takeover keeps the old id on the lease", by: "a takeover gives the lease to the heir", in: []edit{
		{"claim", "SET execution_id = excluded.execution_id, expires_at", "SET expires_at"},
	}},
	{name: "an id is accepted again", by: "an id is given once", in: []edit{
		{"was_used", "RETURN EXISTS (", "RETURN false AND EXISTS ("},
	}},
	{name: "tokens do not grow", by: "tokens grow", in: []edit{
		{"claim", "onceguard.next_token(e.fencing_token)", "onceguard.next_token(NULL)"},
	}},

	// The barrier.
	{name: "the barrier is missing", by: "a forgotten complete does not commit", sql: [2]string{
		"ALTER TABLE onceguard.armed DISABLE TRIGGER barrier", "ALTER TABLE onceguard.armed ENABLE ALWAYS TRIGGER barrier",
	}},
	{name: "the barrier is not enabled always", by: "a replica session does not pass the barrier", sql: [2]string{
		"ALTER TABLE onceguard.armed ENABLE TRIGGER barrier", "ALTER TABLE onceguard.armed ENABLE ALWAYS TRIGGER barrier",
	}},
	{name: "the barrier looks at the row's state", by: "a second transaction without complete does not commit", in: []edit{
		{"barrier", "t.done_xid = pg_current_xact_id()", "t.status = 'completed'"},
	}},
	{name: "the barrier trusts whoever began", by: "a swallowed refusal does not commit", in: []edit{
		{"barrier", "AND t.execution_id = NEW.execution_id AND t.done_xid = pg_current_xact_id()", "AND t.status = 'running'"},
	}},
	{name: "complete does not need begin", by: "complete needs begin in its own transaction", in: []edit{
		{"check_armed", "IF NOT EXISTS (", "IF false AND NOT EXISTS ("},
	}},
	{name: "an armed transaction may renew its lease", by: "an armed transaction takes no lease", in: []edit{
		{"check_call", "IF EXISTS (SELECT FROM onceguard.armed", "IF false AND EXISTS (SELECT FROM onceguard.armed"},
	}},
	{name: "begin does not bound idling", by: "a transaction may not idle beyond its lease", in: []edit{
		{"begin", "IF idle IS NOT NULL THEN", "IF false THEN"},
	}},

	// The lease.
	{name: "a living lease is taken", by: "a living lease is not taken", in: []edit{
		{"claim", "l.expires_at >= clock_timestamp()", "false"},
	}},
	{name: "the lease is judged by the client's clock", by: "a lease is judged by the database's clock", in: []edit{
		{"claim", "l.expires_at >= clock_timestamp()", "l.expires_at >= coalesce((origin ->> 'now')::timestamptz, clock_timestamp())"},
	}},
	{name: "the lease is judged by the transaction's start", by: "a lease is judged by the database's clock", in: []edit{
		{"claim", "l.expires_at >= clock_timestamp()", "l.expires_at >= now()"},
	}},
	{name: "a takeover is judged before the locks", by: "a takeover is judged under the locks", in: []edit{
		{"claim", "l := NULL;\n        IF e.status = 'running' THEN", "IF false THEN"},
	}},
	{name: "a heartbeat under way is no sign of life", by: "a takeover waits out a heartbeat", in: []edit{
		soon("claim"),
		{"claim", "verdict := 'wait'; reason := 'busy'; -- its heartbeat is being written\n                EXIT;", "NULL;"},
	}},
	{name: "a heartbeat inserts", by: "a heartbeat never inserts", in: []edit{
		{"heartbeat", "RETURN CASE WHEN NOT FOUND", `IF NOT FOUND THEN
			INSERT INTO onceguard.job_lease (job_name, window_start, execution_id, expires_at, term)
			VALUES (heartbeat.job_name, heartbeat.window_start, heartbeat.execution_id, clock_timestamp() + heartbeat.lease, heartbeat.lease);
			RETURN 'ok';
		END IF;
		RETURN CASE WHEN NOT FOUND`},
	}},
	{name: "anybody renews a lease", by: "a takeover gives the lease to the heir", in: []edit{
		{"heartbeat", "AND t.execution_id = heartbeat.execution_id", ""},
	}},
	{name: "a release ends a foreign attempt", by: "a zombie's release ends nothing", in: []edit{
		{"release", "AND t.execution_id = release.execution_id\n    FOR NO KEY UPDATE", "FOR NO KEY UPDATE"},
	}},
	{name: "a release re-opens a completed window", by: "a completed window is done", in: []edit{
		{"release", "IF e.status = 'running' THEN", "IF true THEN UPDATE onceguard.job_execution t SET completed_at = NULL, status = 'failed', execution_id = NULL WHERE t.job_name = release.job_name AND t.window_start = release.window_start;"},
	}},
	{name: "a completed window is taken", by: "a completed window is done", in: []edit{
		{"claim", "ELSIF e.status = 'completed' THEN", "ELSIF false THEN"},
	}},

	// Locks.
	{name: "a claim waits for a row that is committing", by: "a committing row is not waited for", in: []edit{
		soon("claim"),
		{"claim", "FOR NO KEY UPDATE SKIP LOCKED;\n            locked := FOUND", "FOR NO KEY UPDATE;\n            locked := FOUND"},
	}},
	{name: "INSERT ON CONFLICT waits for a row that is committing", by: "a committing row is not waited for", in: []edit{
		soon("claim"),
		{"claim", "IF closed IS NULL THEN", `INSERT INTO onceguard.job_execution (job_name, window_start, status, attempt, fencing_token)
			SELECT claim.job_name, claim.window_start, 'failed', 1, 0 WHERE e.status IS NOT NULL ON CONFLICT DO NOTHING;
		IF closed IS NULL THEN`},
	}},
	{name: "the watermark is not read again", by: "a claim sees the watermark under its lock", in: []edit{
		{"claim", "SELECT t.closed_before INTO closed FROM onceguard.job t WHERE t.name = base FOR NO KEY UPDATE;", "PERFORM FROM onceguard.job t WHERE t.name = base FOR NO KEY UPDATE;"},
	}},
	{name: "a claim works with an old snapshot", by: "a claim reads the newest rows", in: []edit{
		{"claim", "current_setting('transaction_isolation') <> 'read committed'", "current_setting('transaction_isolation') = 'serializable'"},
	}},

	// Unknown commits.
	{name: "resolve only reads", by: "not committed stays so", in: []edit{
		{"resolve", "SET execution_id = resolve.new_execution_id, updated_at = clock_timestamp()", "SET updated_at = clock_timestamp()"},
	}},
	{name: "resolve leaves the lease to the old id", by: "not committed stays so", in: []edit{
		{"resolve", "UPDATE onceguard.job_lease t SET execution_id = resolve.new_execution_id", "UPDATE onceguard.job_lease t SET execution_id = resolve.execution_id"},
	}},
	{name: "resolve does not see a commit under way", by: "a committing row is not waited for", in: []edit{
		soon("resolve"),
		{"resolve", "FOR NO KEY UPDATE SKIP LOCKED", ""},
	}},
	{name: "resolve answers without a write", by: "committed is said by a durable write", in: []edit{
		{"resolve", "FOR NO KEY UPDATE SKIP LOCKED", ""},
		{"resolve", "UPDATE onceguard.job_execution t SET updated_at = clock_timestamp()\n        WHERE", "PERFORM FROM onceguard.job_execution t WHERE"},
	}},
	{name: "resolve answers before its write is safe", by: "committed is said by a durable write", in: []edit{
		{"resolve", "PERFORM onceguard.be_durable();", ""},
	}},
	{name: "a commit may be lost by a crash", by: "a commit is durable", in: []edit{
		{"check_armed", "PERFORM onceguard.be_durable();", ""},
	}},
	{name: "a client sends COMMIT again", by: "a lost COMMIT is made again", use: func(c *client) { c.commit = blindCommit }},
	{name: "a client takes a lost answer for a failure", by: "a lost answer to COMMIT is found out", use: func(c *client) { c.commit = giveUp }},
	{name: "a client reads the row to know", by: "what is called not committed never is", use: func(c *client) { c.outcome = readOutcome }},

	// Checkpoints.
	{name: "a checkpoint does not compare", by: "each checkpoint commits once", in: []edit{
		{"checkpoint", "IF coalesce(last, 0) <> checkpoint.expected_seq THEN", "IF false THEN"},
	}},
	{name: "a checkpoint does not look at the execution_id", by: "a zombie's checkpoint is refused", in: []edit{
		{"checkpoint", "AND t.execution_id = checkpoint.execution_id AND t.status = 'running'", "AND t.status = 'running'"},
	}},
	{name: "a checkpoint only reads the fence", by: "a takeover waits out a checkpoint", in: []edit{
		{"checkpoint", "UPDATE onceguard.job_execution t SET done_xid = pg_current_xact_id(), updated_at = clock_timestamp()\n    WHERE", "PERFORM FROM onceguard.job_execution t WHERE"},
		{"barrier", "AND t.done_xid = pg_current_xact_id()", `AND (t.done_xid = pg_current_xact_id() OR EXISTS (
			SELECT FROM onceguard.job_checkpoint c WHERE c.job_name = NEW.job_name AND c.window_start = NEW.window_start AND c.xid = pg_current_xact_id()))`},
	}},

	// Other windows of the job.
	{name: "a dead window that is overlapped keeps its fence", by: "whoever overlaps a dead window fences it", in: []edit{
		{"claim", "IF fence THEN", "IF false THEN"},
	}},
	{name: "overlap passes a window that is committing", by: "a committing window is not overlapped", in: []edit{
		soon("claim"),
		{"judge_terms", "committing := true;\n                alive := true;", "alive := false;"},
	}},
	{name: "overlap is judged without the job's lock", by: "overlap is judged by one at a time", in: []edit{
		{"claim", "WHERE t.name = base FOR NO KEY UPDATE;", "WHERE t.name = base;"},
	}},
	{name: "a skipped overlap is not recorded", by: "a skipped overlap is closed", in: []edit{
		{"judge_terms", "verdict := 'skip'; reason := 'overlap'; close := 'skipped';", "verdict := 'skip'; reason := 'overlap';"},
	}},
	{name: "a replacement runs at once", by: "a replacement waits until the older has stopped", in: []edit{
		{"judge_terms", "verdict := 'wait'; reason := 'replacing';", "fence := true; stop := false; RETURN;"},
	}},
	{name: "a replacement does not ask the older to stop", by: "a replacement waits until the older has stopped", in: []edit{
		{"judge_terms", "stop := stop AND judge_terms.overlap = 'replace'", "stop := false AND judge_terms.overlap = 'replace'"},
	}},
	{name: "a replaced window is tried again", by: "a replacement waits until the older has stopped", in: []edit{
		{"release", "CASE WHEN superseded THEN 'skipped' ELSE 'failed' END", "'failed'"},
	}},
	{name: "an older window replaces a newer one", by: "an older window does not replace", in: []edit{
		{"judge_terms", "WHEN judge_terms.overlap = 'replace' AND NOT o.older THEN 3 ELSE 2 END;", "ELSE 2 END; newer := false;"},
	}},
	{name: "serial passes a failed window", by: "serial waits for what is not closed", in: []edit{
		{"judge_terms", "t.status IN ('running', 'failed', 'held')", "t.status IN ('running')"},
	}},
	{name: "serial passes a window without a row", by: "serial waits for a window that nobody knows", in: []edit{
		{"judge_terms", "IF judge_terms.previous >=", "IF false AND judge_terms.previous >="},
	}},
	{name: "serial goes back", by: "serial does not go back", in: []edit{
		{"judge_terms", "IF e.status IS NULL AND NOT wanted THEN", "IF false THEN"},
	}},

	{name: "serial closes what was tried", by: "serial runs again what was tried", in: []edit{
		{"judge_terms", "IF e.status IS NULL AND NOT wanted THEN", "IF NOT wanted THEN"},
	}},
	{name: "serial passes a later one that runs", by: "serial runs again what was tried", in: []edit{
		{"judge_terms", "IF judge_terms.overlap = 'allow' AND NOT in_order THEN", "IF judge_terms.overlap = 'allow' THEN"},
	}},
	{name: "serial forgets what runs when the schedule is edited", by: "serial waits for whatever runs", in: []edit{
		{"judge_terms", "WHERE r.older", "WHERE false"},
	}},
	{name: "a rerun is stopped for good", by: "what a person reran is not superseded", in: []edit{
		{"release", "onceguard.asked(l) AND e.decided IS NULL", "onceguard.asked(l)"},
	}},
	{name: "the old is stopped and the new too late", by: "a replacement is not late", in: []edit{
		{"judge_terms", "t.superseded_by = judge_terms.window_start", "false"},
	}},
	{name: "the new is too late while the old stops", by: "a replacement is not late", in: []edit{
		{"judge_terms", "l.cancel_for = judge_terms.window_start", "false"},
	}},
	{name: "a mark to stop stays", by: "a mark to stop ends with its window", in: []edit{
		{"asked", "AND t.status IN ('completed', 'exhausted', 'skipped')", "AND false"},
	}},
	{name: "a separate run counts as a window of the schedule", by: "a separate run is only waited for", in: []edit{
		{"running_others", "strpos(l.job_name, '@') > 0 OR strpos(running_others.job_name, '@') > 0", "false"},
	}},
	{name: "a manual Job reopens what was decided after it", by: "what was closed later is not reopened", in: []edit{
		{"claim", "e.updated_at < claim.reopen_closed_before", "claim.reopen_closed_before IS NOT NULL"},
	}},
	{name: "a claim may idle", by: "a claim may not idle", in: []edit{
		{"claim", "brief := set_config('idle_in_transaction_session_timeout', '5s', true);", "NULL;"},
	}},

	// How often, when and with what.
	{name: "one attempt too many", by: "attempts are counted", in: []edit{
		{"judge_terms", "judge_terms.max_attempts <= (e.status", "judge_terms.max_attempts < (e.status"},
	}},
	{name: "a dead attempt does not count", by: "attempts are counted", in: []edit{
		{"judge_terms", "<= (e.status = 'running')::int +", "<="},
	}},
	{name: "a stopped attempt counts", by: "attempts are counted", in: []edit{
		{"judge_terms", "a.outcome IN ('failed', 'crashed', 'uncommitted', 'lost')", "a.outcome IN ('failed', 'crashed', 'uncommitted', 'lost', 'stopped')"},
	}},
	{name: "a dead attempt is no crash", by: "after a crash a person decides", in: []edit{
		{"judge_terms", "(e.status = 'running' OR EXISTS (", "(EXISTS ("},
	}},
	{name: "a claim with another payload runs", by: "a payload stays", in: []edit{
		{"claim", "ELSIF e.payload_digest <> claim.payload_digest THEN", "ELSIF false THEN"},
	}},
	{name: "a commit with another payload passes", by: "a payload stays", in: []edit{
		{"complete", "AND (t.payload_digest = complete.payload_digest) IS NOT FALSE", ""},
	}},
	{name: "a late window is not recorded", by: "late once is late for ever", in: []edit{
		{"judge_terms", "verdict := 'skip'; reason := 'late'; close := 'skipped';", "verdict := 'skip'; reason := 'late';"},
	}},

	// History.
	{name: "prune leaves the watermark", by: "pruned windows never run", in: []edit{
		{"prune", "UPDATE onceguard.job j SET closed_before = closed", "UPDATE onceguard.job j SET closed_before = j.closed_before"},
	}},
	{name: "prune passes a window that may be retried", by: "prune stops before an open window", in: []edit{
		{"prune", "AND e.status IN ('running', 'failed', 'held')", "AND e.status IN ('running', 'held')"},
	}},
	{name: "a rerun is the same work", by: "a rerun is another work", in: []edit{
		{"reopen", "e.generation := e.generation + 1;", ""},
	}},
}
