-- The facts about the current hold, as JSON; they begin with the fencing token that they belong to (HISTORY-2).
ALTER TABLE lock ADD COLUMN hold_facts TEXT;

-- The entries of ended holds (HISTORY-1), as JSON; numbers are in the order in which they were stored.
CREATE TABLE hold (
    number        INTEGER PRIMARY KEY,
    project_id    TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    fencing_token INTEGER NOT NULL,
    ended_at_ms   INTEGER NOT NULL,
    entry         TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX hold_by_lock ON hold (project_id, key, fencing_token);

-- The latest entries, which are not in the table hold yet: those of one commit in a row, as a JSON array of
-- [[project_id, key], entry].
CREATE TABLE recent_hold (
    number  INTEGER PRIMARY KEY,
    entries TEXT NOT NULL
) STRICT;
