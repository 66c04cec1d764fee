# ruff: noqa: PT012 - a block is entered, used and left in one statement
"""Blocks are not re-entrant (SDK-26)."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest

from volcano_locks import AsyncClient, Client, LockHeldError, LockOwnershipLostError
from volcano_locks.testing import DropBeforeSend, FakeLocks, FaultyTransport, ManualClock

from ..client_targets import Target
from ..helpers import eventually, until

NOT_REENTRANT = "lock 'k' is held by an outer block of the same thread or task: blocks are not re-entrant"


def test_a_block_inside_a_block_of_the_same_thread_is_refused(client: Client, network: FaultyTransport) -> None:
    """SDK-26, case 82: at once, also with an endless wait; nothing is sent, and the outer block goes on."""
    outer = client.locks.with_lock("k", ttl=30)
    with outer as guard:
        sent = len(network.seen)
        for wait in (None, 5, inf):
            with pytest.raises(LockHeldError, match=NOT_REENTRANT) as refused:
                client.locks.with_lock("k", ttl=30, wait=wait).__enter__()
            assert (refused.value.key, refused.value.fencing_token) == ("k", guard.fencing_token)
            assert (refused.value.code, refused.value.status) == ("lock_held", None)
        with pytest.raises(LockHeldError, match=NOT_REENTRANT):
            client.locks.lead("k", print, ttl=30)
        with pytest.raises(LockHeldError, match=NOT_REENTRANT):
            client.locks.with_lock("k", ttl=30)(print)()
        with pytest.raises(LockHeldError, match=NOT_REENTRANT):
            client.locks.exclusive("k", ttl=30, on_held="wait")(print)()
        assert client.locks.exclusive("k", ttl=30, on_held="skip")(lambda: "ran")() is None
        assert len(network.seen) == sent
        with client.locks.with_lock("other", ttl=30):
            assert not guard.lost
    assert outer.loss is None
    with client.locks.with_lock("k", ttl=30):
        pass


async def test_a_block_inside_a_block_of_the_same_task_is_refused(
    async_client: AsyncClient, network: FaultyTransport
) -> None:
    """SDK-26, case 82."""
    locks = async_client.locks

    async def body(guard: object = None) -> str:
        return "ran"

    async with locks.with_lock("k", ttl=30) as guard:
        sent = len(network.seen)
        refused: list[Callable[[], Awaitable[Any]]] = [
            lambda: locks.with_lock("k", ttl=30).__aenter__(),
            lambda: locks.with_lock("k", ttl=30, wait=inf).__aenter__(),
            lambda: locks.lead("k", body, ttl=30),
            locks.with_lock("k", ttl=30)(body),
            locks.exclusive("k", ttl=30, on_held="wait")(body),
        ]
        for call in refused:
            with pytest.raises(LockHeldError, match=NOT_REENTRANT):
                await call()
        assert await locks.exclusive("k", ttl=30, on_held="skip")(body)() is None
        assert len(network.seen) == sent
        async with locks.with_lock("other", ttl=30):
            assert not guard.lost
    async with locks.with_lock("k", ttl=30):
        pass


def test_another_thread_waits(client: Client, server: FakeLocks) -> None:
    """SDK-26: also a thread that the body started. Another client of the same thread is another holder."""
    entered: list[int] = []

    def work() -> None:
        with client.locks.with_lock("k", ttl=30, wait=inf) as guard:
            entered.append(guard.fencing_token)

    thread = threading.Thread(target=work, daemon=True)
    with client.locks.with_lock("k", ttl=30) as guard, server.client() as other:
        thread.start()
        eventually(lambda: server.waiters("k") == 1)
        with pytest.raises(LockHeldError) as held:
            other.locks.acquire("k", ttl=30)
        assert held.value.status == 409
        assert entered == []
    thread.join(20)
    assert entered > [guard.fencing_token]


async def test_another_task_and_a_child_task_wait(async_client: AsyncClient, server: FakeLocks) -> None:
    """SDK-26."""
    entered: list[str] = []
    hold = asyncio.Event()

    async def work(name: str) -> None:
        async with async_client.locks.with_lock("k", ttl=30, wait=inf):
            entered.append(name)
            if name == "first":
                await asyncio.create_task(asyncio.sleep(0))
                children.append(asyncio.create_task(work("child")))
                await hold.wait()

    children: list[asyncio.Task[None]] = []
    first = asyncio.create_task(work("first"))
    await until(lambda: entered == ["first"])
    other = asyncio.create_task(work("other"))
    await until(lambda: server.waiters("k") == 2)
    assert entered == ["first"]
    hold.set()
    await asyncio.gather(first, other, *children)
    assert sorted(entered) == ["child", "first", "other"]


async def test_a_lost_outer_hold_does_not_refuse(
    client: Client, async_client: AsyncClient, clock: ManualClock, rival: AsyncClient
) -> None:
    """SDK-26: the inner block may acquire what the outer one lost, and leaving the outer one does not forget it."""

    def blocks() -> None:
        inner = client.locks.with_lock("k", ttl=30)
        with pytest.raises(LockOwnershipLostError), client.locks.with_lock("k", ttl=30) as outer:
            clock.jump(31)
            assert outer.lost
            inner.__enter__()
        with pytest.raises(LockHeldError, match=NOT_REENTRANT):
            client.locks.with_lock("k", ttl=30).__enter__()
        inner.__exit__(None, None, None)

    await asyncio.to_thread(blocks)
    assert not (await rival.locks.get("k")).held


def test_a_block_dropped_without_being_left_does_not_refuse(client: Client, clock: ManualClock) -> None:
    """SDK-26: its hold lapses like its lease."""
    client.locks.with_lock("k", ttl=30).__enter__()
    with pytest.raises(LockHeldError):
        client.locks.with_lock("k", ttl=30).__enter__()
    clock.jump(31)
    with client.locks.with_lock("k", ttl=30):
        pass


def test_a_block_may_be_left_in_another_thread(client: Client) -> None:
    """SDK-26: the thread that entered it may then enter another block."""
    block = client.locks.with_lock("k", ttl=30)
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join(20)
    with client.locks.with_lock("k", ttl=30):
        pass


@pytest.mark.real_time
async def test_entering_a_block_twice_is_refused_and_changes_nothing(
    target: Target, clock: ManualClock, network: FaultyTransport
) -> None:
    """SDK-26: the block that was entered first still holds, renews and finds its loss."""
    block = target.hold("k", ttl=30)
    with pytest.raises(LockOwnershipLostError):
        async with block as guard:
            with pytest.raises(RuntimeError, match="entered only once"):
                await block.__aenter__()
            assert not guard.lost
            await clock.advance_async(60)
            assert not guard.lost
            network.otherwise = DropBeforeSend()
            clock.jump(31)
            await asyncio.sleep(0.01)
