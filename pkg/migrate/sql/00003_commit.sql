-- +goose Up
-- The business transaction: begin, complete and the barrier between them, and what
-- became of a commit whose answer was lost.
SET LOCAL lock_timeout = '10s';

-- +goose StatementBegin
CREATE FUNCTION onceguard.refuse_fence(job_name text, window_start timestamptz, payload_digest text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e onceguard.job_execution;
BEGIN
    SELECT * INTO e FROM onceguard.job_execution t
    WHERE t.job_name = refuse_fence.job_name AND t.window_start = refuse_fence.window_start;
    IF e.status = 'completed' THEN
        IF e.payload_digest <> refuse_fence.payload_digest THEN
            RAISE EXCEPTION 'the window is completed with payload %, this is payload %', e.payload_digest, refuse_fence.payload_digest USING ERRCODE = 'OG003';
        END IF;
        RAISE EXCEPTION 'the window is already completed' USING ERRCODE = 'OG002';
    END IF;
    IF EXISTS (SELECT FROM onceguard.job j WHERE j.name = refuse_fence.job_name AND j.closed_before > refuse_fence.window_start) THEN
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
    present interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
    PERFORM onceguard.check_call(begin.job_name, begin.window_start, begin.execution_id);
    IF NOT EXISTS (
        SELECT FROM onceguard.job_execution t WHERE t.job_name = begin.job_name AND t.window_start = begin.window_start
          AND t.status = 'running' AND t.execution_id = begin.execution_id) THEN
        PERFORM onceguard.refuse_fence(begin.job_name, begin.window_start, NULL);
    END IF;
    PERFORM onceguard.be_durable();
    INSERT INTO onceguard.armed (xid, job_name, window_start, execution_id)
    VALUES (pg_current_xact_id(), begin.job_name, begin.window_start, begin.execution_id);
    -- A frozen process must not keep its business locks beyond its right to the window.
    SELECT t.term * 0.67 INTO idle FROM onceguard.job_lease t
    WHERE t.job_name = begin.job_name AND t.window_start = begin.window_start;
    IF idle IS NOT NULL AND (present = interval '0' OR present > idle) THEN
        PERFORM set_config('idle_in_transaction_session_timeout', greatest(1, (extract(epoch FROM idle) * 1000)::int)::text, true);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.begin IS 'First statement of a business transaction: from here on this very transaction can commit only if it calls complete() for the same window with a still current execution_id. It also bounds idling inside the transaction.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.complete(
    job_name text, window_start timestamptz, execution_id uuid,
    payload_digest text DEFAULT NULL, request_digest text DEFAULT NULL, result jsonb DEFAULT NULL, processed bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- begin() in this very transaction, not undone by ROLLBACK AND CHAIN or a savepoint. It
    -- has checked the right of session_user too.
    IF NOT EXISTS (
        SELECT FROM onceguard.armed a WHERE a.xid = pg_current_xact_id_if_assigned() AND a.job_name = complete.job_name
          AND a.window_start = complete.window_start AND a.execution_id = complete.execution_id) THEN
        RAISE EXCEPTION 'begin() was not called in this transaction for this window and execution_id'
            USING ERRCODE = 'OG006', HINT = 'A ROLLBACK, also to a savepoint before begin(), undoes it.';
    END IF;
    -- Again: SQL of the worker may have set it to off since begin().
    PERFORM onceguard.be_durable();
    -- This row only: the lease must stay free for heartbeats while the transaction is open.
    UPDATE onceguard.job_execution t SET status = 'completed', completed_at = clock_timestamp(), updated_at = clock_timestamp(),
        done_xid = pg_current_xact_id(), payload_digest = complete.payload_digest, request_digest = complete.request_digest,
        result = complete.result, processed = complete.processed
    WHERE t.job_name = complete.job_name AND t.window_start = complete.window_start
      AND t.execution_id = complete.execution_id AND t.status = 'running';
    IF NOT FOUND THEN
        PERFORM onceguard.refuse_fence(complete.job_name, complete.window_start, complete.payload_digest);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.complete IS 'Last statement of a business transaction: marks the window completed, if this execution_id still holds it. OG001 fence lost, OG002 already completed, OG003 completed with another payload, OG004 closed, OG006 begin() missing.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.barrier() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- By the transaction's own id: a second transaction of the same attempt, or one that
    -- swallowed the error of complete(), does not pass.
    IF NOT EXISTS (
        SELECT FROM onceguard.job_execution t WHERE t.job_name = NEW.job_name AND t.window_start = NEW.window_start
          AND t.execution_id = NEW.execution_id AND t.done_xid = pg_current_xact_id()) THEN
        RAISE EXCEPTION 'this transaction did not complete its window' USING ERRCODE = 'OG006',
            HINT = 'complete() must succeed before COMMIT, and before SET CONSTRAINTS ALL IMMEDIATE.';
    END IF;
    DELETE FROM onceguard.armed a WHERE a.xid = NEW.xid;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.barrier IS 'The commit barrier: a transaction that called begin() commits only with its completion.';

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
    IF EXISTS (SELECT FROM onceguard.job_attempt a WHERE a.job_name = resolve.job_name AND a.window_start = resolve.window_start
        AND (a.execution_id = resolve.new_execution_id OR resolve.new_execution_id = ANY (a.former_ids))) THEN
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
CREATE FUNCTION onceguard.stored(job_name text, window_start timestamptz,
    OUT status text, OUT execution_id uuid, OUT attempt int, OUT generation int, OUT payload_digest text, OUT request_digest text,
    OUT result jsonb, OUT processed bigint, OUT completed_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM onceguard.check_call(stored.job_name, stored.window_start, '00000000-0000-0000-0000-000000000000');
    SELECT t.status, t.execution_id, t.attempt, t.generation, t.payload_digest, t.request_digest, t.result, t.processed, t.completed_at
    INTO status, execution_id, attempt, generation, payload_digest, request_digest, result, processed, completed_at
    FROM onceguard.job_execution t WHERE t.job_name = stored.job_name AND t.window_start = stored.window_start;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.stored IS 'What is kept of a window, for replaying its answer; status is null when the window has no row. A completed row is the truth, another one may change at any time.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
