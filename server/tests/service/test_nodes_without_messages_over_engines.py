"""Services over one real store between which no message arrives, as behind a connection pooler."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from testsupport.engines import etcd, postgres
from testsupport.service_requests import perform

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.queue.node_turn import HANDOFFS_IN_A_ROW_MAX
from volcano_locks_server.queue.recheck import RECHECK_EVERY_SECONDS
from volcano_locks_server.rules.lease import Acquire, Granted, Refused, Release
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores import open_store

PROJECT = "project"
KEY = LockKey("nightly")

pytestmark = pytest.mark.real_time


@pytest.fixture(params=["postgresql", "postgresql-pgbouncer", "etcd"])
async def services(request: pytest.FixtureRequest) -> AsyncIterator[list[LockService]]:
    server = postgres.shared()
    match request.param:
        case "etcd":
            url = etcd.shared().url()
        case _:
            url = server.url(server.new_database())
    if request.param == "postgresql-pgbouncer":
        with postgres.pgbouncer(server) as port:
            async for found in _opened(url.replace(f":{server.port}/", f":{port}/")):
                yield found
    else:
        async for found in _opened(url):
            yield found


async def _opened(url: str) -> AsyncIterator[list[LockService]]:
    stores = [await open_store(url, SystemClock()) for _ in range(2)]
    found = [LockService(one.locks, SystemClock(), several_nodes=True, batches_in_flight=2) for one in stores]
    yield found
    for service in found:
        await service.close()
    for one in stores:
        await one.close()


async def test_no_node_starves_although_messages_are_lost(services: list[LockService]) -> None:
    """WAIT-12, case 69: eight waiters on one node, two on the other."""
    grants = [0, 0]
    ends_at = asyncio.get_running_loop().time() + RECHECK_EVERY_SECONDS + 4

    async def client(number: int, node: int) -> None:
        turn = 0
        while asyncio.get_running_loop().time() < ends_at:
            owner = f"{number}-{turn}".rjust(32).encode()
            turn += 1
            reply = await perform(services[node], PROJECT, 0, KEY, Acquire(owner, 30), wait_ms=20_000)
            if isinstance(reply.outcome, Granted):
                grants[node] += 1
                await asyncio.sleep(0.01)
                await perform(services[node], PROJECT, 0, KEY, Release(owner))

    await asyncio.gather(*(client(number, 0) for number in range(8)), *(client(number, 1) for number in (8, 9)))
    assert grants[1] >= HANDOFFS_IN_A_ROW_MAX, grants


async def test_a_recheck_serves_a_waiter_whose_token_was_granted_by_another_node(services: list[LockService]) -> None:
    """WAIT-13, case 70."""
    holder, token = b"h" * 32, b"t" * 32
    await perform(services[0], PROJECT, 0, KEY, Acquire(holder, 30))
    first, second = (
        asyncio.create_task(perform(each, PROJECT, 0, KEY, Acquire(token, 30), wait_ms=30_000)) for each in services
    )
    await asyncio.sleep(0.3)
    await perform(services[0], PROJECT, 0, KEY, Release(holder))
    async with asyncio.timeout(RECHECK_EVERY_SECONDS + 2):
        granted = [(await each).outcome for each in (first, second)]
    assert [getattr(each, "fencing_token", each) for each in granted] == [granted[0].fencing_token] * 2  # type: ignore[union-attr]


async def test_a_release_on_one_node_withdraws_the_waiters_of_its_token(services: list[LockService]) -> None:
    """WAIT-13, case 70: the record of the held lock says so."""
    holder, token = b"h" * 32, b"t" * 32
    await perform(services[0], PROJECT, 0, KEY, Acquire(holder, 30))
    waiting = asyncio.create_task(perform(services[0], PROJECT, 0, KEY, Acquire(token, 30), wait_ms=30_000))
    await asyncio.sleep(0.3)
    await perform(services[1], PROJECT, 0, KEY, Release(token))
    await perform(services[0], PROJECT, 0, KEY, Release(holder))
    outcome = (await asyncio.wait_for(waiting, RECHECK_EVERY_SECONDS + 2)).outcome
    assert isinstance(outcome, Refused)
    assert outcome.code == "lock_ownership_lost"
