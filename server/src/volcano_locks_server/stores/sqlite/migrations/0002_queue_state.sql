-- What is noted about the waiters of a lock, as JSON.
ALTER TABLE lock ADD COLUMN queue_state TEXT;
