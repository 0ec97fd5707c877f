-- $1 namespace, $2 job, $3 states, $4 seconds, $5 and $6 the last row of the page
-- before, $7 rows. First each job's newest, by its primary key backwards, then the newest
-- of all; only those are looked up in full, so that a page costs the same however long
-- the history is.
WITH RECURSIVE named AS ( -- each name once, by leaps
    (SELECT w.job_name FROM onceguard.windows w ORDER BY w.job_name LIMIT 1)
    UNION ALL
    SELECT (SELECT w.job_name FROM onceguard.windows w WHERE w.job_name > n.job_name ORDER BY w.job_name LIMIT 1)
    FROM named n WHERE n.job_name IS NOT NULL
), chosen AS MATERIALIZED (
    SELECT x.job_name, x.window_start
    FROM named n,
         -- base: without the run's UID or index; local: without the cluster as well
         LATERAL (SELECT regexp_replace(n.job_name, '[@#].*$', '') AS base) b,
         LATERAL (SELECT regexp_replace(b.base, '^[^:/]*:', '') AS local) l,
         LATERAL (SELECT w.job_name, w.window_start FROM onceguard.windows w
                  WHERE w.job_name = n.job_name
                    AND (cardinality($3::text[]) = 0 OR w.state = ANY ($3))
                    AND w.window_start >= CASE WHEN $4::float8 = 0 THEN '-infinity' ELSE statement_timestamp() - make_interval(secs => $4) END
                    AND w.window_start <= coalesce($5::timestamptz, 'infinity')
                    AND (w.window_start < coalesce($5, 'infinity') OR w.job_name > $6::text)
                  ORDER BY w.window_start DESC LIMIT $7::int) x
    WHERE n.job_name IS NOT NULL
      AND ($1::text = '' OR split_part(l.local, '/', 1) = $1)
      AND ($2::text = '' OR $2 IN (n.job_name, b.base, l.local, split_part(l.local, '/', 2)))
    ORDER BY x.window_start DESC, x.job_name
    LIMIT $7::int
)
SELECT w.job_name, w.window_start, w.window_end, w.state, w.reason, w.closed_by, w.attempts, w.duplicates_prevented,
       w.first_started_at, w.started_at, w.completed_at,
       extract(epoch FROM w.duration)::float8 AS duration_seconds,
       w.processed, w.checkpoint_seq, w.payload_digest, w.trigger, w.source, w.namespace, w.job, w.pod, w.node,
       w.last_outcome, w.last_exit_code, w.last_message, w.schedule, w.time_zone, w.dst,
       w.generation, w.execution_id::text AS execution_id, w.fencing_token, w.lease_expires_at,
       p.job_name IS NOT NULL AS planned, coalesce(p.reprocess, '') AS reprocess
FROM chosen c,
     LATERAL (SELECT * FROM onceguard.windows v WHERE v.job_name = c.job_name AND v.window_start = c.window_start LIMIT 1) w
     LEFT JOIN onceguard.plans p ON p.job_name = split_part(w.job_name, '#', 1) AND p.window_start = w.window_start
ORDER BY w.window_start DESC, w.job_name
