"""Both clients with the real server: sockets, event loops, real time (SDK-11 to SDK-15)."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop

from volcano_locks import AsyncClient, AuthenticationError, Client, Leadership, LockHeldError, NotFoundError
from volcano_locks_server.testing import RunningServer, running_server

from .helpers import until

pytestmark = pytest.mark.real_time

PATIENCE_SECONDS = 60


@pytest.fixture
def running() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


def client_of(running: RunningServer, holder: str) -> Client:
    return Client(running.url, running.service_key, holder=holder)


def test_a_thread_waits_and_is_granted_at_the_release(running: RunningServer) -> None:
    """SDK-11."""
    with client_of(running, "one") as one, client_of(running, "other") as other:
        held = one.locks.acquire("k", ttl=30)
        assert other.locks.view("k").holder == "one"
        releasing = threading.Timer(0.3, one.locks.release, ["k", held])
        releasing.start()
        began = time.monotonic()
        lease = other.locks.acquire("k", ttl=30, wait=PATIENCE_SECONDS)
        releasing.join()
        assert 0.2 < time.monotonic() - began < 20
        assert lease.fencing_token > held.fencing_token
        assert [view.holder for view in one.locks.list("k", state="held")] == ["other"]


def test_a_wait_times_out(running: RunningServer) -> None:
    with client_of(running, "one") as one, client_of(running, "other") as other:
        one.locks.acquire("k", ttl=30)
        began = time.monotonic()
        with pytest.raises(LockHeldError):
            other.locks.acquire("k", ttl=30, wait=0.3)
        assert 0.3 <= time.monotonic() - began < 20


async def test_150_waits_of_one_client_are_all_granted(running: RunningServer) -> None:
    """SDK-11: a renewal succeeds meanwhile."""
    holders = 0
    most = 0

    async def work(client: AsyncClient) -> None:
        nonlocal holders, most
        async with client.locks.with_lock("k", ttl=30, wait=math.inf):
            holders += 1
            most = max(most, holders)
            await asyncio.sleep(0)
            holders -= 1

    async with AsyncClient(running.url, running.service_key) as client:
        held = await client.locks.acquire("k", ttl=30)
        waiting = [asyncio.create_task(work(client)) for _ in range(150)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (await client.locks.view("k")).waiters < 150:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        await client.locks.renew("k", held)
        await client.locks.release("k", held)
        await asyncio.gather(*waiting)
        assert most == 1
        assert not (await client.locks.get("k")).held


async def test_a_cancelled_wait_leaves_no_waiter(running: RunningServer) -> None:
    async with AsyncClient(running.url, running.service_key) as client:
        await client.locks.acquire("k", ttl=30)
        waiting = asyncio.create_task(client.locks.acquire("k", ttl=30, wait=math.inf))
        while (await client.locks.view("k")).waiters < 1:
            await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (await client.locks.view("k")).waiters:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def test_changes_are_watched(running: RunningServer) -> None:
    """SDK-14, with both clients."""
    changes_seen: list[Leadership] = []

    def follow(client: Client) -> None:
        for change in client.locks.watch("k"):
            changes_seen.append(change)
            if len(changes_seen) == 3:
                return

    with client_of(running, "watcher") as watcher:
        async with AsyncClient(running.url, running.service_key, holder="worker") as client:
            thread = threading.Thread(target=follow, args=(watcher,), daemon=True)
            thread.start()
            changes = client.locks.watch("k")
            assert await anext(changes) == Leadership(False)
            await until(lambda: len(changes_seen) == 1)
            lease = await client.locks.acquire("k", ttl=30)
            await client.locks.renew("k", lease)
            change = await anext(changes)
            assert (change.held, change.holder, change.fencing_token) == (True, "worker", lease.fencing_token)
            await client.locks.force_release("k")
            assert await anext(changes) == Leadership(False)
            await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
            await changes.aclose()
    assert changes_seen == [Leadership(False), change, Leadership(False)]


async def test_the_next_client_leads_when_the_first_returns(running: RunningServer) -> None:
    """SDK-13."""
    order: list[str] = []

    async with AsyncClient(running.url, running.service_key) as client:

        async def first(guard: object) -> None:
            order.append("first")
            await until_waiting(client)

        async def second(guard: object) -> str:
            order.append("second")
            return "done"

        leading = asyncio.create_task(client.locks.lead("k", first, ttl=30))
        await until(lambda: order == ["first"])
        assert await client.locks.lead("k", second, ttl=30) == "done"
        await leading
    assert order == ["first", "second"]


async def until_waiting(client: AsyncClient) -> None:
    while not (await client.locks.view("k")).waiters:
        await asyncio.sleep(0.1)


def test_the_asyncio_client_works_on_uvloop(running: RunningServer) -> None:
    """uvloop's transports do not inherit from asyncio's, so each kind of exchange is tested (SDK-11, SDK-14)."""

    async def everything() -> None:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            AsyncClient(running.url, running.service_key, holder="one") as client,
            contextlib.aclosing(client.locks.watch("k")) as changes,
        ):
            assert not (await anext(changes)).held
            lease = await client.locks.acquire("k", ttl=30, wait=math.inf)
            assert (await anext(changes)).holder == "one"
            await client.locks.release("k", lease)

    uvloop.run(everything())


def test_a_401_and_a_404_name_the_url(running: RunningServer) -> None:
    """SDK-9: the service key, or the API URL, may be that of another service."""
    with Client(running.url, "sk-wrong") as client, pytest.raises(AuthenticationError) as wrong:
        client.locks.get("a")
    assert f"({running.url}/locks/a)" in str(wrong.value)
    with Client(f"{running.url}/elsewhere", running.service_key) as client, pytest.raises(NotFoundError) as lost:
        client.locks.get("a")
    assert f"({running.url}/elsewhere/locks/a)" in str(lost.value)
