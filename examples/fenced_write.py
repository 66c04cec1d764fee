"""A write that the database refuses if it comes too late: python examples/fenced_write.py APP.db TOTAL

A lease cannot stop a process that was paused, or a packet that was delayed. So the database keeps the highest fencing
token and refuses writes with a lower one. The comparison and the write are one statement; a SELECT before an UPDATE
would leave a gap.
"""

import sqlite3
import sys
from contextlib import closing

from volcano_locks import Client

CREATE = """
CREATE TABLE IF NOT EXISTS report (name TEXT PRIMARY KEY, total INTEGER NOT NULL, fencing_token INTEGER NOT NULL)
"""

FENCED_WRITE = """
INSERT INTO report (name, total, fencing_token) VALUES (:name, :total, :fencing_token)
ON CONFLICT (name) DO UPDATE SET total = excluded.total, fencing_token = excluded.fencing_token
WHERE report.fencing_token <= excluded.fencing_token
"""


class StaleWriteError(Exception):
    """A later holder has already written."""


def write_total(connection: sqlite3.Connection, name: str, total: int, fencing_token: int) -> None:
    """Write the report. If a later holder has written, raise StaleWriteError and change nothing."""
    with connection:
        values = {"name": name, "total": total, "fencing_token": fencing_token}
        if connection.execute(FENCED_WRITE, values).rowcount == 0:
            raise StaleWriteError(f"{name} was written by a later holder than fencing token {fencing_token}")


def main(database: str, total: int) -> None:
    """Acquire the lock and write `total` under its fencing token."""
    with (
        closing(sqlite3.connect(database)) as connection,
        Client() as client,  # reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
        client.locks.with_lock("daily-rollup", ttl=30) as guard,
    ):
        connection.execute(CREATE)
        write_total(connection, "daily-rollup", total, guard.fencing_token)
        print(f"wrote {total} with fencing token {guard.fencing_token}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
