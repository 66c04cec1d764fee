"""Database servers for the whole session, and an empty database for each test."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from . import database_servers
from .databases import TABLE, Connection, Database, Mariadb, Postgresql, Sqlite, fencing_sql

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgresql_folder() -> Iterator[Path]:
    with database_servers.postgresql() as folder:
        yield folder


@pytest.fixture(scope="session")
def mariadb_socket() -> Iterator[Path]:
    with database_servers.mariadb() as socket:
        yield socket


@pytest.fixture
def postgresql(postgresql_folder: Path) -> Postgresql:
    name = f"test_{next(_numbers)}"
    with closing(Postgresql(postgresql_folder, "postgres").connect()) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return Postgresql(postgresql_folder, name)


@pytest.fixture
def mariadb(mariadb_socket: Path) -> Mariadb:
    name = f"test_{next(_numbers)}"
    administration = Mariadb(mariadb_socket, "mysql")
    with closing(administration.connect()) as connection:
        administration.execute(connection, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return Mariadb(mariadb_socket, name)


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path / "app.db")


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest) -> Database:
    """Each kind of database in turn, empty."""
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def fenced(database: Database) -> Database:
    """Each kind of database in turn, with the table `report` and the SQL that `fencing sql` prints for it."""
    database.apply(f"{TABLE};\n{fencing_sql(database.dialect)}")
    return database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with closing(database.connect()) as one:
        yield one


@pytest.fixture
def other(database: Database) -> Iterator[Connection]:
    """A second connection to the same database."""
    with closing(database.connect()) as one:
        yield one
