-- $1 full job name, $2 window start
SELECT w.job_name, w.window_start, w.window_end, w.state, w.reason, w.closed_by, w.attempts, w.duplicates_prevented,
       w.first_started_at, w.started_at, w.completed_at,
       extract(epoch FROM w.duration)::float8 AS duration_seconds,
       w.processed, w.checkpoint_seq, w.payload_digest, w.trigger, w.source, w.namespace, w.job, w.pod, w.node,
       w.last_outcome, w.last_exit_code, w.last_message, w.schedule, w.time_zone,
       w.generation, w.execution_id::text AS execution_id, w.fencing_token, w.lease_expires_at
FROM onceguard.windows w
WHERE w.job_name = $1 AND w.window_start = $2
