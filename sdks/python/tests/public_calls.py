# pyright: strict
"""Each public call with the types that a program relies on: checked by mypy --strict and pyright, never run."""

import datetime
from collections.abc import Callable
from typing import assert_type

from volcano_locks import (
    AsyncClient,
    AsyncLockGuard,
    Client,
    Leadership,
    Lease,
    LockGuard,
    LockHeldError,
    LockState,
    LockView,
    VolcanoError,
)
from volcano_locks.testing import FakeClient, FakeLocks, ManualClock


def blocking(client: Client) -> None:
    """The calls of `Client`."""
    lease = client.locks.acquire("k", ttl=30, wait=1.5, token=None)
    assert_type(lease, Lease)
    assert_type(client.locks.renew("k", lease, ttl=60), Lease)
    assert_type(client.locks.get("k"), LockState)
    view = client.locks.view("k")
    assert_type(view, LockView)
    assert_type(view.expires_at, datetime.datetime | None)
    client.locks.force_release("k", fencing_token=view.fencing_token, reason="host is gone")
    client.locks.release("k", lease)
    for row in client.locks.list("k", state="held"):
        assert_type(row, LockView)
    for change in client.locks.watch("k"):
        assert_type(change, Leadership)
    with client.locks.with_lock("k", ttl=30, hold_at_least=60, renew_every=5) as guard:
        assert_type(guard, LockGuard)
        assert_type(guard.fencing_token, int)
        assert_type(guard.lost, bool)
        guard.raise_if_lost()
        assert_type(guard.wait_lost(1), bool)
    assert_type(client.locks.lead("k", lambda guard: guard.fencing_token, ttl=15), int | None)
    assert_type(Lease.from_record(lease.to_record()), Lease)


def decorated(client: Client) -> None:
    """The decorators keep a function's arguments, and its result unless a call may be skipped."""

    @client.locks.exclusive("report-{day}", ttl=60)
    def report(day: str) -> int:
        return len(day)

    @client.locks.exclusive("report-{day}", ttl=60, on_held="skip")
    def skipped(day: str) -> int:
        return len(day)

    @client.locks.with_lock("k", ttl=30)
    def fixed(day: str) -> int:
        return len(day)

    assert_type(report("monday"), int)
    assert_type(skipped("monday"), int | None)
    assert_type(fixed("monday"), int)
    report(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def asynchronous(client: AsyncClient) -> None:
    """The calls of `AsyncClient`."""
    lease = await client.locks.acquire("k", ttl=30)
    assert_type(await client.locks.renew("k", lease), Lease)
    assert_type(await client.locks.get("k"), LockState)
    assert_type(await client.locks.view("k"), LockView)
    await client.locks.force_release("k")
    await client.locks.release("k", lease)
    async for row in client.locks.list():
        assert_type(row, LockView)
    async for change in client.locks.watch("k"):
        assert_type(change, Leadership)
    async with client.locks.with_lock("k", ttl=30) as guard:
        assert_type(guard, AsyncLockGuard)
        assert_type(guard.lease, Lease)

    async def plan(guard: AsyncLockGuard) -> str:
        return guard.lease.key

    assert_type(await client.locks.lead("k", plan, ttl=15), str)

    @client.locks.exclusive("report-{day}", ttl=60, on_held="skip")
    async def report(day: str) -> int:
        return len(day)

    assert_type(await report("monday"), int | None)


def failures(work: Callable[[], None]) -> str | None:
    """What the errors have."""
    try:
        work()
    except LockHeldError as held:
        assert_type(held.expires_at, datetime.datetime | None)
        return held.holder
    except VolcanoError as error:
        assert_type(error.retry_after, int | None)
        return error.code
    return None


def test_kit() -> None:
    """The fakes are clients."""
    clock = ManualClock()
    blocking(FakeClient(clock))
    server = FakeLocks(clock)
    assert_type(server.client(), Client)
    assert_type(server.async_client(), AsyncClient)
