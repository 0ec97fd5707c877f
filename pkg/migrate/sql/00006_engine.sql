-- +goose Up
-- What the windows engine calls: what it remembers, what it looks at, what it records.
--
-- All goes by primary keys. A plan that was made while a table was empty would read the whole
-- of it for each job once it is full, hence enable_seqscan.
SET LOCAL lock_timeout = '10s';

-- +goose StatementBegin
CREATE FUNCTION onceguard.engine_schedules() RETURNS SETOF onceguard.job_schedule
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM onceguard.check_engine();
    RETURN QUERY SELECT s.* FROM onceguard.job_schedule s
    WHERE (s.gone_at < clock_timestamp() - interval '30 days') IS NOT TRUE ORDER BY s.job_name, s.cron_job_uid;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.engine_schedules IS 'For the windows engine: what it remembers of each CronJob; of those that are gone only for 30 days.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.engine_look(asks jsonb)
RETURNS TABLE (ask int, closed_before timestamptz, upto timestamptz, executions jsonb, plans jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    most constant int := 20000;  -- executions an answer, and plans
    share int;                   -- executions an answer where there are many: the whole is bounded, too
    oldest constant int := 2000; -- plans from before what is asked about
    a record;
    jobs text[];
BEGIN
    PERFORM onceguard.check_engine();
    PERFORM onceguard.check_list('asks', engine_look.asks, 10000);
    share := least(most, greatest(500, 200000 / greatest(1, jsonb_array_length(engine_look.asks))));
    FOR a IN SELECT * FROM jsonb_to_recordset(engine_look.asks) AS r(job text, "from" timestamptz, upto timestamptz, open timestamptz[]) LOOP
        PERFORM onceguard.check_base(a.job);
        IF a."from" IS NULL OR a.upto IS NULL THEN
            RAISE EXCEPTION 'from and upto of job "%" must be instants', a.job USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF cardinality(a.open) > most THEN
            RAISE EXCEPTION 'open of job "%" has % windows, and may have %', a.job, cardinality(a.open), most USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    SELECT array_agg(DISTINCT p.job) INTO jobs FROM jsonb_to_recordset(engine_look.asks) AS p(job text)
    WHERE EXISTS (SELECT FROM onceguard.job_plan q WHERE q.job_name = p.job);
    IF jobs IS NOT NULL THEN
        PERFORM onceguard.drop_plans(jobs);
    END IF;

    RETURN QUERY
    SELECT (r.n - 1)::int, j.closed_before, coalesce(k.cut - interval '1 microsecond', r.upto), w.executions, p.plans
    FROM ROWS FROM (jsonb_to_recordset(engine_look.asks) AS (job text, cron_job text, "from" timestamptz, upto timestamptz, open timestamptz[])) WITH ORDINALITY AS r(job, cron_job, "from", upto, open, n)
    LEFT JOIN onceguard.job j ON j.name = r.job
    CROSS JOIN LATERAL (SELECT array_agg(n.name) AS names FROM onceguard.lanes_of(r.job) n) l
    CROSS JOIN LATERAL ( -- where one of the names has more than its share
        SELECT min(x.window_start) AS cut FROM unnest(l.names) n CROSS JOIN LATERAL (
            SELECT t.window_start FROM onceguard.job_execution t
            WHERE t.job_name = n AND t.window_start >= r."from" AND t.window_start <= r.upto
            ORDER BY t.window_start OFFSET greatest(1, share / cardinality(l.names)) LIMIT 1) x) k
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_object('WindowStart', y.window_start, 'Closed', y.closed, 'Alive', y.alive, 'Failed', NOT y.closed AND NOT y.alive, 'Foreign', y.elsewhere, 'UpdatedAt', y.updated_at)
            ORDER BY y.window_start) AS executions
        FROM (
            -- While it is planned a window is not closed: an index has not come, or it is opened again.
            SELECT x.window_start, bool_and(x.status IN ('completed', 'skipped', 'exhausted', 'held') AND q.window_start IS NULL) AS closed,
                   bool_or(x.status = 'running' AND (s.expires_at >= clock_timestamp()) IS TRUE) AS alive, max(greatest(x.updated_at, s.expires_at)) AS updated_at,
                   bool_or((a.namespace <> split_part(nullif(r.cron_job, ''), '/', 1) OR a.trigger <> 'manual'
                       AND a.job !~ ('^' || replace(split_part(nullif(r.cron_job, ''), '/', 2), '.', '\.') || '-r?[0-9]+$')) IS TRUE) AS elsewhere
            FROM (
                SELECT t.job_name, t.window_start, t.status, t.attempt, t.updated_at FROM unnest(l.names) n JOIN onceguard.job_execution t ON t.job_name = n
                WHERE t.window_start >= r."from" AND t.window_start <= r.upto AND (t.window_start < k.cut) IS NOT FALSE
                UNION ALL
                SELECT t.job_name, t.window_start, t.status, t.attempt, t.updated_at FROM unnest(l.names) n
                CROSS JOIN (SELECT DISTINCT o FROM unnest(r.open) o WHERE o < r."from") o
                JOIN onceguard.job_execution t ON t.job_name = n AND t.window_start = o.o
            ) x
            LEFT JOIN onceguard.job_lease s ON s.job_name = x.job_name AND s.window_start = x.window_start AND x.status = 'running'
            LEFT JOIN onceguard.job_attempt a ON a.job_name = x.job_name AND a.window_start = x.window_start AND a.attempt = x.attempt AND x.status IN ('running', 'failed')
            LEFT JOIN onceguard.job_plan q ON q.job_name = r.job AND q.window_start = x.window_start
            GROUP BY 1
        ) y) w
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_object('WindowStart', y.window_start, 'Reason', coalesce(y.reason, ''), 'By', coalesce(y.planned_by, ''), 'Made', y.made,
            'CronJobUID', coalesce(y.cron_job_uid, '')) || CASE WHEN y.made_at IS NULL THEN '{}' ELSE jsonb_build_object('MadeAt', y.made_at) END ORDER BY y.window_start) AS plans
        FROM (
            (SELECT * FROM onceguard.job_plan q WHERE q.job_name = r.job AND q.window_start < r."from" ORDER BY q.window_start LIMIT oldest)
            UNION ALL
            (SELECT * FROM onceguard.job_plan q WHERE q.job_name = r.job AND q.window_start >= r."from" ORDER BY q.window_start LIMIT most)
        ) y) p
    ORDER BY r.n;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.engine_look IS 'For the windows engine: what the ledger knows of windows, one row an ask. executions are complete up to upto, which is earlier than asked where there are too many. Removes plans whose window is closed.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_gaps(what text, list jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g record;
    before timestamptz;
BEGIN
    IF check_gaps.list IS NULL THEN
        RETURN;
    END IF;
    PERFORM onceguard.check_list(check_gaps.what, check_gaps.list, 10000);
    FOR g IN SELECT * FROM jsonb_to_recordset(check_gaps.list) AS r(first timestamptz, last timestamptz, windows bigint, status text, reason text, rule text, evidence text) LOOP
        IF (isfinite(g.first) AND isfinite(g.last) AND g.first <= g.last AND (g.first > before) IS NOT FALSE) IS NOT TRUE THEN
            RAISE EXCEPTION '%: % to % must be two instants in order, after the gap before it', check_gaps.what, g.first, g.last USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF (g.windows > 0) IS NOT TRUE THEN
            RAISE EXCEPTION '%: windows % of the gap at % is less than 1', check_gaps.what, g.windows, g.first USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF (g.status IN ('late', 'missed', 'skipped')) IS NOT TRUE THEN
            RAISE EXCEPTION '%: status "%" of the gap at % is not late, missed or skipped', check_gaps.what, left(g.status, 100), g.first USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF (g.reason ~ '^[a-z-]{1,40}$' AND coalesce(g.rule, '') ~ '^[a-z-]{0,40}$') IS NOT TRUE THEN
            RAISE EXCEPTION '%: reason "%" and rule "%" of the gap at % are not words of lower case', check_gaps.what, left(g.reason, 100), left(g.rule, 100), g.first USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF octet_length(g.evidence) > 1024 THEN
            RAISE EXCEPTION '%: evidence of the gap at % has % bytes, and may have 1024', check_gaps.what, g.first, octet_length(g.evidence) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        before := g.last;
    END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_gaps IS 'Internal: a list of gaps, in order and apart from each other.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.holds_window(g onceguard.job_gap, spacing interval) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- An end beside a window that was cut out is a fraction of a second from it.
    SELECT date_trunc('second', g.first_window) = g.first_window OR date_trunc('second', g.last_window) = g.last_window
        OR g.last_window - g.first_window >= 2 * spacing - interval '1 second'
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.holds_window IS 'Internal: false when there surely is no window left between two that were cut out.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.cut_gaps(job_name text, cron_job_uid text, first timestamptz, last timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    tick constant interval := '1 microsecond';
    g onceguard.job_gap;
    part onceguard.job_gap;
    cut_first int; -- 1: that end is no window, for it was cut there
    cut_last int;
    from_here timestamptz; -- the first window, or the one that was cut out beside it
    to_here timestamptz;
    each numeric;  -- seconds between two windows
    spacing interval; -- two windows in a row are not less apart, on average
BEGIN
    FOR g IN DELETE FROM onceguard.job_gap t WHERE t.job_name = cut_gaps.job_name AND t.cron_job_uid = cut_gaps.cron_job_uid
             AND t.first_window <= cut_gaps.last AND t.last_window >= cut_gaps.first RETURNING * LOOP
        -- How many windows are left is exact where they are evenly spaced.
        cut_first := (date_trunc('second', g.first_window) <> g.first_window)::int;
        cut_last := (date_trunc('second', g.last_window) <> g.last_window)::int;
        from_here := g.first_window - cut_first * tick;
        to_here := g.last_window + cut_last * tick;
        each := extract(epoch FROM to_here - from_here) / nullif(g.windows - 1 + cut_first + cut_last, 0);
        spacing := CASE WHEN g.schedule ~ '^\s*([0-9]+\s+[0-9]+\s|@(daily|midnight|weekly|monthly|yearly|annually))' THEN interval '23 hours'
                        WHEN g.schedule ~ '^\s*([0-9]+\s|@hourly)' THEN interval '45 minutes' ELSE interval '1 minute' END;
        IF g.first_window < cut_gaps.first THEN
            part := g;
            part.last_window := cut_gaps.first - tick;
            part.windows := least(g.windows, greatest(1, ceil(extract(epoch FROM cut_gaps.first - from_here) / nullif(each, 0)) - cut_first));
            IF onceguard.holds_window(part, spacing) THEN
                INSERT INTO onceguard.job_gap SELECT part.*;
            END IF;
        END IF;
        IF g.last_window > cut_gaps.last THEN
            part := g;
            part.first_window := cut_gaps.last + tick;
            part.windows := least(g.windows, greatest(1, ceil(extract(epoch FROM to_here - cut_gaps.last) / nullif(each, 0)) - cut_last));
            IF onceguard.holds_window(part, spacing) THEN
                INSERT INTO onceguard.job_gap SELECT part.*;
            END IF;
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.cut_gaps IS 'Internal: takes the windows from first to last out of the gaps of a CronJob.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.record_gaps(
    job_name text, cron_job_uid text, schedule text, time_zone text, judged_before timestamptz, "from" timestamptz, before timestamptz, list jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    g record;
    newest onceguard.job_gap;
BEGIN
    SELECT * INTO newest FROM onceguard.job_gap t WHERE t.job_name = record_gaps.job_name AND t.cron_job_uid = record_gaps.cron_job_uid
    ORDER BY t.first_window DESC LIMIT 1;
    IF newest.last_window >= record_gaps."from" THEN -- what is given again stays, with the instant it was first seen
        DELETE FROM onceguard.job_gap t WHERE t.job_name = record_gaps.job_name AND t.cron_job_uid = record_gaps.cron_job_uid AND t.first_window >= record_gaps."from"
          AND NOT EXISTS (SELECT FROM jsonb_to_recordset(record_gaps.list) AS r(first timestamptz) WHERE r.first = t.first_window);
        PERFORM onceguard.cut_gaps(record_gaps.job_name, record_gaps.cron_job_uid, record_gaps."from", t.last_window) FROM onceguard.job_gap t
        WHERE t.job_name = record_gaps.job_name AND t.cron_job_uid = record_gaps.cron_job_uid AND t.first_window < record_gaps."from" AND t.last_window >= record_gaps."from";
        SELECT * INTO newest FROM onceguard.job_gap t WHERE t.job_name = record_gaps.job_name AND t.cron_job_uid = record_gaps.cron_job_uid
          AND t.first_window < record_gaps."from" ORDER BY t.first_window DESC LIMIT 1;
    END IF;
    FOR g IN SELECT r.first, r.last, r.windows, r.status, r.reason, nullif(r.rule, '') AS rule, nullif(r.evidence, '') AS evidence
             FROM jsonb_to_recordset(record_gaps.list) AS r(first timestamptz, last timestamptz, windows bigint, status text, reason text, rule text, evidence text) LOOP
        IF g.last < record_gaps.judged_before AND newest.last_window = record_gaps.before AND g.first > record_gaps.before
           AND (newest.status, newest.reason, newest.rule, newest.schedule, newest.time_zone) IS NOT DISTINCT FROM (g.status, g.reason, g.rule, record_gaps.schedule, record_gaps.time_zone) THEN
            UPDATE onceguard.job_gap t SET last_window = g.last, windows = t.windows + g.windows, evidence = coalesce(g.evidence, t.evidence), updated_at = clock_timestamp()
            WHERE t.job_name = newest.job_name AND t.cron_job_uid = newest.cron_job_uid AND t.first_window = newest.first_window;
            DELETE FROM onceguard.job_gap t WHERE t.job_name = newest.job_name AND t.cron_job_uid = newest.cron_job_uid AND t.first_window = g.first;
        ELSE
            INSERT INTO onceguard.job_gap AS t (job_name, cron_job_uid, first_window, last_window, windows, status, reason, rule, evidence, schedule, time_zone)
            VALUES (record_gaps.job_name, record_gaps.cron_job_uid, g.first, g.last, g.windows, g.status, g.reason, g.rule, g.evidence, record_gaps.schedule, record_gaps.time_zone)
            ON CONFLICT (job_name, cron_job_uid, first_window) DO UPDATE SET last_window = excluded.last_window, windows = excluded.windows, status = excluded.status,
                reason = excluded.reason, rule = excluded.rule, evidence = excluded.evidence, schedule = excluded.schedule, time_zone = excluded.time_zone, updated_at = clock_timestamp()
            WHERE (t.last_window, t.windows, t.status, t.reason, t.rule, t.evidence, t.schedule, t.time_zone) IS DISTINCT FROM
                (excluded.last_window, excluded.windows, excluded.status, excluded.reason, excluded.rule, excluded.evidence, excluded.schedule, excluded.time_zone);
        END IF;
        newest := NULL; -- only the first continues what is recorded
    END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.record_gaps IS 'Internal: replaces the gaps of a CronJob from an instant on. The first continues the recorded one before it when that ends at the window before, and says the same.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.exhaust(job_name text, window_start timestamptz, reason text, evidence text, hold_on_crash boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    lane text;
    e onceguard.job_execution;
    expires timestamptz;
    held boolean;
BEGIN
    FOR lane IN SELECT s.name FROM onceguard.stands(exhaust.job_name, ARRAY[exhaust.window_start]) s WHERE NOT s.closed AND NOT s.alive ORDER BY 1 LOOP
        -- Not what a person has opened again since, nor what commits, or is claimed, just now.
        SELECT * INTO e FROM onceguard.job_execution t WHERE t.job_name = lane AND t.window_start = exhaust.window_start
          AND t.status IN ('failed', 'running') AND t.reason IS DISTINCT FROM 'rerun' FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        IF e.status = 'running' THEN
            SELECT l.expires_at INTO expires FROM onceguard.job_lease l WHERE l.job_name = lane AND l.window_start = exhaust.window_start FOR NO KEY UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND OR expires >= clock_timestamp();
        END IF;
        UPDATE onceguard.job_attempt t SET message = left(exhaust.evidence, 1024)
        WHERE t.job_name = lane AND t.window_start = exhaust.window_start AND t.attempt = e.attempt AND t.message IS NULL;
        -- As the next claim would, if there were one.
        held := exhaust.hold_on_crash AND e.attempt > coalesce(e.decided, 0) AND (e.status = 'running' OR EXISTS (
            SELECT FROM onceguard.job_attempt a WHERE a.job_name = lane AND a.window_start = exhaust.window_start
              AND a.attempt = e.attempt AND a.outcome IN ('crashed', 'lost')));
        PERFORM onceguard.end_window(lane, exhaust.window_start, CASE WHEN held THEN 'held' ELSE 'exhausted' END, CASE WHEN held THEN 'held' ELSE exhaust.reason END, 'engine');
    END LOOP;
    -- Indexes of a planned window that have not come are given up with the others: the plan goes.
    IF EXISTS (SELECT FROM onceguard.job_plan p WHERE p.job_name = exhaust.job_name AND p.window_start = exhaust.window_start AND p.made > 0) THEN
        PERFORM FROM onceguard.job j WHERE j.name = exhaust.job_name AND j.closed_before <= exhaust.window_start FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND AND (SELECT bool_and(s.closed) FROM onceguard.stands(exhaust.job_name, ARRAY[exhaust.window_start]) s) THEN
            INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, closed_by, attempt, fencing_token)
            SELECT c, exhaust.window_start, 'exhausted', exhaust.reason, 'engine', 0, 0
            FROM onceguard.job_plan p CROSS JOIN LATERAL onceguard.claimed_as(p.job_name, p.cron_job_uid) c
            WHERE p.job_name = exhaust.job_name AND p.window_start = exhaust.window_start
              AND NOT EXISTS (SELECT FROM onceguard.job_execution t WHERE t.job_name = c AND t.window_start = exhaust.window_start);
        END IF;
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.exhaust IS 'Internal: closes a window that no Job will try again, as held when its attempt crashed and that is asked for, else as exhausted; a dead attempt is recorded lost. It never waits, and leaves alone what it would have to wait for.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.check_suspensions(job_name text, list jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- As Go reads it: it would fail on anything else, for all CronJobs.
    instant constant text := '^\d{4}-(((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8]))|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$';
    checked jsonb;
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(check_suspensions.list) s
               WHERE (s ->> 'from' ~ instant AND coalesce(s ->> 'to', s ->> 'from') ~ instant) IS NOT TRUE) THEN
        RAISE EXCEPTION 'suspensions of job "%" must have from, and to, as instants of RFC 3339', left(check_suspensions.job_name, 100) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('from', s ->> 'from', 'to', s ->> 'to')) ORDER BY n) INTO checked
    FROM jsonb_array_elements(check_suspensions.list) WITH ORDINALITY AS e(s, n);
    RETURN coalesce(checked, '[]');
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.check_suspensions IS 'Internal: a list of intervals, each from an instant to another one or to none yet; nothing else is kept of it.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.engine_judge(judgements jsonb) RETURNS int[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    j record;
    g record;
    s onceguard.job_schedule;
    known boolean;
    start timestamptz;
    outdated int[] := '{}';
BEGIN
    PERFORM onceguard.check_engine();
    PERFORM onceguard.check_list('judgements', engine_judge.judgements, 10000);
    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds');
    -- In one order, so that two engines never wait for each other.
    FOR j IN SELECT r.*, (r.n - 1)::int AS place FROM ROWS FROM (jsonb_to_recordset(engine_judge.judgements) AS (
                 job text, uid text, cron_job text, schedule text, time_zone text, dst text, catch_up text, indexes int, since timestamptz, judged_before timestamptz, open timestamptz[],
                 suspensions jsonb, note text, "from" timestamptz, before timestamptz, gaps jsonb, plans jsonb, unplan jsonb, exhaust jsonb)) WITH ORDINALITY
             AS r(job, uid, cron_job, schedule, time_zone, dst, catch_up, indexes, since, judged_before, open, suspensions, note, "from", before, gaps, plans, unplan, exhaust, n)
             ORDER BY r.job COLLATE "C", r.uid COLLATE "C", r.n LOOP
        PERFORM onceguard.check_base(j.job);
        IF coalesce(length(j.uid) BETWEEN 1 AND 200 AND length(j.cron_job) BETWEEN 3 AND 400, false) IS NOT TRUE
           OR greatest(length(j.schedule), length(j.time_zone), length(j.dst), length(j.catch_up), octet_length(j.note)) > 1024 THEN
            RAISE EXCEPTION 'uid, cron_job, schedule, time_zone, dst, catch_up or note of job "%" is missing or too long', j.job USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF (isfinite(j.since) AND isfinite(j.judged_before) AND isfinite(j."from") AND j.judged_before >= j."from") IS NOT TRUE THEN
            RAISE EXCEPTION 'since, judged_before and from of job "%" must be instants, and judged_before not less than from', j.job USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF j.judged_before > clock_timestamp() + interval '1 day' OR j.indexes < 0 THEN
            RAISE EXCEPTION 'judged_before % or indexes % of job "%" cannot be', j.judged_before, j.indexes, j.job USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF cardinality(j.open) > 20000 OR EXISTS (SELECT FROM unnest(j.open) o WHERE isfinite(o) IS NOT TRUE) THEN
            RAISE EXCEPTION 'open of job "%" has % windows, and may have 20000, each an instant', j.job, cardinality(j.open) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM onceguard.check_list('suspensions', coalesce(j.suspensions, '[]'), 10000), onceguard.check_list('plans', coalesce(j.plans, '[]'), 10000),
            onceguard.check_gaps('gaps', j.gaps), onceguard.check_gaps('unplan', j.unplan), onceguard.check_gaps('exhaust', j.exhaust);
        SELECT * INTO g FROM jsonb_to_recordset(j.exhaust) AS r(first timestamptz, last timestamptz) WHERE r.first <> r.last LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'exhaust: of job "%" % to % must be one window', j.job, g.first, g.last USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT * INTO g FROM jsonb_to_recordset(j.plans) AS r("window" timestamptz, reason text)
        WHERE (isfinite(r."window") AND r."window" <= clock_timestamp() + interval '1 day' AND coalesce(r.reason, '') ~ '^[a-z-]{0,40}$') IS NOT TRUE LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'plans: of job "%" window % must be an instant that is due, and its reason "%" a word of lower case', j.job, g."window", left(g.reason, 100) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT * INTO g FROM jsonb_to_recordset(j.gaps) AS r(first timestamptz, last timestamptz, status text)
        WHERE r.first < j.judged_before AND (r.last >= j.judged_before OR r.status = 'late') OR r.first < greatest(j."from", j.since) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'gaps: of job "%" the one from % to % must be as a whole after from % and since %, and before judged_before % when it is not late, or else after it', j.job, g.first, g.last, j."from", j.since, j.judged_before
                USING ERRCODE = 'invalid_parameter_value';
        END IF;

        -- All CronJobs of the job, for they share its plans.
        PERFORM FROM onceguard.job_schedule t WHERE t.job_name = j.job ORDER BY t.cron_job_uid FOR UPDATE;
        SELECT * INTO s FROM onceguard.job_schedule t WHERE t.job_name = j.job AND t.cron_job_uid = j.uid;
        known := FOUND;
        IF NOT known THEN
            INSERT INTO onceguard.job_schedule (job_name, cron_job_uid, cron_job, since, judged_before) VALUES (j.job, j.uid, j.cron_job, j.since, j.judged_before)
            ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN -- another engine, just now
                outdated := outdated || j.place;
                CONTINUE;
            END IF;
        END IF;
        -- Outdated is what another engine has judged further meanwhile, and what was decided
        -- before an edit that another has seen. An edit that is taken back must get through.
        IF known AND s.gone_at IS NULL AND (s.since = j.since AND s.judged_before <> j."from"
               OR s.since > j.since AND s.looked_at > clock_timestamp() - interval '10 minutes') THEN
            outdated := outdated || j.place;
            CONTINUE;
        END IF;
        start := greatest(j."from", j.since);
        UPDATE onceguard.job_schedule t SET cron_job = j.cron_job, schedule = nullif(j.schedule, ''), time_zone = nullif(j.time_zone, ''), dst = nullif(j.dst, ''),
            catch_up = nullif(j.catch_up, ''), indexes = j.indexes, since = j.since, judged_before = j.judged_before, open = coalesce(j.open, '{}'),
            suspensions = onceguard.check_suspensions(j.job, coalesce(j.suspensions, '[]')),
            note = nullif(j.note, ''), looked_at = clock_timestamp(), gone_at = NULL
        WHERE t.job_name = j.job AND t.cron_job_uid = j.uid;
        PERFORM onceguard.record_gaps(j.job, j.uid, nullif(j.schedule, ''), nullif(j.time_zone, ''), j.judged_before, start, j.before, coalesce(j.gaps, '[]'));
        IF known AND s.since < j.since THEN -- nobody will judge them again
            UPDATE onceguard.job_gap t SET status = 'missed', updated_at = clock_timestamp()
            WHERE t.job_name = j.job AND t.cron_job_uid = j.uid AND t.first_window < j.since AND t.status = 'late';
        END IF;
        FOR g IN SELECT * FROM jsonb_to_recordset(coalesce(j.unplan, '[]')) AS r(first timestamptz, last timestamptz) LOOP
            DELETE FROM onceguard.job_plan p WHERE p.job_name = j.job AND p.window_start BETWEEN g.first AND g.last AND coalesce(p.cron_job_uid, j.uid) = j.uid;
            CONTINUE WHEN NOT FOUND; -- recorded before, or a person has cancelled it
            PERFORM onceguard.cut_gaps(j.job, j.uid, g.first, g.last);
            INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason, rule, evidence, schedule, time_zone)
            SELECT j.job, j.uid, r.first, r.last, r.windows, r.status, r.reason, nullif(r.rule, ''), nullif(r.evidence, ''), nullif(j.schedule, ''), nullif(j.time_zone, '')
            FROM jsonb_to_recordset(j.unplan) AS r(first timestamptz, last timestamptz, windows bigint, status text, reason text, rule text, evidence text) WHERE r.first = g.first;
        END LOOP;
        -- What was decided before a prune may say something of windows that have gone with it.
        PERFORM onceguard.cut_gaps(j.job, j.uid, '-infinity', o.closed_before - interval '1 microsecond') FROM onceguard.job o
        WHERE o.name = j.job AND (o.closed_before > start OR jsonb_array_length(j.unplan) > 0) AND EXISTS (SELECT FROM onceguard.job_gap t WHERE t.job_name = j.job AND t.cron_job_uid = j.uid AND t.first_window < o.closed_before);
        -- What a person planned while there was no CronJob is this one's.
        UPDATE onceguard.job_plan p SET cron_job_uid = j.uid, cron_job = j.cron_job WHERE p.job_name = j.job AND p.cron_job_uid IS NULL;
        IF jsonb_array_length(j.plans) > 0 THEN
            INSERT INTO onceguard.job_plan (job_name, window_start, cron_job_uid, cron_job, reason)
            SELECT j.job, r."window", j.uid, j.cron_job, nullif(r.reason, '') FROM jsonb_to_recordset(j.plans) AS r("window" timestamptz, reason text) ORDER BY 2
            ON CONFLICT DO NOTHING;
            PERFORM onceguard.drop_plans(ARRAY[j.job]); -- of what was closed meanwhile
        END IF;
    END LOOP;
    -- Behind all that is waited for.
    FOR g IN SELECT r.job, r.hold, x.first, x.last, x.reason, x.evidence
             FROM ROWS FROM (jsonb_to_recordset(engine_judge.judgements) AS (job text, hold boolean, exhaust jsonb)) WITH ORDINALITY AS r(job, hold, exhaust, n)
             CROSS JOIN LATERAL jsonb_to_recordset(r.exhaust) AS x(first timestamptz, last timestamptz, reason text, evidence text)
             WHERE (r.n - 1)::int <> ALL (outdated) ORDER BY r.job COLLATE "C", x.first LOOP
        PERFORM onceguard.exhaust(g.job, g.first, g.reason, g.evidence, coalesce(g.hold, false));
    END LOOP;
    RETURN outdated;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.engine_judge IS 'For the windows engine: records what was decided about the windows of CronJobs. The answer is the places of the judgements that were made from an outdated state, and not taken. Never waits for a business transaction.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.engine_making(job_name text, window_start timestamptz, cron_job_uid text, job text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    p onceguard.job_plan;
    lane text;
BEGIN
    PERFORM onceguard.check_engine();
    PERFORM onceguard.check_base(engine_making.job_name);
    IF coalesce(length(engine_making.job) BETWEEN 1 AND 253 AND length(engine_making.cron_job_uid) BETWEEN 1 AND 200, false) IS NOT TRUE THEN
        RAISE EXCEPTION 'job and cron_job_uid must be 1 to 253 and 1 to 200 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds');
    PERFORM FROM onceguard.job_schedule t WHERE t.job_name = engine_making.job_name ORDER BY t.cron_job_uid FOR UPDATE;
    PERFORM onceguard.drop_plans(ARRAY[engine_making.job_name]);
    SELECT * INTO p FROM onceguard.job_plan t WHERE t.job_name = engine_making.job_name AND t.window_start = engine_making.window_start
      AND t.cron_job_uid = engine_making.cron_job_uid FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p.reprocess IS NOT NULL THEN
        BEGIN
            FOR lane IN SELECT s.name FROM onceguard.stands(p.job_name, ARRAY[p.window_start]) s WHERE onceguard.reopens(p.reprocess, s.status, s.reason) ORDER BY 1 LOOP
                PERFORM onceguard.reopen(onceguard.decide(lane, p.window_start, 'rerun', p.planned_by, p.why));
            END LOOP;
        EXCEPTION WHEN object_not_in_prerequisite_state THEN
            RETURN false; -- a worker still runs it
        END;
    END IF;
    UPDATE onceguard.job_plan t SET made = t.made + 1, made_at = clock_timestamp(), job = engine_making.job, reprocess = NULL
    WHERE t.job_name = p.job_name AND t.window_start = p.window_start;
    RETURN true;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.engine_making IS 'For the windows engine, before it makes a Job for a planned window: counts it, and opens the window again where a person asked for that. false: it is not to be made, or not now.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.planner_of(job_name text) RETURNS onceguard.job_schedule
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s onceguard.job_schedule;
BEGIN
    SELECT * INTO s FROM onceguard.job_schedule t WHERE t.job_name = planner_of.job_name AND t.gone_at IS NULL
    ORDER BY t.looked_at DESC, t.cron_job_uid LIMIT 1;
    RETURN s;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.planner_of IS 'Internal: the CronJob whose Jobs run what a person plans.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.answer_unplanned(s onceguard.job_schedule, starts timestamptz[], reasons text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO onceguard.job_gap (job_name, cron_job_uid, first_window, last_window, windows, status, reason, rule, schedule, time_zone)
    SELECT s.job_name, s.cron_job_uid, min(i.w), max(i.w), count(*), 'missed', i.reason, 'gone', s.schedule, s.time_zone
    FROM (
        SELECT u.w, u.reason, count(*) FILTER (WHERE u.apart) OVER (ORDER BY u.w) AS island
        FROM (
            SELECT v.w, v.reason, lag(v.w) OVER o IS NULL OR lag(v.reason) OVER o <> v.reason OR EXISTS (
                SELECT FROM onceguard.job_gap g WHERE g.job_name = s.job_name AND g.cron_job_uid = s.cron_job_uid
                  AND g.first_window < v.w AND g.first_window > v.former) AS apart
            FROM (
                SELECT x.w, coalesce(x.reason, 'controller') AS reason, lag(x.w) OVER (ORDER BY x.w) AS former
                FROM unnest(answer_unplanned.starts, answer_unplanned.reasons) x(w, reason)
                WHERE x.w >= s.since
                  AND NOT EXISTS (SELECT FROM onceguard.job_gap g WHERE g.job_name = s.job_name AND g.first_window <= x.w AND g.last_window >= x.w)
                  AND x.w NOT IN (SELECT t.window_start FROM onceguard.stands(s.job_name, answer_unplanned.starts) t)
            ) v WINDOW o AS (ORDER BY v.w)
        ) u
    ) i
    GROUP BY i.island, i.reason;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.answer_unplanned IS 'Internal: windows of a CronJob that is gone, planned no more, get the answer that the engine had left to the plan; not those that have another one.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.engine_gone(cron_job_uid text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    s onceguard.job_schedule;
    heir onceguard.job_schedule;
    starts timestamptz[];
    reasons text[];
    known int := 0;
BEGIN
    PERFORM onceguard.check_engine();
    PERFORM onceguard.be_durable();
    PERFORM onceguard.be_brief('5 seconds');
    PERFORM FROM onceguard.job_schedule t WHERE t.job_name IN (SELECT o.job_name FROM onceguard.job_schedule o WHERE o.cron_job_uid = engine_gone.cron_job_uid)
    ORDER BY t.job_name, t.cron_job_uid FOR UPDATE;
    FOR s IN UPDATE onceguard.job_schedule t SET gone_at = clock_timestamp(), open = '{}', suspensions = '[]', note = NULL
             WHERE t.cron_job_uid = engine_gone.cron_job_uid AND t.gone_at IS NULL RETURNING * LOOP
        known := known + 1;
        UPDATE onceguard.job_gap g SET status = 'missed', updated_at = clock_timestamp()
        WHERE g.job_name = s.job_name AND g.cron_job_uid = s.cron_job_uid AND g.status = 'late';
        heir := onceguard.planner_of(s.job_name);
        UPDATE onceguard.job_plan t SET cron_job_uid = heir.cron_job_uid, cron_job = heir.cron_job
        WHERE t.job_name = s.job_name AND t.cron_job_uid = s.cron_job_uid AND t.planned_by IS NOT NULL;
        WITH gone AS (DELETE FROM onceguard.job_plan t WHERE t.job_name = s.job_name AND t.cron_job_uid = s.cron_job_uid RETURNING t.window_start, t.reason)
        SELECT array_agg(g.window_start), array_agg(g.reason) INTO starts, reasons FROM gone g;
        PERFORM onceguard.answer_unplanned(s, starts, reasons);
    END LOOP;
    RETURN known;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.engine_gone IS 'For the windows engine: there is no such CronJob any more. What was late, or planned by the engine, is missed; what a person planned goes to another CronJob of the job. The answer is how many rows knew it.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
SELECT onceguard.seal(fresh => true);
