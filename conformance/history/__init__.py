"""Histories of concurrent clients: their records, and the checker that finds impossible ones."""
