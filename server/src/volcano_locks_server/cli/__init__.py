"""The server's commands of `volcano-locks`, found there through the entry-point group `volcano_locks.commands`.

Each loads what it needs when it runs, so that `--help` answers at once and the worker's commands pay nothing.
"""
