"""SDK-14: the changes of who holds a lock, over whatever happens to the connection."""

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from math import inf
from typing import Any

import pytest

from volcano_locks import AsyncClient, AuthenticationError, Client, Leadership, VolcanoError
from volcano_locks.features.watch import Leadings
from volcano_locks.http.event_stream import SILENCE_SECONDS_MAX
from volcano_locks.protocol.lock_view import LockView
from volcano_locks.protocol.sse import BLOCK_BYTES_MAX, Event, EventReader, TooLongError
from volcano_locks.testing import Answers, DropBeforeSend, FakeLocks, FlakyTransport, ManualClock, Pass
from volcano_locks.testing.clock import START

from .conftest import Face, in_a_fork, until

FREE = Leadership(False)


def held(token: int | None) -> Leadership:
    return Leadership(True, fencing_token=token)


@contextlib.asynccontextmanager
async def watching(face: Face, key: str = "k") -> AsyncIterator[AsyncIterator[Leadership]]:
    """The changes, with an end."""
    changes = face.watched(key)
    yield changes
    await changes.aclose()  # type: ignore[attr-defined]


async def test_it_begins_with_how_it_is_and_tells_each_change(
    face: Face, server: FakeLocks, clock: ManualClock
) -> None:
    async with server.async_client(holder="host/1") as other, watching(face) as changes:
        first = await anext(changes)
        assert (first, first.since) == (FREE, None)
        lease = await other.locks.acquire("k", ttl=30)
        second = await anext(changes)
        assert second == held(lease.fencing_token)
        assert (second.holder, second.since) == ("host/1", START)
        clock.jump(5)
        await other.locks.renew("k", lease)
        await other.locks.release("k", lease)
        third = await anext(changes)
        assert (third, third.since) == (FREE, START + timedelta(seconds=5))


@pytest.mark.real_time
async def test_a_lapse_is_told_when_anybody_may_take_over(face: Face, rival: AsyncClient, clock: ManualClock) -> None:
    async with watching(face) as changes:
        lease = await rival.locks.acquire("k", ttl=30)
        assert await anext(changes) == held(lease.fencing_token)
        lapsed = asyncio.ensure_future(anext(changes))
        for _ in range(31):
            assert not lapsed.done()
            clock.jump(1)
            await asyncio.sleep(0.002)
        assert await lapsed == FREE


@pytest.mark.real_time
async def test_a_restart_is_passed_over_and_nothing_is_told_twice(
    face: Face, rival: AsyncClient, server: FakeLocks
) -> None:
    """SDK-14: the stream ends, its ids are forgotten, and what changed meanwhile is told."""
    async with watching(face) as changes:
        lease = await rival.locks.acquire("k", ttl=30)
        assert await anext(changes) == held(lease.fencing_token)
        server.restart()
        change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.02)
        assert not change.done(), "the same holder is no change"
        await rival.locks.release("k", lease)
        assert await change == FREE


@pytest.mark.real_time
async def test_what_was_missed_in_an_outage_is_told_after_it(
    face: Face, rival: AsyncClient, server: FakeLocks, net: FlakyTransport, clock: ManualClock
) -> None:
    """SDK-14: it resumes after the last event it saw, and rests between its attempts."""
    async with watching(face) as changes:
        assert await anext(changes) == FREE
        net.otherwise = DropBeforeSend()
        server.restart()
        lease = await rival.locks.acquire("k", ttl=600)
        change = asyncio.ensure_future(anext(changes))
        for _ in range(20):
            clock.jump(1)
            await asyncio.sleep(0.002)
        attempts = len(net.seen)
        assert attempts < 30
        net.otherwise = Pass()
        while not change.done():
            clock.jump(1)
            await asyncio.sleep(0.002)
        assert await change == held(lease.fencing_token)
        resumed = [seen.headers.get("Last-Event-ID") for seen in net.seen if seen.path.endswith("/events")]
        assert resumed[0] is None
        assert all(resumed[1:])


@pytest.mark.real_time
async def test_a_silent_stream_is_left(
    face: Face, rival: AsyncClient, server: FakeLocks, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-14: a server that is gone without a word is noticed."""
    monkeypatch.setattr("volcano_locks.testing.event_log.COMMENT_SECONDS", inf)
    async with watching(face) as changes:
        assert await anext(changes) == FREE
        change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        server._stories._streams.clear()  # nobody tells it anything any more
        lease = await rival.locks.acquire("k", ttl=600)
        clock.jump(SILENCE_SECONDS_MAX - 0.1)
        await asyncio.sleep(0.01)
        assert not change.done()
        clock.jump(0.1)
        assert await change == held(lease.fencing_token)


@pytest.mark.real_time
@pytest.mark.parametrize("trouble", [Answers(503), Answers(429), Answers(502, b"<html>"), DropBeforeSend()])
async def test_trouble_that_passes_is_passed_over(
    face: Face, net: FlakyTransport, clock: ManualClock, trouble: Any
) -> None:
    net.script.extend([trouble, trouble, Pass(), trouble])
    async with watching(face) as changes:
        first = asyncio.ensure_future(anext(changes))
        while not first.done():
            clock.jump(0.5)
            await asyncio.sleep(0.002)
        assert await first == FREE


async def test_a_refusal_is_raised(face: Face, net: FlakyTransport) -> None:
    net.otherwise = Answers(401, b'{"error": "who are you", "code": "invalid_credentials"}')
    async with watching(face) as changes:
        with pytest.raises(AuthenticationError, match="who are you"):
            await anext(changes)


@pytest.mark.real_time
async def test_closing_the_client_ends_it(face: Face, server: FakeLocks) -> None:
    async with watching(face) as changes:
        assert await anext(changes) == FREE
        change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        await face.close()
        with pytest.raises(VolcanoError, match="this client is closed"):
            await change
        await until(lambda: not server._stories._streams)


async def test_leaving_the_loop_ends_the_stream(face: Face, server: FakeLocks) -> None:
    """SDK-14: letting go of it is enough."""
    changes = face.client.locks.watch("k")
    first = await (asyncio.to_thread(next, changes) if isinstance(face.client, Client) else anext(changes))
    assert first == FREE
    assert len(server._stories._streams) == 1
    del changes
    gc.collect()
    await until(lambda: not server._stories._streams)


async def test_a_key_that_is_none_is_refused_at_once(face: Face) -> None:
    with pytest.raises(ValueError, match="key must be"):
        face.client.locks.watch("/")


@pytest.mark.real_time
def test_a_watch_keeps_the_clients_thread(server: FakeLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works on one change for long gets the next all the same."""
    monkeypatch.setattr("volcano_locks.sync.background_loop.IDLE_SECONDS_MAX", 0.01)
    with server.client() as client, server.client() as other:
        changes = client.locks.watch("k")
        assert next(changes) == FREE
        for _ in range(5):
            other.locks.get("k")
            time.sleep(0.02)
        other.locks.acquire("k", ttl=30)
        assert next(changes).held


def test_a_fork_ends_it_in_the_child(client: Client) -> None:
    """SDK-6: the stream is the parent's."""
    changes = client.locks.watch("k")
    assert next(changes) == FREE

    def go_on() -> str:
        try:
            next(changes)
        except VolcanoError as error:
            return str(error)
        return "it went on"

    assert "not to its fork" in in_a_fork(go_on)


def view(token: int | None, *, is_held: bool) -> LockView:
    return LockView("k", is_held, None, START if is_held else None, None, None, None, token, 0)


def event(token: int) -> dict[str, Any]:
    return {"fencing_token": token, "holder": "h", "at": "2026-01-01T00:00:00Z"}


def test_an_old_event_changes_nothing() -> None:
    """SDK-14: what was missed is told after the look that says more."""
    known = Leadings()
    known.looked(view(7, is_held=True))
    for kind, token in [("acquired", 5), ("released", 5), ("acquired", 6), ("expired", 6), ("renewed", 7)]:
        known.happened(kind, event(token))
        assert known.latest == held(7)
    known.happened("released", event(7))
    assert known.latest == FREE


def test_a_lease_that_has_ended_does_not_come_back() -> None:
    """SDK-14."""
    known = Leadings()
    known.looked(view(7, is_held=False))
    known.happened("acquired", event(7))
    known.looked(view(7, is_held=True))
    assert known.latest == FREE
    known.happened("acquired", event(8))
    assert known.latest == held(8)
    known.happened("force_released", event(9))
    assert known.latest == FREE, "its beginning was missed"


@pytest.mark.parametrize("kind", ["waiting", "gave_up", "reset", "", "something new"])
def test_events_that_change_no_leadership_are_passed_over(kind: str) -> None:
    known = Leadings()
    known.looked(view(7, is_held=True))
    known.happened(kind, event(9))
    known.happened("acquired", {"fencing_token": None, "at": "2026-01-01T00:00:00Z"})
    known.happened("acquired", {"fencing_token": 9})
    known.happened("acquired", {})
    assert known.latest == held(7)


STREAM = (
    b': hello\nid: 1-0\nretry: 1000\n\n: still here\n\nid: 1-1\r\nevent: acquired\r\ndata: {"a":\r\ndata:1}\r\n\r\n'
)
READ = [Event("", "", "1-0"), Event("acquired", '{"a":\n1}', "1-1")]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_is_read_in_whatever_pieces_it_comes(size: int) -> None:
    reader = EventReader()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in reader.take(piece)] == READ
    assert json.loads(READ[1].data) == {"a": 1}


@pytest.mark.parametrize("more", [b"x" * 1000, b"data: y\n" * 125])
def test_a_stream_without_an_end_of_its_event_is_given_up(more: bytes) -> None:
    reader = EventReader()
    with pytest.raises(TooLongError):  # noqa: PT012
        for _ in range(BLOCK_BYTES_MAX // 500):
            reader.take(more)


@pytest.mark.parametrize("told", ["a b", "ä", "", "x" * 129])
def test_an_id_that_is_not_fit_for_a_header_is_none(told: str) -> None:
    """Nothing that came from outside is put into a request unseen."""
    assert EventReader().take(f"id: {told}\ndata: x\n\n".encode()) == [Event("", "x", None)]
