"""Wait queues: waiters for a lock in first-in first-out order, per node, and the hand-off of a freed lock."""
