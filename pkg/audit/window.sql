-- $1 full job name, $2 window start
SELECT w.job_name, w.window_start, w.window_end, w.state, w.reason, w.closed_by, w.attempts, w.duplicates_prevented,
       w.first_started_at, w.started_at, w.completed_at,
       extract(epoch FROM w.duration)::float8 AS duration_seconds,
       w.processed, w.checkpoint_seq, w.payload_digest, w.trigger, w.source, w.namespace, w.job, w.pod, w.node,
       w.last_outcome, w.last_exit_code, w.last_message, w.schedule, w.time_zone, w.dst,
       w.generation, w.execution_id::text AS execution_id, w.fencing_token, w.lease_expires_at,
       p.job_name IS NOT NULL AS planned, coalesce(p.reprocess, '') AS reprocess
FROM onceguard.windows w
LEFT JOIN onceguard.plans p ON p.job_name = split_part(w.job_name, '#', 1) AND p.window_start = w.window_start
WHERE w.job_name = $1 AND w.window_start = $2
