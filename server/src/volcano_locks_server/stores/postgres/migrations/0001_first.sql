-- Times are whole milliseconds since 1970 in UTC. Digests are SHA-256. Text that is compared and sorted is sorted by its
-- bytes ("C"), so that all nodes agree on its order and no upgrade of the system's collations can spoil an index.

-- The newest instant that was served, at most a second old: time never goes behind it. Also what readiness writes.
CREATE TABLE volcano_locks.newest_instant (
    one    smallint PRIMARY KEY CHECK (one = 1),
    now_ms bigint   NOT NULL CHECK (now_ms >= 0)
);
INSERT INTO volcano_locks.newest_instant (one, now_ms) VALUES (1, 0);

-- A row is held or free, never both and never neither: freed_at_ms shows which.
CREATE TABLE volcano_locks.lock (
    project_id      text   COLLATE "C" NOT NULL CHECK (length(project_id) BETWEEN 1 AND 64),
    key             text   COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 128),
    fencing_token   bigint NOT NULL CHECK (fencing_token BETWEEN 0 AND 9007199254740991),
    owner_digest    bytea,
    expires_at_ms   bigint,
    deadline_ms     bigint,
    acquired_at_ms  bigint,
    renewed_at_ms   bigint,
    ttl_seconds     bigint,
    holder          text,
    freed_at_ms     bigint,
    retired_digests bytea,
    PRIMARY KEY (project_id, key),
    CONSTRAINT held_or_free CHECK (CASE
        WHEN freed_at_ms IS NULL THEN
            owner_digest IS NOT NULL AND octet_length(owner_digest) = 32
            AND acquired_at_ms IS NOT NULL AND renewed_at_ms IS NOT NULL AND renewed_at_ms >= acquired_at_ms
            AND deadline_ms IS NOT NULL AND expires_at_ms IS NOT NULL AND expires_at_ms <= deadline_ms
            AND ttl_seconds IS NOT NULL AND ttl_seconds > 0
            AND retired_digests IS NULL
        ELSE
            retired_digests IS NOT NULL AND octet_length(retired_digests) % 32 = 0
            AND owner_digest IS NULL AND expires_at_ms IS NULL AND deadline_ms IS NULL AND acquired_at_ms IS NULL
            AND renewed_at_ms IS NULL AND ttl_seconds IS NULL AND holder IS NULL
    END)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- From this instant on any client may acquire: the end of the grace, or when it was freed. Serves count and purge.
CREATE INDEX lock_by_free_from ON volcano_locks.lock ((coalesce(freed_at_ms, expires_at_ms + 1000)));

CREATE TABLE volcano_locks.project (
    number              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  text   COLLATE "C" NOT NULL CONSTRAINT project_id_taken UNIQUE,
    name                text   COLLATE "C" NOT NULL CONSTRAINT project_name_taken UNIQUE,
    requests_per_minute bigint NOT NULL CHECK (requests_per_minute >= 0),
    created_at_ms       bigint NOT NULL
);

CREATE TABLE volcano_locks.service_key (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              text   COLLATE "C" NOT NULL CONSTRAINT service_key_id_taken UNIQUE,
    project_id      text   COLLATE "C" NOT NULL
                    CONSTRAINT service_key_of_project REFERENCES volcano_locks.project (id) ON DELETE CASCADE,
    name            text   COLLATE "C" NOT NULL,
    key_prefix      text   NOT NULL,
    permissions     text   NOT NULL,
    created_at_ms   bigint NOT NULL,
    expires_at_ms   bigint,
    last_used_at_ms bigint,
    CONSTRAINT service_key_name_taken UNIQUE (project_id, name)
);

-- A key has one secret that counts, and for a while perhaps the one before (is_old).
CREATE TABLE volcano_locks.secret (
    digest        bytea   CONSTRAINT secret_taken PRIMARY KEY CHECK (octet_length(digest) = 32),
    key_id        text    COLLATE "C" NOT NULL REFERENCES volcano_locks.service_key (id) ON DELETE CASCADE,
    is_old        boolean NOT NULL,
    good_until_ms bigint,
    UNIQUE (key_id, is_old),
    CHECK (is_old = (good_until_ms IS NOT NULL))
);

-- What all nodes together have drawn of a project's minute. Not waited for on disk.
CREATE TABLE volcano_locks.quota (
    project_id           text   COLLATE "C" NOT NULL,
    window_started_at_ms bigint NOT NULL,
    taken                bigint NOT NULL CHECK (taken >= 0),
    PRIMARY KEY (window_started_at_ms, project_id)
);
