package hostile_test

import "github.com/onceguard/onceguard/pkg/commit"

// outcome is what becomes of a business transaction.
type outcome string

const (
	committed outcome = "committed" // the effects are there and the window is done
	refused   outcome = "refused"   // neither
	// escaped: an effect stays without its window. Only where the worker's own driver ended
	// the guarded transaction itself and went on without one, or wrote through a second
	// connection; the endpoint is closed to the first, and nothing to the second.
	escaped outcome = "escaped"
)

// attack is hostile SQL between an effect before it and one behind it. In its text {job},
// {window} and {id} are the attempt's own, {other}, {its} and {whose} those of a running
// attempt of another tenant, whose execution_id has leaked; {spare} is a running window
// of the same login with the execution_id {spareID}.
type attack struct {
	name string
	sql  []string
	// code is what the endpoint answers; "" when it commits.
	code commit.Code
	// tx is what its interactive transaction answers, if something else.
	tx commit.Code
	// once is what becomes of it then, if not what the code says.
	once outcome
	// own is what becomes of it from a driver of the worker's own, if something else than
	// with the endpoint; batch and text, if that depends on how the driver sends it: all
	// statements in one pipeline, or as one string of the simple protocol.
	own, batch, text outcome
	// endpoint: not from own drivers; they would wait for data.
	endpoint bool
	// after comes between complete() and COMMIT, from own drivers only.
	after []string
	// without leaves complete() out, from own drivers only.
	without bool
}

func q(sql ...string) []string { return sql }

// late runs SQL at COMMIT, by a deferred trigger of the worker's.
func late(sql string) []string { return q("INSERT INTO mine.late VALUES ($late$" + sql + "$late$)") }

// try runs SQL and swallows its error.
func try(sql string) []string {
	return q("DO $do$ BEGIN " + sql + "; EXCEPTION WHEN OTHERS THEN NULL; END $do$")
}

const (
	ownArgs   = "'{job}', '{window}', '{id}'"
	otherArgs = "'{other}', '{its}', '{whose}'"
	spareArgs = "'{job}', '{spare}', '{spareID}'"
)

// attacks is the table: what a worker may send to its window's transaction.
var attacks = []attack{
	// Ends of the transaction, however they are spelt.
	{name: "COMMIT", sql: q("COMMIT"), code: commit.Forbidden},
	{name: "commit in lower case", sql: q("commit"), code: commit.Forbidden},
	{name: "COMMIT behind comments", sql: q("/* a /* nested */ b */ -- c\n COMMIT"), code: commit.Forbidden},
	{name: "COMMIT behind empty statements", sql: q(" ;;\t; COMMIT ;"), code: commit.Forbidden},
	{name: "COMMIT behind a carriage return", sql: q("--x\rCOMMIT"), code: commit.Forbidden},
	{name: "COMMIT behind a form feed", sql: q("\fCOMMIT"), code: commit.Forbidden},
	{name: "COMMIT before a comment", sql: q("COMMIT/**/WORK"), code: commit.Forbidden},
	{name: "COMMIT TRANSACTION", sql: q("COMMIT TRANSACTION"), code: commit.Forbidden},
	{name: "COMMIT AND NO CHAIN", sql: q("COMMIT AND NO CHAIN"), code: commit.Forbidden},
	{name: "COMMIT AND CHAIN", sql: q("COMMIT AND CHAIN"), code: commit.Forbidden},
	{name: "END", sql: q("END"), code: commit.Forbidden},
	{name: "END WORK AND CHAIN", sql: q("eNd WORK AND CHAIN"), code: commit.Forbidden},
	{name: "ROLLBACK", sql: q("ROLLBACK"), code: commit.Forbidden, own: escaped, batch: refused, text: refused},
	{name: "ROLLBACK WORK", sql: q("rollback work"), code: commit.Forbidden, own: escaped, batch: refused, text: refused},
	{name: "ABORT", sql: q("ABORT"), code: commit.Forbidden, own: escaped, batch: refused, text: refused},
	{name: "ROLLBACK AND CHAIN", sql: q("ROLLBACK AND CHAIN"), code: commit.Forbidden},
	{name: "ABORT AND CHAIN", sql: q("ABORT AND CHAIN"), code: commit.Forbidden},
	{name: "ROLLBACK and BEGIN", sql: q("ROLLBACK", "BEGIN"), code: commit.Forbidden},
	{name: "ROLLBACK and COMMIT", sql: q("ROLLBACK", "INSERT INTO effect VALUES ({case}, 'alone')", "COMMIT"), code: commit.Forbidden, own: escaped},
	{name: "BEGIN again", sql: q("BEGIN"), code: commit.Forbidden, own: committed},
	{name: "START TRANSACTION", sql: q("START TRANSACTION"), code: commit.Forbidden, own: committed},
	{name: "PREPARE TRANSACTION", sql: q("PREPARE TRANSACTION '{case}'"), code: commit.Forbidden},
	{name: "COMMIT PREPARED", sql: q("COMMIT PREPARED 'x'"), code: commit.Forbidden},
	{name: "ROLLBACK PREPARED", sql: q("ROLLBACK PREPARED 'x'"), code: commit.Forbidden},
	{name: "COMMIT in DO", sql: q("DO $$ BEGIN COMMIT; END $$"), code: commit.Failed},
	{name: "ROLLBACK in DO", sql: q("DO $$ BEGIN ROLLBACK; END $$"), code: commit.Failed},
	{name: "COMMIT in DO, swallowed", sql: try("COMMIT"), own: committed},
	{name: "COMMIT as dynamic SQL", sql: q("DO $$ BEGIN EXECUTE 'COMMIT'; END $$"), code: commit.Failed},
	{name: "ROLLBACK AND CHAIN in DO", sql: q("DO $$ BEGIN ROLLBACK AND CHAIN; END $$"), code: commit.Failed},
	{name: "CALL of a procedure that commits", sql: q("CALL mine.commits()"), code: commit.Failed},
	{name: "CALL of a procedure that rolls back", sql: q("CALL mine.rolls_back()"), code: commit.Failed},
	{name: "CALL, swallowed", sql: try("CALL mine.rolls_back()")},
	{name: "two statements in one", sql: q("SELECT 1; COMMIT"), code: commit.Failed},
	{name: "a statement behind a rolled back one", sql: q("SELECT 1; ROLLBACK; SELECT 2"), code: commit.Failed, text: refused},
	{name: "PREPARE of a COMMIT", sql: q("PREPARE p AS COMMIT"), code: commit.Forbidden},
	{name: "EXECUTE of nothing", sql: q("EXECUTE p"), code: commit.Failed},
	{name: "a rule that commits", sql: q("CREATE RULE r AS ON INSERT TO mine.t DO ALSO COMMIT"), code: commit.Failed},
	{name: "EXPLAIN of a COMMIT", sql: q("EXPLAIN ANALYZE COMMIT"), code: commit.Failed},

	// Savepoints around what is ours.
	{name: "SAVEPOINT", sql: q("SAVEPOINT a"), code: commit.Forbidden, own: committed},
	{name: "ROLLBACK TO an own savepoint", sql: q("SAVEPOINT a", "INSERT INTO mine.t VALUES (1)", "ROLLBACK TO a"), code: commit.Forbidden, own: committed},
	{name: "RELEASE of nothing", sql: q("RELEASE a"), code: commit.Forbidden},
	{name: "ROLLBACK TO nothing", sql: q("ROLLBACK TO SAVEPOINT a"), code: commit.Forbidden},
	{name: "an error in a savepoint, rolled back", sql: try("SELECT 1/0")},
	{name: "nested errors, swallowed", sql: try("BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN RAISE EXCEPTION 'again'; END")},
	{name: "complete() undone by a savepoint", sql: q("SAVEPOINT a", "SELECT onceguard.complete("+ownArgs+")", "ROLLBACK TO a"), code: commit.Forbidden, own: refused, without: true},
	{name: "complete() undone after the barrier was fired", sql: q("SAVEPOINT a", "SELECT onceguard.complete("+ownArgs+")", "SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK TO a"), code: commit.Forbidden, own: refused, without: true},
	{name: "complete() undone in plpgsql", sql: try("PERFORM onceguard.complete(" + ownArgs + "); SET CONSTRAINTS ALL IMMEDIATE; RAISE EXCEPTION 'x'"), own: refused, without: true},
	{name: "complete() forgotten", own: refused, without: true},
	{name: "complete() with a wrong id, swallowed", sql: try("PERFORM onceguard.complete('{job}', '{window}', gen_random_uuid())"), own: refused, without: true},
	{name: "complete() of another window", sql: q("SELECT onceguard.complete(" + spareArgs + ")"), code: commit.Forbidden},
	{name: "ROLLBACK after complete()", after: q("ROLLBACK"), own: refused},
	{name: "ROLLBACK AND CHAIN after complete()", after: q("ROLLBACK AND CHAIN"), own: refused},
	{name: "PREPARE TRANSACTION after complete(), rolled back", after: q("PREPARE TRANSACTION 'p{case}'", "ROLLBACK PREPARED 'p{case}'"), own: refused, text: refused},
	{name: "PREPARE TRANSACTION after complete(), committed", after: q("PREPARE TRANSACTION 'p{case}'", "COMMIT PREPARED 'p{case}'"), own: committed, text: refused},
	{name: "complete() twice", after: q("SELECT onceguard.complete(" + ownArgs + ")"), own: refused},
	{name: "begin() again after complete()", after: q("SELECT onceguard.begin(" + ownArgs + ")"), own: refused},
	{name: "release() after complete()", after: q("SELECT onceguard.release(" + ownArgs + ", 'failed')"), own: refused},
	{name: "the barrier fired after complete(), then release()", after: q("SET CONSTRAINTS ALL IMMEDIATE", "SELECT onceguard.release("+ownArgs+", 'failed')"), own: committed},
	{name: "a second window after the barrier", after: q("SET CONSTRAINTS ALL IMMEDIATE", "SELECT onceguard.begin("+spareArgs+")"), own: refused},
	{name: "COMMIT AND CHAIN after complete()", after: q("COMMIT AND CHAIN"), own: committed},

	// The constraint trigger.
	{name: "SET CONSTRAINTS ALL IMMEDIATE", sql: q("SET CONSTRAINTS ALL IMMEDIATE"), code: commit.Forbidden},
	{name: "SET CONSTRAINTS ALL IMMEDIATE in DO", sql: q("DO $$ BEGIN SET CONSTRAINTS ALL IMMEDIATE; END $$"), code: commit.Forbidden},
	{name: "SET CONSTRAINTS ALL IMMEDIATE, swallowed", sql: try("SET CONSTRAINTS ALL IMMEDIATE")},
	{name: "SET CONSTRAINTS of the barrier", sql: q("SET CONSTRAINTS onceguard.barrier IMMEDIATE"), code: commit.Forbidden},
	{name: "SET CONSTRAINTS ALL DEFERRED", sql: q("SET CONSTRAINTS ALL DEFERRED")},
	{name: "SET CONSTRAINTS of an own constraint", sql: q("SET CONSTRAINTS mine.child_id_fkey IMMEDIATE")},
	{name: "ALTER TABLE DISABLE TRIGGER", sql: q("ALTER TABLE onceguard.armed DISABLE TRIGGER ALL"), code: commit.Failed},
	{name: "ALTER TABLE DISABLE TRIGGER, swallowed", sql: try("ALTER TABLE onceguard.armed DISABLE TRIGGER barrier")},
	{name: "DROP TRIGGER", sql: q("DROP TRIGGER barrier ON onceguard.armed"), code: commit.Failed},
	{name: "ALTER TRIGGER", sql: q("ALTER TRIGGER barrier ON onceguard.armed RENAME TO x"), code: commit.Failed},
	{name: "a trigger on a table of ours", sql: q("CREATE TRIGGER t AFTER INSERT ON onceguard.armed FOR EACH ROW EXECUTE FUNCTION mine.late()"), code: commit.Failed},
	{name: "session_replication_role", sql: q("SET session_replication_role = replica"), code: commit.Failed},
	{name: "session_replication_role by set_config", sql: q("SELECT set_config('session_replication_role', 'replica', true)"), code: commit.Failed},

	// Our tables and functions, directly.
	{name: "DELETE from armed", sql: q("DELETE FROM onceguard.armed"), code: commit.Failed},
	{name: "TRUNCATE armed", sql: q("TRUNCATE onceguard.armed"), code: commit.Failed},
	{name: "UPDATE of the execution", sql: q("UPDATE onceguard.job_execution SET status = 'completed'"), code: commit.Failed},
	{name: "UPDATE of a foreign fence", sql: q("UPDATE onceguard.job_execution SET execution_id = gen_random_uuid() WHERE job_name = '{other}'"), code: commit.Failed},
	{name: "INSERT of a grant", sql: q("INSERT INTO onceguard.job_grant VALUES (session_user, '*')"), code: commit.Failed},
	{name: "UPDATE of the lease", sql: q("UPDATE onceguard.job_lease SET expires_at = 'infinity'"), code: commit.Failed},
	{name: "SELECT of the ids of others", sql: q("SELECT execution_id FROM onceguard.job_execution"), code: commit.Failed},
	{name: "COPY of a table of ours", sql: q("COPY onceguard.job_lease TO STDOUT"), code: commit.Failed},
	{name: "LOCK TABLE of ours", sql: q("LOCK TABLE onceguard.job_execution IN ACCESS EXCLUSIVE MODE"), code: commit.Failed},
	{name: "MERGE into a table of ours", sql: q("MERGE INTO onceguard.armed a USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE"), code: commit.Failed},
	{name: "a view on a table of ours", sql: q("CREATE VIEW mine.v AS SELECT * FROM onceguard.armed", "DELETE FROM mine.v"), code: commit.Failed},
	{name: "a rule on a table of ours", sql: q("CREATE RULE r AS ON INSERT TO onceguard.armed DO INSTEAD NOTHING"), code: commit.Failed},
	{name: "a policy on a table of ours", sql: q("ALTER TABLE onceguard.armed ENABLE ROW LEVEL SECURITY"), code: commit.Failed},
	{name: "a foreign key to a table of ours", sql: q("CREATE TABLE mine.fk (n text REFERENCES onceguard.job)"), code: commit.Failed},
	{name: "a table that inherits from ours", sql: q("CREATE TABLE mine.heir () INHERITS (onceguard.armed)"), code: commit.Failed},
	{name: "a statistics object on ours", sql: q("CREATE STATISTICS mine.s ON job_name, window_start FROM onceguard.job_execution"), code: commit.Failed},
	{name: "DROP SCHEMA", sql: q("DROP SCHEMA onceguard CASCADE"), code: commit.Failed},
	{name: "ALTER SCHEMA", sql: q("ALTER SCHEMA onceguard RENAME TO x"), code: commit.Failed},
	{name: "DROP FUNCTION", sql: q("DROP FUNCTION onceguard.barrier CASCADE"), code: commit.Failed},
	{name: "CREATE OR REPLACE of the barrier", sql: q("CREATE OR REPLACE FUNCTION onceguard.barrier() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"), code: commit.Failed},
	{name: "a function of another type in our schema", sql: q("CREATE FUNCTION onceguard.complete(unknown, unknown, unknown) RETURNS void LANGUAGE sql AS ''"), code: commit.Failed},
	{name: "ALTER FUNCTION", sql: q("ALTER FUNCTION onceguard.complete SECURITY INVOKER"), code: commit.Failed},
	{name: "ALTER FUNCTION search_path", sql: q("ALTER FUNCTION onceguard.begin SET search_path = mine"), code: commit.Failed},
	{name: "GRANT of what is not ours to give", sql: q("GRANT ALL ON SCHEMA onceguard TO PUBLIC")},
	{name: "DROP OWNED", sql: q("DROP OWNED BY CURRENT_USER CASCADE", "SELECT 1/0"), code: commit.Failed},
	{name: "REASSIGN OWNED", sql: q("REASSIGN OWNED BY CURRENT_USER TO {owner}"), code: commit.Failed},
	{name: "internal functions", sql: q("SELECT onceguard.seal()"), code: commit.Failed},
	{name: "grant_job", sql: q("SELECT onceguard.grant_job(session_user, '*')"), code: commit.Failed},
	{name: "the barrier as a function", sql: q("SELECT onceguard.barrier()"), code: commit.Failed},
	{name: "an own table with our barrier", sql: q("CREATE CONSTRAINT TRIGGER b AFTER INSERT ON mine.t DEFERRABLE FOR EACH ROW EXECUTE FUNCTION onceguard.barrier()"), code: commit.Failed},
	{name: "an event trigger", sql: q("CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION mine.event()"), code: commit.Failed},

	// Names that stand in the way.
	{name: "search_path", sql: q("SELECT set_config('search_path', 'mine', true)", "SELECT set_config('search_path', 'public', true)")},
	{name: "search_path for the session", sql: q("SELECT set_config('search_path', 'mine, pg_catalog, public', false)")},
	{name: "a temporary table armed", sql: q("CREATE TEMP TABLE armed (xid xid8, job_name text, window_start timestamptz, execution_id uuid)", "INSERT INTO armed VALUES (pg_current_xact_id(), {own})")},
	{name: "a temporary table job_execution", sql: q("CREATE TEMP TABLE job_execution ON COMMIT DROP AS SELECT 1 AS x")},
	{name: "operators of the worker's", sql: q(`CREATE OPERATOR mine.= (LEFTARG = text, RIGHTARG = text, FUNCTION = mine.always)`, "SELECT set_config('search_path', 'mine, pg_catalog, public', true)")},
	{name: "functions of the worker's", sql: q("SELECT set_config('search_path', 'mine, pg_catalog, public', true)", "SELECT pg_current_xact_id()")},
	{name: "functions in pg_temp", sql: q("CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$")},
	{name: "a cast of the worker's", sql: q("CREATE CAST (text AS uuid) WITH FUNCTION mine.nil(text) AS IMPLICIT"), code: commit.Failed},
	{name: "a domain of the worker's", sql: q("CREATE DOMAIN mine.uuid AS pg_catalog.uuid", "SELECT set_config('search_path', 'mine, public', true)")},
	{name: "an operator class of the worker's", sql: q("CREATE OPERATOR CLASS mine.ops DEFAULT FOR TYPE text USING btree AS STORAGE text"), code: commit.Failed},

	// Settings.
	{name: "SET", sql: q("SET statement_timeout = 0"), code: commit.Forbidden, own: committed},
	{name: "SET LOCAL", sql: q("SET LOCAL lock_timeout = '1h'"), code: commit.Forbidden, own: committed},
	{name: "SET behind a comment", sql: q("/*x*/SET work_mem = '64MB'"), code: commit.Forbidden, own: committed},
	{name: "SET SESSION CHARACTERISTICS", sql: q("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"), code: commit.Forbidden, own: committed},
	{name: "SET TRANSACTION ISOLATION", sql: q("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), code: commit.Failed},
	{name: "SET TRANSACTION READ ONLY", sql: q("SET TRANSACTION READ ONLY"), code: commit.Failed, tx: commit.Forbidden},
	{name: "RESET ALL", sql: q("RESET ALL"), code: commit.Forbidden, own: committed},
	{name: "DISCARD ALL", sql: q("DISCARD ALL"), code: commit.Failed},
	{name: "DISCARD PLANS", sql: q("DISCARD PLANS"), code: commit.Forbidden, own: committed},
	{name: "DISCARD TEMP", sql: q("DISCARD TEMP"), code: commit.Forbidden, own: committed},
	{name: "DEALLOCATE ALL", sql: q("DEALLOCATE ALL"), code: commit.Forbidden, own: committed},
	{name: "SET ROLE", sql: q("SET ROLE {owner}"), code: commit.Failed},
	{name: "SET ROLE to a group", sql: q("SET ROLE {group}"), code: commit.Failed, tx: commit.Forbidden},
	{name: "SET ROLE NONE", sql: q("SET ROLE NONE"), code: commit.Forbidden, own: committed},
	{name: "SET SESSION AUTHORIZATION", sql: q("SET SESSION AUTHORIZATION {owner}"), code: commit.Failed},
	{name: "SET SESSION AUTHORIZATION DEFAULT", sql: q("SET SESSION AUTHORIZATION DEFAULT"), code: commit.Forbidden, own: committed},
	{name: "the role by set_config", sql: q("SELECT set_config('role', '{group}', true)"), code: commit.Failed},
	{name: "session_authorization by set_config", sql: q("SELECT set_config('session_authorization', '{owner}', true)"), code: commit.Failed},
	{name: "synchronous_commit off", sql: q("SELECT set_config('synchronous_commit', 'off', true)")},
	{name: "synchronous_commit off for the session", sql: q("SELECT set_config('synchronous_commit', 'off', false)")},
	{name: "no idle limit", sql: q("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")},
	{name: "a statement limit of a millisecond", sql: q("SELECT set_config('statement_timeout', '1', false)", "SELECT pg_sleep(0.05)"), code: commit.TooLong},
	{name: "a lock limit of a millisecond for the session", sql: q("SELECT set_config('lock_timeout', '1', false)")},
	{name: "a read-only transaction", sql: q("SELECT set_config('transaction_read_only', 'on', true)"), code: commit.Failed},
	{name: "read-only from now on", sql: q("SELECT set_config('default_transaction_read_only', 'on', false)")},
	{name: "serializable from now on", sql: q("SELECT set_config('default_transaction_isolation', 'serializable', false)")},
	{name: "another time zone and date style", sql: q("SELECT set_config('TimeZone', 'Asia/Kathmandu', false), set_config('DateStyle', 'SQL, DMY', false), set_config('IntervalStyle', 'sql_standard', false)")},
	{name: "another encoding", sql: q("SELECT set_config('client_encoding', 'SJIS', false)")},
	{name: "strings of old", sql: q("SELECT set_config('standard_conforming_strings', 'off', false)")},
	{name: "no triggers by row_security", sql: q("SELECT set_config('row_security', 'off', false)")},
	{name: "check_function_bodies off", sql: q("SELECT set_config('check_function_bodies', 'off', false)")},
	// They hold for the next session of the login.
	{name: "a read-only role", sql: q("ALTER ROLE CURRENT_USER SET default_transaction_read_only = on")},
	{name: "a serializable role", sql: q("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'serializable'")},
	{name: "a deferrable role", sql: q("ALTER ROLE CURRENT_USER SET default_transaction_deferrable = on")},
	{name: "a role with operators and functions of its own", sql: q("ALTER ROLE CURRENT_USER SET search_path = mine, pg_catalog, public")},
	{name: "a role with another date style and encoding", sql: q("ALTER ROLE CURRENT_USER SET DateStyle = 'SQL, DMY'", "ALTER ROLE CURRENT_USER SET client_encoding = 'LATIN1'", "ALTER ROLE CURRENT_USER SET TimeZone = 'Asia/Kathmandu'")},
	{name: "a role that does not wait for the disk", sql: q("ALTER ROLE CURRENT_USER SET synchronous_commit = off")},
	{name: "ALTER SYSTEM", sql: q("ALTER SYSTEM SET fsync = off"), code: commit.Failed},
	{name: "ALTER DATABASE", sql: q("ALTER DATABASE {database} SET search_path = mine"), code: commit.Failed},
	{name: "LOAD", sql: q("LOAD 'auto_explain'"), code: commit.Failed},

	// The ledger's functions for the own window: only the endpoint, or begin and complete
	// once each, may speak for it inside its transaction.
	{name: "claim() of the own window", sql: q("SELECT onceguard.claim(" + ownArgs + ", '1 hour')"), code: commit.Forbidden},
	{name: "claim() of another own window", sql: q("SELECT onceguard.claim('{job}', '{spare}', gen_random_uuid(), '1 hour')"), code: commit.Forbidden},
	{name: "heartbeat()", sql: q("SELECT onceguard.heartbeat(" + ownArgs + ", '1 hour')"), code: commit.Forbidden},
	{name: "release()", sql: q("SELECT onceguard.release(" + ownArgs + ", 'failed')"), code: commit.Forbidden},
	{name: "release(), swallowed", sql: try("PERFORM onceguard.release(" + ownArgs + ", 'failed')")},
	{name: "resolve()", sql: q("SELECT onceguard.resolve(" + ownArgs + ", gen_random_uuid())"), code: commit.Forbidden},
	{name: "record_skip()", sql: q("SELECT onceguard.record_skip(" + ownArgs + ", 'busy', '{}')"), code: commit.Forbidden},
	{name: "stored()", sql: q("SELECT onceguard.stored('{job}', '{window}')"), code: commit.Forbidden},
	{name: "begin() again", sql: q("SELECT onceguard.begin(" + ownArgs + ")"), code: commit.Forbidden},
	{name: "begin() of another own window", sql: q("SELECT onceguard.begin(" + spareArgs + ")"), code: commit.Forbidden},
	{name: "begin() of another own window, swallowed", sql: try("PERFORM onceguard.begin(" + spareArgs + ")")},
	{name: "complete() before the endpoint does", sql: q("SELECT onceguard.complete(" + ownArgs + ")"), code: commit.Forbidden},
	{name: "complete() and the barrier before the endpoint does", sql: q("SELECT onceguard.complete("+ownArgs+")", "SET CONSTRAINTS ALL IMMEDIATE"), code: commit.Forbidden},

	{name: "checkpoint() in the endpoint's transaction", sql: q("SELECT onceguard.checkpoint(" + ownArgs + ", 0, '{}')")},
	{name: "checkpoint() out of order", sql: q("SELECT onceguard.checkpoint(" + ownArgs + ", 7, '{}')"), code: commit.Failed},
	{name: "checkpoint() out of order, swallowed, and no complete()", sql: try("PERFORM onceguard.checkpoint(" + ownArgs + ", 7, '{}')"), own: refused, without: true},
	{name: "checkpoint() undone by a savepoint", sql: q("SAVEPOINT a", "SELECT onceguard.checkpoint("+ownArgs+", 0, '{}')", "ROLLBACK TO a"), code: commit.Forbidden, without: true},
	{name: "checkpoint() of another own window", sql: q("SELECT onceguard.checkpoint(" + spareArgs + ", 0, '{}')"), code: commit.Forbidden},
	{name: "checkpoint() after complete()", after: q("SELECT onceguard.checkpoint(" + ownArgs + ", 0, '{}')"), own: refused},

	// For the windows of others, whose ids are known.
	{name: "checkpoint() of a foreign window", sql: q("SELECT onceguard.checkpoint(" + otherArgs + ", 0, '{}')"), code: commit.Forbidden},
	{name: "prune()", sql: q("SELECT onceguard.prune('{other}', now())"), code: commit.Failed},
	{name: "rerun()", sql: q("SELECT onceguard.rerun('{job}', '{window}', 'me', 'again')"), code: commit.Failed},
	{name: "cancel()", sql: q("SELECT onceguard.cancel('{other}', '{its}', 'me', 'no')"), code: commit.Failed},
	{name: "complete() of a foreign window", sql: q("SELECT onceguard.complete(" + otherArgs + ")"), code: commit.Forbidden},
	{name: "begin() and complete() of a foreign window", sql: q("DO $$ BEGIN PERFORM onceguard.begin(" + otherArgs + "); PERFORM onceguard.complete(" + otherArgs + "); END $$"), code: commit.Failed},
	{name: "begin() of a foreign window, swallowed", sql: try("PERFORM onceguard.begin(" + otherArgs + ")")},
	{name: "claim() of a foreign window", sql: q("SELECT onceguard.claim(" + otherArgs + ", '1 hour')"), code: commit.Failed},
	{name: "heartbeat() of a foreign window", sql: q("SELECT onceguard.heartbeat(" + otherArgs + ", '1 hour')"), code: commit.Failed},
	{name: "release() of a foreign window", sql: try("PERFORM onceguard.release(" + otherArgs + ", 'failed')")},
	{name: "resolve() of a foreign window", sql: try("PERFORM onceguard.resolve(" + otherArgs + ", gen_random_uuid())")},
	{name: "record_skip() of a foreign window", sql: try("PERFORM onceguard.record_skip(" + otherArgs + ", 'busy', '{}')")},
	{name: "stored() of a foreign window", sql: q("SELECT onceguard.stored('{other}', '{its}')"), code: commit.Failed},
	{name: "a job_name that looks like an own one", sql: q("SELECT onceguard.stored('{other}#{job}', '{its}')"), code: commit.Failed},

	// At COMMIT, by deferred triggers of the worker's.
	{name: "a deferred foreign key that holds", sql: q("INSERT INTO mine.child VALUES ({case})", "INSERT INTO mine.parent VALUES ({case})")},
	{name: "a deferred foreign key that fails", sql: q("INSERT INTO mine.child VALUES (-1)"), code: commit.Refused},
	{name: "late: an effect", sql: late("INSERT INTO effect VALUES ({case}, 'late')")},
	{name: "late: an error", sql: late("SELECT 1/0"), code: commit.Refused},
	{name: "late: an error with the ledger's code for a lost fence", sql: late("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'OG001'; END $$"), code: commit.FenceLost},
	{name: "late: an error with the ledger's code for a completed window", sql: late("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'OG002'; END $$"), code: commit.Forbidden},
	{name: "late: a conflict", sql: late("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"), code: commit.Unavailable},
	{name: "late: COMMIT", sql: late("COMMIT"), code: commit.Refused},
	{name: "late: ROLLBACK", sql: late("ROLLBACK"), code: commit.Refused},
	{name: "late: ROLLBACK in DO", sql: late("DO $$ BEGIN ROLLBACK; END $$"), code: commit.Refused},
	{name: "late: a warning", sql: late("DO $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; END $$")},
	{name: "late: a huge warning", sql: late("DO $$ BEGIN RAISE WARNING '%', repeat('x', 3000000); END $$")},
	{name: "late: a huge error", sql: late("DO $$ BEGIN RAISE EXCEPTION '%', repeat('x', 3000000); END $$"), code: commit.NotCommitted},
	{name: "late: the end of the session", sql: late("SELECT pg_terminate_backend(pg_backend_pid())"), code: commit.NotCommitted},
	{name: "late: release()", sql: late("SELECT onceguard.release(" + ownArgs + ", 'failed')")},
	{name: "late: resolve()", sql: late("SELECT onceguard.resolve(" + ownArgs + ", gen_random_uuid())")},
	{name: "late: claim() of the own window", sql: late("SELECT onceguard.claim('{job}', '{window}', gen_random_uuid(), '1 hour')")},
	{name: "late: begin() of another window", sql: late("SELECT onceguard.begin(" + spareArgs + ")"), code: commit.Forbidden},
	{name: "late: complete() of a foreign window", sql: late("SELECT onceguard.complete(" + otherArgs + ")"), code: commit.Forbidden},
	{name: "late: release() of a foreign window", sql: late("SELECT onceguard.release(" + otherArgs + ", 'failed')"), code: commit.Unavailable},
	{name: "late: resolve() of a foreign window, swallowed", sql: late("DO $$ BEGIN PERFORM onceguard.resolve(" + otherArgs + ", gen_random_uuid()); EXCEPTION WHEN OTHERS THEN NULL; END $$")},
	{name: "late: heartbeat() of a foreign window, swallowed", sql: late("DO $$ BEGIN PERFORM onceguard.heartbeat(" + otherArgs + ", '1 second'); EXCEPTION WHEN OTHERS THEN NULL; END $$")},
	{name: "late: begin() and complete() of a foreign window, swallowed", sql: late("DO $$ BEGIN PERFORM onceguard.begin(" + otherArgs + "); PERFORM onceguard.complete(" + otherArgs + "); EXCEPTION WHEN OTHERS THEN NULL; END $$")},
	{name: "late: synchronous_commit off", sql: late("SELECT set_config('synchronous_commit', 'off', true)")},
	{name: "late: constraints deferred again", sql: late("SET CONSTRAINTS ALL DEFERRED")},
	{name: "late: another late one", sql: late("INSERT INTO mine.late VALUES ('INSERT INTO mine.late VALUES (''SELECT 1/0'')')"), code: commit.Refused},

	// What outlives a transaction.
	{name: "LISTEN", sql: q("LISTEN x"), code: commit.Forbidden, own: committed},
	{name: "UNLISTEN", sql: q("UNLISTEN *"), code: commit.Forbidden, own: committed},
	{name: "NOTIFY", sql: q("NOTIFY x, 'y'")},
	{name: "a flood of NOTIFY", sql: q("SELECT pg_notify('x', n::text) FROM generate_series(1, 20000) n")},
	{name: "a cursor WITH HOLD", sql: q("DECLARE c CURSOR WITH HOLD FOR SELECT 1"), code: commit.Forbidden, own: committed},
	{name: "a cursor", sql: q("DECLARE c CURSOR FOR SELECT 1"), code: commit.Forbidden, own: committed},
	{name: "a prepared statement", sql: q("PREPARE p AS SELECT 1"), code: commit.Forbidden, own: committed},
	{name: "an advisory lock of the session", sql: q("SELECT pg_advisory_lock(42)")},
	{name: "an advisory lock of the transaction", sql: q("SELECT pg_advisory_xact_lock(43)")},
	{name: "a temporary table ON COMMIT DROP", sql: q("CREATE TEMP TABLE a (n int) ON COMMIT DROP", "INSERT INTO a VALUES (1)")},
	{name: "a temporary table ON COMMIT DELETE ROWS", sql: q("CREATE TEMP TABLE a (n int) ON COMMIT DELETE ROWS")},
	{name: "a temporary table that stays", sql: q("CREATE TEMP TABLE a (n int)", "INSERT INTO a VALUES (1)")},

	// The other way out: commands that Postgres takes outside a transaction only, files,
	// programs, other sessions, other connections.
	{name: "VACUUM", sql: q("VACUUM mine.t"), code: commit.Failed},
	{name: "CREATE INDEX CONCURRENTLY", sql: q("CREATE INDEX CONCURRENTLY ON mine.t (n)"), code: commit.Failed},
	{name: "CREATE DATABASE", sql: q("CREATE DATABASE x"), code: commit.Failed},
	{name: "COPY FROM PROGRAM", sql: q("COPY mine.t FROM PROGRAM 'id'"), code: commit.Failed},
	{name: "COPY to a file", sql: q("COPY mine.t TO '/tmp/x'"), code: commit.Failed},
	{name: "COPY TO STDOUT", sql: q("COPY (SELECT generate_series(1, 100000)) TO STDOUT")},
	{name: "COPY FROM STDIN", sql: q("COPY mine.t FROM STDIN"), code: commit.Failed, endpoint: true},
	{name: "pg_read_file", sql: q("SELECT pg_read_file('postgresql.conf')"), code: commit.Failed},
	{name: "lo_import", sql: q("SELECT lo_import('/etc/passwd')"), code: commit.Failed},
	{name: "the end of the own session", sql: q("SELECT pg_terminate_backend(pg_backend_pid())"), code: commit.Unavailable},
	{name: "the end of all sessions of the login", sql: q("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = session_user AND pid <> pg_backend_pid()")},
	{name: "the cancellation of the own statement", sql: q("SELECT pg_cancel_backend(pg_backend_pid())", "SELECT pg_sleep(1)"), code: commit.TooLong},
	{name: "dblink to the same database", sql: q("SELECT dblink_exec('{dsn}', 'INSERT INTO effect VALUES ({case}, ''outside'')')", "SELECT 1/0"), code: commit.Failed, once: escaped, own: escaped},
	{name: "the owner's extensions", sql: q("CREATE EXTENSION postgres_fdw"), code: commit.Failed},

	// Errors and floods.
	{name: "an error", sql: q("SELECT 1/0"), code: commit.Failed},
	{name: "a syntax error", sql: q("SELEC 1"), code: commit.Failed},
	{name: "an unterminated comment", sql: q("SELECT 1 /* COMMIT"), code: commit.Failed},
	{name: "an unterminated string", sql: q("SELECT 'x"), code: commit.Failed},
	{name: "only a comment", sql: q("-- nothing")},
	{name: "only a semicolon", sql: q(";")},
	{name: "an error with the ledger's code for a lost fence", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'OG001'; END $$"), code: commit.Failed},
	{name: "an error with the ledger's code for a completed window", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'OG002'; END $$"), code: commit.Failed},
	{name: "an error with the ledger's code for a missing begin", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'OG006'; END $$"), code: commit.Forbidden},
	{name: "an error that looks like a shutdown", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '57P01'; END $$"), code: commit.Unavailable},
	{name: "an error that looks like a conflict", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"), code: commit.Unavailable},
	{name: "an error that looks like a deadlock", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$"), code: commit.Unavailable},
	{name: "an error without a code", sql: q("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '00000'; END $$"), code: commit.Failed},
	// The driver breaks the connection and does not say why.
	{name: "a huge error", sql: q("DO $$ BEGIN RAISE EXCEPTION '%', repeat('x', 3000000); END $$"), code: commit.Unavailable},
	{name: "a huge notice", sql: q("DO $$ BEGIN RAISE NOTICE '%', repeat('x', 3000000); END $$"), code: commit.Unavailable, own: committed},
	{name: "a flood of warnings", sql: q("DO $$ BEGIN FOR i IN 1..20000 LOOP RAISE WARNING 'no'; END LOOP; END $$")},
	{name: "a flood of rows", sql: q("SELECT generate_series(1, 300000)")},
	{name: "a huge row", sql: q("SELECT repeat('x', 3000000)"), code: commit.TooLarge, own: committed},
	{name: "deep recursion", sql: q("SELECT mine.deep(1)"), code: commit.Failed},
	{name: "an invalid byte", sql: q("SELECT '\xff'"), code: commit.Invalid, own: refused},
	{name: "a NUL byte", sql: q("SELECT 'a\x00b'"), code: commit.Invalid, own: refused},
	{name: "a NUL in a value", sql: q("SELECT chr(0)"), code: commit.Failed},
	{name: "a byte order mark", sql: q("\ufeffCOMMIT"), code: commit.Failed},
	{name: "a wide space", sql: q("\u00a0COMMIT"), code: commit.Failed},
	{name: "letters that look like COMMIT", sql: q("СОММІТ"), code: commit.Failed},
	{name: "a missing argument", sql: q("SELECT $1::int"), code: commit.Failed},
}
