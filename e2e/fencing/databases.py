"""Three kinds of database behind one interface, so that each test runs on all of them.

`client` is the database's own command line client, which reads SQL from stdin and stops at the first error. The printed
SQL goes through it unchanged, and so do the writes of workers in languages without an installed driver.
"""

import os
import re
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from click.testing import CliRunner
from pymysql.constants import CLIENT

from volcano_locks.cli.app import app

WAIT_SECONDS = 30
REFUSAL = "fencing token too low"
TABLE = "CREATE TABLE report (day varchar(40) NOT NULL PRIMARY KEY, total bigint NOT NULL, writer varchar(40))"
Connection = Any  # of three drivers, all PEP 249


def fencing_sql(dialect: str, table: str = "report", id_column: str = "day", *more: str) -> str:
    """The output of the command."""
    words = ("fencing", "sql", "--dialect", dialect, "--table", table, "--id", id_column, *more)
    printed = CliRunner().invoke(app, words)
    assert printed.exit_code == 0, printed.output
    return printed.stdout


class Database(ABC):
    """One empty database."""

    dialect: str
    refusals: tuple[type[Exception], ...]
    conflicts: tuple[type[Exception], ...] = ()
    insert_if_absent: str
    insert_or_replace: str

    def __init__(self) -> None:
        self.client: list[str] = []

    @abstractmethod
    def connect(self) -> Connection:
        """A new connection; each statement is a transaction of its own until `begin`."""

    def begin(self, connection: Connection, *, snapshot: bool = False) -> None:
        """Begin a transaction. A `snapshot` one sees only what is committed now."""
        if snapshot:
            self.execute(connection, self.snapshot_isolation)
        self.execute(connection, "BEGIN")
        if snapshot:
            self.rows(connection, "SELECT count(*) FROM report")

    snapshot_isolation = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"

    def execute(self, connection: Connection, sql: str, **values: object) -> int:
        """The number of changed rows. Each `:name` in `sql` is bound to a value."""
        with closing(connection.cursor()) as cursor:
            cursor.execute(self._bound(sql), values) if values else cursor.execute(sql)
            return int(cursor.rowcount)

    def rows(self, connection: Connection, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    @abstractmethod
    def waits(self, watcher: Connection) -> bool:
        """Whether some transaction waits for another."""

    def apply(self, sql: str) -> None:
        """Run a script through the database's client."""
        ran = subprocess.run(
            self.client, input=sql, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False, env=os.environ
        )
        assert ran.returncode == 0, ran.stderr + ran.stdout

    @abstractmethod
    def counting(self, update: str) -> str:
        """SQL for the client that prints only the number of rows that `update` changes."""

    def refused(self) -> AbstractContextManager[Any]:
        """Expects the database to refuse the statement inside for its fencing token."""
        return pytest.raises(self.refusals, match=REFUSAL)

    def _bound(self, sql: str) -> str:
        return re.sub(r":(\w+)", r"%(\1)s", sql)


class Postgresql(Database):
    dialect = "postgresql"
    refusals = (psycopg.errors.CheckViolation,)
    conflicts = (psycopg.errors.SerializationFailure,)
    insert_if_absent = "INSERT INTO report VALUES (:day, :total, 'x', :token) ON CONFLICT DO NOTHING"
    insert_or_replace = """
        INSERT INTO report VALUES (:day, :total, 'x', :token) ON CONFLICT (day) DO UPDATE
        SET total = excluded.total, fencing_token = excluded.fencing_token"""

    def __init__(self, folder: Path, name: str, user: str = "postgres") -> None:
        super().__init__()
        self.folder, self.name, self.user = folder, name, user
        self.client = ["psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", str(folder), "-U", user, "-d", name]

    def connect(self) -> Connection:
        return psycopg.connect(host=str(self.folder), user=self.user, dbname=self.name, autocommit=True)

    def counting(self, update: str) -> str:
        return f"WITH changed AS ({update} RETURNING 1) SELECT count(*) FROM changed;"

    def waits(self, watcher: Connection) -> bool:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(self.rows(watcher, waiting))


class Mariadb(Database):
    dialect = "mysql"
    refusals = (pymysql.err.OperationalError,)
    insert_if_absent = "INSERT IGNORE INTO report VALUES (:day, :total, 'x', :token)"
    insert_or_replace = "REPLACE INTO report VALUES (:day, :total, 'x', :token)"

    def __init__(self, socket: Path, name: str, user: str = "root") -> None:
        super().__init__()
        self.socket, self.name, self.user = socket, name, user
        self.client = ["mariadb", "--no-defaults", f"--socket={socket}", f"-u{user}", "-N", name]

    def connect(self) -> Connection:
        return pymysql.connect(
            unix_socket=str(self.socket),
            user=self.user,
            database=self.name,
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
        )

    def counting(self, update: str) -> str:
        return f"{update}; SELECT ROW_COUNT();"

    def waits(self, watcher: Connection) -> bool:
        return bool(self.rows(watcher, "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))


class Sqlite(Database):
    dialect = "sqlite"
    refusals = (sqlite3.IntegrityError,)
    conflicts = (sqlite3.OperationalError,)
    insert_if_absent = "INSERT OR IGNORE INTO report VALUES (:day, :total, 'x', :token)"
    insert_or_replace = "INSERT OR REPLACE INTO report VALUES (:day, :total, 'x', :token)"
    snapshot_isolation = "PRAGMA journal_mode = WAL"

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.client = ["sqlite3", "-bail", "-batch", "-cmd", ".timeout 10000", str(file)]

    def connect(self) -> Connection:
        # Some tests use a second connection in another thread.
        return sqlite3.connect(self.file, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False)

    def counting(self, update: str) -> str:
        return f"{update}; SELECT changes();"

    def waits(self, watcher: Connection) -> bool:
        return True  # SQLite does not show it; the tests check that the statement ends after the other transaction

    def _bound(self, sql: str) -> str:
        return sql


New = Callable[[], Database]
