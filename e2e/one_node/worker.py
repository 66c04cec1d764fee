"""A worker process: holds KEY with a TTL of 5 seconds, and writes a row of DATABASE when told to. Run by the tests.

It tells one JSON object a line: `held`, then for each line it reads on stdin `looked` (what its guard says, asked
before anything else is done) and whether a write that ignores the guard was accepted; and how its block ended.
"""

import json
import sqlite3
import sys
from contextlib import closing

from volcano_locks import Client, LockOwnershipLostError

TTL_SECONDS = 5

CREATE = "CREATE TABLE IF NOT EXISTS report (key TEXT PRIMARY KEY, writer TEXT, fencing_token INTEGER NOT NULL)"
WRITE = """
INSERT INTO report (key, writer, fencing_token) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET writer = excluded.writer, fencing_token = excluded.fencing_token
WHERE report.fencing_token <= excluded.fencing_token
"""


def write(database: str, key: str, writer: str, fencing_token: int) -> bool:
    """Whether the row took the write: it takes none with a lower token than it has seen."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(CREATE)
        return connection.execute(WRITE, (key, writer, fencing_token)).rowcount == 1


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(key: str, database: str) -> None:
    with Client() as client:
        try:
            with client.locks.with_lock(key, ttl=TTL_SECONDS) as guard:
                tell(held=guard.fencing_token)
                for _ in sys.stdin:
                    lost = guard.lost
                    tell(lost=lost, accepted=write(database, key, "worker", guard.fencing_token))
        except LockOwnershipLostError:
            tell(ended="lost")
        else:
            tell(ended="held")


if __name__ == "__main__":
    main(*sys.argv[1:])
