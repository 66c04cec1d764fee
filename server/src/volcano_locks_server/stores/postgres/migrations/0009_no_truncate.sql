-- TRUNCATE of a store's tables would end leases without notice, and a store without the row of its clock serves nothing
-- (OPS-8). Purges delete from the table lock, so a DELETE there cannot be refused. Dropping the schema stays possible.
CREATE FUNCTION volcano_locks.refuse_loss() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of %.% would lose leases or tokens of volcano-locks', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING HINT = 'To delete the store, stop all nodes, then DROP SCHEMA volcano_locks CASCADE.';
END $$;
CREATE TRIGGER lock_is_not_truncated BEFORE TRUNCATE ON volcano_locks.lock
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER newest_instant_is_not_truncated BEFORE TRUNCATE OR DELETE ON volcano_locks.newest_instant
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER migration_is_not_truncated BEFORE TRUNCATE OR DELETE ON volcano_locks.migration
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER project_is_not_truncated BEFORE TRUNCATE ON volcano_locks.project
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER service_key_is_not_truncated BEFORE TRUNCATE ON volcano_locks.service_key
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER secret_is_not_truncated BEFORE TRUNCATE ON volcano_locks.secret
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER admin_token_is_not_truncated BEFORE TRUNCATE ON volcano_locks.admin_token
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
CREATE TRIGGER audit_entry_is_not_truncated BEFORE TRUNCATE ON volcano_locks.audit_entry
    FOR EACH STATEMENT EXECUTE FUNCTION volcano_locks.refuse_loss();
