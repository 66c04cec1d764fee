"""`volcano-locks watch`: lock events as they happen."""
