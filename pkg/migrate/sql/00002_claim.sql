-- +goose Up
-- The protocol of a lease: claim, heartbeat, release. Every function that a job's login may call is SECURITY DEFINER with a
-- fixed search_path (a caller's objects can never stand for ours), checks the job
-- against session_user, and locks in one order: job, execution, lease.
SET LOCAL lock_timeout = '10s';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_call(job_name text, window_start timestamptz, execution_id uuid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base text := split_part(split_part(check_call.job_name, '#', 1), '@', 1);
BEGIN
    IF base IS NULL OR base = '' OR length(check_call.job_name) > 1000 THEN
        RAISE EXCEPTION 'job_name must be 1 to 1000 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_call.window_start IS NULL OR NOT isfinite(check_call.window_start) THEN
        RAISE EXCEPTION 'window_start must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_call.execution_id IS NULL THEN
        RAISE EXCEPTION 'execution_id must not be null' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Inside a definer function current_user is the owner, who may all.
    IF session_user <> current_user AND NOT EXISTS (
        SELECT FROM onceguard.job_grant g
        WHERE (g.pattern = base OR g.pattern = '*'
               OR (right(g.pattern, 2) = '/*' AND starts_with(base, left(g.pattern, -1))))
          AND (g.role = session_user OR EXISTS (
               SELECT FROM pg_roles r WHERE r.rolname = g.role AND pg_has_role(session_user, r.oid, 'MEMBER'))))
    THEN
        RAISE EXCEPTION 'role "%" may not act for job "%"', session_user, check_call.job_name
            USING ERRCODE = 'OG005', HINT = format('As the owner of the ledger: kubectl onceguard grant %1$L %2$L, or in SQL: SELECT onceguard.grant_job(%1$L, %2$L)', session_user, base);
    END IF;
    -- A claim, heartbeat or release would hold its locks until a business transaction
    -- ends, and deadlock with a takeover.
    IF EXISTS (SELECT FROM onceguard.armed a WHERE a.xid = pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'this transaction has called begin(): only complete() may follow' USING ERRCODE = 'OG006';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_call IS 'Internal: arguments, the right of session_user (OG005), and that no armed transaction is open (OG006).';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_term(lease interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF check_term.lease IS NULL OR check_term.lease <= interval '0' OR check_term.lease > interval '1 day' THEN
        RAISE EXCEPTION 'lease % is not between 0 and 1 day', check_term.lease USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_term IS 'Internal: the length of a lease.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.be_durable() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.be_durable IS 'Internal: the commit of this transaction is answered only when it is safe, whatever the role''s or database''s default; a stricter setting stays.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.next_token(previous bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sys bigint := (SELECT s.system_identifier FROM pg_control_system() s);
    tli int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    now_epoch bigint;
BEGIN
    LOOP
        SELECT p.epoch INTO now_epoch FROM onceguard.epoch p WHERE p.system_identifier = sys AND p.timeline = tli;
        EXIT WHEN FOUND;
        -- Another claim may do the same; whoever comes second finds no mismatch and reads again.
        UPDATE onceguard.epoch p SET epoch = greatest(p.epoch, tli) + 1, system_identifier = sys, timeline = tli
        WHERE p.system_identifier <> sys OR p.timeline <> tli;
    END LOOP;
    RETURN greatest(now_epoch << 40 | (coalesce(previous, 0) & 1099511627775) + 1, coalesce(previous, 0) + 1);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.next_token IS 'Internal: the fencing token that follows: epoch << 40 | n.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.claim(
    job_name text, window_start timestamptz, execution_id uuid, lease interval, origin jsonb DEFAULT '{}',
    OUT verdict text, OUT reason text, OUT attempt int, OUT fencing_token bigint, OUT generation int,
    OUT holder_execution_id uuid, OUT holder_attempt int, OUT holder_pod text,
    OUT holder_completed_at timestamptz, OUT holder_lease_expires timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    closed timestamptz;
    e onceguard.job_execution;
    l onceguard.job_lease;
    locked boolean := false;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'claim needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'OG008', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
    PERFORM onceguard.check_call(claim.job_name, claim.window_start, claim.execution_id);
    PERFORM onceguard.check_term(claim.lease);

    -- The first look takes no lock and no transaction id: a duplicate or a poll writes nothing.
    SELECT j.closed_before INTO closed FROM onceguard.job j WHERE j.name = claim.job_name;
    SELECT * INTO e FROM onceguard.job_execution t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
    IF e.status = 'running' THEN
        SELECT * INTO l FROM onceguard.job_lease t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
    END IF;

    -- Judged twice by the same rule (package claim, Decide): as seen, and again once the
    -- rows are locked, because a heartbeat or a commit may have come between.
    LOOP
        IF closed > claim.window_start THEN
            verdict := 'skip'; reason := 'closed';
        ELSIF e.status = 'completed' THEN
            verdict := 'skip'; reason := 'completed';
        ELSIF e.status = 'running' AND e.execution_id = claim.execution_id THEN
            -- The answer to a lost reply, and how a restarted guard finds its own claim. Allowed
            -- also when the lease ran out: nobody took over, so the id is still the fence.
            UPDATE onceguard.job_lease t SET expires_at = clock_timestamp() + claim.lease, term = claim.lease
            WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start AND t.execution_id = claim.execution_id;
            IF FOUND THEN
                verdict := 'run'; reason := 'adopted';
                attempt := e.attempt; fencing_token := e.fencing_token; generation := e.generation;
                RETURN;
            END IF;
            verdict := 'wait'; reason := 'fence-lost';
        ELSIF e.status IS NOT NULL AND EXISTS (
            SELECT FROM onceguard.job_attempt a WHERE a.job_name = claim.job_name AND a.window_start = claim.window_start
              AND (a.execution_id = claim.execution_id OR claim.execution_id = ANY (a.former_ids))) THEN
            -- Given out again, it would let a transaction of the earlier attempt commit.
            verdict := 'wait'; reason := 'fence-lost';
        ELSIF e.status = 'running' AND l.expires_at >= clock_timestamp() THEN
            verdict := 'wait'; reason := 'busy';
        END IF;
        EXIT WHEN verdict IS NOT NULL OR locked;

        -- The only lock that is waited for; its holders are claims and prune.
        IF closed IS NULL THEN
            INSERT INTO onceguard.job (name) VALUES (claim.job_name) ON CONFLICT DO NOTHING;
        END IF;
        SELECT j.closed_before INTO closed FROM onceguard.job j WHERE j.name = claim.job_name FOR NO KEY UPDATE;
        SELECT * INTO e FROM onceguard.job_execution t
        WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (
            SELECT FROM onceguard.job_execution t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start) THEN
            verdict := 'wait'; reason := 'committing';
            EXIT;
        END IF;
        l := NULL;
        IF e.status = 'running' THEN
            SELECT * INTO l FROM onceguard.job_lease t
            WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND AND EXISTS (
                SELECT FROM onceguard.job_lease t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start) THEN
                verdict := 'wait'; reason := 'busy'; -- its heartbeat is being written
                EXIT;
            END IF;
        END IF;
        locked := true;
    END LOOP;

    IF verdict IS NOT NULL THEN
        SELECT t.execution_id, t.attempt, a.namespace || '/' || a.pod, t.completed_at, s.expires_at
        INTO holder_execution_id, holder_attempt, holder_pod, holder_completed_at, holder_lease_expires
        FROM onceguard.job_execution t
        LEFT JOIN onceguard.job_attempt a ON a.job_name = t.job_name AND a.window_start = t.window_start AND a.attempt = t.attempt
        LEFT JOIN onceguard.job_lease s ON s.job_name = t.job_name AND s.window_start = t.window_start AND t.status = 'running'
        WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
        RETURN;
    END IF;

    PERFORM onceguard.be_durable();
    verdict := 'run';
    reason := CASE WHEN e.status IS NULL THEN 'first' WHEN e.status = 'running' THEN 'takeover' ELSE 'retry' END;
    attempt := coalesce(e.attempt, 0) + 1;
    generation := coalesce(e.generation, 1);
    fencing_token := onceguard.next_token(e.fencing_token);
    IF reason = 'first' THEN
        -- A plain INSERT: all inserts hold the job's lock, and ON CONFLICT would wait for a
        -- transaction that has called complete().
        INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, window_end, schedule, time_zone)
        VALUES (claim.job_name, claim.window_start, 'running', claim.execution_id, claim.attempt, claim.fencing_token,
                (origin ->> 'windowEnd')::timestamptz, origin ->> 'schedule', origin ->> 'timeZone');
    ELSE
        UPDATE onceguard.job_execution t SET status = 'running', execution_id = claim.execution_id, attempt = claim.attempt,
            fencing_token = claim.fencing_token, updated_at = clock_timestamp()
        WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
    END IF;
    IF reason = 'takeover' THEN
        UPDATE onceguard.job_attempt t SET outcome = 'lost', ended_at = coalesce(l.expires_at, clock_timestamp())
        WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start AND t.attempt = e.attempt;
    END IF;
    INSERT INTO onceguard.job_lease (job_name, window_start, execution_id, expires_at, term)
    VALUES (claim.job_name, claim.window_start, claim.execution_id, clock_timestamp() + claim.lease, claim.lease)
    ON CONFLICT (job_name, window_start) DO UPDATE
        SET execution_id = excluded.execution_id, expires_at = excluded.expires_at, term = excluded.term, cancel = false;
    INSERT INTO onceguard.job_attempt (job_name, window_start, attempt, execution_id, fencing_token,
        trigger, source, namespace, job, job_uid, pod, pod_uid, node)
    VALUES (claim.job_name, claim.window_start, claim.attempt, claim.execution_id, claim.fencing_token,
        origin ->> 'trigger', origin ->> 'source', origin ->> 'namespace', origin ->> 'job', origin ->> 'jobUID',
        origin ->> 'pod', origin ->> 'podUID', origin ->> 'node');
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.claim IS 'May this execution_id run the window? verdict run, skip or wait, with a reason. execution_id is random and made by the caller for each acquisition; asking again with the same one is the same answer.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.heartbeat(job_name text, window_start timestamptz, execution_id uuid, lease interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    asked_to_stop boolean;
BEGIN
    PERFORM onceguard.check_call(heartbeat.job_name, heartbeat.window_start, heartbeat.execution_id);
    PERFORM onceguard.check_term(heartbeat.lease);
    UPDATE onceguard.job_lease t SET expires_at = clock_timestamp() + heartbeat.lease, term = heartbeat.lease
    WHERE t.job_name = heartbeat.job_name AND t.window_start = heartbeat.window_start AND t.execution_id = heartbeat.execution_id
    RETURNING t.cancel INTO asked_to_stop;
    RETURN CASE WHEN NOT FOUND THEN 'lost' WHEN asked_to_stop THEN 'cancel' ELSE 'ok' END;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.heartbeat IS 'Renews the lease: ok, cancel (held, but asked to stop) or lost. It never inserts: a row that vanished is lost.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.release(
    job_name text, window_start timestamptz, execution_id uuid, outcome text, exit_code int DEFAULT NULL, message text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    e onceguard.job_execution;
BEGIN
    PERFORM onceguard.check_call(release.job_name, release.window_start, release.execution_id);
    IF release.outcome IS NULL OR release.outcome NOT IN ('completed', 'failed', 'crashed', 'stopped', 'not-started', 'uncommitted') THEN
        RAISE EXCEPTION 'outcome "%" is not completed, failed, crashed, stopped, not-started or uncommitted', release.outcome
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO e FROM onceguard.job_execution t
    WHERE t.job_name = release.job_name AND t.window_start = release.window_start AND t.execution_id = release.execution_id
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        -- Somebody took over; how this attempt ended is still worth knowing.
        UPDATE onceguard.job_attempt t SET exit_code = release.exit_code, message = left(release.message, 1024)
        WHERE t.job_name = release.job_name AND t.window_start = release.window_start AND t.execution_id = release.execution_id
          AND t.outcome = 'lost' AND t.message IS NULL AND t.exit_code IS NULL;
        -- An attempt that has been released already: the answer to a lost reply.
        RETURN (SELECT t.outcome FROM onceguard.job_attempt t WHERE t.job_name = release.job_name
            AND t.window_start = release.window_start AND t.execution_id = release.execution_id AND t.outcome <> 'lost');
    END IF;
    IF e.status = 'running' THEN
        IF release.outcome = 'completed' THEN
            RAISE EXCEPTION 'the window is not completed: outcome "completed" is for an attempt whose commit succeeded'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        UPDATE onceguard.job_execution t SET status = 'failed', execution_id = NULL, updated_at = clock_timestamp()
        WHERE t.job_name = release.job_name AND t.window_start = release.window_start;
    END IF;
    DELETE FROM onceguard.job_lease t
    WHERE t.job_name = release.job_name AND t.window_start = release.window_start AND t.execution_id = release.execution_id;
    IF e.status = 'completed' THEN -- also when the caller does not know it
        release.outcome := 'completed';
    END IF;
    UPDATE onceguard.job_attempt t
    SET outcome = release.outcome,
        exit_code = release.exit_code, message = left(release.message, 1024), ended_at = clock_timestamp()
    WHERE t.job_name = release.job_name AND t.window_start = release.window_start AND t.attempt = e.attempt AND t.outcome IS NULL;
    RETURN release.outcome;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.release IS 'Ends an attempt: records its outcome and gives the lease back. A window that it did not complete may be retried at once. The answer is the outcome as recorded: completed, whatever was said, when this attempt had completed the window; null when this execution_id holds it no longer.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.record_skip(job_name text, window_start timestamptz, execution_id uuid, reason text, origin jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
    PERFORM onceguard.check_call(record_skip.job_name, record_skip.window_start, record_skip.execution_id);
    INSERT INTO onceguard.job_skip (job_name, window_start, skipper, reason, trigger, namespace, job, job_uid, pod, node)
    VALUES (record_skip.job_name, record_skip.window_start, coalesce(nullif(origin ->> 'podUID', ''), record_skip.execution_id::text),
        record_skip.reason, origin ->> 'trigger', origin ->> 'namespace', origin ->> 'job', origin ->> 'jobUID', origin ->> 'pod', origin ->> 'node')
    ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.record_skip IS 'Records once for each pod that it did not run: reason completed, closed or busy.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
