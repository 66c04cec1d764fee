-- What the nodes note about the waiters of a lock, as JSON. Nodes that do not know it leave it unchanged.
ALTER TABLE volcano_locks.lock ADD COLUMN queue_state text;
