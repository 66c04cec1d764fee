-- The channel of the messages between nodes: its name is known only to roles that may read this table. Nodes of 0.1.0 use
-- the channel volcano_locks; nodes use both until a migration needs this one.
ALTER TABLE volcano_locks.newest_instant ADD COLUMN signal_channel text;
UPDATE volcano_locks.newest_instant SET signal_channel = 'volcano_locks_' || replace(gen_random_uuid()::text, '-', '');
