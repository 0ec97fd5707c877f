-- Run as the owner of the business database:
--   psql "$(cat owner.url)" -f role.sql
-- The login needs no right on the schema onceguard: it is granted jobs instead, by
--   kubectl onceguard grant shop_jobs 'shop/*' --ledger-url-file owner.url

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

-- Give it a password of your own, e.g. with psql's \password shop_jobs.
CREATE ROLE shop_jobs LOGIN;
GRANT SELECT, UPDATE ON balance TO shop_jobs;
GRANT INSERT ON booking TO shop_jobs;
