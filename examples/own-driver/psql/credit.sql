-- Books ten units and completes its window in the same transaction. credit.sh runs it
-- and makes an exit code of its outcome.
\set ON_ERROR_STOP on
-- Else psql would put a savepoint around each statement and go on after an error.
\set ON_ERROR_ROLLBACK off
-- With the SQLSTATE.
\set VERBOSITY verbose
\getenv job ONCEGUARD_JOB_NAME
\getenv start ONCEGUARD_WINDOW_START
\getenv execution ONCEGUARD_EXECUTION_ID

BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT onceguard.begin(:'job', :'start', :'execution');

UPDATE balance SET units = units + 10 WHERE account = 'daily-credit';
INSERT INTO booking (account, window_start, units) VALUES ('daily-credit', :'start', 10);

SELECT onceguard.complete(:'job', :'start', :'execution');
COMMIT;
