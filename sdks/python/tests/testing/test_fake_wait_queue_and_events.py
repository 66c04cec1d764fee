"""The fake's wait queue and events obey the WAIT and EVENT rules to the instant (SDK-10)."""

import asyncio
import contextlib
import json
import math

import pytest

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError
from volcano_locks.http.address import OutgoingRequest
from volcano_locks.protocol.messages import Response
from volcano_locks.protocol.sse import SseParser
from volcano_locks.testing import FakeLocks, ManualClock

from ..helpers import until

TOKEN = "11111111-2222-4333-8444-555555555555"


async def send(server: FakeLocks, method: str, path: str, token: str | None = None, body: bytes = b"") -> Response:
    """Send one request without a client."""
    headers = [] if token is None else [(b"X-Volcano-Lock-Token", token.encode())]
    return await server.async_connections(server.clock).exchange(OutgoingRequest(method, path, headers, body))


def send_acquire(server: FakeLocks, token: str, wait_seconds: float) -> "asyncio.Task[Response]":
    body = json.dumps({"ttl_seconds": 30, "wait_seconds": wait_seconds}).encode()
    return asyncio.ensure_future(send(server, "POST", "/locks/k/lease", token, body))


async def events_since(server: FakeLocks, first: str, count: int) -> list[tuple[str, str]]:
    """Kind and reason of the `count` events after the id `first`."""
    events: list[tuple[str, str]] = []
    parser = SseParser()
    request = OutgoingRequest("GET", "/locks/events?prefix=", [(b"Last-Event-ID", first.encode())])
    with contextlib.closing(await server.async_connections(server.clock).open_stream(request)) as stream:
        while len(events) < count:
            received = parser.feed(await stream.read())
            events += [(event.kind, json.loads(event.data)["why"]) for event in received if event.data]
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


async def test_the_same_token_takes_over_its_waiter(server: FakeLocks, rival: AsyncClient) -> None:
    """WAIT-6: before waiters that came later."""
    held = await rival.locks.acquire("k", ttl=30)
    first = send_acquire(server, TOKEN, 50)
    await until(lambda: server.waiters("k") == 1)
    later = asyncio.create_task(rival.locks.acquire("k", ttl=30, wait=50))
    await until(lambda: server.waiters("k") == 2)
    second = send_acquire(server, TOKEN, 50)
    assert json.loads((await first).body)["code"] == "lock_held"
    await rival.locks.release("k", held)
    assert (await second).status == 201
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)


@pytest.mark.parametrize("absent_seconds", [4.9, 5.0])
async def test_a_waiter_is_kept_for_five_seconds(
    server: FakeLocks, rival: AsyncClient, clock: ManualClock, absent_seconds: float
) -> None:
    """WAIT-6."""
    kept = absent_seconds < 5
    held = await rival.locks.acquire("k", ttl=600)
    first = send_acquire(server, TOKEN, 1)
    await until(lambda: server.waiters("k") == 1)
    other = asyncio.create_task(rival.locks.acquire("k", ttl=30, wait=50))
    await until(lambda: server.waiters("k") == 2)
    clock.jump(1)
    assert (await first).status == 409
    clock.jump(absent_seconds)
    again = send_acquire(server, TOKEN, 20)
    await until(lambda: server.waiters("k") == 2)
    await rival.locks.release("k", held)
    if kept:
        assert (await again).status == 201
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    else:
        assert await other
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_an_absent_waiter_is_passed_over(server: FakeLocks, rival: AsyncClient, clock: ManualClock) -> None:
    """WAIT-6."""
    held = await rival.locks.acquire("k", ttl=600)
    first = send_acquire(server, TOKEN, 1)
    await until(lambda: server.waiters("k") == 1)
    clock.jump(1)
    await first
    await rival.locks.release("k", held)
    assert await rival.locks.acquire("k", ttl=30)


async def test_releasing_with_a_waiters_token_removes_the_waiter(server: FakeLocks, rival: AsyncClient) -> None:
    """WAIT-5."""
    await rival.locks.acquire("k", ttl=30)
    waiting = send_acquire(server, TOKEN, 50)
    await until(lambda: server.waiters("k") == 1)
    await send(server, "DELETE", "/locks/k/lease", TOKEN)
    assert json.loads((await waiting).body)["code"] == "lock_ownership_lost"
    assert server.waiters("k") == 0


async def test_a_retired_token_does_not_wait(rival: AsyncClient) -> None:
    """WAIT-2, LEASE-11."""
    await rival.locks.release("k", await rival.locks.acquire("k", ttl=30, token=TOKEN))
    with pytest.raises(LockOwnershipLostError):
        await rival.locks.acquire("k", ttl=30, token=TOKEN, wait=10)


async def test_events_are_published_in_order(server: FakeLocks, rival: AsyncClient, clock: ManualClock) -> None:
    """EVENT-2, EVENT-5: events can also be read from any known id."""
    lease = await rival.locks.acquire("k", ttl=30)
    waiting = send_acquire(server, TOKEN, 50)
    await until(lambda: server.waiters("k") == 1)
    await rival.locks.renew("k", lease)
    await rival.locks.release("k", lease)
    await waiting
    await rival.locks.force_release("k")
    await rival.locks.acquire("k", ttl=5)
    clock.jump(6)
    assert await events_since(server, "1-0", 8) == [
        ("acquired", "free"),
        ("waiting", "held"),
        ("renewed", "renewed"),
        ("released", "released"),
        ("acquired", "waited"),
        ("force_released", "forced"),
        ("acquired", "free"),
        ("expired", "not_renewed"),
    ]
    assert await events_since(server, "1-6", 2) == [("acquired", "free"), ("expired", "not_renewed")]
    server.restart()
    assert await events_since(server, "1-6", 1) == [("reset", "unknown_id")]


async def test_a_lock_named_events_is_a_lock(server: FakeLocks) -> None:
    """EVENT-1: a request without `prefix` reads that lock."""
    assert json.loads((await send(server, "GET", "/locks/events")).body) == {"held": False}
