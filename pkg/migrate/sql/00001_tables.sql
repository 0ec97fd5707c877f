-- +goose Up
-- The ledger's tables, and what the functions share. Names and rules: package ledger, doc.go.
--
-- No foreign key to job and no sequence: both would write WAL for a claim that is
-- refused. No index on a column that a heartbeat or a completion changes: such an
-- update then stays on its page (HOT) and leaves nothing behind in an index. Running
-- windows are found by their leases.
--
-- A job_name may carry "#<index>" and then "@<UID of a separate run>". The job row is
-- that of the base, without both; what overlaps is the lane, the name without "@...".
-- Names are in bytewise order, so that all names of a base or a lane are a range of the
-- primary keys.
SET LOCAL lock_timeout = '10s';

CREATE TABLE onceguard.job (
    name          text COLLATE "C" PRIMARY KEY, -- the base
    -- Windows before this instant are closed for ever; it only grows, and the row is
    -- never deleted, so history can be pruned and an old window still does not run.
    closed_before timestamptz NOT NULL DEFAULT '-infinity',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
COMMENT ON TABLE onceguard.job IS 'One row a job. Its row lock orders the claims of a job; business transactions never take it.';

CREATE TABLE onceguard.job_execution (
    job_name       text COLLATE "C" NOT NULL,
    window_start   timestamptz NOT NULL,
    status         text        NOT NULL,
    reason         text,                     -- why it is closed, or "rerun"
    closed_by      text,                     -- the pod, or the person, that closed it
    superseded_by  timestamptz,              -- the window of this name that took its place, or whose civil time it repeats
    execution_id   uuid,                     -- the fence; NULL when nobody holds the window
    attempt        int         NOT NULL,     -- the last attempt's number; only grows; 0: it never ran
    decided        int,                      -- a person decided after this attempt: it and earlier ones do not count
    fencing_token  bigint      NOT NULL,     -- epoch << 40 | n; grows with each acquisition
    generation     int         NOT NULL DEFAULT 1,
    window_end     timestamptz,
    schedule       text,
    time_zone      text,
    dst            text,                     -- the schedule's rule where the zone's clocks are moved
    payload_digest text,
    request_digest text,
    result         jsonb,
    processed      bigint,
    done_xid       xid8,                     -- the last transaction that completed or checkpointed it
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at   timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_name, window_start),
    CHECK (isfinite(window_start)),
    CHECK (status IN ('running', 'completed', 'failed', 'exhausted', 'skipped', 'held')),
    CHECK ((status = 'completed') = (completed_at IS NOT NULL)),
    CHECK ((status IN ('running', 'completed')) = (execution_id IS NOT NULL)),
    CHECK (status <> 'skipped' OR reason IN ('late', 'overlap', 'superseded', 'cancelled', 'dst'))
) WITH (fillfactor = 80);
-- Has few rows, and none that a heartbeat, a claim or a completion changes.
CREATE INDEX job_execution_superseded ON onceguard.job_execution (job_name, superseded_by) WHERE superseded_by IS NOT NULL;
COMMENT ON TABLE onceguard.job_execution IS 'One row a window: the logical work and how it stands.';

CREATE TABLE onceguard.job_lease (
    job_name     text COLLATE "C" NOT NULL,
    window_start timestamptz NOT NULL,
    execution_id uuid        NOT NULL,
    expires_at   timestamptz NOT NULL,
    term         interval    NOT NULL,       -- the length that was asked for
    cancel       boolean     NOT NULL DEFAULT false, -- a newer window asks the holder to stop
    cancel_by    text,                       -- the newer window's pod
    cancel_for   timestamptz,                -- the newer window, of the same name
    PRIMARY KEY (job_name, window_start)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE onceguard.job_lease IS 'The holder''s right to a window, renewed by heartbeats. Apart from the execution, so that a long business transaction never blocks its own heartbeat.';

CREATE TABLE onceguard.job_attempt (
    job_name      text COLLATE "C" NOT NULL,
    window_start  timestamptz NOT NULL,
    attempt       int         NOT NULL,
    generation    int         NOT NULL DEFAULT 1,
    execution_id  uuid        NOT NULL,
    former_ids    uuid[],                    -- ids that resolve() took out of use
    fencing_token bigint      NOT NULL,
    outcome       text,                      -- NULL: runs, or died and nobody took over yet
    exit_code     int,
    message       text,
    trigger       text,
    source        text,
    namespace     text,
    job           text,
    job_uid       text,
    pod           text,
    pod_uid       text,
    node          text,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    PRIMARY KEY (job_name, window_start, attempt),
    CHECK (outcome IN ('completed', 'failed', 'crashed', 'stopped', 'lost', 'not-started', 'uncommitted'))
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_attempt IS 'One row a try at a window; judged are only that an execution_id is used once, and the outcomes under max_attempts and hold_on_crash.';

CREATE TABLE onceguard.job_checkpoint (
    job_name       text COLLATE "C" NOT NULL,
    window_start   timestamptz NOT NULL,
    seq            int         NOT NULL,     -- from 1; each commits at most once
    data           jsonb       NOT NULL,
    request_digest text,
    execution_id   uuid        NOT NULL,
    xid            xid8        NOT NULL,     -- the transaction that it was committed with
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_name, window_start)
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_checkpoint IS 'How far a window''s work has come: the last checkpoint, which the next attempt continues from.';

CREATE TABLE onceguard.job_skip (
    job_name     text COLLATE "C" NOT NULL,
    window_start timestamptz NOT NULL,
    skipper      text        NOT NULL,       -- the pod's UID; without Kubernetes the execution_id
    reason       text        NOT NULL,
    trigger      text,
    namespace    text,
    job          text,
    job_uid      text,
    pod          text,
    node         text,
    skipped_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_name, window_start, skipper),
    CHECK (reason IN ('completed', 'closed', 'busy', 'late', 'overlap', 'superseded', 'cancelled', 'dst', 'payload', 'exhausted', 'held'))
);
COMMENT ON TABLE onceguard.job_skip IS 'One row for each pod that did not run, with the reason.';

CREATE TABLE onceguard.job_decision (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_name     text COLLATE "C" NOT NULL,
    window_start timestamptz NOT NULL,
    last_window  timestamptz,                -- of a range of windows; window_start is its first
    windows      int,                        -- how many of them it was about
    reprocess    text,                       -- of a backfill
    what         text        NOT NULL CHECK (what IN ('rerun', 'cancel', 'release', 'backfill', 'cancel-backfill')),
    who          text        NOT NULL,
    why          text        NOT NULL,
    login        name        NOT NULL DEFAULT session_user,
    decided_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    before       jsonb                       -- the execution as it was; NULL: there was none
);
CREATE INDEX job_decision_window ON onceguard.job_decision (job_name, window_start);
COMMENT ON TABLE onceguard.job_decision IS 'What people decided about windows. A completion that a rerun replaced is kept here.';

-- Unlogged: a row lives for one transaction, and after a crash there is none.
CREATE UNLOGGED TABLE onceguard.armed (
    xid          xid8        PRIMARY KEY,
    job_name     text COLLATE "C" NOT NULL,
    window_start timestamptz NOT NULL,
    execution_id uuid        NOT NULL
);
COMMENT ON TABLE onceguard.armed IS 'Transactions that called begin() and have not ended: what the commit barrier judges.';

CREATE TABLE onceguard.epoch (
    single            boolean PRIMARY KEY DEFAULT true CHECK (single),
    system_identifier bigint NOT NULL,
    timeline          int    NOT NULL,
    epoch             int    NOT NULL
);
COMMENT ON TABLE onceguard.epoch IS 'The upper part of fencing tokens. It grows when the database finds itself on another server or timeline: after failover, restore, dump or upgrade.';
INSERT INTO onceguard.epoch (system_identifier, timeline, epoch)
SELECT s.system_identifier, t.timeline, t.timeline
FROM pg_control_system() s,
     (SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int AS timeline) t;

CREATE TABLE onceguard.job_grant (
    role    name NOT NULL,
    pattern text NOT NULL,
    PRIMARY KEY (role, pattern),
    CONSTRAINT pattern_form CHECK (pattern = '*' OR pattern ~ '^[^*]+/(\*|[^*]+)$')
);
COMMENT ON TABLE onceguard.job_grant IS 'Which login may act for which jobs: an exact job_name, "namespace/*" or "*". Without a row a login may nothing.';

CREATE TABLE onceguard.engine_grant (
    role name PRIMARY KEY
);
COMMENT ON TABLE onceguard.engine_grant IS 'Which logins are the windows engine''s. Without a row a login may call none of its functions.';

-- What the functions of the next files share.

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_call(job_name text, window_start timestamptz, execution_id uuid, lease interval DEFAULT interval '1 day') RETURNS void
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
    IF check_call.lease IS NULL OR check_call.lease <= interval '0' OR check_call.lease > interval '1 day' THEN
        RAISE EXCEPTION 'lease % is not between 0 and 1 day', check_call.lease USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Inside a definer function current_user is the owner, who may all.
    IF session_user <> current_user AND NOT EXISTS (
        SELECT FROM onceguard.job_grant g
        WHERE (g.pattern = base OR g.pattern = '*'
               OR (right(g.pattern, 2) = '/*' AND starts_with(base, left(g.pattern, -1))))
          AND (g.role = session_user OR pg_has_role(session_user, to_regrole(quote_ident(g.role))::oid, 'MEMBER'))) -- a role that is gone: NULL
    THEN
        RAISE EXCEPTION 'role "%" may not act for job "%"', session_user, check_call.job_name
            USING ERRCODE = 'OG005', HINT = format('As the owner of the ledger: kubectl onceguard grant %1$L %2$L, or in SQL: SELECT onceguard.grant_job(%1$L, %2$L)',
                session_user, CASE WHEN base ~ '^[^*]+/[^*]+$' THEN base ELSE '*' END); -- what has no namespace has no pattern of its own
    END IF;
    -- A claim, heartbeat or release would hold its locks until a business transaction
    -- ends, and deadlock with a takeover. Only a transaction with an id can be armed.
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        IF EXISTS (SELECT FROM onceguard.armed a WHERE a.xid = pg_current_xact_id_if_assigned()) THEN
            RAISE EXCEPTION 'this transaction has called begin(): only checkpoint() and complete() may follow' USING ERRCODE = 'OG006';
        END IF;
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_call IS 'Internal: arguments, the right of session_user (OG005), and that no armed transaction is open (OG006).';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_terms(
    window_start timestamptz, overlap text, serial boolean, since timestamptz, previous timestamptz, start_deadline interval, max_attempts int, hold_on_crash boolean, repeats timestamptz) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF check_terms.overlap IS NULL OR check_terms.overlap NOT IN ('allow', 'skip', 'wait', 'replace') THEN
        RAISE EXCEPTION 'overlap "%" is not allow, skip, wait or replace', check_terms.overlap USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_terms.serial IS NULL THEN
        RAISE EXCEPTION 'serial must be true or false' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_terms.hold_on_crash IS NULL THEN
        RAISE EXCEPTION 'hold_on_crash must be true or false' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_terms.since = 'infinity' THEN
        RAISE EXCEPTION 'since must be an instant, -infinity or null' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(check_terms.previous) OR check_terms.previous >= check_terms.window_start THEN
        RAISE EXCEPTION 'previous % is not an instant before window_start %', check_terms.previous, check_terms.window_start USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(check_terms.repeats) OR check_terms.repeats >= check_terms.window_start THEN
        RAISE EXCEPTION 'repeats % is not an instant before window_start %', check_terms.repeats, check_terms.window_start USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_terms.start_deadline < interval '0' OR check_terms.start_deadline > interval '1000 years' THEN
        RAISE EXCEPTION 'start_deadline % is not between 0 and 1000 years', check_terms.start_deadline USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF check_terms.max_attempts < 1 THEN
        RAISE EXCEPTION 'max_attempts % is less than 1', check_terms.max_attempts USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_terms IS 'Internal: the terms of a claim.';

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
CREATE FUNCTION onceguard.be_brief(idle interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
    IF present = interval '0' OR present > be_brief.idle THEN
        PERFORM set_config('idle_in_transaction_session_timeout', greatest(1, (extract(epoch FROM be_brief.idle) * 1000)::int)::text, true);
    END IF;
    -- A host that vanished between two messages is no idling. Through a Unix socket it is 0.
    IF current_setting('tcp_keepalives_idle')::int > 10 THEN
        PERFORM set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true), set_config('tcp_keepalives_count', '3', true);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.be_brief IS 'Internal: a client that stands still, or has gone, keeps the locks of this transaction no longer than this; a stricter setting stays.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.instant(field text, value text) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN instant.value::timestamptz;
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION '% "%" is not an instant', instant.field, left(instant.value, 100)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'As in RFC 3339: 2026-11-30T12:00:00Z';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.instant IS 'Internal: a text that must be an instant.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.next_token(previous bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sys bigint;
    tli int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    now_epoch bigint;
BEGIN
    LOOP
        SELECT s.system_identifier, p.epoch INTO sys, now_epoch FROM pg_control_system() s
        LEFT JOIN onceguard.epoch p ON p.system_identifier = s.system_identifier AND p.timeline = tli;
        EXIT WHEN now_epoch IS NOT NULL;
        -- Another claim may do the same; whoever comes second finds no mismatch and reads again.
        UPDATE onceguard.epoch p SET epoch = greatest(p.epoch, tli) + 1, system_identifier = sys, timeline = tli
        WHERE p.system_identifier <> sys OR p.timeline <> tli;
    END LOOP;
    RETURN greatest(now_epoch << 40 | (coalesce(previous, 0) & 1099511627775) + 1, coalesce(previous, 0) + 1);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.next_token IS 'Internal: the fencing token that follows: epoch << 40 | n.';

REVOKE ALL ON ALL TABLES IN SCHEMA onceguard FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
