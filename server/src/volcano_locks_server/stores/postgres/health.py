"""Checks the health of a PostgreSQL store, even while nodes serve from it, and migrates its schema."""

from collections.abc import Sequence
from time import time
from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from ..health_findings import HealthFinding, clock_finding, latency_finding, record_findings, schema_finding
from .clock import DatabaseClock
from .connections import ConnectionPool
from .schema import apply_migrations, migrations, schema_version
from .schema_mark import SchemaGuard
from .snapshot import PostgresSnapshot

SERVER_MAJOR_MIN: Final = 13
_SLOW: Final = "check the network to the database, its disk, and its synchronous standby"
_SKEW: Final = "leases use the database's clock, quotas and the expiry of keys use this machine's"
_TABLES: Final = """
    SELECT coalesce(bool_and(
        has_schema_privilege('volcano_locks', 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
        AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
        AND has_table_privilege(c.oid, 'DELETE')), false)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'volcano_locks' AND c.relkind = 'r'"""
_NONE_YET: Final = "SELECT has_database_privilege(current_database(), 'CREATE')"


async def migrate(url: str, _clock: Clock) -> tuple[int, int]:
    """The schema's version before and after. Raises ValueError for an invalid URL, and StoreUnavailableError."""
    connections = ConnectionPool(url, StoreCounts(), SchemaGuard(migrations()[-1].number))
    try:
        return await apply_migrations(connections)
    finally:
        await connections.close()


async def check_health(url: str, own_clock: Clock) -> Sequence[HealthFinding]:
    """All findings about the database; writes only to its log. Raises ValueError for an invalid URL."""
    connections = ConnectionPool(url, StoreCounts(), SchemaGuard(migrations()[-1].number))
    findings: list[HealthFinding] = []
    try:
        for check in (_server, _version, _schema, _safety, _latency):
            findings += await check(connections)
        findings.append(await _clock(connections, own_clock))
        if all(finding.good for finding in findings if finding.about in ("schema", "access")):
            findings += await record_findings(
                PostgresSnapshot(connections, DatabaseClock(connections, own_clock, None)).damaged()
            )
    except StoreUnavailableError as error:
        about = "responds" if findings else "reachable"
        findings.append(HealthFinding(about, error.message, f"servers return 503 until then ({error.cause_code})"))
    finally:
        await connections.close()
    return findings


async def _server(connections: ConnectionPool) -> Sequence[HealthFinding]:
    async with connections.transaction():
        return [HealthFinding("reachable", "the database responds and is writable")]


async def _version(connections: ConnectionPool) -> Sequence[HealthFinding]:
    text, number = await _row(
        connections,
        "SELECT current_setting('server_version'), version_number.n FROM "
        "(SELECT current_setting('server_version_num')::int AS n) AS version_number",
    )
    old = int(str(number)) < SERVER_MAJOR_MIN * 10_000
    return [
        HealthFinding("version", f"PostgreSQL {text}", f"use PostgreSQL {SERVER_MAJOR_MIN} or newer" if old else "")
    ]


async def _schema(connections: ConnectionPool) -> Sequence[HealthFinding]:
    try:
        version = await schema_version(connections)
    except StoreUnavailableError as error:
        if error.cause_code != "newer_version":
            raise
        return [HealthFinding("schema", error.message, "this release must not be started on it")]
    (may,) = await _row(connections, _TABLES if version else _NONE_YET)
    found = schema_finding(version, max(version, migrations()[-1].number))
    if may:
        return [found, HealthFinding("access", "this user has the permissions that serve needs")]
    missing = "use the schema volcano_locks and all of its tables" if version else "create a schema"
    return [found, HealthFinding("access", f"this user may not {missing}", "grant it, or name another user in the URL")]


async def _safety(connections: ConnectionPool) -> Sequence[HealthFinding]:
    """What could lose acknowledged commits; each transaction sets synchronous_commit itself."""
    fsync, pages, standbys, unlogged = await _row(
        connections,
        "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_standby_names'), (SELECT string_agg(tablename, ', ') FROM pg_tables "
        "JOIN pg_class ON relname = tablename AND relnamespace = to_regnamespace(schemaname) "
        "WHERE schemaname = 'volcano_locks' AND relpersistence <> 'p')",
    )
    if unlogged:
        advice = "a crash empties them: ALTER TABLE … SET LOGGED"
        return [HealthFinding("durability", f"tables of volcano_locks are unlogged: {unlogged}", advice)]
    if (fsync, pages) == ("on", "on"):
        location = "on disk and on a standby" if standbys else "on disk"
        risk = "" if standbys else "; commits do not wait for a standby, so a promoted one may lack the last leases"
        return [HealthFinding("durability", f"commits are {location} before they are acknowledged{risk}")]
    return [
        HealthFinding("durability", f"fsync = {fsync}, full_page_writes = {pages}", "set both on: a crash loses leases")
    ]


async def _latency(connections: ConnectionPool) -> Sequence[HealthFinding]:
    async def write() -> None:
        async with connections.transaction() as transaction:
            await transaction.prove_writable()

    await write()  # connect first, so that this is not measured
    return [await latency_finding(write, _SLOW)]


async def _clock(connections: ConnectionPool, own_clock: Clock) -> HealthFinding:
    before = time()
    now_ms = own_clock.now_ms()
    (theirs_ms,) = await _row(connections, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    on_the_way_ms = (time() - before) * 1_000 / 2
    return clock_finding(now_ms + on_the_way_ms - int(str(theirs_ms)), "the database's", _SKEW)


async def _row(connections: ConnectionPool, sql: str) -> Sequence[object]:
    async with connections.transaction() as transaction:
        return (await transaction.fetch(sql))[0]
