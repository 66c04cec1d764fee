"""The schema: numbered scripts, run in order by the first node that starts.

During an upgrade old and new nodes run side by side. So a script only adds what older nodes can ignore. If it changes
more, its first line says `-- needs 0003`: all nodes must know script 3. The table `migration` has the version of the
schema and the number of the script that a node must know; a node that lacks this script does not start, and stops
serving if it runs (see `schema_mark`).
"""

import re
from importlib.resources import files
from typing import Final, NamedTuple

from ...rules.errors import StoreUnavailableError
from .connections import ConnectionPool, Transaction
from .schema_mark import newer_version

MIGRATE_SECONDS_MAX: Final = 300.0
_LOCK: Final = 0x564C434B  # a lock of the transaction, never of the session (case 29)
_READY: Final = (
    "SELECT to_regclass('volcano_locks.migration') IS NOT NULL, to_regclass('volcano_locks.lock') IS NOT NULL"
)
_VERSION: Final = "SELECT coalesce(max(number), 0), coalesce(max(needs), 0) FROM volcano_locks.migration"
_FIRST: Final = """
    DO $$ BEGIN
        IF to_regnamespace('volcano_locks') IS NULL THEN CREATE SCHEMA volcano_locks; END IF;
    END $$;
    CREATE TABLE IF NOT EXISTS volcano_locks.migration (
        number     integer     PRIMARY KEY,
        needs      integer     NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )"""


class Migration(NamedTuple):
    """A script, the version it leads to, and the lowest version that a node must know to work with it."""

    number: int
    needs: int
    script: str


def migrations() -> list[Migration]:
    """The numbered scripts of `migrations/`, in order."""
    scripts = []
    for script in files(__package__).joinpath("migrations").iterdir():
        if numbered := re.fullmatch(r"(\d{4})_\w+\.sql", script.name):
            text = script.read_text("utf-8")
            needs = re.match(r"-- needs (\d{4})$", text, re.MULTILINE)
            scripts.append(Migration(int(numbered[1]), int(needs[1]) if needs else 1, text))
    return sorted(scripts)


def migration_number(name: str) -> int:
    """The number of the script `NNNN_name.sql`."""
    names = (script.name for script in files(__package__).joinpath("migrations").iterdir())
    return next(int(one[:4]) for one in names if one[5:] == f"{name}.sql")


async def apply_migrations(connections: ConnectionPool) -> tuple[int, int]:
    """Migrate to the newest version; returns the versions before and after. Each script is a transaction under one
    lock, so nodes that start together take turns, and a node that dies leaves the previous version.
    """
    before = await schema_version(connections)
    for migration in migrations():
        if migration.number > before:
            # No older node can run on a schema that did not exist.
            await _apply(connections, migration if before else migration._replace(needs=migration.number))
    return before, max(before, migrations()[-1].number)


async def schema_version(connections: ConnectionPool) -> int:
    """The version of the schema, 0 if there is none. StoreUnavailableError if this release is too old for it."""
    async with connections.transaction() as transaction:
        version, needs = await _version(transaction)
    newest = migrations()[-1].number
    if needs > newest:
        raise newer_version(needs, newest)
    return version


async def _version(transaction: Transaction) -> tuple[int, int]:
    is_ready, has_locks = (await transaction.fetch(_READY))[0]
    if not is_ready and has_locks:
        raise StoreUnavailableError(
            "schema_missing",
            "the database has the store's locks, but not the table volcano_locks.migration: restore the database",
        )
    if not is_ready:
        return 0, 0
    number, needs = (await transaction.fetch(_VERSION))[0]
    return number, needs


async def _apply(connections: ConnectionPool, migration: Migration) -> None:
    seconds = MIGRATE_SECONDS_MAX
    async with connections.transaction(seconds=seconds, statement_seconds=seconds) as transaction:
        # Waits as long as another node migrates; table locks keep their usual limit.
        await transaction.run(f"SET LOCAL lock_timeout = {round(seconds * 1_000)}")
        await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await transaction.run(f"SET LOCAL lock_timeout = 1500; {_FIRST}")
        version, _needs = await _version(transaction)
        if version >= migration.number:
            return
        await transaction.run(migration.script)
        await transaction.fetch(
            "INSERT INTO volcano_locks.migration (number, needs) VALUES ($1, $2)", migration.number, migration.needs
        )
