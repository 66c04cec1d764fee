"""The fake's wait queue and events obey the WAIT and EVENT rules to the instant (SDK-10)."""

import asyncio
import json
import math
from collections.abc import AsyncIterator

import httpx2
import pytest

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError
from volcano_locks.testing import FakeLocks, ManualClock

from ..helpers import until

TOKEN = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
async def http(server: FakeLocks) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=server, base_url="http://fake", timeout=None) as client:
        yield client


def send_acquire(http: httpx2.AsyncClient, token: str, wait_seconds: float) -> "asyncio.Task[httpx2.Response]":
    body = {"ttl_seconds": 30, "wait_seconds": wait_seconds}
    return asyncio.ensure_future(
        http.post("/locks/k/lease", headers={"X-Volcano-Lock-Token": token}, content=json.dumps(body))
    )


async def events_since(http: httpx2.AsyncClient, first: str, count: int) -> list[tuple[str, str]]:
    """Kind and reason of the `count` events after the id `first`."""
    events: list[tuple[str, str]] = []
    kind = ""
    async with http.stream("GET", "/locks/events?prefix=", headers={"Last-Event-ID": first}) as stream:
        async for line in stream.aiter_lines():
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
            if line.startswith("data: "):
                events.append((kind, json.loads(line[6:])["why"]))
            if len(events) == count:
                break
    return events


async def test_an_acquire_without_a_wait_does_not_pass_the_queue(server: FakeLocks, rival: AsyncClient) -> None:
    """WAIT-4: even if the lock becomes free in the same instant."""
    held = await rival.locks.acquire("k", ttl=30)
    waiting = asyncio.create_task(rival.locks.acquire("k", ttl=30, wait=math.inf))
    await until(lambda: server.waiters("k") == 1)
    await rival.locks.release("k", held)
    with pytest.raises(LockHeldError):
        await rival.locks.acquire("k", ttl=30)
    assert await waiting


async def test_the_same_token_takes_over_its_waiter(
    server: FakeLocks, rival: AsyncClient, http: httpx2.AsyncClient
) -> None:
    """WAIT-6: before waiters that came later."""
    held = await rival.locks.acquire("k", ttl=30)
    first = send_acquire(http, TOKEN, 50)
    await until(lambda: server.waiters("k") == 1)
    later = asyncio.create_task(rival.locks.acquire("k", ttl=30, wait=50))
    await until(lambda: server.waiters("k") == 2)
    second = send_acquire(http, TOKEN, 50)
    assert (await first).json()["code"] == "lock_held"
    await rival.locks.release("k", held)
    assert (await second).status_code == 201
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)


@pytest.mark.parametrize("absent_seconds", [4.9, 5.0])
async def test_a_waiter_is_kept_for_five_seconds(
    server: FakeLocks, rival: AsyncClient, http: httpx2.AsyncClient, clock: ManualClock, absent_seconds: float
) -> None:
    """WAIT-6."""
    kept = absent_seconds < 5
    held = await rival.locks.acquire("k", ttl=600)
    first = send_acquire(http, TOKEN, 1)
    await until(lambda: server.waiters("k") == 1)
    other = asyncio.create_task(rival.locks.acquire("k", ttl=30, wait=50))
    await until(lambda: server.waiters("k") == 2)
    clock.jump(1)
    assert (await first).status_code == 409
    clock.jump(absent_seconds)
    again = send_acquire(http, TOKEN, 20)
    await until(lambda: server.waiters("k") == 2)
    await rival.locks.release("k", held)
    if kept:
        assert (await again).status_code == 201
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    else:
        assert await other
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_an_absent_waiter_is_passed_over(
    server: FakeLocks, rival: AsyncClient, http: httpx2.AsyncClient, clock: ManualClock
) -> None:
    """WAIT-6."""
    held = await rival.locks.acquire("k", ttl=600)
    first = send_acquire(http, TOKEN, 1)
    await until(lambda: server.waiters("k") == 1)
    clock.jump(1)
    await first
    await rival.locks.release("k", held)
    assert await rival.locks.acquire("k", ttl=30)


async def test_releasing_with_a_waiters_token_removes_the_waiter(
    server: FakeLocks, rival: AsyncClient, http: httpx2.AsyncClient
) -> None:
    """WAIT-5."""
    await rival.locks.acquire("k", ttl=30)
    waiting = send_acquire(http, TOKEN, 50)
    await until(lambda: server.waiters("k") == 1)
    await http.delete("/locks/k/lease", headers={"X-Volcano-Lock-Token": TOKEN})
    assert (await waiting).json()["code"] == "lock_ownership_lost"
    assert server.waiters("k") == 0


async def test_a_retired_token_does_not_wait(rival: AsyncClient) -> None:
    """WAIT-2, LEASE-11."""
    await rival.locks.release("k", await rival.locks.acquire("k", ttl=30, token=TOKEN))
    with pytest.raises(LockOwnershipLostError):
        await rival.locks.acquire("k", ttl=30, token=TOKEN, wait=10)


async def test_events_are_published_in_order(
    server: FakeLocks, rival: AsyncClient, http: httpx2.AsyncClient, clock: ManualClock
) -> None:
    """EVENT-2, EVENT-5: and can be read from any known id."""
    lease = await rival.locks.acquire("k", ttl=30)
    waiting = send_acquire(http, TOKEN, 50)
    await until(lambda: server.waiters("k") == 1)
    await rival.locks.renew("k", lease)
    await rival.locks.release("k", lease)
    await waiting
    await rival.locks.force_release("k")
    await rival.locks.acquire("k", ttl=5)
    clock.jump(6)
    assert await events_since(http, "1-0", 8) == [
        ("acquired", "free"),
        ("waiting", "held"),
        ("renewed", "renewed"),
        ("released", "released"),
        ("acquired", "waited"),
        ("force_released", "forced"),
        ("acquired", "free"),
        ("expired", "not_renewed"),
    ]
    assert await events_since(http, "1-6", 2) == [("acquired", "free"), ("expired", "not_renewed")]
    server.restart()
    assert await events_since(http, "1-6", 1) == [("reset", "unknown_id")]


async def test_a_lock_named_events_is_a_lock(http: httpx2.AsyncClient) -> None:
    """EVENT-1: without `prefix`."""
    assert (await http.get("/locks/events")).json() == {"held": False}
