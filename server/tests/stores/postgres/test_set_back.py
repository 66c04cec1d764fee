"""Tables that are truncated, and an old dump that is restored in place under running nodes (OPS-8, case 72)."""

import os
import subprocess

import psycopg
import pytest
from testsupport.engines.processes import program

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Granted, Outcome, Refused
from volcano_locks_server.stores.postgres import PostgresDatabase
from volcano_locks_server.testing import ManualClock

from ..store_actions import PROJECT, digest, key, run_commands

TABLES = ["lock", "newest_instant", "migration", "project", "service_key", "secret", "admin_token", "audit_entry"]


async def acquire(node: PostgresDatabase, name: str, owner: str) -> Outcome:
    (outcome,) = await run_commands(node.locks, (key(name), Acquire(digest(owner), 60)))
    return outcome


@pytest.mark.parametrize("table", TABLES)
async def test_a_table_whose_loss_would_go_unnoticed_is_not_truncated(
    database: str, clock: ManualClock, table: str
) -> None:
    """OPS-8: the holder keeps its lease, and the error says how a store is deleted."""
    node = await PostgresDatabase.open(database, clock=clock)
    await acquire(node, "a", "me")
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.RaiseException, match="would lose leases") as caught:
            connection.execute(f"TRUNCATE volcano_locks.{table} CASCADE")
        assert "DROP SCHEMA" in str(caught.value)
    assert isinstance(await acquire(node, "a", "other"), Refused)
    await node.close()


@pytest.mark.parametrize("table", ["newest_instant", "migration"])
async def test_the_rows_that_nodes_compare_with_are_not_deleted(database: str, clock: ManualClock, table: str) -> None:
    """OPS-8."""
    await (await PostgresDatabase.open(database, clock=clock)).close()
    with (
        psycopg.connect(database, autocommit=True) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="would lose leases"),
    ):
        connection.execute(f"DELETE FROM volcano_locks.{table}")


async def test_a_dump_that_is_restored_in_place_grants_nothing(database: str, clock: ManualClock) -> None:
    """OPS-8, LEASE-14: a lease that was granted after the dump is gone, so the nodes that know of later instants hold
    until an operator starts them again.
    """
    nodes = [await PostgresDatabase.open(database, clock=clock) for _ in range(2)]
    await acquire(nodes[0], "early", "me")
    dump = subprocess.run(
        [program("pg_dump", "postgresql"), "--clean", database], check=True, stdout=subprocess.PIPE
    ).stdout
    clock.advance(5_000)
    late = await acquire(nodes[0], "late", "me")
    assert isinstance(late, Granted)
    for node in nodes:
        await node.locks.ready()
    subprocess.run(
        [program("psql", "postgresql"), "-q", "-v", "ON_ERROR_STOP=1", database],
        check=True,
        input=dump,
        stdout=subprocess.DEVNULL,
        env={"PGOPTIONS": "-c client_min_messages=error", "PATH": os.environ["PATH"]},
    )
    for node in nodes:
        for call in (
            acquire(node, "late", "other"),
            acquire(node, "new", "other"),
            node.locks.ready(),
            node.locks.count_held(),
            node.locks.list_locks(LockQuery(PROJECT, 1)),
        ):
            with pytest.raises(StoreUnavailableError, match="wait for the longest TTL") as caught:
                await call
            assert caught.value.cause_code == "store_went_back"
        await node.close()
    clock.advance(61_000)
    again = await PostgresDatabase.open(database, clock=clock)
    granted = await acquire(again, "late", "other")
    assert isinstance(granted, Granted)
    assert granted.fencing_token > late.fencing_token
    await again.close()
