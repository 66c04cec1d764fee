-- Times are whole milliseconds since 1970 in UTC. Digests are SHA-256.

-- The newest instant this file was written at: time never goes behind it, also over a restart.
CREATE TABLE newest_instant (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    now_ms INTEGER NOT NULL CHECK (now_ms >= 0)
) STRICT;
INSERT INTO newest_instant (one, now_ms) VALUES (1, 0);

-- Each readiness check adds 1 here, because only a write that changes something reaches the disk.
CREATE TABLE readiness (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    probes INTEGER NOT NULL
) STRICT;
INSERT INTO readiness (one, probes) VALUES (1, 0);

-- A row is held or free, never both and never neither: freed_at_ms shows which.
CREATE TABLE lock (
    number          INTEGER PRIMARY KEY,
    project_id      TEXT    NOT NULL CHECK (length(project_id) BETWEEN 1 AND 64),
    key             TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 128),
    fencing_token   INTEGER NOT NULL CHECK (fencing_token BETWEEN 0 AND 9007199254740991),
    owner_digest    BLOB,
    expires_at_ms   INTEGER,
    deadline_ms     INTEGER,
    acquired_at_ms  INTEGER,
    renewed_at_ms   INTEGER,
    ttl_seconds     INTEGER,
    holder          TEXT,
    freed_at_ms     INTEGER,
    retired_digests BLOB,
    UNIQUE (project_id, key),
    CHECK (CASE
        WHEN freed_at_ms IS NULL THEN
            owner_digest IS NOT NULL AND length(owner_digest) = 32
            AND acquired_at_ms IS NOT NULL AND renewed_at_ms IS NOT NULL AND renewed_at_ms >= acquired_at_ms
            AND deadline_ms IS NOT NULL AND expires_at_ms IS NOT NULL AND expires_at_ms <= deadline_ms
            AND ttl_seconds IS NOT NULL AND ttl_seconds > 0
            AND retired_digests IS NULL
        ELSE
            retired_digests IS NOT NULL AND length(retired_digests) % 32 = 0
            AND owner_digest IS NULL AND expires_at_ms IS NULL AND deadline_ms IS NULL AND acquired_at_ms IS NULL
            AND renewed_at_ms IS NULL AND ttl_seconds IS NULL AND holder IS NULL
    END)
) STRICT;

-- From this instant on any client may acquire: the end of the grace, or when it was freed. Serves count and purge.
CREATE INDEX lock_by_free_from ON lock (coalesce(freed_at_ms, expires_at_ms + 1000));

CREATE TABLE project (
    number              INTEGER PRIMARY KEY AUTOINCREMENT,
    id                  TEXT    NOT NULL UNIQUE,
    name                TEXT    NOT NULL UNIQUE,
    requests_per_minute INTEGER NOT NULL CHECK (requests_per_minute >= 0),
    created_at_ms       INTEGER NOT NULL
) STRICT;

CREATE TABLE service_key (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    project_id      TEXT    NOT NULL REFERENCES project (id) ON DELETE CASCADE,
    name            TEXT    NOT NULL,
    key_prefix      TEXT    NOT NULL,
    permissions     TEXT    NOT NULL,
    created_at_ms   INTEGER NOT NULL,
    expires_at_ms   INTEGER,
    last_used_at_ms INTEGER,
    UNIQUE (project_id, name)
) STRICT;

-- A key has one secret that counts (is_old = 0), and for a while perhaps the one before.
CREATE TABLE secret (
    digest        BLOB    PRIMARY KEY CHECK (length(digest) = 32),
    key_id        TEXT    NOT NULL REFERENCES service_key (id) ON DELETE CASCADE,
    is_old        INTEGER NOT NULL CHECK (is_old IN (0, 1)),
    good_until_ms INTEGER,
    UNIQUE (key_id, is_old),
    CHECK ((is_old = 1) = (good_until_ms IS NOT NULL))
) STRICT, WITHOUT ROWID;
