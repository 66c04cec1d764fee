-- Sessions of the dashboard and one-time codes for them (UI-3): digests, whose credential made them, and their end.
CREATE TABLE dashboard_session (
    digest            BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    purpose           TEXT    NOT NULL CHECK (purpose IN ('session', 'code')),
    owner_kind        TEXT    NOT NULL CHECK (owner_kind IN ('service_key', 'admin_token')),
    owner_id          TEXT    NOT NULL,
    credential_digest BLOB    NOT NULL CHECK (length(credential_digest) = 32),
    good_until_ms     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
