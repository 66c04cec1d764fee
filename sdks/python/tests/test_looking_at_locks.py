"""SDK-15: one lock and lists of locks, for whoever looks."""

import json
from datetime import timedelta
from typing import Any

import pytest

from volcano_locks import AsyncClient, LockView, ServerError
from volcano_locks.protocol.messages import Answer
from volcano_locks.testing import FakeLocks, FlakyTransport, ManualClock
from volcano_locks.testing.clock import START

from .conftest import Face
from .stage import Stage

ROW = {
    "key": "k",
    "held": True,
    "holder": "host/1",
    "acquired_at": "2026-07-20T14:00:00.000Z",
    "renewed_at": "2026-07-20T14:00:10.000Z",
    "expires_at": "2026-07-20T14:00:40.000Z",
    "ttl_seconds": 30,
    "fencing_token": 7,
    "waiters": 2,
}


async def listed(face: Face, prefix: str = "", **options: Any) -> list[LockView]:
    return [view async for view in face.listed(prefix, **options)]


async def test_a_view_tells_who_holds_a_lock_and_until_when(face: Face, server: FakeLocks, clock: ManualClock) -> None:
    async with server.async_client(holder="host/1") as other:
        lease = await other.locks.acquire("k", ttl=30)
        clock.jump(10)
        await other.locks.renew("k", lease, ttl=60)
    assert await face.view("k") == LockView(
        key="k",
        held=True,
        holder="host/1",
        acquired_at=START,
        renewed_at=START + timedelta(seconds=10),
        expires_at=START + timedelta(seconds=70),
        ttl_seconds=60,
        fencing_token=lease.fencing_token,
        waiters=0,
    )


async def test_a_lock_nobody_has_used_is_a_free_one(face: Face) -> None:
    assert await face.view("k") == LockView("k", False, None, None, None, None, None, None, 0)


async def test_a_list_comes_in_pages_when_they_are_needed(face: Face, rival: AsyncClient, net: FlakyTransport) -> None:
    """SDK-15: all of it, once, in the order of the keys."""
    for number in range(250):
        await rival.locks.acquire(f"k{number:03}", ttl=30)
    views = face.listed("k")
    first = await anext(views)
    assert len(net.seen) == 1
    rest = [view async for view in views]
    assert [view.key for view in (first, *rest)] == [f"k{number:03}" for number in range(250)]
    assert len(net.seen) == 3


async def test_a_list_is_of_a_prefix_and_a_state(face: Face, rival: AsyncClient) -> None:
    freed = await rival.locks.acquire("a:1", ttl=30)
    for key in ("a:2", "b:1"):
        await rival.locks.acquire(key, ttl=30)
    await rival.locks.release("a:1", freed)
    assert [view.key for view in await listed(face)] == ["a:1", "a:2", "b:1"]
    assert [view.key for view in await listed(face, "a:")] == ["a:1", "a:2"]
    assert [view.key for view in await listed(face, "a:", state="held")] == ["a:2"]
    [free] = await listed(face, state="free")
    assert (free.held, free.fencing_token, free.expires_at) == (False, freed.fencing_token, None)


@pytest.mark.parametrize(
    "broken",
    [
        {"held": "yes"},
        {"holder": 5},
        {"acquired_at": "yesterday"},
        {"ttl_seconds": True},
        {"fencing_token": 2**53},
        {"waiters": None},
        {"key": None},
    ],
)
def test_what_is_no_row_is_no_answer(stage: Stage, broken: dict[str, Any]) -> None:
    """SDK-15, SDK-7."""
    with pytest.raises(ServerError, match="is not an answer of a lock service"):
        stage.play(stage.flows().view("k", None), Answer(200, {}, json.dumps({**ROW, **broken}).encode()))


@pytest.mark.parametrize("left_out", ROW)
def test_a_row_that_lacks_something_is_none(stage: Stage, left_out: str) -> None:
    """SDK-15."""
    row = {name: value for name, value in ROW.items() if name != left_out}
    page = Answer(200, {}, json.dumps({"items": [row], "next_cursor": None}).encode())
    with pytest.raises(ServerError, match="is not an answer of a lock service"):
        stage.play(stage.flows().pages("", "all")(None), page)


def test_a_cursor_is_sent_back_as_it_came(stage: Stage) -> None:
    page = Answer(200, {}, json.dumps({"items": [ROW], "next_cursor": None}).encode())
    stage.play(stage.flows().pages("a:", "held")("locks.a:/é&"), page)
    assert stage.requests()[0].path == "/locks?prefix=a%3A&state=held&limit=100&cursor=locks.a%3A%2F%C3%A9%26"


def test_a_prefix_and_a_state_that_cannot_be_are_refused_before_anything_is_sent(stage: Stage) -> None:
    with pytest.raises(ValueError, match="prefix must be empty or the beginning of a key"):
        stage.flows().pages("/", "all")
    with pytest.raises(TypeError, match="prefix must be a str, got int"):
        stage.flows().pages(5, "all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="state must be held, free or all, got 'taken'"):
        stage.flows().pages("", "taken")  # type: ignore[arg-type]
