"""Watching who holds a lock, over broken connections (SDK-14)."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import pytest

from volcano_locks import AsyncClient, AuthenticationError, Client, Leadership, VolcanoError
from volcano_locks.http.event_stream import SILENCE_SECONDS_MAX
from volcano_locks.testing import Answers, DropBeforeSend, FakeLocks, FaultyTransport, ManualClock, Pass

from ..client_targets import Target
from ..helpers import in_a_fork, until

FREE = Leadership(False)


def held(token: int | None) -> Leadership:
    return Leadership(True, fencing_token=token)


@contextlib.asynccontextmanager
async def watching(target: Target, key: str = "k") -> AsyncIterator[AsyncIterator[Leadership]]:
    """The changes; leaving ends the watch."""
    changes = target.watched(key)
    yield changes
    await changes.aclose()  # type: ignore[attr-defined]


@pytest.mark.real_time
async def test_a_change_during_an_outage_is_reported_after_it(
    target: Target, rival: AsyncClient, server: FakeLocks, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-14: it resumes after the last event, and backs off between attempts."""
    async with watching(target) as changes:
        assert await anext(changes) == FREE
        network.otherwise = DropBeforeSend()
        server.restart()
        lease = await rival.locks.acquire("k", ttl=600)
        change = asyncio.ensure_future(anext(changes))
        for _ in range(20):
            clock.jump(1)
            await asyncio.sleep(0.002)
        attempts = len(network.seen)
        assert attempts < 30
        network.otherwise = Pass()
        while not change.done():
            clock.jump(1)
            await asyncio.sleep(0.002)
        assert await change == held(lease.fencing_token)
        resumed = [seen.headers.get("last-event-id") for seen in network.seen if seen.path.endswith("/events")]
        assert resumed[0] is None
        assert all(resumed[1:])


@pytest.mark.real_time
async def test_a_silent_stream_is_replaced(
    target: Target, rival: AsyncClient, server: FakeLocks, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-14: a server that disappeared silently is noticed."""
    monkeypatch.setattr("volcano_locks.testing.event_log.COMMENT_SECONDS", inf)
    async with watching(target) as changes:
        assert await anext(changes) == FREE
        change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        server._log._streams.clear()  # events no longer reach it
        lease = await rival.locks.acquire("k", ttl=600)
        clock.jump(SILENCE_SECONDS_MAX - 0.1)
        await asyncio.sleep(0.01)
        assert not change.done()
        clock.jump(0.1)
        assert await change == held(lease.fencing_token)


async def test_an_authentication_error_is_raised(target: Target, network: FaultyTransport) -> None:
    network.otherwise = Answers(401, b'{"error": "who are you", "code": "invalid_credentials"}')
    async with watching(target) as changes:
        with pytest.raises(AuthenticationError, match="who are you"):
            await anext(changes)


@pytest.mark.real_time
async def test_closing_the_client_ends_the_watch(target: Target, server: FakeLocks) -> None:
    async with watching(target) as changes:
        assert await anext(changes) == FREE
        change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        await target.close()
        with pytest.raises(VolcanoError, match="this client is closed"):
            await change
        await until(lambda: not server._log._streams)


async def test_leaving_the_loop_ends_the_stream(target: Target, server: FakeLocks) -> None:
    """SDK-14: dropping the iterator is enough."""
    changes = target.client.locks.watch("k")
    first = await (asyncio.to_thread(next, changes) if isinstance(target.client, Client) else anext(changes))
    assert first == FREE
    assert len(server._log._streams) == 1
    del changes
    gc.collect()
    await until(lambda: not server._log._streams)


async def test_an_invalid_key_raises_at_once(target: Target) -> None:
    with pytest.raises(ValueError, match="key must be"):
        target.client.locks.watch("/")


@pytest.mark.parametrize("damage", [{"fencing_token": 2**53}, {"fencing_token": "1"}, {"at": "yesterday"}])
async def test_an_unusable_event_makes_the_client_read_the_lock_again(
    target: Target, server: FakeLocks, rival: AsyncClient, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any]
) -> None:
    """SDK-14, case 34."""
    publish = server._log.publish
    monkeypatch.setattr(server._log, "publish", lambda key, kind, body: publish(key, kind, {**body, **damage}))
    async with watching(target) as changes:
        assert await anext(changes) == FREE
        lease = await rival.locks.acquire("k", ttl=30)
        change = asyncio.ensure_future(anext(changes))
        await until(change.done)
        assert await change == held(lease.fencing_token)


def test_a_watch_in_a_thread_starts_no_other(server: FakeLocks) -> None:
    """SDK-6: the consumer's own thread reads, when it asks for the next change."""
    with server.client() as client, server.client() as other:
        changes = client.locks.watch("k")
        before = threading.active_count()
        assert next(changes) == FREE
        other.locks.acquire("k", ttl=30)
        assert next(changes).held
        assert threading.active_count() == before


def test_a_watch_ends_in_a_forked_child(client: Client) -> None:
    """SDK-6: the stream belongs to the parent."""
    changes = client.locks.watch("k")
    assert next(changes) == FREE

    def continue_watching() -> str:
        try:
            next(changes)
        except VolcanoError as error:
            return str(error)
        return "it continued"

    assert "belongs to the parent process" in in_a_fork(continue_watching)
