-- Sessions of the dashboard and one-time codes for them (UI-3): digests, whose credential made them, and their end.
CREATE TABLE volcano_locks.dashboard_session (
    digest            bytea  PRIMARY KEY CHECK (octet_length(digest) = 32),
    purpose           text   COLLATE "C" NOT NULL CHECK (purpose IN ('session', 'code')),
    owner_kind        text   COLLATE "C" NOT NULL CHECK (owner_kind IN ('service_key', 'admin_token')),
    owner_id          text   COLLATE "C" NOT NULL,
    credential_digest bytea  NOT NULL CHECK (octet_length(credential_digest) = 32),
    good_until_ms     bigint NOT NULL
);
