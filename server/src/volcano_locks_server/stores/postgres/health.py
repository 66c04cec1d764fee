"""Examining a PostgreSQL store, also while nodes serve from it. Nothing is written but to its log."""

from collections.abc import Sequence
from time import time
from typing import Final

from ...ports.clock import Clock
from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from ..health_findings import Finding, clock, latency, schema
from .connections import Connections
from .schema import migrations, version_of

SERVER_MAJOR_MIN: Final = 13
_SLOW: Final = "look at the network to the database, its disk, and the synchronous standby it waits for"
_SKEW: Final = "leases go by the database's clock, quotas and the ends of service keys by this one"
_TABLES: Final = """
    SELECT coalesce(bool_and(
        has_schema_privilege('volcano_locks', 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
        AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
        AND has_table_privilege(c.oid, 'DELETE')), false)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'volcano_locks' AND c.relkind = 'r'"""
_NONE_YET: Final = "SELECT has_database_privilege(current_database(), 'CREATE')"


async def examine(url: str, own_clock: Clock) -> Sequence[Finding]:
    """All that the database tells. Raises ValueError for a URL that cannot be read."""
    connections = Connections(url, StoreCounts())
    findings: list[Finding] = []
    try:
        for look in (_server, _version, _schema, _safety, _latency):
            findings += await look(connections)
        findings.append(await _clock(connections, own_clock))
    except StoreUnavailableError as error:
        about = "answers" if findings else "reachable"
        findings.append(Finding(about, error.message, f"servers answer 503 until then ({error.cause_code})"))
    finally:
        await connections.close()
    return findings


async def _server(connections: Connections) -> Sequence[Finding]:
    async with connections.transaction():
        return [Finding("reachable", "the database answers and can be written")]


async def _version(connections: Connections) -> Sequence[Finding]:
    text, number = await _row(
        connections,
        "SELECT current_setting('server_version'), version_number.n FROM "
        "(SELECT current_setting('server_version_num')::int AS n) AS version_number",
    )
    old = int(str(number)) < SERVER_MAJOR_MIN * 10_000
    return [Finding("version", f"PostgreSQL {text}", f"use PostgreSQL {SERVER_MAJOR_MIN} or newer" if old else "")]


async def _schema(connections: Connections) -> Sequence[Finding]:
    try:
        version = await version_of(connections)
    except StoreUnavailableError as error:
        if error.cause_code != "newer_version":
            raise
        return [Finding("schema", error.message, "this release must not be started on it")]
    (may,) = await _row(connections, _TABLES if version else _NONE_YET)
    found = schema(version, max(version, migrations()[-1].number))
    if may:
        return [found, Finding("access", "this user may do what serve does")]
    wanted = "own the schema volcano_locks, or have all rights on its tables" if version else "create a schema"
    return [found, Finding("access", f"this user may not {wanted}", "grant it, or name another user in the URL")]


async def _safety(connections: Connections) -> Sequence[Finding]:
    """What would lose what was acknowledged; synchronous_commit is set by each transaction."""
    fsync, pages, standbys = await _row(
        connections,
        "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_standby_names')",
    )
    if (fsync, pages) == ("on", "on"):
        where = "on disk and on a standby" if standbys else "on disk"
        lack = "" if standbys else "; no standby is waited for, so one that is promoted may lack the last leases"
        return [Finding("durability", f"commits are {where} before they are answered{lack}")]
    return [Finding("durability", f"fsync = {fsync}, full_page_writes = {pages}", "set both on: a crash loses leases")]


async def _latency(connections: Connections) -> Sequence[Finding]:
    async def write() -> None:
        async with connections.transaction() as transaction:
            await transaction.prove()

    await write()  # so that connecting is not measured
    return [await latency(write, _SLOW)]


async def _clock(connections: Connections, own_clock: Clock) -> Finding:
    before = time()
    now_ms = own_clock.now_ms()
    (theirs_ms,) = await _row(connections, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    on_the_way_ms = (time() - before) * 1_000 / 2
    return clock(now_ms + on_the_way_ms - int(str(theirs_ms)), "the database's", _SKEW)


async def _row(connections: Connections, sql: str) -> Sequence[object]:
    async with connections.transaction() as transaction:
        return (await transaction.fetch(sql))[0]
