-- Tables of the business, a login that may do just what the jobs' SQL needs, and the windows
-- engine's.
-- For an administrator of Postgres: the owner of a database may as a rule not make
-- logins. Running it again changes nothing.
--   psql "$ADMIN_URL" -f role.sql               with the business database in the URL
--   psql "$ADMIN_URL" -c '\password shop_jobs'  asks for the password, sends only its hash
-- Until it has a password the login cannot be used. The same one goes into the URL of
-- ledger-secret.yaml. No right on the schema onceguard is needed: the login is granted
-- jobs instead, with the URL of the database's owner:
--   kubectl onceguard grant shop_jobs 'shop/*' --ledger-url-file owner.url
-- onceguard_engine is the windows engine's login, with a password and a Secret of its own. It
-- has no right on any table: the chart's value migrate.engineRoles grants it, or the owner's
--   SELECT onceguard.grant_engine('onceguard_engine')
\set ON_ERROR_STOP on
BEGIN;

SELECT format('CREATE ROLE %I LOGIN', login)
FROM unnest(ARRAY['shop_jobs', 'onceguard_engine']) login
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) \gexec

-- The tables belong to the database's owner, whoever runs this.
SELECT format('SET LOCAL ROLE %I', pg_get_userbyid(datdba))
FROM pg_database WHERE datname = current_database() \gexec

CREATE TABLE IF NOT EXISTS balance (
  account text PRIMARY KEY,
  units   bigint NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS booking (
  account      text NOT NULL REFERENCES balance,
  window_start timestamptz NOT NULL,
  units        bigint NOT NULL
);
INSERT INTO balance (account) VALUES ('daily-credit') ON CONFLICT DO NOTHING;

GRANT SELECT, UPDATE ON balance TO shop_jobs;
GRANT INSERT ON booking TO shop_jobs;
COMMIT;
