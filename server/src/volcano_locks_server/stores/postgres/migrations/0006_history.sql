-- The facts about the current hold, as JSON; they begin with the fencing token that they belong to (HISTORY-2). Nodes
-- that do not know them leave them unchanged.
ALTER TABLE volcano_locks.lock ADD COLUMN hold_facts text;

-- The entries of ended holds (HISTORY-1), as JSON; numbers are about in the order in which they were stored.
CREATE TABLE volcano_locks.hold (
    number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    text   COLLATE "C" NOT NULL,
    key           text   COLLATE "C" NOT NULL,
    fencing_token bigint NOT NULL,
    ended_at_ms   bigint NOT NULL,
    entry         text   NOT NULL
);
CREATE INDEX hold_by_lock ON volcano_locks.hold (project_id, key, fencing_token);
