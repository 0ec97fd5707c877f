-- +goose Up
-- Windows that nobody has run. The windows engine keeps here what became of them, and what
-- it remembers of each CronJob; the words are those of package disposition.
--
-- A gap never stops a window from running: where there is an execution, that is the answer.
-- So the engine takes no lock that a claim waits for, but of executions that it closes.
SET LOCAL lock_timeout = '10s';

CREATE TABLE onceguard.job_schedule (
    job_name      text COLLATE "C" NOT NULL,
    cron_job_uid  text COLLATE "C" NOT NULL,
    cron_job      text        NOT NULL,           -- namespace/name
    schedule      text,
    time_zone     text,
    dst           text,
    catch_up      text,
    since         timestamptz NOT NULL,           -- earlier windows are not judged: guarding began, or the schedule was edited
    judged_before timestamptz NOT NULL,           -- each due window before it has its final answer, but for those in open
    open          timestamptz[] NOT NULL DEFAULT '{}', -- windows before judged_before whose execution is not closed
    suspensions   jsonb       NOT NULL DEFAULT '[]',   -- intervals in which it was seen suspended
    note          text,                           -- what cannot be done for it, and why
    looked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    gone_at       timestamptz,
    PRIMARY KEY (job_name, cron_job_uid)
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_schedule IS 'One row a CronJob: what the windows engine remembers of it. Several CronJobs may share a job.';

CREATE TABLE onceguard.job_gap (
    job_name     text COLLATE "C" NOT NULL,
    cron_job_uid text COLLATE "C" NOT NULL,
    first_window timestamptz NOT NULL,            -- both ends belong to it
    last_window  timestamptz NOT NULL,
    windows      bigint      NOT NULL,            -- how many of them had no execution when it was recorded
    status       text        NOT NULL,
    reason       text        NOT NULL,
    rule         text,                            -- why it is not caught up
    evidence     text,
    schedule     text,
    time_zone    text,
    recorded_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_name, cron_job_uid, first_window),
    CHECK (isfinite(first_window) AND isfinite(last_window) AND first_window <= last_window),
    CHECK (windows > 0),
    CHECK (status IN ('late', 'missed', 'skipped')),
    CHECK (octet_length(evidence) <= 1024)
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_gap IS 'Ranges of due windows without an execution, with their answer. Those that are late are made anew at each look.';

CREATE TABLE onceguard.job_plan (
    job_name     text COLLATE "C" NOT NULL,
    window_start timestamptz NOT NULL,
    cron_job_uid text COLLATE "C",                -- whose Jobs run it; NULL: the next CronJob of this job
    cron_job     text,
    reason       text,                            -- why it was missed; NULL for what a person planned
    planned_by   text,                            -- the person; NULL: the engine
    why          text,
    reprocess    boolean     NOT NULL DEFAULT false, -- its execution is closed, and opened again when its Job is made
    made         int         NOT NULL DEFAULT 0,  -- how many Jobs were made for it
    job          text,                            -- the last of them
    planned_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_at      timestamptz,
    PRIMARY KEY (job_name, window_start),
    CHECK (isfinite(window_start))
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_plan IS 'Windows that are to be run later, one row each: caught up by the engine, or a person''s backfill. The row goes when the window is closed.';

CREATE TABLE onceguard.engine_grant (
    role name PRIMARY KEY
);
COMMENT ON TABLE onceguard.engine_grant IS 'Which logins are the windows engine''s. Without a row a login may call none of its functions.';

REVOKE ALL ON ALL TABLES IN SCHEMA onceguard FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
SELECT onceguard.seal(fresh => true);
