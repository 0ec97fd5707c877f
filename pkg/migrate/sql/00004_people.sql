-- +goose Up
-- What people read and what operators call. The views show no results and no
-- payloads: those may be business data.
SET LOCAL lock_timeout = '10s';

CREATE VIEW onceguard.attempts AS
SELECT a.job_name, a.window_start, a.attempt,
       CASE WHEN a.outcome IS NOT NULL THEN a.outcome
            WHEN e.execution_id IS DISTINCT FROM a.execution_id THEN 'lost'
            WHEN e.status = 'completed' THEN 'completed'
            WHEN l.expires_at >= clock_timestamp() THEN 'running'
            ELSE 'lease ended' END AS outcome,
       a.exit_code, a.message, a.started_at,
       coalesce(a.ended_at, CASE WHEN e.execution_id = a.execution_id THEN e.completed_at END) AS ended_at,
       coalesce(a.ended_at, CASE WHEN e.execution_id = a.execution_id THEN e.completed_at END, clock_timestamp()) - a.started_at AS duration,
       a.trigger, a.source, a.namespace, a.job, a.pod, a.node, a.execution_id, a.fencing_token
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
COMMENT ON VIEW onceguard.skips IS 'One row for each pod that did not run: its window was completed (a duplicate prevented), closed, or held by another (busy).';

CREATE VIEW onceguard.windows AS
SELECT e.job_name, e.window_start, e.window_end,
       CASE WHEN e.status = 'completed' THEN 'done'
            WHEN e.status = 'failed' THEN 'failed'
            WHEN l.expires_at >= clock_timestamp() THEN 'running'
            ELSE 'lease ended' END AS state,
       e.attempt AS attempts,
       (SELECT count(*) FROM onceguard.job_skip s WHERE s.job_name = e.job_name AND s.window_start = e.window_start) AS duplicates_prevented,
       (SELECT f.started_at FROM onceguard.job_attempt f WHERE f.job_name = e.job_name AND f.window_start = e.window_start
        ORDER BY f.attempt LIMIT 1) AS first_started_at,
       a.started_at, e.completed_at,
       coalesce(e.completed_at, a.ended_at, clock_timestamp()) - a.started_at AS duration,
       e.processed, a.trigger, a.source, a.namespace, a.job, a.pod, a.node,
       a.outcome AS last_outcome, a.exit_code AS last_exit_code, a.message AS last_message,
       e.schedule, e.time_zone, e.generation, e.execution_id, e.fencing_token,
       l.expires_at AS lease_expires_at, e.updated_at
FROM onceguard.job_execution e
LEFT JOIN onceguard.attempts a ON a.job_name = e.job_name AND a.window_start = e.window_start AND a.attempt = e.attempt
LEFT JOIN onceguard.job_lease l ON l.job_name = e.job_name AND l.window_start = e.window_start AND e.status = 'running';
COMMENT ON VIEW onceguard.windows IS 'One row for each window that was ever claimed.';
COMMENT ON COLUMN onceguard.windows.window_start IS 'The nominal schedule instant: with job_name the identity of the work.';
COMMENT ON COLUMN onceguard.windows.state IS 'done, running, failed (may be retried), or "lease ended": its holder died, and the next claim takes over.';
COMMENT ON COLUMN onceguard.windows.attempts IS 'How often the window was tried.';
COMMENT ON COLUMN onceguard.windows.duplicates_prevented IS 'How many pods found the window done, closed or held, and did not run.';
COMMENT ON COLUMN onceguard.windows.duration IS 'Of the last attempt: to its end, or to now while it runs.';
COMMENT ON COLUMN onceguard.windows.processed IS 'The count that the worker reported with its commit.';

CREATE VIEW onceguard.jobs AS
SELECT j.name AS job_name, w.window_start AS latest_window, w.state AS latest_state,
       c.window_start AS latest_completed_window, c.completed_at AS latest_completed_at,
       extract(epoch FROM clock_timestamp() - c.completed_at)::bigint AS seconds_since_completed, j.closed_before
FROM onceguard.job j
LEFT JOIN LATERAL (SELECT e.window_start, e.state FROM onceguard.windows e WHERE e.job_name = j.name
                   ORDER BY e.window_start DESC LIMIT 1) w ON true
LEFT JOIN LATERAL (SELECT e.window_start, e.completed_at FROM onceguard.job_execution e WHERE e.job_name = j.name AND e.status = 'completed'
                   ORDER BY e.window_start DESC LIMIT 1) c ON true;
COMMENT ON VIEW onceguard.jobs IS 'One row for each job that ever claimed a window.';
COMMENT ON COLUMN onceguard.jobs.seconds_since_completed IS 'Since the latest completed window was completed.';
COMMENT ON COLUMN onceguard.jobs.closed_before IS 'Windows before this instant never run.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.job_functions() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ARRAY['claim', 'heartbeat', 'begin', 'complete', 'release', 'resolve', 'record_skip', 'stored', 'schema_version']
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.job_functions IS 'Internal: what a job''s login may call.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.seal(fresh boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    revoke text;
BEGIN
    -- ALTER DEFAULT PRIVILEGES of the owner, meant for business tables, works on these tables
    -- too, and a login that may write them passes by every check. Only what the grant
    -- functions give stays: nothing on tables and sequences, SELECT on views, EXECUTE on
    -- job_functions(); of fresh objects nothing at all.
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
            WHERE p.pronamespace = 'onceguard'::regnamespace AND (seal.fresh OR x.grantee = 0 OR p.proname <> ALL (onceguard.job_functions()))
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
    EXECUTE format('GRANT SELECT ON onceguard.windows, onceguard.attempts, onceguard.skips, onceguard.jobs TO %I', grant_audit.role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION onceguard.schema_version TO %I', grant_audit.role);
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.grant_audit IS 'For the owner: lets a login read the views, and nothing else.';

-- +goose StatementBegin
CREATE FUNCTION onceguard.schema_version(OUT version int, OUT min_compatible int)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT 4, 4 $$;
-- +goose StatementEnd
COMMENT ON FUNCTION onceguard.schema_version IS 'The version of these functions, and the oldest version whose programs they still serve. Each migration replaces this function.';

REVOKE ALL ON ALL TABLES IN SCHEMA onceguard FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA onceguard FROM PUBLIC;
SELECT onceguard.seal(fresh => true);
