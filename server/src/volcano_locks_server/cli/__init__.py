"""The server's commands of `volcano-locks`, registered in the entry-point group `volcano_locks.commands`.

Each imports what it needs when it runs, so that `--help` and the client's commands stay fast.
"""
