-- $1 namespace, $2 job, $3 states, $4 seconds, $5 and $6 the last row of the page
-- before, $7 rows
SELECT w.job_name, w.window_start, w.window_end, w.state, w.reason, w.closed_by, w.attempts, w.duplicates_prevented,
       w.first_started_at, w.started_at, w.completed_at,
       extract(epoch FROM w.duration)::float8 AS duration_seconds,
       w.processed, w.checkpoint_seq, w.payload_digest, w.trigger, w.source, w.namespace, w.job, w.pod, w.node,
       w.last_outcome, w.last_exit_code, w.last_message, w.schedule, w.time_zone,
       w.generation, w.execution_id::text AS execution_id, w.fencing_token, w.lease_expires_at
FROM onceguard.windows w,
     -- base: without the run's UID or index; local: without the cluster as well
     LATERAL (SELECT regexp_replace(w.job_name, '[@#].*$', '') AS base) b,
     LATERAL (SELECT regexp_replace(b.base, '^[^:/]*:', '') AS local) l
WHERE ($1::text = '' OR split_part(l.local, '/', 1) = $1)
  AND ($2::text = '' OR $2 IN (w.job_name, b.base, l.local, split_part(l.local, '/', 2)))
  AND (cardinality($3::text[]) = 0 OR w.state = ANY ($3))
  AND ($4::float8 = 0 OR w.window_start >= clock_timestamp() - make_interval(secs => $4))
  AND ($5::timestamptz IS NULL OR w.window_start < $5 OR (w.window_start = $5 AND w.job_name > $6::text))
ORDER BY w.window_start DESC, w.job_name
LIMIT $7::int
