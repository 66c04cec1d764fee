"""Two servers over one real store: what happens on one is told at the other, and wakes who waits there."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from testsupport.engines import etcd, postgres
from testsupport.service_requests import perform

from volcano_locks_server.events import Subscriber
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


async def told(watcher: Subscriber, count: int) -> list[str]:
    """The next `count` events, in a word each; resets, which are due while nodes begin, are passed over."""
    names: list[str] = []
    async with asyncio.timeout(30):
        while len(names) < count:
            names += [one.event.kind for one in await watcher.take() if one.event is not None]
    return names


async def test_events_and_releases_travel_between_servers(services: list[LockService]) -> None:
    """EVENT-4, WAIT-10."""
    a, b = services
    watcher = Subscriber(PROJECT, key=KEY)
    await b.hub.subscribe(watcher)
    assert isinstance((await perform(a, PROJECT, 0, KEY, Acquire(MINE, 30))).outcome, Granted)
    assert await told(watcher, 1) == ["acquired"]
    waiting = asyncio.create_task(perform(b, PROJECT, 0, KEY, Acquire(OTHER, 30), wait_ms=30_000))
    assert await told(watcher, 1) == ["waiting"]
    await perform(a, PROJECT, 0, KEY, Release(MINE))
    assert isinstance((await asyncio.wait_for(waiting, 30)).outcome, Granted)
    assert set(await told(watcher, 2)) == {"released", "acquired"}
    b.hub.unsubscribe(watcher)
