-- +goose Up
-- The ledger's tables. Names and rules: package ledger, doc.go.
--
-- No foreign key to job and no sequence: both would write WAL for a claim that is
-- refused. No index on a column that a heartbeat or a completion changes: such an
-- update then stays on its page (HOT) and leaves nothing behind in an index.
SET LOCAL lock_timeout = '10s';

CREATE TABLE onceguard.job (
    name          text PRIMARY KEY,
    -- Windows before this instant are closed for ever; it only grows, and the row is
    -- never deleted, so history can be pruned and an old window still does not run.
    closed_before timestamptz NOT NULL DEFAULT '-infinity',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
COMMENT ON TABLE onceguard.job IS 'One row a job. Its row lock orders the claims of a job; business transactions never take it.';

CREATE TABLE onceguard.job_execution (
    job_name       text        NOT NULL,
    window_start   timestamptz NOT NULL,
    status         text        NOT NULL,
    execution_id   uuid,                     -- the fence; NULL when nobody holds the window
    attempt        int         NOT NULL,     -- the last attempt's number; only grows
    fencing_token  bigint      NOT NULL,     -- epoch << 40 | n; grows with each acquisition
    generation     int         NOT NULL DEFAULT 1,
    window_end     timestamptz,
    schedule       text,
    time_zone      text,
    payload_digest text,
    request_digest text,
    result         jsonb,
    processed      bigint,
    done_xid       xid8,                     -- the transaction that completed the window
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at   timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_name, window_start),
    CHECK (isfinite(window_start)),
    CHECK (status IN ('running', 'completed', 'failed')),
    CHECK ((status = 'completed') = (completed_at IS NOT NULL)),
    CHECK ((status = 'failed') = (execution_id IS NULL))
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_execution IS 'One row a window: the logical work and how it stands.';

CREATE TABLE onceguard.job_lease (
    job_name     text        NOT NULL,
    window_start timestamptz NOT NULL,
    execution_id uuid        NOT NULL,
    expires_at   timestamptz NOT NULL,
    term         interval    NOT NULL,       -- the length that was asked for
    cancel       boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (job_name, window_start)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE onceguard.job_lease IS 'The holder''s right to a window, renewed by heartbeats. Apart from the execution, so that a long business transaction never blocks its own heartbeat.';

CREATE TABLE onceguard.job_attempt (
    job_name      text        NOT NULL,
    window_start  timestamptz NOT NULL,
    attempt       int         NOT NULL,
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
COMMENT ON TABLE onceguard.job_attempt IS 'One row a try at a window; kept for people, never judged except that an execution_id is used once.';

CREATE TABLE onceguard.job_skip (
    job_name     text        NOT NULL,
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
    CHECK (reason IN ('completed', 'closed', 'busy'))
);
COMMENT ON TABLE onceguard.job_skip IS 'One row for each pod that did not run because its window was done, closed or held.';

-- Unlogged: a row lives for one transaction, and after a crash there is none.
CREATE UNLOGGED TABLE onceguard.armed (
    xid          xid8        PRIMARY KEY,
    job_name     text        NOT NULL,
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

REVOKE ALL ON ALL TABLES IN SCHEMA onceguard FROM PUBLIC;
