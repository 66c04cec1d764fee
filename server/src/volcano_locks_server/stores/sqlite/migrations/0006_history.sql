-- What a record says about its lock's last hold, as JSON that begins with the fencing token that it belongs to: for a
-- lease the facts that the other columns lack, for a free lock the entry of the hold that ended (HISTORY-2).
ALTER TABLE lock ADD COLUMN hold_facts TEXT;

-- The entries of all earlier holds (HISTORY-1), as JSON.
CREATE TABLE hold (
    number        INTEGER PRIMARY KEY,
    project_id    TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    fencing_token INTEGER NOT NULL,
    ended_at_ms   INTEGER NOT NULL,
    entry         TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX hold_by_lock ON hold (project_id, key, fencing_token);
CREATE INDEX hold_by_end ON hold (project_id, ended_at_ms);
