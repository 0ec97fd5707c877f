-- $1 namespace, $2 job, $3 rows
SELECT j.job_name, j.latest_window, j.latest_completed_window,
       nullif(j.closed_before, '-infinity') AS closed_before
FROM onceguard.jobs j,
     LATERAL (SELECT regexp_replace(j.job_name, '[@#].*$', '') AS base) b,
     LATERAL (SELECT regexp_replace(b.base, '^[^:/]*:', '') AS local) l
WHERE ($1::text = '' OR split_part(l.local, '/', 1) = $1)
  AND ($2::text = '' OR $2 IN (j.job_name, b.base, l.local, split_part(l.local, '/', 2)))
ORDER BY j.job_name
LIMIT $3::int
