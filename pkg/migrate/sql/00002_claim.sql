-- +goose Up
-- The protocol of a lease: claim and heartbeat. Every function that a job's login may
-- call is SECURITY DEFINER with a fixed search_path (a caller's objects can never stand
-- for ours), checks the job against session_user, and locks in one order: job, execution,
-- lease.
SET LOCAL lock_timeout = '10s';

-- +goose StatementBegin
CREATE FUNCTION onceguard.was_used(job_name text, window_start timestamptz, execution_id uuid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM onceguard.job_attempt a WHERE a.job_name = was_used.job_name AND a.window_start = was_used.window_start
          AND (a.execution_id = was_used.execution_id OR was_used.execution_id = ANY (a.former_ids)));
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.was_used IS 'Internal: this execution_id has had the window. Given out again, it would let a transaction of the earlier attempt commit.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.end_window(job_name text, window_start timestamptz, status text, reason text, closed_by text, superseded_by timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    l onceguard.job_lease;
    last int;
BEGIN
    DELETE FROM onceguard.job_lease t
    WHERE t.job_name = end_window.job_name AND t.window_start = end_window.window_start RETURNING * INTO l;
    UPDATE onceguard.job_execution t SET status = end_window.status, reason = end_window.reason, closed_by = end_window.closed_by,
        superseded_by = CASE end_window.reason WHEN 'superseded' THEN coalesce(end_window.superseded_by, l.cancel_for) END,
        execution_id = NULL, updated_at = clock_timestamp()
    WHERE t.job_name = end_window.job_name AND t.window_start = end_window.window_start RETURNING t.attempt INTO last;
    UPDATE onceguard.job_attempt t SET outcome = 'lost', ended_at = coalesce(l.expires_at, clock_timestamp())
    WHERE t.job_name = end_window.job_name AND t.window_start = end_window.window_start AND t.attempt = last AND t.outcome IS NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.end_window IS 'Internal: the window gets a status in which nobody holds it. A dead attempt loses its execution_id with that, so that it can never commit, and is recorded lost. The caller has locked execution and lease.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.asked(l onceguard.job_lease) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF l.cancel IS NOT TRUE THEN
        RETURN false;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM onceguard.job_execution t WHERE t.job_name = l.job_name AND t.window_start = l.cancel_for
          AND t.status IN ('completed', 'exhausted', 'skipped'));
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.asked IS 'Internal: does a newer window ask the holder to stop? Not when that window is closed meanwhile: it needs the place no longer.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.planned(job_name text, window_start timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN strpos(planned.job_name, '@') = 0 AND EXISTS (
        SELECT FROM onceguard.job_plan p WHERE p.job_name = split_part(planned.job_name, '#', 1) AND p.window_start = planned.window_start);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.planned IS 'Internal: is the window to be run later? A plan is one for all indexes, and none for separate runs. It may outlive the end of its window: what is closed is not asked about.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.awaited(job_name text, previous timestamptz, since timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base text := split_part(awaited.job_name, '#', 1);
    -- The windows engine writes each CronJob once an hour at the least. What is late of one that
    -- nobody looks at any more would be late for ever.
    watched timestamptz := clock_timestamp() - interval '3 hours';
    never boolean;
    comes boolean;
BEGIN
    -- The gaps of a CronJob do not overlap: the last that begins by then, or none, covers it.
    -- A range of one CronJob may cover what is a window of another only.
    SELECT bool_or(g.status IN ('missed', 'skipped')), bool_or(g.status = 'late' AND s.gone_at IS NULL AND s.looked_at > watched) INTO never, comes
    FROM onceguard.job_schedule s CROSS JOIN LATERAL (
        SELECT g.last_window, g.status FROM onceguard.job_gap g
        WHERE g.job_name = s.job_name AND g.cron_job_uid = s.cron_job_uid AND g.first_window <= awaited.previous
        ORDER BY g.first_window DESC LIMIT 1) g
    WHERE s.job_name = base AND g.last_window >= awaited.previous;
    IF never IS NOT TRUE OR comes THEN
        RETURN awaited.previous;
    END IF;
    -- It never comes, but one before it may: late gaps are never older than what is judged.
    RETURN (
        SELECT max(g.last_window) FROM onceguard.job_schedule s
        JOIN onceguard.job_gap g ON g.job_name = s.job_name AND g.cron_job_uid = s.cron_job_uid
          AND g.first_window >= s.judged_before AND g.first_window < awaited.previous
        WHERE s.job_name = base AND s.gone_at IS NULL AND s.looked_at > watched AND g.status = 'late' AND g.last_window < awaited.previous AND g.last_window >= awaited.since
          AND NOT EXISTS (SELECT FROM onceguard.job_execution t WHERE t.job_name = awaited.job_name AND t.window_start = g.last_window));
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.awaited IS 'Internal: the window that order waits for when previous has no row: itself, unless a gap says that it was missed or skipped, and none that it may still come; then the last one before it that is late, or NULL.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.running_others(job_name text, window_start timestamptz, separate_too boolean)
RETURNS TABLE (other_job_name text, other_window_start timestamptz, expires_at timestamptz, asked boolean, older boolean, separate boolean, decided boolean)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    lane text := split_part(running_others.job_name, '@', 1);
BEGIN
    RETURN QUERY
    SELECT l.job_name, l.window_start, l.expires_at, onceguard.asked(l), (l.window_start, l.job_name) < (running_others.window_start, running_others.job_name),
           strpos(l.job_name, '@') > 0 OR strpos(running_others.job_name, '@') > 0, t.decided IS NOT NULL
    FROM onceguard.job_lease l
    JOIN onceguard.job_execution t ON t.job_name = l.job_name AND t.window_start = l.window_start AND t.status = 'running'
    WHERE (l.job_name = lane OR separate_too AND l.job_name >= lane || '@' AND l.job_name < lane || 'A')
      AND (l.job_name <> running_others.job_name OR l.window_start <> running_others.window_start)
    ORDER BY l.window_start, l.job_name;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.running_others IS 'Internal: the other windows of the lane that are running, dead ones too, the oldest first. separate says that one of the two is a separate run: they only wait for each other.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.judge_terms(
    job_name text, window_start timestamptz, e onceguard.job_execution, asked_to_stop boolean, closed timestamptz, locked boolean,
    overlap text, serial boolean, since timestamptz, previous timestamptz, start_deadline interval, max_attempts int, hold_on_crash boolean, reopen boolean, repeats timestamptz,
    OUT verdict text, OUT reason text, OUT close text, OUT stop boolean, OUT fence boolean, OUT other_job_name text, OUT other_window_start timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    -- A person asks for this window: neither its age nor what happens around it closes it. Nor
    -- when it is planned, which is looked up only where it matters.
    wanted boolean := judge_terms.reopen OR e.decided IS NOT NULL;
    in_order boolean := judge_terms.serial AND strpos(judge_terms.job_name, '@') = 0;
    beginning timestamptz := coalesce(greatest(judge_terms.since, judge_terms.closed), '-infinity');
    o record;
    expires timestamptz;
    alive boolean;
    committing boolean;
    newer boolean := false;
    -- Of the others that are alive the one that matters most is in the way.
    matters int;
    most int := 0;
BEGIN
    stop := false;
    fence := false;
    IF e.status IN ('running', 'failed') THEN
        IF asked_to_stop AND NOT wanted AND NOT onceguard.planned(judge_terms.job_name, judge_terms.window_start) THEN
            verdict := 'skip'; reason := 'superseded'; close := 'skipped';
            RETURN;
        END IF;
        IF judge_terms.hold_on_crash AND e.attempt > coalesce(e.decided, 0) AND (e.status = 'running' OR EXISTS (
            SELECT FROM onceguard.job_attempt a WHERE a.job_name = judge_terms.job_name AND a.window_start = judge_terms.window_start
              AND a.attempt = e.attempt AND a.outcome IN ('crashed', 'lost'))) THEN
            verdict := 'refuse'; reason := 'held'; close := 'held';
            RETURN;
        END IF;
        IF judge_terms.max_attempts IS NOT NULL AND judge_terms.max_attempts <= (e.status = 'running')::int + (
            SELECT count(*) FROM onceguard.job_attempt a WHERE a.job_name = judge_terms.job_name AND a.window_start = judge_terms.window_start
              AND a.attempt > coalesce(e.decided, 0) AND a.outcome IN ('failed', 'crashed', 'uncommitted', 'lost')) THEN
            verdict := 'refuse'; reason := 'exhausted'; close := 'exhausted';
            RETURN;
        END IF;
    END IF;
    IF judge_terms.repeats IS NOT NULL AND e.status IS NULL AND NOT wanted AND NOT onceguard.planned(judge_terms.job_name, judge_terms.window_start) THEN
        verdict := 'skip'; reason := 'dst'; close := 'skipped'; other_job_name := judge_terms.job_name; other_window_start := judge_terms.repeats;
        RETURN;
    END IF;
    -- In seconds: a day of an interval is as long as the session's time zone makes it.
    IF judge_terms.start_deadline IS NOT NULL AND judge_terms.window_start + make_interval(secs => extract(epoch FROM judge_terms.start_deadline)::float8) < clock_timestamp()
       AND NOT wanted AND (e.status IS NULL OR e.status = 'failed' AND NOT EXISTS (
            SELECT FROM onceguard.job_attempt a WHERE a.job_name = judge_terms.job_name AND a.window_start = judge_terms.window_start
              AND a.outcome <> 'not-started'))
       -- Another window was stopped for this one: neither would run.
       AND NOT EXISTS (
            SELECT FROM onceguard.job_lease l WHERE l.job_name = judge_terms.job_name AND l.cancel_for = judge_terms.window_start
            UNION ALL
            SELECT FROM onceguard.job_execution t WHERE t.job_name = judge_terms.job_name AND t.superseded_by = judge_terms.window_start AND t.reason = 'superseded')
       AND NOT onceguard.planned(judge_terms.job_name, judge_terms.window_start) THEN
        verdict := 'skip'; reason := 'late'; close := 'skipped';
        RETURN;
    END IF;

    IF in_order THEN
        other_job_name := judge_terms.job_name;
        IF e.status IS NULL AND NOT wanted THEN -- what was tried has begun in its turn
            SELECT t.window_start INTO other_window_start FROM onceguard.job_execution t
            WHERE t.job_name = judge_terms.job_name AND t.window_start > judge_terms.window_start AND t.status IN ('running', 'completed')
            ORDER BY t.window_start LIMIT 1;
            IF FOUND AND NOT onceguard.planned(judge_terms.job_name, judge_terms.window_start) THEN
                verdict := 'skip'; reason := 'superseded'; close := 'skipped';
                RETURN;
            END IF;
        END IF;
        SELECT x.window_start INTO other_window_start FROM (
            (SELECT t.window_start FROM onceguard.job_execution t
             WHERE t.job_name = judge_terms.job_name AND t.window_start < judge_terms.window_start
               AND t.window_start >= coalesce(judge_terms.since, '-infinity') AND t.status IN ('running', 'failed', 'held')
             ORDER BY t.window_start DESC LIMIT 1)
            UNION ALL -- also one from before the beginning of order, while it runs
            SELECT r.other_window_start FROM onceguard.running_others(judge_terms.job_name, judge_terms.window_start, false) r WHERE r.older
            UNION ALL -- and a planned one that a CronJob is to run and this name has not closed; the status by a subquery: no join may read the history
            (SELECT p.window_start FROM onceguard.job_plan p
             WHERE p.job_name = split_part(judge_terms.job_name, '#', 1) AND p.window_start < judge_terms.window_start AND p.window_start >= beginning AND p.cron_job_uid IS NOT NULL
               AND ((SELECT t.status FROM onceguard.job_execution t WHERE t.job_name = judge_terms.job_name AND t.window_start = p.window_start)
                    IN ('completed', 'exhausted', 'skipped')) IS NOT TRUE
             ORDER BY p.window_start DESC LIMIT 1)
        ) x ORDER BY x.window_start DESC LIMIT 1;
        IF FOUND THEN
            verdict := 'wait'; reason := 'order';
            RETURN;
        END IF;
        -- A window that nobody has claimed yet has no row; the schedule knows of it. An index
        -- that is new to the job has none to wait for.
        IF judge_terms.previous >= beginning AND NOT EXISTS (
            SELECT FROM onceguard.job_execution t WHERE t.job_name = judge_terms.job_name AND t.window_start = judge_terms.previous)
           AND (strpos(judge_terms.job_name, '#') = 0 OR EXISTS (
            SELECT FROM onceguard.job_execution t WHERE t.job_name = judge_terms.job_name AND t.window_start < judge_terms.window_start
              AND t.window_start >= coalesce(judge_terms.since, '-infinity'))) THEN
            other_window_start := onceguard.awaited(judge_terms.job_name, judge_terms.previous, beginning);
            IF other_window_start IS NOT NULL THEN
                verdict := 'wait'; reason := 'order';
                RETURN;
            END IF;
        END IF;
        other_job_name := NULL;
        other_window_start := NULL;
    END IF;

    IF judge_terms.overlap = 'allow' AND NOT in_order THEN
        RETURN;
    END IF;
    -- Order alone is about windows of this very name, and waits for a later one that runs.
    FOR o IN SELECT * FROM onceguard.running_others(judge_terms.job_name, judge_terms.window_start, judge_terms.overlap <> 'allow') LOOP
        alive := o.expires_at >= clock_timestamp();
        committing := false;
        IF judge_terms.locked THEN
            PERFORM FROM onceguard.job_execution t WHERE t.job_name = o.other_job_name AND t.window_start = o.other_window_start
              AND t.status = 'running' FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                CONTINUE WHEN NOT EXISTS (SELECT FROM onceguard.job_execution t WHERE t.job_name = o.other_job_name
                    AND t.window_start = o.other_window_start AND t.status = 'running'); -- it has ended meanwhile
                committing := true;
                alive := true;
            ELSE
                SELECT t.expires_at INTO expires FROM onceguard.job_lease t
                WHERE t.job_name = o.other_job_name AND t.window_start = o.other_window_start FOR NO KEY UPDATE SKIP LOCKED;
                alive := NOT FOUND OR expires >= clock_timestamp(); -- not found: its heartbeat is being written
            END IF;
        END IF;
        IF NOT alive THEN
            fence := true;
            CONTINUE;
        END IF;
        newer := newer OR NOT o.older AND NOT o.separate;
        stop := stop OR o.older AND NOT o.separate AND NOT o.asked; -- also one that commits: it may be a piece
        matters := CASE WHEN committing THEN 4 WHEN o.separate OR judge_terms.overlap IN ('allow', 'wait') THEN 1
            WHEN judge_terms.overlap = 'replace' AND NOT o.older THEN 3 ELSE 2 END;
        IF matters > most THEN
            most := matters;
            other_job_name := o.other_job_name;
            other_window_start := o.other_window_start;
        END IF;
    END LOOP;
    stop := stop AND judge_terms.overlap = 'replace' AND NOT newer;
    IF most = 0 THEN
        RETURN;
    ELSIF most = 4 THEN
        verdict := 'wait'; reason := 'committing';
    ELSIF most = 3 AND NOT wanted AND NOT onceguard.planned(judge_terms.job_name, judge_terms.window_start) THEN
        verdict := 'skip'; reason := 'superseded'; close := 'skipped';
    ELSIF most = 2 AND judge_terms.overlap = 'skip' AND e.status IS NULL AND NOT wanted AND NOT onceguard.planned(judge_terms.job_name, judge_terms.window_start) THEN
        verdict := 'skip'; reason := 'overlap'; close := 'skipped';
    ELSIF most = 2 AND judge_terms.overlap = 'replace' THEN
        verdict := 'wait'; reason := 'replacing';
    ELSE
        verdict := 'wait'; reason := 'overlap';
    END IF;
    fence := false;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.judge_terms IS 'Internal: may a window that can be taken be taken under these terms? verdict NULL: yes, and fence says that dead windows of the lane must be fenced. close is the status to close it with, stop asks older windows to stop.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.claim(
    job_name text, window_start timestamptz, execution_id uuid, lease interval, origin jsonb DEFAULT '{}',
    overlap text DEFAULT 'allow', serial boolean DEFAULT false, since timestamptz DEFAULT NULL, previous timestamptz DEFAULT NULL,
    start_deadline interval DEFAULT NULL, payload_digest text DEFAULT NULL, max_attempts int DEFAULT NULL,
    hold_on_crash boolean DEFAULT false, reopen_closed_before timestamptz DEFAULT NULL, repeats timestamptz DEFAULT NULL,
    OUT verdict text, OUT reason text, OUT attempt int, OUT fencing_token bigint, OUT generation int,
    OUT holder_job_name text, OUT holder_window_start timestamptz,
    OUT holder_execution_id uuid, OUT holder_attempt int, OUT holder_pod text,
    OUT holder_completed_at timestamptz, OUT holder_lease_expires timestamptz, OUT holder_payload_digest text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    base text := split_part(split_part(claim.job_name, '#', 1), '@', 1);
    terms boolean := claim.overlap <> 'allow' OR claim.serial OR claim.hold_on_crash
        OR claim.start_deadline IS NOT NULL OR claim.max_attempts IS NOT NULL OR claim.repeats IS NOT NULL;
    who text;
    closed timestamptz;
    e onceguard.job_execution;
    l onceguard.job_lease;
    j record;
    close text;
    stop boolean := false;
    fence boolean := false;
    locked boolean := false;
    brief text; -- what set_config() answers
BEGIN
    -- Read-only: also a standby, whose answer could be old.
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('transaction_read_only') <> 'off' THEN
        RAISE EXCEPTION 'claim needs READ COMMITTED READ WRITE, this transaction is %, read-only: %',
            current_setting('transaction_isolation'), current_setting('transaction_read_only')
            USING ERRCODE = 'OG008', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE';
    END IF;
    PERFORM onceguard.check_call(claim.job_name, claim.window_start, claim.execution_id, claim.lease);
    IF claim.payload_digest = '' THEN
        RAISE EXCEPTION 'payload_digest must not be empty: null is any payload' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF terms IS NOT FALSE THEN
        PERFORM onceguard.check_terms(claim.window_start, claim.overlap, claim.serial, claim.since, claim.previous, claim.start_deadline, claim.max_attempts, claim.hold_on_crash, claim.repeats);
    END IF;

    -- The first look takes no lock and no transaction id: a duplicate or a poll writes nothing.
    SELECT t.closed_before INTO closed FROM onceguard.job t WHERE t.name = base;
    SELECT * INTO e FROM onceguard.job_execution t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
    IF e.status = 'running' THEN
        SELECT * INTO l FROM onceguard.job_lease t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
    END IF;

    -- Judged twice by the same rule (package claim, Decide): as seen, and again once the
    -- rows are locked, because a heartbeat or a commit may have come between.
    LOOP
        IF closed > claim.window_start THEN
            verdict := 'skip'; reason := 'closed';
        ELSIF e.payload_digest <> claim.payload_digest THEN
            verdict := 'refuse'; reason := 'payload';
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
        ELSIF e.status IS NOT NULL AND onceguard.was_used(claim.job_name, claim.window_start, claim.execution_id) THEN
            verdict := 'wait'; reason := 'fence-lost';
        ELSIF e.status = 'held' THEN
            verdict := 'refuse'; reason := 'held';
        ELSIF e.status = 'skipped' AND (e.updated_at < claim.reopen_closed_before) IS NOT TRUE THEN
            verdict := 'skip'; reason := e.reason;
        ELSIF e.status = 'exhausted' AND (e.updated_at < claim.reopen_closed_before) IS NOT TRUE THEN
            verdict := 'refuse'; reason := 'exhausted';
        ELSIF e.status = 'running' AND l.expires_at >= clock_timestamp() THEN
            verdict := 'wait'; reason := 'busy';
        ELSIF terms OR l.cancel THEN
            SELECT * INTO j FROM onceguard.judge_terms(claim.job_name, claim.window_start, e, onceguard.asked(l), closed, locked, claim.overlap, claim.serial, claim.since,
                claim.previous, claim.start_deadline, claim.max_attempts, claim.hold_on_crash, claim.reopen_closed_before IS NOT NULL, claim.repeats);
            verdict := j.verdict; reason := j.reason; close := j.close; stop := j.stop; fence := j.fence;
            holder_job_name := j.other_job_name; holder_window_start := j.other_window_start;
        END IF;
        EXIT WHEN locked OR (verdict IS NOT NULL AND close IS NULL AND NOT stop);

        -- The only lock that is waited for; its holders are claims and people's decisions.
        -- Nobody may keep it by standing still. As be_brief() does, which would cost more here.
        IF current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 millisecond' AND '5 seconds' THEN
            brief := set_config('idle_in_transaction_session_timeout', '5s', true);
        END IF;
        IF closed IS NULL THEN
            INSERT INTO onceguard.job (name) VALUES (base) ON CONFLICT DO NOTHING;
        END IF;
        SELECT t.closed_before INTO closed FROM onceguard.job t WHERE t.name = base FOR NO KEY UPDATE;
        -- No row comes or goes from here on: that takes the job's lock.
        locked := NOT EXISTS (
            SELECT FROM onceguard.job_execution t WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start);
        IF locked THEN
            e := NULL;
        ELSE
            SELECT * INTO e FROM onceguard.job_execution t
            WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start FOR NO KEY UPDATE SKIP LOCKED;
            locked := FOUND;
        END IF;
        verdict := NULL; reason := NULL; close := NULL; stop := false; fence := false;
        holder_job_name := NULL; holder_window_start := NULL;
        IF NOT locked THEN
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
    END LOOP;

    IF close IS NOT NULL OR stop OR fence THEN
        who := coalesce(nullif(origin ->> 'namespace', '') || '/' || nullif(origin ->> 'pod', ''), claim.execution_id::text);
    END IF;
    IF close IS NOT NULL THEN
        PERFORM onceguard.be_durable();
        IF e.status IS NULL THEN
            INSERT INTO onceguard.job_execution (job_name, window_start, status, reason, closed_by, superseded_by, attempt, fencing_token, window_end, schedule, time_zone, dst)
            VALUES (claim.job_name, claim.window_start, close, claim.reason, who, CASE WHEN claim.reason IN ('superseded', 'dst') THEN claim.holder_window_start END, 0, 0,
                    onceguard.instant('windowEnd', origin ->> 'windowEnd'), origin ->> 'schedule', origin ->> 'timeZone', origin ->> 'dst');
        ELSE
            PERFORM onceguard.end_window(claim.job_name, claim.window_start, close, claim.reason, who, claim.holder_window_start);
        END IF;
    ELSIF stop THEN
        UPDATE onceguard.job_lease t SET cancel = true, cancel_by = who, cancel_for = claim.window_start
        FROM (SELECT s.job_name, s.window_start FROM onceguard.job_lease s
              JOIN onceguard.running_others(claim.job_name, claim.window_start, true) o ON o.other_job_name = s.job_name AND o.other_window_start = s.window_start
              WHERE o.older AND NOT o.separate AND NOT o.asked FOR NO KEY UPDATE OF s SKIP LOCKED) x
        WHERE t.job_name = x.job_name AND t.window_start = x.window_start;
    END IF;
    IF verdict IS NOT NULL THEN
        holder_job_name := coalesce(holder_job_name, claim.job_name);
        holder_window_start := coalesce(holder_window_start, claim.window_start);
        SELECT t.execution_id, t.attempt, CASE t.status WHEN 'skipped' THEN t.closed_by ELSE a.namespace || '/' || a.pod END,
               t.completed_at, s.expires_at, t.payload_digest
        INTO holder_execution_id, holder_attempt, holder_pod, holder_completed_at, holder_lease_expires, holder_payload_digest
        FROM onceguard.job_execution t
        LEFT JOIN onceguard.job_attempt a ON a.job_name = t.job_name AND a.window_start = t.window_start AND a.attempt = t.attempt
        LEFT JOIN onceguard.job_lease s ON s.job_name = t.job_name AND s.window_start = t.window_start AND t.status = 'running'
        WHERE t.job_name = claim.holder_job_name AND t.window_start = claim.holder_window_start;
        RETURN;
    END IF;

    PERFORM onceguard.be_durable();
    IF fence THEN
        -- A dead window beside us: its zombie could still commit. All that run are dead, and
        -- locked by judge_terms.
        PERFORM onceguard.end_window(o.other_job_name, o.other_window_start,
            CASE WHEN o.replaced THEN 'skipped' ELSE 'failed' END, CASE WHEN o.replaced THEN 'superseded' END, CASE WHEN o.replaced THEN who END, claim.window_start)
        FROM (SELECT r.*, claim.overlap = 'replace' AND r.older AND NOT r.separate AND NOT (r.decided OR onceguard.planned(r.other_job_name, r.other_window_start)) AS replaced
              FROM onceguard.running_others(claim.job_name, claim.window_start, claim.overlap <> 'allow') r) o;
    END IF;
    verdict := 'run';
    reason := CASE WHEN e.status IS NULL THEN 'first' WHEN e.status = 'running' THEN 'takeover' WHEN e.status = 'failed' THEN 'retry' ELSE 'reopened' END;
    attempt := coalesce(e.attempt, 0) + 1;
    generation := coalesce(e.generation, 1);
    fencing_token := onceguard.next_token(e.fencing_token);
    IF reason = 'first' THEN
        -- A plain INSERT: all inserts hold the job's lock, and ON CONFLICT would wait for a
        -- transaction that has called complete().
        INSERT INTO onceguard.job_execution (job_name, window_start, status, execution_id, attempt, fencing_token, payload_digest, window_end, schedule, time_zone, dst)
        VALUES (claim.job_name, claim.window_start, 'running', claim.execution_id, claim.attempt, claim.fencing_token, claim.payload_digest,
                onceguard.instant('windowEnd', origin ->> 'windowEnd'), origin ->> 'schedule', origin ->> 'timeZone', origin ->> 'dst');
        INSERT INTO onceguard.job_lease (job_name, window_start, execution_id, expires_at, term)
        VALUES (claim.job_name, claim.window_start, claim.execution_id, clock_timestamp() + claim.lease, claim.lease);
    ELSE
        UPDATE onceguard.job_execution t SET status = 'running', execution_id = claim.execution_id, attempt = claim.attempt,
            fencing_token = claim.fencing_token, payload_digest = coalesce(t.payload_digest, claim.payload_digest), updated_at = clock_timestamp(),
            reason = NULL, closed_by = NULL, superseded_by = NULL, decided = CASE claim.reason WHEN 'reopened' THEN t.attempt ELSE t.decided END
        WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start;
        INSERT INTO onceguard.job_lease (job_name, window_start, execution_id, expires_at, term)
        VALUES (claim.job_name, claim.window_start, claim.execution_id, clock_timestamp() + claim.lease, claim.lease)
        ON CONFLICT (job_name, window_start) DO UPDATE
            SET execution_id = excluded.execution_id, expires_at = excluded.expires_at, term = excluded.term, cancel = false, cancel_by = NULL, cancel_for = NULL;
    END IF;
    IF reason = 'takeover' THEN
        UPDATE onceguard.job_attempt t SET outcome = 'lost', ended_at = coalesce(l.expires_at, clock_timestamp())
        WHERE t.job_name = claim.job_name AND t.window_start = claim.window_start AND t.attempt = e.attempt;
    END IF;
    INSERT INTO onceguard.job_attempt (job_name, window_start, attempt, generation, execution_id, fencing_token,
        trigger, source, namespace, job, job_uid, pod, pod_uid, node)
    VALUES (claim.job_name, claim.window_start, claim.attempt, claim.generation, claim.execution_id, claim.fencing_token,
        origin ->> 'trigger', origin ->> 'source', origin ->> 'namespace', origin ->> 'job', origin ->> 'jobUID',
        origin ->> 'pod', origin ->> 'podUID', origin ->> 'node');
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.claim IS 'May this execution_id run the window? verdict run, skip, wait or refuse, with a reason. execution_id is random and made by the caller for each acquisition; asking again with the same one is the same answer.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.heartbeat(job_name text, window_start timestamptz, execution_id uuid, lease interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    l onceguard.job_lease;
BEGIN
    PERFORM onceguard.check_call(heartbeat.job_name, heartbeat.window_start, heartbeat.execution_id, heartbeat.lease);
    UPDATE onceguard.job_lease t SET expires_at = clock_timestamp() + heartbeat.lease, term = heartbeat.lease
    WHERE t.job_name = heartbeat.job_name AND t.window_start = heartbeat.window_start AND t.execution_id = heartbeat.execution_id
    RETURNING * INTO l;
    RETURN CASE WHEN NOT FOUND THEN 'lost' WHEN onceguard.asked(l) THEN 'cancel' ELSE 'ok' END;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.heartbeat IS 'Renews the lease: ok, cancel (held, but asked to stop) or lost. It never inserts: a row that vanished is lost.';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
