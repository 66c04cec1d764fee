-- What a record says about its lock's last hold, as JSON that begins with the fencing token that it belongs to: for a
-- lease the facts that the other columns lack, for a free lock the entry of the hold that ended (HISTORY-2). Nodes that
-- do not know it leave it unchanged.
ALTER TABLE volcano_locks.lock ADD COLUMN hold_facts text;

-- The entries of all earlier holds (HISTORY-1), as JSON.
CREATE TABLE volcano_locks.hold (
    number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    text   COLLATE "C" NOT NULL,
    key           text   COLLATE "C" NOT NULL,
    fencing_token bigint NOT NULL,
    ended_at_ms   bigint NOT NULL,
    entry         text   NOT NULL
);
CREATE INDEX hold_by_lock ON volcano_locks.hold (project_id, key, fencing_token);
CREATE INDEX hold_by_end ON volcano_locks.hold (project_id, ended_at_ms);
