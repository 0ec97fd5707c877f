-- A worker whose psql puts a savepoint around each statement and goes on after errors.
\set ON_ERROR_ROLLBACK on
\set ON_ERROR_STOP off
\set VERBOSITY verbose
\getenv job ONCEGUARD_JOB_NAME
\getenv start ONCEGUARD_WINDOW_START
\getenv execution ONCEGUARD_EXECUTION_ID
BEGIN;
SELECT onceguard.begin(:'job', :'start', :'execution');
UPDATE balance SET units = units + 10;
SELECT onceguard.complete(:'job', '2000-01-01', :'execution');
\set ON_ERROR_STOP on
COMMIT;
