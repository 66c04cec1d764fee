"""The application's database: one row that stores the highest fencing token that wrote it.

A lock service cannot provide this half of the safety: the lease says who should write, and the row refuses a late
write. The comparison and the write are one statement, so nothing can happen between them.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

CREATE = """
CREATE TABLE report (
  name          TEXT PRIMARY KEY,
  total         INTEGER NOT NULL,
  written_by    TEXT NOT NULL,
  fencing_token INTEGER NOT NULL
)
"""

FENCED_WRITE = """
UPDATE report SET total = :total, written_by = :writer, fencing_token = :fencing_token
WHERE name = :name AND fencing_token <= :fencing_token
"""


class Row(NamedTuple):
    """The report, its writer and the fencing token of that write."""

    total: int
    written_by: str
    fencing_token: int


def create(database: Path, name: str) -> None:
    """Create the table with an empty report called `name`."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(CREATE)
        connection.execute("INSERT INTO report VALUES (?, 0, '', 0)", (name,))


def write(database: Path, name: str, *, total: int, writer: str, fencing_token: int) -> bool:
    """Write the report unless a higher fencing token has written it. Returns whether it was written."""
    values = {"name": name, "total": total, "writer": writer, "fencing_token": fencing_token}
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(FENCED_WRITE, values).rowcount == 1


def read(database: Path, name: str) -> Row:
    """The current report."""
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT total, written_by, fencing_token FROM report WHERE name = ?", (name,))
        return Row(*found.fetchone())
