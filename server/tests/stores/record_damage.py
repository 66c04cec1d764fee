"""Damages stored records as a broken disk, a restored dump or another program might, on each engine."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from testsupport.engines import postgres

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.lease import Damaged
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.etcd.locks import EtcdStore
from volcano_locks_server.stores.etcd.transactions import Put
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.stores.sqlite import SqliteFile

TOKEN_TOO_HIGH: Final = 2**53
SQL_LOCKS: Final = (
    f"fencing_token = {TOKEN_TOO_HIGH}",
    "fencing_token = -1",
    "owner_digest = NULL",
    "expires_at_ms = NULL",
    "expires_at_ms = 9000000000000000000",
    "deadline_ms = expires_at_ms - 1",
    "ttl_seconds = 0",
    "freed_at_ms = -1",
)
# A purge does not rely on these.
SQL_LOCKS_PURGED: Final = ('queue_state = \'{"withdrawn":["AAECAwQFBgc="],"withdrawn_at_ms":1180591620717411303424}\'',)
ONLY_SQLITE: Final = ("holder = CAST(x'ff' AS TEXT)",)
JSON_LOCKS: Final = (
    b"not JSON",
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"state":"held"}',
    b'{"state":"free","fencing_token":9007199254740992,"freed_at_ms":1}',
    b'{"state":"free","fencing_token":1,"freed_at_ms":1,"retired_digests":["zz"]}',
    b'{"state":"free","fencing_token":1,"freed_at_ms":1,"retired_digests":["0aff"]}',
    b'{"state":"free","fencing_token":1,"freed_at_ms":1,"queue_state":{"withdrawn":["AAECAwQFBgc="],"waiting_nodes":7}}',
    b'{"state":"free","fencing_token":1,"freed_at_ms":1,"queue_state":{"withdrawn_at_ms":1180591620717411303424}}',
)

Damage = Callable[[RecordKey], Awaitable[None]]


async def run_sqlite(store: OpenStore, sql: str, values: tuple[Any, ...]) -> None:
    file = store.file
    assert isinstance(file, SqliteFile)
    await run_on_file(file, sql, values)


async def run_on_file(file: SqliteFile, sql: str, values: tuple[Any, ...]) -> None:
    """Without the table's checks."""

    def work() -> None:
        file._connection.execute("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
        file._connection.execute(sql, values)
        file._connection.execute("PRAGMA ignore_check_constraints = OFF; PRAGMA foreign_keys = ON")

    await file._writer.run(work)


def run_postgres(url: str, sql: str, values: tuple[Any, ...]) -> None:
    """Without the table's checks, as in a dump that was restored without them."""
    with postgres.shared().connect(url.rpartition("/")[2]) as connection:
        for (name,) in connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'volcano_locks.lock'::regclass AND contype = 'c'"
        ).fetchall():
            connection.execute(f'ALTER TABLE volcano_locks.lock DROP CONSTRAINT "{name}"')
        connection.execute(sql, values)  # type: ignore[call-overload]


async def put_etcd(store: OpenStore, key: bytes, value: bytes) -> None:
    """`key` is relative to the layout's root."""
    locks = store.locks
    assert isinstance(locks, EtcdStore)
    await locks._endpoints.write((), [Put(locks._layout.root + key, value)])


def lock_damages(store: OpenStore, url: str) -> list[Damage]:
    """The ways in which this test damages a lock's record on that store; the record must be there and held."""

    def sqlite(change: str) -> Damage:
        return lambda key: run_sqlite(store, f"UPDATE lock SET {change} WHERE project_id = ? AND key = ?", tuple(key))

    def in_postgres(change: str) -> Damage:
        async def damage(key: RecordKey) -> None:
            run_postgres(url, f"UPDATE volcano_locks.lock SET {change} WHERE project_id = %s AND key = %s", tuple(key))

        return damage

    def in_etcd(value: bytes) -> Damage:
        return lambda key: put_etcd(store, f"lock/{key.project_id}/{key.key}".encode(), value)

    if isinstance(store.locks, MemoryStore):
        records = store.locks.records

        async def in_memory(key: RecordKey) -> None:
            records[key] = Damaged("spoilt by a test")

        return [in_memory]
    if url.startswith("sqlite"):
        return [sqlite(change) for change in (*SQL_LOCKS, *SQL_LOCKS_PURGED, *ONLY_SQLITE)]
    if url.startswith("postgres"):
        return [in_postgres(change) for change in (*SQL_LOCKS, *SQL_LOCKS_PURGED)]
    return [in_etcd(value) for value in JSON_LOCKS]
