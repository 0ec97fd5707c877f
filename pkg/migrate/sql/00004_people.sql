-- +goose Up
-- What people read and what operators call. The views show no results and no
-- payloads, only their digests: those may be business data. Their clock is
-- statement_timestamp(): a volatile one would keep the planner from looking through a view,
-- and each question would then read the whole history.
SET LOCAL lock_timeout = '10s';

CREATE VIEW onceguard.attempts AS
SELECT a.job_name, a.window_start, a.attempt,
       CASE WHEN a.outcome IS NOT NULL THEN a.outcome
            WHEN e.execution_id IS DISTINCT FROM a.execution_id THEN 'lost'
            WHEN e.status = 'completed' THEN 'completed'
            WHEN l.expires_at >= statement_timestamp() THEN 'running'
            ELSE 'lease ended' END AS outcome,
       a.exit_code, a.message, a.started_at,
       coalesce(a.ended_at, CASE WHEN e.execution_id = a.execution_id THEN e.completed_at END) AS ended_at,
       coalesce(a.ended_at, CASE WHEN e.execution_id = a.execution_id THEN e.completed_at END, statement_timestamp()) - a.started_at AS duration,
       a.trigger, a.source, a.namespace, a.job, a.pod, a.node, a.generation, a.execution_id, a.fencing_token
FROM onceguard.job_attempt a
LEFT JOIN onceguard.job_execution e ON e.job_name = a.job_name AND e.window_start = a.window_start
LEFT JOIN onceguard.job_lease l ON l.job_name = a.job_name AND l.window_start = a.window_start AND l.execution_id = a.execution_id;
COMMENT ON VIEW onceguard.attempts IS 'One row for each try at a window.';
COMMENT ON COLUMN onceguard.attempts.outcome IS 'completed, failed, crashed, stopped, lost, not-started, uncommitted; running; or "lease ended": it died, and nobody has taken over yet.';
COMMENT ON COLUMN onceguard.attempts.exit_code IS 'As Kubernetes shows it: 128 and the signal''s number for a killed process.';
COMMENT ON COLUMN onceguard.attempts.duration IS 'From the claim to the end, or to now while it runs.';
COMMENT ON COLUMN onceguard.attempts.source IS 'How the window was derived: timestamp, name, manual, separate or declared.';
COMMENT ON COLUMN onceguard.attempts.fencing_token IS 'Grows with each attempt at the window, for systems that can refuse an older one.';

CREATE VIEW onceguard.skips AS
SELECT s.job_name, s.window_start, s.reason, s.skipped_at, s.trigger, s.namespace, s.job, s.pod, s.node
FROM onceguard.job_skip s;
COMMENT ON VIEW onceguard.skips IS 'One row for each pod that did not run, with the reason: its window was completed (a duplicate prevented), closed, busy and so on.';

CREATE VIEW onceguard.windows AS
SELECT e.job_name, e.window_start, e.window_end,
       CASE WHEN e.status = 'completed' THEN 'done'
            WHEN e.status <> 'running' THEN e.status
            WHEN l.expires_at >= statement_timestamp() THEN 'running'
            ELSE 'lease ended' END AS state,
       e.reason, e.closed_by, e.attempt AS attempts,
       (SELECT count(*) FROM onceguard.job_skip s WHERE s.job_name = e.job_name AND s.window_start = e.window_start
        AND s.reason IN ('completed', 'closed', 'busy')) AS duplicates_prevented,
       (SELECT f.started_at FROM onceguard.job_attempt f WHERE f.job_name = e.job_name AND f.window_start = e.window_start
        ORDER BY f.attempt LIMIT 1) AS first_started_at,
       a.started_at, e.completed_at,
       coalesce(e.completed_at, a.ended_at, statement_timestamp()) - a.started_at AS duration,
       e.processed, coalesce(c.seq, 0) AS checkpoint_seq, e.payload_digest, a.trigger, a.source, a.namespace, a.job, a.pod, a.node,
       a.outcome AS last_outcome, a.exit_code AS last_exit_code, a.message AS last_message,
       e.schedule, e.time_zone, e.dst, e.generation, e.execution_id, e.fencing_token,
       l.expires_at AS lease_expires_at, e.updated_at
FROM onceguard.job_execution e
LEFT JOIN onceguard.attempts a ON a.job_name = e.job_name AND a.window_start = e.window_start AND a.attempt = e.attempt
LEFT JOIN onceguard.job_lease l ON l.job_name = e.job_name AND l.window_start = e.window_start AND e.status = 'running'
LEFT JOIN onceguard.job_checkpoint c ON c.job_name = e.job_name AND c.window_start = e.window_start;
COMMENT ON VIEW onceguard.windows IS 'One row for each window that was ever claimed or cancelled.';
COMMENT ON COLUMN onceguard.windows.window_start IS 'The nominal schedule instant: with job_name the identity of the work.';
COMMENT ON COLUMN onceguard.windows.state IS 'done; running; failed (may be retried); "lease ended": its holder died, and the next claim takes over; held: after a crash a person is to decide; closed: exhausted or skipped.';
COMMENT ON COLUMN onceguard.windows.reason IS 'Why it is skipped: late, overlap, superseded or cancelled; exhausted; held; or rerun: a person asked for it again.';
COMMENT ON COLUMN onceguard.windows.closed_by IS 'The pod, or the person, that closed it.';
COMMENT ON COLUMN onceguard.windows.attempts IS 'How often the window was tried.';
COMMENT ON COLUMN onceguard.windows.duplicates_prevented IS 'How many pods found the window done, closed or busy, and did not run.';
COMMENT ON COLUMN onceguard.windows.duration IS 'Of the last attempt: to its end, or to now while it runs.';
COMMENT ON COLUMN onceguard.windows.processed IS 'The count that the worker reported with its commit.';
COMMENT ON COLUMN onceguard.windows.checkpoint_seq IS 'How many pieces of its work are committed; 0 when it keeps no checkpoints.';
COMMENT ON COLUMN onceguard.windows.payload_digest IS 'The payload that the window belongs to; another one is refused.';
COMMENT ON COLUMN onceguard.windows.dst IS 'The rule for moved clocks that it was due by; null: that of Kubernetes.';
COMMENT ON COLUMN onceguard.windows.generation IS 'Grows with each rerun of a completed window; part of the idempotency key.';

CREATE VIEW onceguard.jobs AS
WITH RECURSIVE named AS ( -- each name once, by leaps over the primary key
    (SELECT e.job_name FROM onceguard.job_execution e ORDER BY e.job_name LIMIT 1)
    UNION ALL
    SELECT (SELECT e.job_name FROM onceguard.job_execution e WHERE e.job_name > n.job_name ORDER BY e.job_name LIMIT 1)
    FROM named n WHERE n.job_name IS NOT NULL
), names AS (
    SELECT n.job_name, split_part(split_part(n.job_name, '#', 1), '@', 1) AS base FROM named n WHERE n.job_name IS NOT NULL
)
SELECT n.job_name, w.window_start AS latest_window,
       CASE WHEN w.status = 'completed' THEN 'done'
            WHEN w.status <> 'running' THEN w.status
            WHEN w.expires_at >= statement_timestamp() THEN 'running'
            WHEN w.status IS NOT NULL THEN 'lease ended' END AS latest_state,
       c.window_start AS latest_completed_window, c.completed_at AS latest_completed_at,
       extract(epoch FROM statement_timestamp() - c.completed_at)::bigint AS seconds_since_completed, j.closed_before
FROM (SELECT m.job_name, m.base FROM names m
      UNION ALL -- and jobs whose windows were all pruned
      SELECT j.name, j.name FROM onceguard.job j WHERE j.name NOT IN (SELECT m.base FROM names m)) n
LEFT JOIN onceguard.job j ON j.name = n.base
LEFT JOIN LATERAL (SELECT e.window_start, e.status, l.expires_at FROM onceguard.job_execution e
                   LEFT JOIN onceguard.job_lease l ON l.job_name = e.job_name AND l.window_start = e.window_start
                   WHERE e.job_name = n.job_name AND e.window_start <= statement_timestamp() -- not one cancelled in advance
                   ORDER BY e.window_start DESC LIMIT 1) w ON true
LEFT JOIN LATERAL (SELECT e.window_start, e.completed_at FROM onceguard.job_execution e WHERE e.job_name = n.job_name AND e.status = 'completed'
                   ORDER BY e.window_start DESC LIMIT 1) c ON true;
COMMENT ON VIEW onceguard.jobs IS 'One row for each job that ever claimed a window; the indexes of an Indexed Job and separate manual runs have rows of their own.';
COMMENT ON COLUMN onceguard.jobs.latest_window IS 'The latest that has begun; windows cancelled in advance come after it.';
COMMENT ON COLUMN onceguard.jobs.seconds_since_completed IS 'Since the latest completed window was completed.';
COMMENT ON COLUMN onceguard.jobs.closed_before IS 'Windows before this instant never run.';

CREATE VIEW onceguard.decisions AS
SELECT d.job_name, d.window_start, d.last_window, d.windows, d.what, d.reprocess, d.who, d.why, d.login::text AS login, d.decided_at, d.before - 'result' AS before
FROM onceguard.job_decision d;
COMMENT ON VIEW onceguard.decisions IS 'One row for each rerun, cancel or release of a window, and for each backfill or its end of a range: who decided it, and why.';
COMMENT ON COLUMN onceguard.decisions.last_window IS 'Of a range: window_start is its first.';
COMMENT ON COLUMN onceguard.decisions.windows IS 'How many windows of the range it was about.';
COMMENT ON COLUMN onceguard.decisions.login IS 'The database login that it was done with.';
COMMENT ON COLUMN onceguard.decisions.before IS 'The window as it stood before; a completion that a rerun replaced is kept here.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_who(who text, why text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(btrim(check_who.who), '') = '' OR coalesce(btrim(check_who.why), '') = '' THEN
        RAISE EXCEPTION 'who and why must not be empty: they are recorded' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF length(check_who.who) > 200 OR length(check_who.why) > 1000 THEN
        RAISE EXCEPTION 'who must be at most 200 and why at most 1000 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_who IS 'Internal: who decided, and why.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.decide(job_name text, window_start timestamptz, what text, who text, why text) RETURNS onceguard.job_execution
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    base text := split_part(split_part(decide.job_name, '#', 1), '@', 1);
    closed timestamptz;
    e onceguard.job_execution;
    expires timestamptz;
BEGIN
    IF base IS NULL OR base = '' OR length(decide.job_name) > 1000 THEN
        RAISE EXCEPTION 'job_name must be 1 to 1000 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF decide.window_start IS NULL OR NOT isfinite(decide.window_start) THEN
        RAISE EXCEPTION 'window_start must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.check_who(decide.who, decide.why);
    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds'); -- all claims of the job wait for this transaction
    INSERT INTO onceguard.job (name) VALUES (base) ON CONFLICT DO NOTHING;
    SELECT t.closed_before INTO closed FROM onceguard.job t WHERE t.name = base FOR NO KEY UPDATE;
    IF closed > decide.window_start THEN
        RAISE EXCEPTION 'the window is closed: history before % was pruned', closed USING ERRCODE = 'OG004';
    END IF;
    SELECT * INTO e FROM onceguard.job_execution t
    WHERE t.job_name = decide.job_name AND t.window_start = decide.window_start FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM onceguard.job_execution t WHERE t.job_name = decide.job_name AND t.window_start = decide.window_start) THEN
        RAISE EXCEPTION 'the window is running: its transaction is committing' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF e.status IN ('running', 'completed') THEN
        SELECT t.expires_at INTO expires FROM onceguard.job_lease t
        WHERE t.job_name = decide.job_name AND t.window_start = decide.window_start FOR NO KEY UPDATE;
        IF expires >= clock_timestamp() THEN
            RAISE EXCEPTION 'the window is %, and its worker runs until at least %', e.status, expires
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Delete its pod, or wait until it has ended.';
        END IF;
    END IF;
    INSERT INTO onceguard.job_decision (job_name, window_start, what, who, why, before)
    VALUES (decide.job_name, decide.window_start, decide.what, decide.who, decide.why, CASE WHEN e.status IS NOT NULL THEN to_jsonb(e) END);
    IF e.status = 'completed' THEN -- its attempt, should nobody have reported the end
        UPDATE onceguard.job_attempt t SET outcome = 'completed', ended_at = e.completed_at
        WHERE t.job_name = decide.job_name AND t.window_start = decide.window_start AND t.attempt = e.attempt AND t.outcome IS NULL;
    END IF;
    RETURN e;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.decide IS 'Internal: locks and gives a window that no worker runs, and records what a person decided about it.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.reopen(e onceguard.job_execution) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF e.status = 'completed' THEN
        -- Another work under another idempotency key: nothing of the old one is continued.
        e.generation := e.generation + 1;
        DELETE FROM onceguard.job_checkpoint c WHERE c.job_name = e.job_name AND c.window_start = e.window_start;
        UPDATE onceguard.job_execution t SET status = 'failed', execution_id = NULL, generation = e.generation, completed_at = NULL, done_xid = NULL,
            request_digest = NULL, result = NULL, processed = NULL
        WHERE t.job_name = e.job_name AND t.window_start = e.window_start;
    END IF;
    PERFORM onceguard.end_window(e.job_name, e.window_start, 'failed', 'rerun', NULL);
    -- The payload is free again: its being wrong may be the very reason.
    UPDATE onceguard.job_execution t SET decided = t.attempt, payload_digest = NULL
    WHERE t.job_name = e.job_name AND t.window_start = e.window_start;
    RETURN e.generation;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.reopen IS 'Internal: the next claim of a window that decide() has locked runs. The answer is its generation.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.plan_again(job_name text, window_start timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    base text := split_part(plan_again.job_name, '#', 1);
BEGIN
    IF onceguard.planned(plan_again.job_name, plan_again.window_start) THEN -- first the schedules, as the engine does
        PERFORM FROM onceguard.job_schedule s WHERE s.job_name = base ORDER BY s.cron_job_uid FOR UPDATE;
        UPDATE onceguard.job_plan p SET made = 0, made_at = NULL, job = NULL WHERE p.job_name = base AND p.window_start = plan_again.window_start;
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.plan_again IS 'Internal: a planned window that a person opens again gets a Job as if none had been made for it. Before decide(), for the order of locks.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.rerun(job_name text, window_start timestamptz, who text, why text) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    e onceguard.job_execution;
BEGIN
    PERFORM onceguard.plan_again(rerun.job_name, rerun.window_start);
    e := onceguard.decide(rerun.job_name, rerun.window_start, 'rerun', rerun.who, rerun.why);
    IF e.status IS NULL THEN
        RAISE EXCEPTION 'there is no such window in the record' USING ERRCODE = 'no_data_found';
    END IF;
    RETURN onceguard.reopen(e);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.rerun IS 'For the owner: the next claim of this window runs, whatever became of it before; who and why are recorded. A completed window gets a new generation, and its completion is kept in decisions; any other goes on from its checkpoint. Its payload is free again. The answer is the generation. Refused (55000) while a worker runs, P0002 no such window, OG004 pruned.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.unhold(job_name text, window_start timestamptz, who text, why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    e onceguard.job_execution;
BEGIN
    PERFORM onceguard.plan_again(unhold.job_name, unhold.window_start);
    e := onceguard.decide(unhold.job_name, unhold.window_start, 'release', unhold.who, unhold.why);
    IF e.status IS NULL THEN
        RAISE EXCEPTION 'there is no such window in the record' USING ERRCODE = 'no_data_found';
    END IF;
    IF e.status <> 'held' THEN
        RAISE EXCEPTION 'the window is %, not held', e.status USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM onceguard.reopen(e);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.unhold IS 'For the owner: a window that is held after a crash may be tried again; who and why are recorded. It goes on from its checkpoint. Refused (55000) when it is not held, P0002 no such window, OG004 pruned.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.cancel(job_name text, window_start timestamptz, who text, why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    e onceguard.job_execution := onceguard.decide(cancel.job_name, cancel.window_start, 'cancel', cancel.who, cancel.why);
BEGIN
    IF e.status IN ('completed', 'skipped') THEN
        RAISE EXCEPTION 'the window is % already', e.status USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF e.status IS NULL THEN
        INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, closed_by, attempt, fencing_token)
        VALUES (cancel.job_name, cancel.window_start, 'skipped', 'cancelled', cancel.who, 0, 0);
    ELSE
        PERFORM onceguard.end_window(cancel.job_name, cancel.window_start, 'skipped', 'cancelled', cancel.who);
    END IF;
    -- Those that it had asked to stop, to take their place, need not.
    UPDATE onceguard.job_lease l SET cancel = false, cancel_by = NULL, cancel_for = NULL
    WHERE l.job_name = cancel.job_name AND l.cancel_for = cancel.window_start;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.cancel IS 'For the owner: this window shall not run, also when nobody has claimed it yet; who and why are recorded. A manual Job, or rerun, opens it again. What it had asked to stop for it may go on. Refused (55000) while a worker runs, or when it is completed or skipped already; OG004 pruned.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.names_of(base text, kept text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
BEGIN
    EXECUTE format($q$
        WITH RECURSIVE n AS ( -- by leaps over the primary key
            SELECT ($1 || m) COLLATE "C" AS name, ($1 || chr(ascii(m) + 1)) COLLATE "C" AS upto FROM unnest('{#,@}'::text[]) m
            UNION ALL
            SELECT (SELECT t.job_name FROM onceguard.%I t WHERE t.job_name > n.name AND t.job_name < n.upto ORDER BY t.job_name LIMIT 1), n.upto
            FROM n WHERE n.name IS NOT NULL
        )
        SELECT array_agg(n.name) FROM n WHERE n.name IS NOT NULL$q$, names_of.kept) INTO names USING names_of.base;
    RETURN names_of.base || names;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.names_of IS 'Internal: a job''s name, and those of its indexes and separate runs that a table keeps.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.prune(job_name text, upto timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET plan_cache_mode = 'force_custom_plan' AS $$
#variable_conflict use_column
DECLARE
    most constant int := 5000;
    names text[];
    share int;
    closed timestamptz;
    before timestamptz;
    t text;
BEGIN
    IF coalesce(prune.job_name, '') = '' THEN
        RAISE EXCEPTION 'job_name must not be empty' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF prune.job_name ~ '[#@]' THEN
        RAISE EXCEPTION 'job_name "%" must be without #index and @run: a job is pruned as a whole', prune.job_name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF prune.upto IS NULL OR NOT isfinite(prune.upto) OR prune.upto > clock_timestamp() THEN
        RAISE EXCEPTION 'upto must be an instant in the past, and is %', prune.upto USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT j.closed_before INTO before FROM onceguard.job j WHERE j.name = prune.job_name;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM onceguard.job_schedule s WHERE s.job_name = prune.job_name) AND NOT EXISTS (SELECT FROM onceguard.job_plan p WHERE p.job_name = prune.job_name) THEN
            RAISE EXCEPTION 'no window of job "%" was ever claimed or judged', prune.job_name USING ERRCODE = 'no_data_found';
        END IF;
        before := '-infinity';
    END IF;
    -- Not more windows at once than can be deleted while claims wait: of each name its share.
    -- Where that ends is found before the lock.
    names := onceguard.names_of(prune.job_name, 'job_execution');
    SELECT greatest(1, most / greatest(1, count(*))) INTO share FROM unnest(names) n
    WHERE EXISTS (SELECT FROM onceguard.job_execution e WHERE e.job_name = n AND e.window_start >= before AND e.window_start < prune.upto
                  ORDER BY e.window_start OFFSET 1);
    closed := least(prune.upto, (
        SELECT min(x.window_start) FROM unnest(names) n CROSS JOIN LATERAL (
            SELECT e.window_start FROM onceguard.job_execution e WHERE e.job_name = n AND e.window_start >= before AND e.window_start < prune.upto
            ORDER BY e.window_start OFFSET share LIMIT 1) x));

    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds');
    -- First, for the engine's plans and gaps: claims do not wait for its transactions.
    PERFORM FROM onceguard.job_schedule c WHERE c.job_name = prune.job_name ORDER BY c.cron_job_uid FOR UPDATE;
    PERFORM onceguard.drop_plans(ARRAY[prune.job_name]);
    INSERT INTO onceguard.job (name) VALUES (prune.job_name) ON CONFLICT DO NOTHING;
    -- Claims read the watermark under this lock, so none can pass below it.
    SELECT j.closed_before INTO before FROM onceguard.job j WHERE j.name = prune.job_name FOR NO KEY UPDATE;
    names := onceguard.names_of(prune.job_name, 'job_execution');
    -- Never past a window that may still run, or is to, or whose worker is not gone.
    closed := greatest(before, least(closed,
        (SELECT min(p.window_start) FROM onceguard.job_plan p WHERE p.job_name = prune.job_name),
        (SELECT min(e.window_start) FROM onceguard.job_execution e
         WHERE e.job_name = ANY (names) AND e.window_start >= before AND e.window_start < closed AND e.status IN ('running', 'failed', 'held')),
        (SELECT min(l.window_start) FROM onceguard.job_lease l
         WHERE l.job_name = ANY (names) AND l.window_start >= before AND l.window_start < closed AND l.expires_at >= clock_timestamp())));
    UPDATE onceguard.job j SET closed_before = closed WHERE j.name = prune.job_name AND j.closed_before < closed;
    FOREACH t IN ARRAY ARRAY['job_execution', 'job_lease', 'job_attempt', 'job_checkpoint'] LOOP
        EXECUTE format('DELETE FROM onceguard.%I t WHERE t.job_name = ANY ($1) AND t.window_start >= $2 AND t.window_start < $3', t)
            USING names, before, closed;
    END LOOP;
    -- Late pods skip windows that are closed, also under names that have no window.
    DELETE FROM onceguard.job_skip s WHERE s.job_name = ANY (onceguard.names_of(prune.job_name, 'job_skip')) AND s.window_start < closed;
    PERFORM onceguard.cut_gaps(prune.job_name, g.cron_job_uid, g.first, closed - interval '1 microsecond')
    FROM (SELECT o.cron_job_uid, min(o.first_window) AS first FROM onceguard.job_gap o WHERE o.job_name = prune.job_name AND o.first_window < closed GROUP BY 1) g;
    -- The engine does not ask for these again: see engine_schedules().
    DELETE FROM onceguard.job_schedule s WHERE s.job_name = prune.job_name AND s.gone_at < clock_timestamp() - interval '30 days'
      AND NOT EXISTS (SELECT FROM onceguard.job_gap g WHERE g.job_name = s.job_name AND g.cron_job_uid = s.cron_job_uid);
    RETURN closed;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.prune IS 'For the owner: closes the windows of a job before an instant for ever and deletes what is kept of them, their gaps too (decisions stay), and CronJobs that are long gone. It stops before a window that may still run (failed, held, running, planned), and after some thousand windows: the answer is how far it came, ask again while that grows. P0002 unknown job.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.job_functions() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY['claim', 'heartbeat', 'begin', 'checkpoint', 'complete', 'release', 'resolve', 'record_skip', 'stored', 'schema_version']
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.job_functions IS 'Internal: what a job''s login may call.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.may_keep(role oid, function name) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The functions of jobs check job_grant; those of readers show no more than the views.
    RETURN function = ANY (onceguard.job_functions())
        OR function = 'answers' AND has_table_privilege(role, 'onceguard.gaps', 'SELECT')
        OR function = ANY (onceguard.engine_functions()) AND EXISTS (SELECT FROM onceguard.engine_grant g WHERE g.role = pg_get_userbyid(may_keep.role));
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.may_keep IS 'Internal: may a role that can execute this function go on to?';

-- +goose StatementBegin
CREATE FUNCTION onceguard.seal(fresh boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    revoke text;
BEGIN
    -- ALTER DEFAULT PRIVILEGES of the owner, meant for business tables, works on these tables
    -- too, and a login that may write them passes by every check. Only what the grant
    -- functions give stays: nothing on tables and sequences, SELECT on views, EXECUTE by
    -- may_keep(); of fresh objects nothing at all.
    FOR revoke IN
        SELECT DISTINCT format('REVOKE %s ON %s %s FROM %s CASCADE', o.what, o.kind, o.name,
               CASE o.grantee WHEN 0 THEN 'PUBLIC' ELSE o.grantee::regrole::text END)
        FROM (
            SELECT CASE WHEN c.relkind = 'v' AND NOT seal.fresh THEN 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER' ELSE 'ALL' END AS what,
                   CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name, x.grantee, c.relowner AS owner
            FROM pg_class c
            CROSS JOIN LATERAL (
                SELECT a.grantee, a.privilege_type FROM aclexplode(c.relacl) a
                UNION ALL
                SELECT a.grantee, a.privilege_type FROM pg_attribute t, aclexplode(t.attacl) a WHERE t.attrelid = c.oid
            ) x
            WHERE c.relnamespace = 'onceguard'::regnamespace
              AND (c.relkind <> 'v' OR seal.fresh OR x.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'))
            UNION ALL
            SELECT 'ALL', 'FUNCTION', p.oid::regprocedure::text, x.grantee, p.proowner
            FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
            WHERE p.pronamespace = 'onceguard'::regnamespace AND (seal.fresh OR x.grantee = 0 OR NOT onceguard.may_keep(x.grantee, p.proname))
            UNION ALL
            -- A function of somebody else's in this schema could stand for one of ours.
            SELECT 'CREATE', 'SCHEMA', 'onceguard', x.grantee, n.nspowner
            FROM pg_namespace n, aclexplode(n.nspacl) x
            WHERE n.nspname = 'onceguard' AND x.privilege_type = 'CREATE' AND x.grantee <> current_user::regrole
        ) o
        WHERE o.grantee <> o.owner
    LOOP
        EXECUTE revoke;
    END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.seal IS 'Internal: takes away what default privileges, or a hand, gave to others than the owner.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.grant_job(role name, pattern text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    f text;
BEGIN
    IF grant_job.pattern IS NULL OR grant_job.pattern ~ '[#@]' OR NOT (grant_job.pattern = '*' OR grant_job.pattern ~ '^[^*]+/(\*|[^*]+)$') THEN
        RAISE EXCEPTION 'pattern "%" must be "namespace/name", "namespace/*" or "*", without #index and @run: those belong to their job, and a name without a namespace is covered by "*" only',
            grant_job.pattern USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.seal();
    EXECUTE format('GRANT USAGE ON SCHEMA onceguard TO %I', grant_job.role);
    FOREACH f IN ARRAY onceguard.job_functions() LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION onceguard.%I TO %I', f, grant_job.role);
    END LOOP;
    INSERT INTO onceguard.job_grant (role, pattern) VALUES (grant_job.role, grant_job.pattern) ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.grant_job IS 'For the owner: lets a login (or the members of a group role) act for the jobs of a pattern: an exact job_name, "namespace/*" or "*".';

-- +goose StatementBegin
CREATE FUNCTION onceguard.revoke_job(role name, pattern text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM onceguard.job_grant g WHERE g.role = revoke_job.role AND g.pattern = revoke_job.pattern;
    RETURN FOUND;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.revoke_job IS 'For the owner: takes a pattern away from a login; false when it did not have it.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.grant_audit(role name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA onceguard TO %I', grant_audit.role);
    EXECUTE format('GRANT SELECT ON onceguard.windows, onceguard.attempts, onceguard.skips, onceguard.jobs, onceguard.decisions, onceguard.gaps, onceguard.plans, onceguard.schedules TO %I', grant_audit.role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION onceguard.schema_version, onceguard.answers TO %I', grant_audit.role);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.grant_audit IS 'For the owner: lets a login read the views and answers(), and nothing else.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.grant_engine(role name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f text;
BEGIN
    PERFORM onceguard.seal();
    PERFORM onceguard.grant_audit(grant_engine.role);
    FOREACH f IN ARRAY onceguard.engine_functions() LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION onceguard.%I TO %I', f, grant_engine.role);
    END LOOP;
    INSERT INTO onceguard.engine_grant (role) VALUES (grant_engine.role) ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.grant_engine IS 'For the owner: lets a login (or the members of a group role) be the windows engine: judge the windows of all jobs, and read what grant_audit gives.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.revoke_engine(role name) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM onceguard.engine_grant g WHERE g.role = revoke_engine.role;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM onceguard.seal();
    RETURN true;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.revoke_engine IS 'For the owner: the login is the windows engine''s no more; false when it was not. It can still read the views.';

REVOKE ALL ON ALL TABLES IN SCHEMA onceguard FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
SELECT onceguard.seal(fresh => true);
