"""The server's commands of `volcano-locks`, registered in the entry-point group `volcano_locks.commands`.

Each command imports what it needs only when it runs, so that `--help` and the client's commands stay fast.
"""
