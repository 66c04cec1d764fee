-- A minimal lease table, as a team would write it for itself.
CREATE TABLE lease (
  key text PRIMARY KEY,
  token uuid NOT NULL,
  holder text NOT NULL,
  fencing_token bigint NOT NULL,
  expires_at timestamptz NOT NULL
);
