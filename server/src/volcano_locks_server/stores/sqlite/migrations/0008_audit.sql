-- The audit (AUDIT-1): entries in the order of their ids, which begin with their instant. It outlives its projects.
CREATE TABLE audit_entry (
    id          TEXT    NOT NULL PRIMARY KEY,
    at_ms       INTEGER NOT NULL,
    action      TEXT    NOT NULL,
    actor_kind  TEXT    NOT NULL,
    actor_id    TEXT,
    actor_name  TEXT    NOT NULL,
    address     TEXT,
    project_id  TEXT,
    target_kind TEXT    NOT NULL,
    target_id   TEXT,
    target_name TEXT,
    before      TEXT,
    after       TEXT,
    reason      TEXT,
    request_id  TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_entry_of_project ON audit_entry (project_id, id);

CREATE TRIGGER audit_entry_is_final BEFORE UPDATE ON audit_entry BEGIN
    SELECT RAISE(ABORT, 'an entry of the audit is never changed');
END;
