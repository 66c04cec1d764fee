"""Leadership in asyncio and in threads (SDK-13)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from volcano_locks import (
    AsyncClient,
    AsyncLockGuard,
    AuthenticationError,
    Client,
    LockGuard,
    LockOwnershipLostError,
    VolcanoError,
)
from volcano_locks.testing import Answers, DropAfterSend, FakeLocks, FaultyTransport, ManualClock

from ..helpers import until


async def test_what_the_function_raises_is_raised(async_client: AsyncClient, rival: AsyncClient) -> None:
    """SDK-13: even the loss of another lock."""

    async def run(guard: AsyncLockGuard) -> None:
        raise LockOwnershipLostError("of another lock")

    with pytest.raises(LockOwnershipLostError, match="of another lock"):
        await async_client.locks.lead("k", run, ttl=30)
    assert not (await rival.locks.get("k")).held


async def test_a_lost_grant_that_expired_does_not_end_the_campaign(
    async_client: AsyncClient, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-11, LEASE-5: at the third request, the first one's lost grant is in its margin or its grace."""
    network.script.extend([DropAfterSend(), Answers(503, headers={"Retry-After": "9"})])

    async def run(guard: AsyncLockGuard) -> str:
        return guard.lease.token

    leading = asyncio.create_task(async_client.locks.lead("k", run, ttl=10))
    await until(lambda: clock.next_due() < clock.now() + 10)
    clock.jump(10)
    token = await leading
    assert [seen.method for seen in network.seen] == ["POST", "POST", "POST", "DELETE", "POST", "DELETE"]
    assert [seen.token == token for seen in network.seen] == [False] * 4 + [True] * 2


async def test_a_refused_credential_ends_the_campaign(async_client: AsyncClient, network: FaultyTransport) -> None:
    network.otherwise = Answers(401)
    with pytest.raises(AuthenticationError):
        await async_client.locks.lead("k", lead_until_cancelled, ttl=30)


async def test_closing_the_client_ends_a_campaign(
    async_client: AsyncClient, rival: AsyncClient, server: FakeLocks
) -> None:
    await rival.locks.acquire("k", ttl=30)
    campaigning = asyncio.create_task(async_client.locks.lead("k", lead_until_cancelled, ttl=30))
    await until(lambda: server.waiters("k") == 1)
    await async_client.close()
    with pytest.raises(VolcanoError, match="this client is closed"):
        await campaigning
    assert server.waiters("k") == 0


async def lead_until_cancelled(guard: AsyncLockGuard) -> None:
    await asyncio.Event().wait()


class Leader:
    """Runs `lead` in a thread."""

    def __init__(self, client: Client, run: Callable[[LockGuard], Any]) -> None:
        self.result: object = None
        self._lead = lambda: client.locks.lead("k", run, ttl=30)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self.result = self._lead()
        except Exception as error:
            self.result = error

    def end(self) -> object:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.result


async def test_a_thread_leads_until_the_loss_and_then_again(
    client: Client, rival: AsyncClient, clock: ManualClock
) -> None:
    """SDK-13: whether the function checks `lost` or calls `raise_if_lost`."""
    events: list[str] = []

    def run(guard: LockGuard) -> str:
        events.append("begun")
        if len(events) < 7:
            guard.wait_lost()
        events.append("ended")
        if len(events) == 2:
            guard.raise_if_lost()
        return "lost" if len(events) < 6 else "enough"

    leader = Leader(client, run)
    for turn in range(3):
        await until(lambda: len(events) == 2 * turn + 1)  # noqa: B023
        await rival.locks.force_release("k")
        await asyncio.to_thread(clock.advance, 12)
    assert await asyncio.to_thread(leader.end) == "enough", "it returned, and had not lost the lock"
    assert events == ["begun", "ended"] * 4


async def test_run_must_be_a_function_of_the_right_kind(
    client: Client, async_client: AsyncClient, network: FaultyTransport
) -> None:
    """SDK-16, case 44: nothing is sent. If the function returns a coroutine or a generator, the lock is released."""

    def later(guard: object) -> Iterator[None]:
        yield

    async def later_still(guard: object) -> AsyncIterator[None]:
        yield

    run: Any
    for run in (lead_until_cancelled, later, later_still, "run"):
        with pytest.raises(TypeError, match="must be a plain function"):
            client.locks.lead("k", run, ttl=30)
    for run in (later, later_still, print, "run"):
        with pytest.raises(TypeError, match="must be an `async def` function"):
            await async_client.locks.lead("k", run, ttl=30)
    assert network.seen == []

    def returns_a_coroutine(guard: object) -> object:
        return lead_until_cancelled(guard)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="returned a coroutine"):
        client.locks.lead("k", returns_a_coroutine, ttl=30)

    async def returns_a_generator(guard: object) -> Iterator[None]:
        return later(guard)

    with pytest.raises(TypeError, match="returned a generator"):
        await async_client.locks.lead("k", returns_a_generator, ttl=30)
    assert not client.locks.get("k").held
