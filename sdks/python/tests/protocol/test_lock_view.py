"""One lock and lists of locks (SDK-15)."""

import json
from datetime import timedelta
from typing import Any

import pytest

from volcano_locks import AsyncClient, LockView, ServerError
from volcano_locks.protocol.messages import Response
from volcano_locks.testing import FakeLocks, FaultyTransport, ManualClock
from volcano_locks.testing.clock import START

from ..client_targets import Target
from ..operation_driver import OperationDriver

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


async def collect(target: Target, prefix: str = "", **options: Any) -> list[LockView]:
    return [view async for view in target.listed(prefix, **options)]


async def test_a_view_has_every_field_of_a_held_lock(target: Target, server: FakeLocks, clock: ManualClock) -> None:
    async with server.async_client(holder="host/1") as other:
        lease = await other.locks.acquire("k", ttl=30)
        clock.jump(10)
        await other.locks.renew("k", lease, ttl=60)
    assert await target.view("k") == LockView(
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


async def test_a_lock_that_was_never_used_is_free(target: Target) -> None:
    assert await target.view("k") == LockView("k", False, None, None, None, None, None, None, 0)


async def test_pages_are_requested_on_demand(target: Target, rival: AsyncClient, network: FaultyTransport) -> None:
    """SDK-15: complete, without duplicates, in key order."""
    for number in range(250):
        await rival.locks.acquire(f"k{number:03}", ttl=30)
    views = target.listed("k")
    first = await anext(views)
    assert len(network.seen) == 1
    rest = [view async for view in views]
    assert [view.key for view in (first, *rest)] == [f"k{number:03}" for number in range(250)]
    assert len(network.seen) == 3


async def test_a_list_may_have_a_prefix_and_a_state(target: Target, rival: AsyncClient) -> None:
    freed = await rival.locks.acquire("a:1", ttl=30)
    for key in ("a:2", "b:1"):
        await rival.locks.acquire(key, ttl=30)
    await rival.locks.release("a:1", freed)
    assert [view.key for view in await collect(target)] == ["a:1", "a:2", "b:1"]
    assert [view.key for view in await collect(target, "a:")] == ["a:1", "a:2"]
    assert [view.key for view in await collect(target, "a:", state="held")] == ["a:2"]
    [free] = await collect(target, state="free")
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
def test_a_malformed_field_is_an_error(driver: OperationDriver, broken: dict[str, Any]) -> None:
    """SDK-15, SDK-7."""
    with pytest.raises(ServerError, match="is not a response of a lock service"):
        driver.run(driver.operations().view("k", None), Response(200, {}, json.dumps({**ROW, **broken}).encode()))


@pytest.mark.parametrize("missing", ROW)
def test_a_missing_field_is_an_error(driver: OperationDriver, missing: str) -> None:
    """SDK-15."""
    row = {name: value for name, value in ROW.items() if name != missing}
    page = Response(200, {}, json.dumps({"items": [row], "next_cursor": None}).encode())
    with pytest.raises(ServerError, match="is not a response of a lock service"):
        driver.run(driver.operations().list("", "all"), page)


def test_a_cursor_is_sent_back_unchanged(driver: OperationDriver) -> None:
    first, last = (
        Response(200, {}, json.dumps({"items": [ROW], "next_cursor": cursor}).encode())
        for cursor in ("locks.a:/é&", None)
    )
    driver.run(driver.operations().list("a:", "held"), first, last)
    assert driver.requests()[1].path == "/locks?prefix=a%3A&state=held&limit=100&cursor=locks.a%3A%2F%C3%A9%26"


def test_an_invalid_prefix_or_state_raises_before_anything_is_sent(driver: OperationDriver) -> None:
    with pytest.raises(ValueError, match="prefix must be empty or the beginning of a key"):
        driver.operations().list("/", "all")
    with pytest.raises(TypeError, match="prefix must be a str, got int"):
        driver.operations().list(5, "all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="state must be held, free or all, got 'taken'"):
        driver.operations().list("", "taken")  # type: ignore[arg-type]
