-- +goose Up
-- The business transaction: begin, checkpoint, complete and the barrier, what became of a
-- commit whose answer was lost, and how an attempt ends.
SET LOCAL lock_timeout = '10s';

-- +goose StatementBegin
CREATE FUNCTION onceguard.refuse_fence(job_name text, window_start timestamptz, execution_id uuid, payload_digest text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e onceguard.job_execution;
BEGIN
    SELECT * INTO e FROM onceguard.job_execution t
    WHERE t.job_name = refuse_fence.job_name AND t.window_start = refuse_fence.window_start;
    IF e.payload_digest <> refuse_fence.payload_digest AND (e.status = 'completed' OR e.execution_id = refuse_fence.execution_id) THEN
        RAISE EXCEPTION 'the window belongs to payload %, this is payload %', e.payload_digest, refuse_fence.payload_digest USING ERRCODE = 'OG003';
    END IF;
    IF e.status = 'completed' THEN
        RAISE EXCEPTION 'the window is already completed' USING ERRCODE = 'OG002';
    END IF;
    IF EXISTS (SELECT FROM onceguard.job j WHERE j.name = split_part(split_part(refuse_fence.job_name, '#', 1), '@', 1) AND j.closed_before > refuse_fence.window_start) THEN
        RAISE EXCEPTION 'the window is closed' USING ERRCODE = 'OG004';
    END IF;
    RAISE EXCEPTION 'fence lost: this execution_id does not hold the window' USING ERRCODE = 'OG001';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.refuse_fence IS 'Internal: raises why an execution_id is not current: OG001 to OG004.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.begin(job_name text, window_start timestamptz, execution_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    idle interval;
BEGIN
    PERFORM onceguard.check_call(begin.job_name, begin.window_start, begin.execution_id);
    IF NOT EXISTS (
        SELECT FROM onceguard.job_execution t WHERE t.job_name = begin.job_name AND t.window_start = begin.window_start
          AND t.status = 'running' AND t.execution_id = begin.execution_id) THEN
        PERFORM onceguard.refuse_fence(begin.job_name, begin.window_start, begin.execution_id, NULL);
    END IF;
    PERFORM onceguard.be_durable();
    INSERT INTO onceguard.armed (xid, job_name, window_start, execution_id)
    VALUES (pg_current_xact_id(), begin.job_name, begin.window_start, begin.execution_id);
    -- A frozen process must not keep its business locks beyond its right to the window.
    SELECT t.term * 0.67 INTO idle FROM onceguard.job_lease t
    WHERE t.job_name = begin.job_name AND t.window_start = begin.window_start;
    IF idle IS NOT NULL THEN
        PERFORM onceguard.be_brief(idle);
    END IF;
    -- A statement, or a trigger at COMMIT, must not run on when its client has gone, also when
    -- it swallows cancellations: the window would stay locked. Not every server can notice.
    IF current_setting('client_connection_check_interval', true) = '0' AND version() ~ '(linux|darwin|bsd)' THEN
        PERFORM set_config('client_connection_check_interval', '5s', true);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.begin IS 'First statement of a business transaction: from here on this very transaction can commit only if it calls complete() or checkpoint() for the same window with a still current execution_id. It also bounds idling inside the transaction, and ends it when the client has gone.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_armed(job_name text, window_start timestamptz, execution_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- begin() in this very transaction, not undone by ROLLBACK AND CHAIN or a savepoint. It
    -- has checked the right of session_user too.
    IF NOT EXISTS (
        SELECT FROM onceguard.armed a WHERE a.xid = pg_current_xact_id_if_assigned() AND a.job_name = check_armed.job_name
          AND a.window_start = check_armed.window_start AND a.execution_id = check_armed.execution_id) THEN
        RAISE EXCEPTION 'begin() was not called in this transaction for this window and execution_id'
            USING ERRCODE = 'OG006', HINT = 'A ROLLBACK, also to a savepoint before begin(), undoes it.';
    END IF;
    -- Again: SQL of the worker may have set it to off since begin().
    PERFORM onceguard.be_durable();
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_armed IS 'Internal: begin() was called in this transaction for this window (OG006), and its commit will be durable.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.complete(
    job_name text, window_start timestamptz, execution_id uuid,
    payload_digest text DEFAULT NULL, request_digest text DEFAULT NULL, result jsonb DEFAULT NULL, processed bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF complete.payload_digest = '' THEN
        RAISE EXCEPTION 'payload_digest must not be empty: null keeps the one of the claim' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.check_armed(complete.job_name, complete.window_start, complete.execution_id);
    -- This row only: the lease must stay free for heartbeats while the transaction is open.
    UPDATE onceguard.job_execution t SET status = 'completed', completed_at = clock_timestamp(), updated_at = clock_timestamp(),
        done_xid = pg_current_xact_id(), payload_digest = coalesce(complete.payload_digest, t.payload_digest), request_digest = complete.request_digest,
        result = complete.result, processed = complete.processed
    WHERE t.job_name = complete.job_name AND t.window_start = complete.window_start
      AND t.execution_id = complete.execution_id AND t.status = 'running'
      AND (t.payload_digest = complete.payload_digest) IS NOT FALSE;
    IF NOT FOUND THEN
        PERFORM onceguard.refuse_fence(complete.job_name, complete.window_start, complete.execution_id, complete.payload_digest);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.complete IS 'Last statement of a business transaction: marks the window completed, if this execution_id still holds it. OG001 fence lost, OG002 already completed, OG003 the window belongs to another payload, OG004 closed, OG006 begin() missing.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.checkpoint(
    job_name text, window_start timestamptz, execution_id uuid, expected_seq int, data jsonb, request_digest text DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    last int;
    greatest_size constant int := 1048576;
BEGIN
    PERFORM onceguard.check_armed(checkpoint.job_name, checkpoint.window_start, checkpoint.execution_id);
    IF checkpoint.expected_seq IS NULL OR checkpoint.expected_seq < 0 THEN
        RAISE EXCEPTION 'expected_seq must be the number of the last checkpoint, 0 for none' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF checkpoint.data IS NULL OR octet_length(checkpoint.data::text) > greatest_size THEN
        RAISE EXCEPTION 'data must be 1 to % bytes of JSON', greatest_size USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The execution row is changed, not only read: a takeover then waits out this commit, and
    -- a zombie with an old snapshot fails.
    UPDATE onceguard.job_execution t SET done_xid = pg_current_xact_id(), updated_at = clock_timestamp()
    WHERE t.job_name = checkpoint.job_name AND t.window_start = checkpoint.window_start
      AND t.execution_id = checkpoint.execution_id AND t.status = 'running';
    IF NOT FOUND THEN
        PERFORM onceguard.refuse_fence(checkpoint.job_name, checkpoint.window_start, checkpoint.execution_id, NULL);
    END IF;
    last := (SELECT c.seq FROM onceguard.job_checkpoint c WHERE c.job_name = checkpoint.job_name AND c.window_start = checkpoint.window_start);
    IF coalesce(last, 0) <> checkpoint.expected_seq THEN
        RAISE EXCEPTION 'the last checkpoint is %, not %', coalesce(last, 0), checkpoint.expected_seq USING ERRCODE = 'OG007';
    END IF;
    IF last IS NULL THEN
        INSERT INTO onceguard.job_checkpoint (job_name, window_start, seq, data, request_digest, execution_id, xid)
        VALUES (checkpoint.job_name, checkpoint.window_start, 1, checkpoint.data, checkpoint.request_digest, checkpoint.execution_id, pg_current_xact_id());
    ELSE
        UPDATE onceguard.job_checkpoint c SET seq = last + 1, data = checkpoint.data, request_digest = checkpoint.request_digest,
            execution_id = checkpoint.execution_id, xid = pg_current_xact_id(), updated_at = clock_timestamp()
        WHERE c.job_name = checkpoint.job_name AND c.window_start = checkpoint.window_start;
    END IF;
    RETURN checkpoint.expected_seq + 1;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.checkpoint IS 'In a business transaction: commits a piece of the work with how far it has come, for the next piece or attempt to continue from. expected_seq is the checkpoint that this one follows; the answer is its own number. Each number commits at most once. OG001 fence lost, OG002 already completed, OG006 begin() missing, OG007 another checkpoint is the last one.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.barrier() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- By the transaction's own id: a second transaction of the same attempt, or one that
    -- swallowed the error of complete(), does not pass.
    IF NOT EXISTS (
        SELECT FROM onceguard.job_execution t WHERE t.job_name = NEW.job_name AND t.window_start = NEW.window_start
          AND t.execution_id = NEW.execution_id AND t.done_xid = pg_current_xact_id()) THEN
        RAISE EXCEPTION 'this transaction neither completed nor checkpointed its window' USING ERRCODE = 'OG006',
            HINT = 'complete() or checkpoint() must succeed before COMMIT, and before SET CONSTRAINTS ALL IMMEDIATE.';
    END IF;
    DELETE FROM onceguard.armed a WHERE a.xid = NEW.xid;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.barrier IS 'The commit barrier: a transaction that called begin() commits only with its completion or checkpoint.';

CREATE CONSTRAINT TRIGGER barrier AFTER INSERT ON onceguard.armed
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION onceguard.barrier();
-- Also under session_replication_role = replica.
ALTER TABLE onceguard.armed ENABLE ALWAYS TRIGGER barrier;

-- +goose StatementBegin
CREATE FUNCTION onceguard.resolve(job_name text, window_start timestamptz, execution_id uuid, new_execution_id uuid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    e onceguard.job_execution;
BEGIN
    PERFORM onceguard.check_call(resolve.job_name, resolve.window_start, resolve.execution_id);
    IF resolve.new_execution_id IS NULL OR resolve.new_execution_id = resolve.execution_id THEN
        RAISE EXCEPTION 'new_execution_id must be another id than execution_id' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO e FROM onceguard.job_execution t
    WHERE t.job_name = resolve.job_name AND t.window_start = resolve.window_start FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT FROM onceguard.job_execution t
            WHERE t.job_name = resolve.job_name AND t.window_start = resolve.window_start) THEN 'pending' ELSE 'lost' END;
    END IF;
    IF e.status = 'completed' AND e.execution_id = resolve.execution_id THEN
        PERFORM onceguard.be_durable();
        -- A write: its own commit waits for a synchronous standby, and by WAL order the
        -- commit in question is there too. A read could answer before that.
        UPDATE onceguard.job_execution t SET updated_at = clock_timestamp()
        WHERE t.job_name = resolve.job_name AND t.window_start = resolve.window_start;
        RETURN 'committed';
    END IF;
    IF e.status = 'running' AND e.execution_id = resolve.new_execution_id THEN
        RETURN 'not-committed'; -- asked again after a lost reply
    END IF;
    IF e.status <> 'running' OR e.execution_id <> resolve.execution_id THEN
        RETURN 'lost';
    END IF;
    IF onceguard.was_used(resolve.job_name, resolve.window_start, resolve.new_execution_id) THEN
        RAISE EXCEPTION 'new_execution_id was used before' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.be_durable();
    -- The old transaction may still be running on a server that cannot reach us. Taking its
    -- id away is what makes "not committed" true for ever.
    UPDATE onceguard.job_execution t SET execution_id = resolve.new_execution_id, updated_at = clock_timestamp()
    WHERE t.job_name = resolve.job_name AND t.window_start = resolve.window_start;
    UPDATE onceguard.job_lease t SET execution_id = resolve.new_execution_id
    WHERE t.job_name = resolve.job_name AND t.window_start = resolve.window_start AND t.execution_id = resolve.execution_id;
    UPDATE onceguard.job_attempt t SET execution_id = resolve.new_execution_id, former_ids = t.former_ids || resolve.execution_id
    WHERE t.job_name = resolve.job_name AND t.window_start = resolve.window_start AND t.attempt = e.attempt;
    RETURN 'not-committed';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.resolve IS 'What became of a COMMIT whose answer was lost: committed, not-committed (and it never will: the attempt goes on under new_execution_id), pending (ask again) or lost (another attempt holds or completed the window).';

-- +goose StatementBegin
CREATE FUNCTION onceguard.release(
    job_name text, window_start timestamptz, execution_id uuid, outcome text, exit_code int DEFAULT NULL, message text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    e onceguard.job_execution;
    l onceguard.job_lease;
    superseded boolean;
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
    IF e.status = 'running' AND release.outcome = 'completed' THEN
        RAISE EXCEPTION 'the window is not completed: outcome "completed" is for an attempt whose commit succeeded'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM onceguard.job_lease t
    WHERE t.job_name = release.job_name AND t.window_start = release.window_start AND t.execution_id = release.execution_id
    RETURNING * INTO l;
    IF e.status = 'running' THEN
        -- Asked to stop by a newer window, it is not to be tried again; unless a person asked for it, or it is planned.
        superseded := onceguard.asked(l) AND e.decided IS NULL AND NOT onceguard.planned(release.job_name, release.window_start);
        UPDATE onceguard.job_execution t SET status = CASE WHEN superseded THEN 'skipped' ELSE 'failed' END,
            reason = CASE WHEN superseded THEN 'superseded' END, closed_by = CASE WHEN superseded THEN l.cancel_by END,
            superseded_by = CASE WHEN superseded THEN l.cancel_for END, execution_id = NULL, updated_at = clock_timestamp()
        WHERE t.job_name = release.job_name AND t.window_start = release.window_start;
    END IF;
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
COMMENT ON FUNCTION onceguard.release IS 'Ends an attempt: records its outcome and gives the lease back. A window that it did not complete may be retried at once, unless a newer window had asked it to stop. The answer is the outcome as recorded: completed, whatever was said, when this attempt had completed the window; null when this execution_id holds it no longer.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.record_skip(job_name text, window_start timestamptz, execution_id uuid, reason text, origin jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
BEGIN
    PERFORM onceguard.check_call(record_skip.job_name, record_skip.window_start, record_skip.execution_id);
    IF record_skip.reason IS NULL OR record_skip.reason NOT IN ('completed', 'closed', 'busy', 'late', 'overlap', 'superseded', 'cancelled', 'dst', 'payload', 'exhausted', 'held') THEN
        RAISE EXCEPTION 'reason "%" is not completed, closed, busy, late, overlap, superseded, cancelled, dst, payload, exhausted or held', left(record_skip.reason, 100)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO onceguard.job_skip (job_name, window_start, skipper, reason, trigger, namespace, job, job_uid, pod, node)
    VALUES (record_skip.job_name, record_skip.window_start, coalesce(nullif(origin ->> 'podUID', ''), record_skip.execution_id::text),
        record_skip.reason, origin ->> 'trigger', origin ->> 'namespace', origin ->> 'job', origin ->> 'jobUID', origin ->> 'pod', origin ->> 'node')
    ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.record_skip IS 'Records once for each pod that it did not run, with the reason that claim gave.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.stored(job_name text, window_start timestamptz,
    OUT status text, OUT execution_id uuid, OUT attempt int, OUT generation int, OUT payload_digest text, OUT request_digest text,
    OUT result jsonb, OUT processed bigint, OUT completed_at timestamptz,
    OUT checkpoint_seq int, OUT checkpoint jsonb, OUT checkpoint_request_digest text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM onceguard.check_call(stored.job_name, stored.window_start, '00000000-0000-0000-0000-000000000000');
    SELECT t.status, t.execution_id, t.attempt, t.generation, t.payload_digest, t.request_digest, t.result, t.processed, t.completed_at,
           coalesce(c.seq, 0), c.data, c.request_digest
    INTO status, execution_id, attempt, generation, payload_digest, request_digest, result, processed, completed_at,
         checkpoint_seq, checkpoint, checkpoint_request_digest
    FROM onceguard.job_execution t
    LEFT JOIN onceguard.job_checkpoint c ON c.job_name = t.job_name AND c.window_start = t.window_start
    WHERE t.job_name = stored.job_name AND t.window_start = stored.window_start;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.stored IS 'What is kept of a window, for replaying its answer and for going on from its checkpoint; status is null when the window has no row. A completed row is the truth, another one may change at any time.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
