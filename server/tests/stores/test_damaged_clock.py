"""A record of the store's clock that is missing or cannot be decoded: nothing is granted, and an operator repairs it
(LEASE-18, CLI-31, case 63).
"""

import asyncio
import sqlite3
from base64 import b64encode
from collections.abc import Awaitable

import psycopg
import pytest
from testsupport.engines import etcd

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Granted, Outcome, Refused
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.maintenance import check_health, find_damaged, plan_reset, repair, reset_clock

from .conftest import url_of
from .store_actions import digest, key, run_commands
from .test_clock_reset import served_a_year_ahead

pytestmark = pytest.mark.real_time

ROWS = ("DELETE FROM {}", "UPDATE {} SET token_lead_ms = 4611686018427387904")
VALUES = (None, b"", b"\xff", b"[]", b'{"token_lead_ms":-1}', b'{"jumps_ms":1180591620717411303424}')
DAMAGES = [
    *(("sqlite", sql) for sql in (*ROWS, "UPDATE {} SET now_ms = 4611686018427387904")),
    *(("postgres", sql) for sql in ROWS),
    *(("etcd", value) for value in VALUES),
]
SHARED = [one for one in DAMAGES if one[0] != "sqlite"]


async def acquire(store: OpenStore, name: str, owner: str) -> Outcome:
    (outcome,) = await run_commands(store.locks, (key(name), Acquire(digest(owner), 60)))
    return outcome


def damage(url: str, how: str | bytes | None) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            file.execute("PRAGMA ignore_check_constraints = ON")
            file.execute(str(how).format("newest_instant"))
        file.close()
    elif url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            connection.execute("SET session_replication_role = replica")  # no trigger refuses it
            connection.execute(str(how).format("volcano_locks.newest_instant").encode())
    else:
        name, (member,) = f"{url.rpartition('/')[2]}/1/clock".encode(), etcd.shared().members
        if isinstance(how, bytes):
            member.put(name, how)
        else:
            member.ask("kv/deleterange", key=b64encode(name).decode())


async def refused_for_damage(call: Awaitable[object]) -> bool:
    with pytest.raises(StoreUnavailableError, match="doctor --repair clock") as caught:
        await call
    return caught.value.cause_code == "clock_damaged"


async def check_repair(url: str, before: dict[str, int]) -> None:
    """The damage is named and repaired; leases stay held, and tokens rise above those of purged records."""
    found = await find_damaged(url, "clock")
    assert found is not None
    assert any(one.advice and "clock" in one.found for one in await check_health(url))
    await repair(url, "clock")
    assert await find_damaged(url, "clock") is None
    store = await open_store(url, SystemClock())
    assert isinstance(await acquire(store, "held", "other"), Refused)
    assert store.locks.takeover_hold() is not None
    granted = await acquire(store, "purged", "other")
    assert isinstance(granted, Granted)
    assert granted.fencing_token > max(before.values())
    await store.close()


@pytest.mark.parametrize(("kind", "how"), DAMAGES)
async def test_a_damaged_clock_is_repaired_and_ends_no_lease(
    kind: str, how: str | bytes | None, request: pytest.FixtureRequest
) -> None:
    """LEASE-17, LEASE-18, LEASE-19: also after a reset, whose lead of the tokens is lost."""
    url = url_of(kind, request)
    tokens = await served_a_year_ahead(url)
    await reset_clock(url, await plan_reset(url))
    damage(url, how)
    if kind == "etcd":  # a node starts, and holds: a supervisor would only start it again
        store = await open_store(url, SystemClock())
        assert await refused_for_damage(acquire(store, "new", "me"))
        assert await refused_for_damage(store.locks.ready())
        await store.close()
    else:
        assert await refused_for_damage(open_store(url, SystemClock()))
    assert await refused_for_damage(plan_reset(url))
    await check_repair(url, tokens)


@pytest.mark.parametrize(("kind", "how"), SHARED)
async def test_running_nodes_hold_until_the_clock_is_repaired(
    kind: str, how: str | bytes | None, request: pytest.FixtureRequest
) -> None:
    """LEASE-16, LEASE-18: from the next probe on, and again and again."""
    url = url_of(kind, request)
    nodes = [await open_store(url, SystemClock()) for _ in range(2)]
    granted = await acquire(nodes[0], "held", "me")
    assert isinstance(granted, Granted)
    damage(url, how)
    for _ in range(2):
        for node in nodes:
            assert await refused_for_damage(node.locks.ready())
            assert await refused_for_damage(acquire(node, "new", "me"))
    await repair(url, "clock")
    for node in nodes:
        await until_ready(node)
        assert isinstance(await acquire(node, "held", "other"), Refused)
        assert node.locks.takeover_hold() is not None
        assert isinstance(await acquire(node, "new", "me"), Granted)
        await node.close()


async def until_ready(node: OpenStore) -> None:
    """A node of etcd compares clocks first."""
    while True:
        try:
            await node.locks.ready()
        except StoreUnavailableError as error:
            if error.cause_code not in ("clock_damaged", "clocks_unknown"):
                raise
            await asyncio.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "etcd"])
async def test_the_record_of_a_new_store_is_intact(kind: str, request: pytest.FixtureRequest) -> None:
    """CLI-31: and nothing is repaired that is not damaged."""
    url = url_of(kind, request)
    await (await open_store(url, SystemClock())).close()
    assert await find_damaged(url, "clock") is None
    await repair(url, "clock")
    store = await open_store(url, SystemClock())
    assert store.locks.takeover_hold() is None
    await store.close()
