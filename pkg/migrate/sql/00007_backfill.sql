-- +goose Up
-- What people decide about windows that are to be run later, and the answer that each due
-- window has.
SET LOCAL lock_timeout = '10s';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_windows(windows timestamptz[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (cardinality(check_windows.windows) BETWEEN 1 AND 10000) IS NOT TRUE THEN
        RAISE EXCEPTION 'windows must be 1 to 10000 instants, and are %', cardinality(check_windows.windows) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM unnest(check_windows.windows) w WHERE isfinite(w) IS NOT TRUE) THEN
        RAISE EXCEPTION 'each of windows must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_windows IS 'Internal: a list of windows.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.backfill(job_name text, windows timestamptz[], reprocess text, who text, why text, cron_job_uid text DEFAULT NULL,
    OUT planned int, OUT done int, OUT running int, OUT kept int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    s onceguard.job_schedule;
    closed timestamptz;
    fresh int;
    past int;
    w timestamptz;
BEGIN
    PERFORM onceguard.check_base(backfill.job_name), onceguard.check_windows(backfill.windows), onceguard.check_who(backfill.who, backfill.why);
    IF (backfill.reprocess IN ('none', 'failed', 'completed')) IS NOT TRUE THEN
        RAISE EXCEPTION 'reprocess "%" is not none, failed or completed', left(backfill.reprocess, 100) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT max(x) INTO w FROM unnest(backfill.windows) x;
    IF w > clock_timestamp() THEN
        RAISE EXCEPTION 'window % is in the future: only what is due can be run again', w USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds');
    PERFORM FROM onceguard.job_schedule t WHERE t.job_name = backfill.job_name ORDER BY t.cron_job_uid FOR UPDATE;
    IF backfill.cron_job_uid IS NULL THEN
        s := onceguard.planner_of(backfill.job_name);
    ELSE
        SELECT * INTO s FROM onceguard.job_schedule t WHERE t.job_name = backfill.job_name AND t.cron_job_uid = backfill.cron_job_uid AND t.gone_at IS NULL;
    END IF;
    IF s.cron_job_uid IS NULL THEN
        RAISE EXCEPTION 'no CronJob of job "%" is known to the windows engine, and nobody else would run what is planned', backfill.job_name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'The engine must watch its namespace and have the URL of this ledger.';
    END IF;
    SELECT j.closed_before INTO closed FROM onceguard.job j WHERE j.name = backfill.job_name;
    SELECT count(*), max(x) INTO past, w FROM unnest(backfill.windows) x WHERE x < closed;
    IF past > 0 THEN
        RAISE EXCEPTION '% windows, the last of them %, are closed: history before % was pruned', past, w, closed USING ERRCODE = 'OG004', HINT = 'Leave them out.';
    END IF;

    WITH asked AS (
        SELECT DISTINCT x AS w FROM unnest(backfill.windows) x
    ), before AS MATERIALIZED ( -- this very backfill, asked before
        SELECT d.window_start, d.last_window, d.decided_at FROM onceguard.job_decision d
        WHERE d.job_name = backfill.job_name AND d.what = 'backfill' AND d.who = backfill.who AND d.why = backfill.why AND d.reprocess = 'completed'
    ), standing AS ( -- as the least closed of its indexes
        SELECT t.window_start, bool_or(t.alive) AS alive, bool_and(t.closed) AS closed, bool_and(t.status = 'completed' OR t.status = 'skipped' AND t.reason IS DISTINCT FROM 'cancelled') AS well,
               bool_or(onceguard.reopens(p.reprocess, t.status, t.reason)) AS pending,
               -- What has run since it was asked is not run again.
               -- Only what it needs now is opened: what is completed before its turn comes stays so.
               (array_agg(n.need ORDER BY array_position('{completed,failed,none}', n.need)) FILTER (WHERE onceguard.reopens(backfill.reprocess, t.status, t.reason) AND (t.status <> 'completed' OR NOT EXISTS (
                   SELECT FROM before b WHERE t.window_start BETWEEN b.window_start AND b.last_window AND b.decided_at <
                       (SELECT max(a.started_at) FROM onceguard.job_attempt a WHERE a.job_name = t.name AND a.window_start = t.window_start)))))[1] AS opens
        FROM onceguard.stands(backfill.job_name, backfill.windows) t
        CROSS JOIN LATERAL onceguard.reprocess_of(t.status, t.reason) n(need)
        LEFT JOIN onceguard.job_plan p ON p.job_name = backfill.job_name AND p.window_start = t.window_start
        GROUP BY 1
    ), judged AS (
        SELECT a.w, t.opens AS reprocess,
               CASE WHEN t.alive THEN 'running'
                    WHEN t.window_start IS NULL OR t.opens IS NOT NULL OR t.pending OR p.window_start IS NOT NULL AND NOT t.closed THEN 'planned'
                    WHEN t.well THEN 'done' ELSE 'kept' END AS answer
        FROM asked a
        LEFT JOIN standing t ON t.window_start = a.w
        LEFT JOIN onceguard.job_plan p ON p.job_name = backfill.job_name AND p.window_start = a.w
    ), written AS (
        INSERT INTO onceguard.job_plan AS p (job_name, window_start, cron_job_uid, cron_job, planned_by, why, reprocess)
        SELECT backfill.job_name, j.w, s.cron_job_uid, s.cron_job, backfill.who, backfill.why, j.reprocess
        FROM judged j WHERE j.answer = 'planned' ORDER BY j.w
        -- What the engine had planned is a person's now. What a Job was made for is open already.
        ON CONFLICT (job_name, window_start) DO UPDATE SET planned_by = coalesce(p.planned_by, excluded.planned_by), why = coalesce(p.why, excluded.why),
            reprocess = CASE WHEN p.made = 0 THEN coalesce(excluded.reprocess, p.reprocess) END,
            -- And it goes to the CronJob that is named, until a Job is made from another.
            cron_job_uid = CASE WHEN p.made = 0 AND backfill.cron_job_uid IS NOT NULL THEN excluded.cron_job_uid ELSE p.cron_job_uid END,
            cron_job = CASE WHEN p.made = 0 AND backfill.cron_job_uid IS NOT NULL THEN excluded.cron_job ELSE p.cron_job END
        WHERE p.planned_by IS NULL OR p.made = 0 AND (excluded.reprocess <> coalesce(p.reprocess, '') OR p.cron_job_uid <> backfill.cron_job_uid)
        RETURNING 1
    )
    SELECT count(*) FILTER (WHERE j.answer = 'planned'), count(*) FILTER (WHERE j.answer = 'done'), count(*) FILTER (WHERE j.answer = 'running'),
           count(*) FILTER (WHERE j.answer = 'kept'), (SELECT count(*) FROM written)
    INTO planned, done, running, kept, fresh FROM judged j;
    IF fresh > 0 THEN
        INSERT INTO onceguard.job_decision (job_name, window_start, last_window, windows, what, reprocess, who, why)
        SELECT backfill.job_name, min(x), max(x), fresh, 'backfill', backfill.reprocess, backfill.who, backfill.why FROM unnest(backfill.windows) x;
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.backfill IS 'For the owner: plans due windows to be run, oldest first. reprocess: none, what nobody has run and what was skipped; failed, also what failed, is exhausted or held, or was cancelled; completed, also what is completed, with a new generation. Until its Job is made a window stays as it is. Asked again, with the same who and why, it goes on where it was. cron_job_uid is the CronJob whose Jobs run them, where several share the job. The answer counts what is planned, done, running, and kept as it is. 55000 no CronJob would run it, OG004 pruned.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.take_back(job_name text, window_start timestamptz, who text, why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    e onceguard.job_execution;
    was onceguard.job_execution;
BEGIN
    -- What it was before the last decision; those about ranges keep nothing.
    SELECT r.* INTO was FROM (
        SELECT d.what, d.before FROM onceguard.job_decision d
        WHERE d.job_name = take_back.job_name AND d.window_start = take_back.window_start AND d.what IN ('rerun', 'cancel', 'release')
        ORDER BY d.id DESC LIMIT 1) d
    CROSS JOIN LATERAL jsonb_populate_record(NULL::onceguard.job_execution, d.before) r WHERE d.what = 'rerun';
    e := onceguard.decide(take_back.job_name, take_back.window_start, 'cancel', take_back.who, take_back.why);
    IF was.status = 'completed' AND e.status = 'failed' AND e.reason = 'rerun' AND e.decided = e.attempt AND e.generation = was.generation + 1 THEN
        UPDATE onceguard.job_execution t SET status = was.status, reason = was.reason, closed_by = was.closed_by, execution_id = was.execution_id, decided = was.decided,
            generation = was.generation, payload_digest = was.payload_digest, request_digest = was.request_digest, result = was.result, processed = was.processed,
            done_xid = was.done_xid, completed_at = was.completed_at, updated_at = clock_timestamp()
        WHERE t.job_name = take_back.job_name AND t.window_start = take_back.window_start;
    ELSE
        PERFORM onceguard.end_window(take_back.job_name, take_back.window_start, 'skipped', 'cancelled', take_back.who);
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.take_back IS 'Internal: cancels a window that is open. One that was opened again, and not tried since, is completed as before.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.cancel_backfill(job_name text, first timestamptz, last timestamptz, who text, why text, cron_job_uid text DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    p onceguard.job_plan;
    lane text;
    kept timestamptz[] := '{}';
    starts timestamptz[];
BEGIN
    PERFORM onceguard.check_base(cancel_backfill.job_name), onceguard.check_who(cancel_backfill.who, cancel_backfill.why);
    IF (cancel_backfill.first <= cancel_backfill.last) IS NOT TRUE THEN
        RAISE EXCEPTION 'first % and last % must be in order', cancel_backfill.first, cancel_backfill.last USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds');
    PERFORM FROM onceguard.job_schedule t WHERE t.job_name = cancel_backfill.job_name ORDER BY t.cron_job_uid FOR UPDATE;
    PERFORM onceguard.drop_plans(ARRAY[cancel_backfill.job_name]);
    -- Where a Job was made already, that must not run the window either.
    FOR p IN SELECT * FROM onceguard.job_plan t WHERE t.job_name = cancel_backfill.job_name AND t.made > 0
               AND t.window_start BETWEEN cancel_backfill.first AND cancel_backfill.last
               AND (cancel_backfill.cron_job_uid IS NULL OR t.cron_job_uid = cancel_backfill.cron_job_uid) ORDER BY t.window_start LOOP
        BEGIN
            FOR lane IN SELECT t.name FROM onceguard.stands(p.job_name, ARRAY[p.window_start]) t WHERE NOT t.closed ORDER BY 1 LOOP
                PERFORM onceguard.take_back(lane, p.window_start, cancel_backfill.who, cancel_backfill.why);
            END LOOP;
        EXCEPTION WHEN object_not_in_prerequisite_state THEN
            kept := kept || p.window_start; -- a worker runs it
        END;
    END LOOP;
    -- What nobody has claimed is closed before it is: a Job that was made, or is yet to come by
    -- the schedule, finds it so, and the engine does not plan it again. No row comes or goes
    -- without the job's lock.
    INSERT INTO onceguard.job (name) VALUES (cancel_backfill.job_name) ON CONFLICT DO NOTHING;
    PERFORM FROM onceguard.job j WHERE j.name = cancel_backfill.job_name FOR NO KEY UPDATE;
    WITH gone AS (
        SELECT * FROM onceguard.job_plan t WHERE t.job_name = cancel_backfill.job_name AND t.window_start BETWEEN cancel_backfill.first AND cancel_backfill.last
          AND t.window_start <> ALL (kept) AND (cancel_backfill.cron_job_uid IS NULL OR t.cron_job_uid = cancel_backfill.cron_job_uid)
    ), names AS (
        SELECT u.cron_job_uid, c AS name FROM (SELECT DISTINCT g.cron_job_uid FROM gone g) u CROSS JOIN LATERAL onceguard.claimed_as(cancel_backfill.job_name, u.cron_job_uid) c
    ), claimed AS (
        SELECT s.name, s.window_start FROM (SELECT array_agg(g.window_start) AS starts FROM gone g) x CROSS JOIN LATERAL onceguard.stands(cancel_backfill.job_name, x.starts) s
    )
    INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, closed_by, attempt, fencing_token)
    SELECT n.name, g.window_start, 'skipped', 'cancelled', cancel_backfill.who, 0, 0
    FROM gone g JOIN names n ON n.cron_job_uid IS NOT DISTINCT FROM g.cron_job_uid
    WHERE g.made > 0 AND NOT EXISTS (SELECT FROM claimed c WHERE c.name = n.name AND c.window_start = g.window_start)
       OR g.made = 0 AND g.reason IS NOT NULL AND NOT EXISTS (SELECT FROM claimed c WHERE c.window_start = g.window_start);
    WITH gone AS (
        DELETE FROM onceguard.job_plan t WHERE t.job_name = cancel_backfill.job_name AND t.window_start BETWEEN cancel_backfill.first AND cancel_backfill.last
          AND t.window_start <> ALL (kept) AND (cancel_backfill.cron_job_uid IS NULL OR t.cron_job_uid = cancel_backfill.cron_job_uid) RETURNING t.window_start
    )
    SELECT array_agg(g.window_start ORDER BY g.window_start) INTO starts FROM gone g;
    IF starts IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO onceguard.job_decision (job_name, window_start, last_window, windows, what, who, why)
    VALUES (cancel_backfill.job_name, starts[1], starts[cardinality(starts)], cardinality(starts), 'cancel-backfill', cancel_backfill.who, cancel_backfill.why);
    RETURN cardinality(starts);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.cancel_backfill IS 'For the owner: takes back what is planned between two windows, the engine''s plans too, but for what a worker runs; of one CronJob, or of all. What the engine had planned, or a Job was made for, is cancelled, under each name by which it would be claimed; a completed window that was opened again and not tried yet is completed as before. What a person had planned, and no Job was made for, stays as it was. The answer is how many were taken back.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.answers(job_name text, windows timestamptz[])
RETURNS TABLE (window_start timestamptz, kind text, status text, reason text, rule text, evidence text, planned boolean, cron_job text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    IF session_user <> current_user AND NOT has_table_privilege(session_user, 'onceguard.gaps', 'SELECT') THEN
        RAISE EXCEPTION 'role "%" may not read the ledger', session_user
            USING ERRCODE = 'insufficient_privilege', HINT = format('As the owner of the ledger: SELECT onceguard.grant_audit(%L)', session_user);
    END IF;
    PERFORM onceguard.check_base(answers.job_name), onceguard.check_windows(answers.windows);
    RETURN QUERY
    WITH standing AS ( -- as the least closed of its indexes
        SELECT DISTINCT ON (t.window_start) t.window_start, t.reason,
               CASE WHEN t.status = 'completed' THEN 'done' WHEN t.status <> 'running' THEN t.status WHEN t.alive THEN 'running' ELSE 'lease ended' END AS state
        FROM onceguard.stands(answers.job_name, answers.windows) t
        ORDER BY t.window_start, array_position('{running,failed,held,exhausted,skipped,completed}', t.status), t.alive DESC, t.name
    )
    SELECT a.w,
           CASE WHEN t.window_start IS NOT NULL THEN 'execution' WHEN a.w < j.closed_before THEN 'pruned' WHEN p.window_start IS NOT NULL THEN 'plan'
                WHEN g.status IS NOT NULL THEN 'gap' ELSE 'none' END,
           CASE WHEN t.window_start IS NOT NULL THEN t.state WHEN p.window_start IS NOT NULL THEN NULL ELSE g.status END,
           CASE WHEN t.window_start IS NOT NULL THEN t.reason WHEN p.window_start IS NOT NULL THEN p.reason ELSE g.reason END,
           CASE WHEN t.window_start IS NULL AND p.window_start IS NULL THEN g.rule END,
           CASE WHEN t.window_start IS NULL AND p.window_start IS NULL THEN g.evidence END,
           p.window_start IS NOT NULL, coalesce(p.cron_job, g.cron_job)
    FROM unnest(answers.windows) WITH ORDINALITY a(w, n)
    LEFT JOIN standing t ON t.window_start = a.w
    LEFT JOIN onceguard.job j ON j.name = answers.job_name
    LEFT JOIN onceguard.job_plan p ON p.job_name = answers.job_name AND p.window_start = a.w
    LEFT JOIN LATERAL ( -- the gaps of a CronJob do not overlap; of several CronJobs it may still come from one
        SELECT x.*, s.cron_job FROM onceguard.job_schedule s CROSS JOIN LATERAL (
            SELECT o.* FROM onceguard.job_gap o WHERE o.job_name = s.job_name AND o.cron_job_uid = s.cron_job_uid AND o.first_window <= a.w
            ORDER BY o.first_window DESC LIMIT 1) x
        WHERE s.job_name = answers.job_name AND x.last_window >= a.w
        ORDER BY array_position('{late,missed,skipped}', x.status), x.updated_at DESC LIMIT 1) g ON true
    ORDER BY a.n;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.answers IS 'For the owner and readers: what became of each of these windows, one row each. kind is execution, plan, gap, pruned, or none: nobody has answered for it. An execution goes before a plan, and a plan before a gap. Of an Indexed Job the index that is least closed answers.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.schema_version(OUT version int, OUT min_compatible int)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT 7, 7 $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.schema_version IS 'The version of these functions, and the oldest version whose programs they still serve. Each migration replaces this function.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
SELECT onceguard.seal(fresh => true);
