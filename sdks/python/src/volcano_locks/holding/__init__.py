"""Holding a lock: the state of one acquisition, its renewals, and the guard that the body sees."""
