-- pgbench script: one lease per transaction, on a random key. The row is inserted if it does not exist, and updated
-- if the lease is over or the token is the same. It always is, so each statement writes a row and counts it.
\set number random(1, 100000)
INSERT INTO lease AS held (key, token, holder, fencing_token, expires_at)
VALUES (md5(:number::text), '10c4ed00-0000-4000-8000-000000000001', 'bench/1', 1, now() + interval '60 seconds')
ON CONFLICT (key) DO UPDATE
SET token = excluded.token, holder = excluded.holder, expires_at = excluded.expires_at,
  fencing_token = held.fencing_token + 1
WHERE held.token = excluded.token OR held.expires_at <= now()
RETURNING fencing_token, expires_at;
