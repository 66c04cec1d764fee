-- The ids of deleted service keys, so that a restore of an older backup does not bring them back (KEEP-8). Ids are never
-- reused, so rows stay; deleting a project deletes its keys, which counts too.
CREATE TABLE revoked_key (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TRIGGER service_key_revoked AFTER DELETE ON service_key BEGIN
    INSERT OR IGNORE INTO revoked_key (id) VALUES (old.id);
END;
