"""CLI-20: of two transactions that run at once, the one with the lower token does not slip in beside the other."""

import threading
import time
from contextlib import closing

import pytest

from .databases import REFUSAL, TABLE, WAIT_SECONDS, Connection, Database, fencing_sql

FORGOTTEN = "UPDATE report SET total = :total, fencing_token = :token WHERE day = 'monday'"
INSERT = "INSERT INTO report (day, total, writer, fencing_token) VALUES ('monday', :total, 'x', :token)"
LOOK_AGAIN_SECONDS = 0.2  # InnoDB tells what it told before to those who ask again within a tenth of a second
WITHOUT_KEY = TABLE.replace("NOT NULL PRIMARY KEY", "NOT NULL")


class Late(threading.Thread):
    """A statement of another connection, which is expected to wait, then to be refused."""

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

    def waits(self) -> None:
        """Start, and return when it waits for the other transaction."""
        self.start()
        assert self.begun.wait(WAIT_SECONDS)
        gives_up_at = time.monotonic() + WAIT_SECONDS
        with closing(self.database.connect()) as watcher:
            while not self.database.waits(watcher):
                assert self.is_alive(), f"it did not wait: {self.failure}"
                assert time.monotonic() < gives_up_at
                time.sleep(LOOK_AGAIN_SECONDS)

    def refused(self) -> None:
        """It was, by the fence or because the database ends it for what happened at once."""
        self.join(WAIT_SECONDS)
        assert not self.is_alive()
        if not isinstance(self.failure, self.database.conflicts):
            assert isinstance(self.failure, self.database.refusals)
            assert REFUSAL in str(self.failure)


@pytest.fixture
def row(fenced: Database, connection: Connection) -> Database:
    """With one row, written under token 100."""
    fenced.execute(connection, INSERT, total=0, token=100)
    return fenced


def test_an_update_that_waited_is_judged_by_what_was_committed_meanwhile(
    row: Database, connection: Connection, other: Connection
) -> None:
    row.begin(connection)
    row.execute(connection, FORGOTTEN, total=2, token=200)
    late = Late(row, other, FORGOTTEN)
    late.waits()
    row.execute(connection, "COMMIT")
    late.refused()
    assert row.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_a_token_that_was_rolled_back_was_never_seen(row: Database, connection: Connection, other: Connection) -> None:
    row.begin(connection)
    row.execute(connection, FORGOTTEN, total=2, token=200)
    late = Late(row, other, FORGOTTEN)
    late.waits()
    row.execute(connection, "ROLLBACK")
    late.join(WAIT_SECONDS)
    assert late.failure is None
    assert row.rows(connection, "SELECT total, fencing_token FROM report") == [(1, 199)]


def test_a_transaction_that_sees_the_past_is_judged_by_the_present(
    row: Database, connection: Connection, other: Connection
) -> None:
    """REPEATABLE READ, begun before the higher token came."""
    row.begin(other, frozen=True)
    row.execute(connection, FORGOTTEN, total=2, token=200)
    late = Late(row, other, FORGOTTEN)
    late.start()
    late.refused()
    row.execute(other, "ROLLBACK")
    assert row.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_rows_that_are_put_in_at_once_are_judged_one_after_the_other(
    database: Database, connection: Connection, other: Connection
) -> None:
    """No row stands between them, only the fence: the id is not unique here."""
    database.apply(f"{WITHOUT_KEY};\n{fencing_sql(database.dialect)}")
    database.begin(connection)
    database.execute(connection, INSERT, total=2, token=200)
    late = Late(database, other, INSERT)
    late.waits()
    database.execute(connection, "COMMIT")
    late.refused()
    assert database.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_a_row_put_in_by_a_transaction_that_sees_the_past_is_judged_by_the_present(
    database: Database, connection: Connection, other: Connection
) -> None:
    database.apply(f"{WITHOUT_KEY};\n{fencing_sql(database.dialect)}")
    database.execute(connection, INSERT, total=0, token=100)
    database.begin(other, frozen=True)
    database.execute(connection, INSERT, total=2, token=200)
    late = Late(database, other, INSERT)
    late.start()
    late.refused()
    database.execute(other, "ROLLBACK")
    assert database.rows(connection, "SELECT total FROM report ORDER BY total") == [(0,), (2,)]
