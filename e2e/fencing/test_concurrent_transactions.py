"""CLI-20: of two concurrent transactions, the one with the lower token is refused."""

import threading
import time
from contextlib import closing

import pytest

from .databases import REFUSAL, TABLE, WAIT_SECONDS, Connection, Database, fencing_sql

UNFENCED_UPDATE = "UPDATE report SET total = :total, fencing_token = :token WHERE day = 'monday'"
INSERT = "INSERT INTO report (day, total, writer, fencing_token) VALUES ('monday', :total, 'x', :token)"
POLL_SECONDS = 0.2  # InnoDB caches its view of transactions for a tenth of a second
WITHOUT_KEY = TABLE.replace("NOT NULL PRIMARY KEY", "NOT NULL")


class LateStatement(threading.Thread):
    """A statement on another connection, which is expected to wait and then to be refused."""

    def __init__(self, database: Database, connection: Connection, sql: str) -> None:
        super().__init__(daemon=True)
        self.database, self.connection, self.sql = database, connection, sql
        self.failure: Exception | None = None
        self.begun = threading.Event()

    def run(self) -> None:
        try:
            self.begun.set()
            self.database.execute(self.connection, self.sql, total=1, token=199)
        except Exception as failure:
            self.failure = failure

    def start_and_wait(self) -> None:
        """Start it, and return when it waits for the other transaction."""
        self.start()
        assert self.begun.wait(WAIT_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        with closing(self.database.connect()) as watcher:
            while not self.database.waits(watcher):
                assert self.is_alive(), f"it did not wait: {self.failure}"
                assert time.monotonic() < deadline
                time.sleep(POLL_SECONDS)

    def assert_refused(self) -> None:
        """Assert that the fence refused it, or the database for a serialization conflict."""
        self.join(WAIT_SECONDS)
        assert not self.is_alive()
        if not isinstance(self.failure, self.database.conflicts):
            assert isinstance(self.failure, self.database.refusals)
            assert REFUSAL in str(self.failure)


@pytest.fixture
def row(fenced: Database, connection: Connection) -> Database:
    """A database with one row, written under token 100."""
    fenced.execute(connection, INSERT, total=0, token=100)
    return fenced


def test_a_waiting_update_is_compared_with_the_committed_token(
    row: Database, connection: Connection, other: Connection
) -> None:
    row.begin(connection)
    row.execute(connection, UNFENCED_UPDATE, total=2, token=200)
    late = LateStatement(row, other, UNFENCED_UPDATE)
    late.start_and_wait()
    row.execute(connection, "COMMIT")
    late.assert_refused()
    assert row.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_a_rolled_back_token_does_not_count(row: Database, connection: Connection, other: Connection) -> None:
    row.begin(connection)
    row.execute(connection, UNFENCED_UPDATE, total=2, token=200)
    late = LateStatement(row, other, UNFENCED_UPDATE)
    late.start_and_wait()
    row.execute(connection, "ROLLBACK")
    late.join(WAIT_SECONDS)
    assert late.failure is None
    assert row.rows(connection, "SELECT total, fencing_token FROM report") == [(1, 199)]


def test_an_update_in_an_old_snapshot_is_compared_with_the_current_token(
    row: Database, connection: Connection, other: Connection
) -> None:
    """REPEATABLE READ, begun before the higher token was written."""
    row.begin(other, snapshot=True)
    row.execute(connection, UNFENCED_UPDATE, total=2, token=200)
    late = LateStatement(row, other, UNFENCED_UPDATE)
    late.start()
    late.assert_refused()
    row.execute(other, "ROLLBACK")
    assert row.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_concurrent_inserts_are_compared_one_after_the_other(
    database: Database, connection: Connection, other: Connection
) -> None:
    """The id is not unique here, so only the fence orders them."""
    database.apply(f"{WITHOUT_KEY};\n{fencing_sql(database.dialect)}")
    database.begin(connection)
    database.execute(connection, INSERT, total=2, token=200)
    late = LateStatement(database, other, INSERT)
    late.start_and_wait()
    database.execute(connection, "COMMIT")
    late.assert_refused()
    assert database.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_an_insert_in_an_old_snapshot_is_compared_with_the_current_token(
    database: Database, connection: Connection, other: Connection
) -> None:
    database.apply(f"{WITHOUT_KEY};\n{fencing_sql(database.dialect)}")
    database.execute(connection, INSERT, total=0, token=100)
    database.begin(other, snapshot=True)
    database.execute(connection, INSERT, total=2, token=200)
    late = LateStatement(database, other, INSERT)
    late.start()
    late.assert_refused()
    database.execute(other, "ROLLBACK")
    assert database.rows(connection, "SELECT total FROM report ORDER BY total") == [(0,), (2,)]
