-- The audit (AUDIT-1): entries in the order of their ids, which begin with their instant. It outlives its projects.
CREATE TABLE volcano_locks.audit_entry (
    id          text   COLLATE "C" PRIMARY KEY,
    at_ms       bigint NOT NULL,
    action      text   NOT NULL,
    actor_kind  text   NOT NULL,
    actor_id    text,
    actor_name  text   NOT NULL,
    address     text,
    project_id  text   COLLATE "C",
    target_kind text   NOT NULL,
    target_id   text,
    target_name text,
    before      text,
    after       text,
    reason      text,
    request_id  text
);
CREATE INDEX audit_entry_of_project ON volcano_locks.audit_entry (project_id, id);

CREATE FUNCTION volcano_locks.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an entry of the audit is never changed';
END $$;
CREATE TRIGGER audit_entry_is_final BEFORE UPDATE ON volcano_locks.audit_entry
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_audit_change();
