-- +goose Up
-- Windows that nobody has run. The windows engine keeps here what became of them, and what
-- it remembers of each CronJob; the words are those of package disposition.
--
-- A gap never stops a window from running: where there is an execution, that is the answer.
-- So the engine takes no lock that a claim waits for.
SET LOCAL lock_timeout = '10s';

CREATE TABLE onceguard.job_schedule (
    job_name      text COLLATE "C" NOT NULL,
    cron_job_uid  text COLLATE "C" NOT NULL,
    cron_job      text        NOT NULL,           -- namespace/name
    schedule      text,
    time_zone     text,
    dst           text,
    catch_up      text,
    indexes       int,                            -- completions of its Indexed Job; 0: it is none; NULL: not known
    since         timestamptz NOT NULL,           -- earlier windows are not judged: guarding began, or the schedule was edited
    judged_before timestamptz NOT NULL,           -- each due window before it has its final answer, but for those in open
    open          timestamptz[] NOT NULL DEFAULT '{}', -- windows before judged_before whose execution is not closed
    suspensions   jsonb       NOT NULL DEFAULT '[]',   -- intervals in which it was seen suspended
    note          text,                           -- what cannot be done for it, and why
    looked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    gone_at       timestamptz,
    PRIMARY KEY (job_name, cron_job_uid)
) WITH (fillfactor = 80);
CREATE INDEX job_schedule_cron_job ON onceguard.job_schedule (cron_job_uid);
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
    reprocess    text,                            -- which states of its execution are opened again when its Job is made: see backfill
    made         int         NOT NULL DEFAULT 0,  -- how many Jobs were made for it
    job          text,                            -- the last of them
    planned_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_at      timestamptz,
    PRIMARY KEY (job_name, window_start),
    CHECK (isfinite(window_start)),
    CHECK (reprocess IN ('none', 'failed', 'completed'))
) WITH (fillfactor = 80);
COMMENT ON TABLE onceguard.job_plan IS 'Windows that are to be run later, one row each: caught up by the engine, or a person''s backfill. The row goes when the window is closed.';

CREATE VIEW onceguard.gaps AS
SELECT g.job_name, g.cron_job_uid, s.cron_job, g.first_window, g.last_window, g.windows, g.status, g.reason, g.rule, g.evidence,
       g.schedule, g.time_zone, g.recorded_at, g.updated_at
FROM onceguard.job_gap g
LEFT JOIN onceguard.job_schedule s ON s.job_name = g.job_name AND s.cron_job_uid = g.cron_job_uid;
COMMENT ON VIEW onceguard.gaps IS 'One row for each range of due windows that nobody has run, with the answer that they share. A window in it that has an execution is no part of it.';
COMMENT ON COLUMN onceguard.gaps.last_window IS 'Both ends belong to the range; where it was cut they are no windows themselves.';
COMMENT ON COLUMN onceguard.gaps.windows IS 'How many of them had no execution when it was recorded.';
COMMENT ON COLUMN onceguard.gaps.status IS 'late: it may still come; missed: it never will; skipped: it was not to run.';
COMMENT ON COLUMN onceguard.gaps.rule IS 'Why missed windows are not caught up, where catch-up is asked for.';
COMMENT ON COLUMN onceguard.gaps.evidence IS 'What was seen in the cluster, with the names of the objects.';

CREATE VIEW onceguard.plans AS
SELECT p.job_name, p.window_start, p.cron_job_uid, p.cron_job, p.reason, p.planned_by, p.why, p.reprocess, p.made, p.job, p.planned_at, p.made_at
FROM onceguard.job_plan p;
COMMENT ON VIEW onceguard.plans IS 'One row for each window that is to be run later: caught up, or a person''s backfill. It goes when the window is closed.';
COMMENT ON COLUMN onceguard.plans.reason IS 'Why it was missed; null for what a person planned.';
COMMENT ON COLUMN onceguard.plans.planned_by IS 'The person; null: the windows engine.';
COMMENT ON COLUMN onceguard.plans.made IS 'How many Jobs were made for it; job is the last one.';

CREATE VIEW onceguard.schedules AS
SELECT s.job_name, s.cron_job_uid, s.cron_job, s.schedule, s.time_zone, s.dst, s.catch_up, s.indexes, s.since, s.judged_before, s.open, s.suspensions,
       s.note, s.looked_at, s.gone_at
FROM onceguard.job_schedule s;
COMMENT ON VIEW onceguard.schedules IS 'One row for each CronJob that the windows engine has judged.';
COMMENT ON COLUMN onceguard.schedules.indexes IS 'Of an Indexed Job; 0 for any other, null when it is not known.';
COMMENT ON COLUMN onceguard.schedules.since IS 'Windows before it are not judged: guarding began, or what says which windows there are was edited.';
COMMENT ON COLUMN onceguard.schedules.judged_before IS 'Each due window before it has its final answer, but for those in open, whose execution is not closed.';
COMMENT ON COLUMN onceguard.schedules.note IS 'What cannot be done for this CronJob, and why.';
COMMENT ON COLUMN onceguard.schedules.gone_at IS 'When the CronJob was found deleted.';

-- What the engine may call. Each of these functions is SECURITY DEFINER; locks are taken in
-- one order: the schedules of a job, its job row, execution, lease.

-- +goose StatementBegin
CREATE FUNCTION onceguard.engine_functions() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY['engine_schedules', 'engine_look', 'engine_judge', 'engine_making', 'engine_gone']
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.engine_functions IS 'Internal: what the windows engine''s login may call.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_engine() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF session_user <> current_user AND NOT EXISTS (
        SELECT FROM onceguard.engine_grant g
        WHERE g.role = session_user OR pg_has_role(session_user, to_regrole(quote_ident(g.role))::oid, 'MEMBER'))
    THEN
        RAISE EXCEPTION 'role "%" is not the windows engine''s', session_user
            USING ERRCODE = 'OG005', HINT = format('As the owner of the ledger: SELECT onceguard.grant_engine(%L)', session_user);
    END IF;
    IF EXISTS (SELECT FROM onceguard.armed a WHERE a.xid = pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'this transaction has called begin(): only checkpoint() and complete() may follow' USING ERRCODE = 'OG006';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_engine IS 'Internal: session_user is the engine''s login (OG005), and no armed transaction is open (OG006).';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_list(what text, list jsonb, most int) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(check_list.list) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION '% must be a JSON array', check_list.what USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_array_length(check_list.list) > check_list.most THEN
        RAISE EXCEPTION '% has % elements, and may have %', check_list.what, jsonb_array_length(check_list.list), check_list.most USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_list IS 'Internal: a JSON array of at most so many elements.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_base(job_name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(check_base.job_name, '') = '' OR length(check_base.job_name) > 1000 OR check_base.job_name ~ '[#@]' THEN
        RAISE EXCEPTION 'job_name "%" must be 1 to 1000 characters, without #index and @run', left(check_base.job_name, 100) USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_base IS 'Internal: the name of a job as a whole.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.lanes_of(base text) RETURNS TABLE (name text)
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE n AS ( -- by leaps over the primary key, over all separate runs at once
        SELECT NULL::text COLLATE "C" AS name, (lanes_of.base || '#') COLLATE "C" AS bound
        UNION ALL
        SELECT x.job_name, CASE WHEN strpos(x.job_name, '@') > 0 THEN split_part(x.job_name, '@', 1) || 'A' ELSE x.job_name || chr(1) END COLLATE "C"
        FROM n CROSS JOIN LATERAL (
            SELECT e.job_name FROM onceguard.job_execution e
            WHERE e.job_name >= n.bound AND e.job_name < (lanes_of.base || '$') COLLATE "C" ORDER BY e.job_name LIMIT 1) x
    )
    SELECT lanes_of.base UNION ALL SELECT n.name FROM n WHERE strpos(n.name, '@') = 0;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.lanes_of IS 'Internal: a job''s name, and those of its indexes that have an execution; no separate runs.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.stands(base text, starts timestamptz[])
RETURNS TABLE (name text, window_start timestamptz, status text, reason text, closed boolean, alive boolean, updated_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.job_name, t.window_start, t.status, t.reason, t.status IN ('completed', 'skipped', 'exhausted', 'held'),
           t.status = 'running' AND l.expires_at >= clock_timestamp() IS TRUE, t.updated_at
    FROM onceguard.lanes_of(stands.base) n
    CROSS JOIN unnest(stands.starts) w
    JOIN onceguard.job_execution t ON t.job_name = n.name AND t.window_start = w
    LEFT JOIN onceguard.job_lease l ON l.job_name = t.job_name AND l.window_start = t.window_start AND t.status = 'running';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.stands IS 'Internal: how windows of a job and of its indexes stand; no row for what nobody has claimed.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.reprocess_of(status text, reason text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN status = 'completed' THEN 'completed' WHEN status = 'skipped' AND reason IS DISTINCT FROM 'cancelled' THEN 'none' ELSE 'failed' END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.reprocess_of IS 'Internal: the least reprocess that opens a window which stands so again. What a person has cancelled is not opened by none.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.reopens(reprocess text, status text, reason text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (array_position('{none,failed,completed}', reopens.reprocess) >= array_position('{none,failed,completed}', onceguard.reprocess_of(status, reason))) IS TRUE
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.reopens IS 'Internal: does a plan with this reprocess open a window which stands so again?';

-- +goose StatementBegin
CREATE FUNCTION onceguard.claimed_as(base text, cron_job_uid text) RETURNS SETOF text
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most constant int := 10000;
    indexes int;
BEGIN
    SELECT s.indexes INTO indexes FROM onceguard.job_schedule s WHERE s.job_name = claimed_as.base AND s.cron_job_uid = claimed_as.cron_job_uid;
    IF indexes > 0 THEN
        RETURN QUERY SELECT claimed_as.base || '#' || i FROM generate_series(0, least(indexes, most) - 1) i;
        RETURN;
    END IF;
    IF indexes IS NULL THEN
        RETURN QUERY SELECT n.name FROM onceguard.lanes_of(claimed_as.base) n WHERE n.name <> claimed_as.base LIMIT most;
    END IF;
    IF NOT FOUND OR indexes = 0 THEN
        RETURN NEXT claimed_as.base;
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.claimed_as IS 'Internal: the names by which Jobs of a CronJob claim a window: those of its indexes, else the job''s. Where the number of indexes is not known, of those that have ever claimed.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.shut_plans(jobs text[]) RETURNS TABLE (job_name text, window_start timestamptz, reprocess text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH planned AS MATERIALIZED (
        SELECT p.job_name, p.window_start, p.reprocess, p.cron_job_uid FROM unnest(shut_plans.jobs) n(name)
        JOIN onceguard.job_plan p ON p.job_name = n.name
    )
    SELECT p.job_name, p.window_start, p.reprocess
    FROM (SELECT q.job_name, q.cron_job_uid, array_agg(q.window_start) AS starts FROM planned q GROUP BY 1, 2) a
    CROSS JOIN LATERAL (SELECT array_agg(c) AS names FROM onceguard.claimed_as(a.job_name, a.cron_job_uid) c) d
    CROSS JOIN LATERAL onceguard.stands(a.job_name, a.starts) s
    JOIN planned p ON p.job_name = a.job_name AND p.window_start = s.window_start
    GROUP BY 1, 2, 3, d.names
    -- An index that has not come yet is still to run.
    HAVING bool_and(s.closed AND NOT onceguard.reopens(p.reprocess, s.status, s.reason)) AND count(*) FILTER (WHERE s.name = ANY (d.names)) = cardinality(d.names)
    UNION
    SELECT p.job_name, p.window_start, p.reprocess FROM planned p JOIN onceguard.job j ON j.name = p.job_name AND j.closed_before > p.window_start;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.shut_plans IS 'Internal: plans that say nothing any more: their window is closed, under each name by which it is claimed, or pruned.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.drop_plans(jobs text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    WITH mine AS ( -- what another changes now is left to him
        SELECT p.job_name, p.window_start FROM onceguard.job_plan p
        JOIN onceguard.shut_plans(drop_plans.jobs) s ON s.job_name = p.job_name AND s.window_start = p.window_start AND s.reprocess IS NOT DISTINCT FROM p.reprocess
        ORDER BY 1, 2 FOR UPDATE OF p SKIP LOCKED
    )
    DELETE FROM onceguard.job_plan p USING mine m WHERE p.job_name = m.job_name AND p.window_start = m.window_start;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.drop_plans IS 'Internal: plans of windows that are closed, or pruned, go.';

REVOKE ALL ON ALL TABLES IN SCHEMA onceguard FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
SELECT onceguard.seal(fresh => true);
