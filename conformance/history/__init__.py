"""Histories of concurrent clients: what they record, and the checker that finds what cannot have happened."""
