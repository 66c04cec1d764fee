-- The number of the last commit of a server. The lock file notes it too: without a log, the database must have it (OPS-11).
ALTER TABLE newest_instant ADD COLUMN commits INTEGER NOT NULL DEFAULT 0;
