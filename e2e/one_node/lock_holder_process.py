"""A process that holds KEY with a TTL of 5 seconds and writes a row of DATABASE on request. Started by the tests.

It writes one JSON object a line: `held`; then, for each line on stdin, `lost` (its guard, read first) and whether a
write that ignores the guard was accepted; finally how its block ended.
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
    """Write the row unless it has seen a higher token. Returns whether it was written."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(CREATE)
        return connection.execute(WRITE, (key, writer, fencing_token)).rowcount == 1


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(key: str, database: str) -> None:
    with Client() as client:
        try:
            with client.locks.with_lock(key, ttl=TTL_SECONDS) as guard:
                report(held=guard.fencing_token)
                for _ in sys.stdin:
                    lost = guard.lost
                    report(lost=lost, accepted=write(database, key, "worker", guard.fencing_token))
        except LockOwnershipLostError:
            report(ended="lost")
        else:
            report(ended="held")


if __name__ == "__main__":
    main(*sys.argv[1:])
