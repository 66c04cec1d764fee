-- The plainest table of leases: what a team would make for itself.
CREATE TABLE lease (
  key text PRIMARY KEY,
  token uuid NOT NULL,
  holder text NOT NULL,
  fencing_token bigint NOT NULL,
  expires_at timestamptz NOT NULL
);
