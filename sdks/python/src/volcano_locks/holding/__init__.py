"""Holding a lock: one acquisition, its renewals, and the guard that the body sees."""
