"""Two servers over one real store: events reach the subscribers of the other, and freed locks its waiters."""

import asyncio
import io
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from testsupport.engines import etcd, postgres
from testsupport.service_requests import perform

from volcano_locks_server.events import NumberedEvent, Subscriber
from volcano_locks_server.rules.lease import Acquire, Granted, Release
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.service.lock_service import LockService

PROJECT = "project"
KEY = LockKey("nightly")
MINE, OTHER = b"m" * 32, b"o" * 32


@pytest.fixture(params=["postgresql", "etcd"])
async def services(request: pytest.FixtureRequest) -> AsyncIterator[list[LockService]]:
    if request.param == "etcd":
        url = etcd.shared().url()
    else:
        server = postgres.shared()
        url = server.url(server.new_database())
    async with AsyncExitStack() as opened:
        found: list[LockService] = []
        for _ in range(2):
            one = Server(Settings(store=url, port=0, log_level="error"), log_stream=io.StringIO())
            opened.push_async_callback(one.close)
            await one.open()
            assert one._service is not None
            found.append(one._service)
            signals = one.store.signals
            assert signals is not None
            async with asyncio.timeout(30):
                while not signals.working:
                    await asyncio.sleep(0.005)
        yield found


async def next_kinds(watcher: Subscriber, count: int) -> list[str]:
    """The kinds of the next `count` events; resets, which are due while nodes start, are skipped."""
    kinds: list[str] = []
    async with asyncio.timeout(30):
        while len(kinds) < count:
            kinds += [numbered.event.kind for numbered in await watcher.take() if numbered.event is not None]
    return kinds


async def events_arrive(node: LockService, watcher: Subscriber) -> None:
    """Wait until events of `node` reach the watcher: while nodes start, a `reset` may replace some."""
    arrived = False
    async with asyncio.timeout(60):
        while not arrived:
            token = secrets.token_bytes(32)
            await perform(node, PROJECT, 0, KEY, Acquire(token, 30))
            await perform(node, PROJECT, 0, KEY, Release(token))
            while numbered := await taken_within_a_second(watcher):
                arrived = arrived or any(one.event is not None for one in numbered)


async def taken_within_a_second(watcher: Subscriber) -> list[NumberedEvent]:
    try:
        return await asyncio.wait_for(watcher.take(), 1)
    except TimeoutError:
        return []


async def test_events_and_freed_locks_travel_between_servers(services: list[LockService]) -> None:
    """EVENT-4, WAIT-10."""
    a, b = services
    watcher = Subscriber(PROJECT, key=KEY)
    await b.hub.subscribe(watcher)
    await events_arrive(a, watcher)
    assert isinstance((await perform(a, PROJECT, 0, KEY, Acquire(MINE, 30))).outcome, Granted)
    assert await next_kinds(watcher, 1) == ["acquired"]
    waiting = asyncio.create_task(perform(b, PROJECT, 0, KEY, Acquire(OTHER, 30), wait_ms=30_000))
    assert await next_kinds(watcher, 1) == ["waiting"]
    await perform(a, PROJECT, 0, KEY, Release(MINE))
    assert isinstance((await asyncio.wait_for(waiting, 30)).outcome, Granted)
    assert set(await next_kinds(watcher, 2)) == {"released", "acquired"}
    b.hub.unsubscribe(watcher)
