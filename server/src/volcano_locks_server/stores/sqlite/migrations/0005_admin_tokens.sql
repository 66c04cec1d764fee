-- Named admin tokens (ADMIN-11).
CREATE TABLE admin_token (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    name            TEXT    NOT NULL UNIQUE,
    token_prefix    TEXT    NOT NULL,
    created_at_ms   INTEGER NOT NULL,
    last_used_at_ms INTEGER,
    digest          BLOB    NOT NULL UNIQUE CHECK (length(digest) = 32)
) STRICT;

-- Revoked tokens are remembered with the revoked keys, so that a restore does not bring them back (KEEP-8).
CREATE TRIGGER admin_token_revoked AFTER DELETE ON admin_token BEGIN
    INSERT OR IGNORE INTO revoked_key (id) VALUES (old.id);
END;
