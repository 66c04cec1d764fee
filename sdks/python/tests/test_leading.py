"""SDK-13: campaign, lead, stop on loss, campaign again; in asyncio and in threads."""

import asyncio
import threading
from collections.abc import Callable
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
from volcano_locks.testing import Answers, DropAfterSend, DropBeforeSend, FakeLocks, FlakyTransport, ManualClock, Pass

from .conftest import until


class Terms:
    """What an asyncio function was called for: begun and ended, and never two at once."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.tokens: list[int] = []
        self.leading = False

    async def run(self, guard: AsyncLockGuard) -> str:
        assert not self.leading
        self.leading = True
        self.told.append("begun")
        self.tokens.append(guard.fencing_token)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.told.append("ended")
            self.leading = False
        return "never"


@pytest.fixture
def terms() -> Terms:
    return Terms()


async def test_each_loss_ends_the_function_once_and_it_begins_again(
    async_client: AsyncClient, rival: AsyncClient, terms: Terms, clock: ManualClock
) -> None:
    """SDK-13: forced out three times, it leads four times, each with a higher fencing token."""
    leading = asyncio.create_task(async_client.locks.lead("k", terms.run, ttl=30))
    for turn in range(3):
        await until(lambda: terms.leading and len(terms.told) == 2 * turn + 1)  # noqa: B023
        await rival.locks.force_release("k")
        await clock.advance_async(12)
    await until(lambda: len(terms.told) == 7)
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading
    assert terms.told == ["begun", "ended"] * 4
    assert terms.tokens == sorted(set(terms.tokens))
    assert not (await rival.locks.get("k")).held


@pytest.mark.real_time
async def test_who_cannot_reach_the_server_stops_leading_in_time_and_comes_back(
    async_client: AsyncClient, server: FakeLocks, net: FlakyTransport, terms: Terms, clock: ManualClock
) -> None:
    """SDK-13, case 11: cut off, it has ended before another leads; reconnected, it waits behind that one."""
    others = Terms()
    async with server.async_client() as other:
        leading = asyncio.create_task(async_client.locks.lead("k", terms.run, ttl=30))
        await until(lambda: terms.leading)
        campaigning = asyncio.create_task(other.locks.lead("k", others.run, ttl=30))
        await until(lambda: server.waiters("k") == 1)
        net.otherwise = DropBeforeSend()
        await clock.advance_async(29)
        assert not others.leading
        await clock.advance_async(5)
        await until(lambda: others.leading)
        assert terms.told == ["begun", "ended"]
        net.otherwise = Pass()
        while not server.waiters("k"):
            await clock.advance_async(1)
            await asyncio.sleep(0.001)
        campaigning.cancel()
        await asyncio.gather(campaigning, return_exceptions=True)
        await until(lambda: terms.leading)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert (terms.told, others.told) == (["begun", "ended"] * 2, ["begun", "ended"])


async def test_a_function_that_returns_gives_the_leadership_up(async_client: AsyncClient, rival: AsyncClient) -> None:
    async def run(guard: AsyncLockGuard) -> int:
        return guard.fencing_token

    token = await async_client.locks.lead("k", run, ttl=30)
    assert (await rival.locks.view("k")).fencing_token == token
    assert not (await rival.locks.get("k")).held


async def test_what_the_function_raises_is_raised(async_client: AsyncClient, rival: AsyncClient) -> None:
    """SDK-13: also another lock's loss, which is none of this one's."""

    async def run(guard: AsyncLockGuard) -> None:
        raise LockOwnershipLostError("of another lock")

    with pytest.raises(LockOwnershipLostError, match="of another lock"):
        await async_client.locks.lead("k", run, ttl=30)
    assert not (await rival.locks.get("k")).held


async def test_a_grant_that_ran_out_unheard_of_does_not_end_the_campaign(
    async_client: AsyncClient, net: FlakyTransport, clock: ManualClock
) -> None:
    """SDK-11, LEASE-5: by the third request the lease that the first was granted is in its margin or its grace."""
    net.script.extend([DropAfterSend(), Answers(503, headers={"Retry-After": "9"})])

    async def run(guard: AsyncLockGuard) -> str:
        return guard.lease.token

    leading = asyncio.create_task(async_client.locks.lead("k", run, ttl=10))
    await until(lambda: clock.next_due() < clock.now() + 10)
    clock.jump(10)
    token = await leading
    assert [seen.method for seen in net.seen] == ["POST", "POST", "POST", "DELETE", "POST", "DELETE"]
    assert [seen.headers["X-Volcano-Lock-Token"] == token for seen in net.seen] == [False] * 4 + [True] * 2


async def test_a_refused_credential_ends_the_campaign(async_client: AsyncClient, net: FlakyTransport) -> None:
    net.otherwise = Answers(401)
    with pytest.raises(AuthenticationError):
        await async_client.locks.lead("k", Terms().run, ttl=30)


async def test_closing_the_client_ends_a_campaign(
    async_client: AsyncClient, rival: AsyncClient, server: FakeLocks
) -> None:
    await rival.locks.acquire("k", ttl=30)
    campaigning = asyncio.create_task(async_client.locks.lead("k", Terms().run, ttl=30))
    await until(lambda: server.waiters("k") == 1)
    await async_client.close()
    with pytest.raises(VolcanoError, match="this client is closed"):
        await campaigning
    assert server.waiters("k") == 0


class Leader:
    """`lead` in a thread, with a function that looks at its guard."""

    def __init__(self, client: Client, run: Callable[[LockGuard], Any], stop: threading.Event | None = None) -> None:
        self.result: object = None
        self._lead = lambda: client.locks.lead("k", run, ttl=30, stop=stop)
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
    """SDK-13: whether it looks by `lost` or by `raise_if_lost`."""
    told: list[str] = []

    def run(guard: LockGuard) -> str:
        told.append("begun")
        guard.wait_lost()
        told.append("ended")
        if len(told) == 2:
            guard.raise_if_lost()
        return "lost" if len(told) < 6 else "enough"

    leader = Leader(client, run)
    for turn in range(3):
        await until(lambda: len(told) == 2 * turn + 1)  # noqa: B023
        await rival.locks.force_release("k")
        await asyncio.to_thread(clock.advance, 12)
    await until(lambda: len(told) == 7)
    client.close()
    assert await asyncio.to_thread(leader.end) == "enough", "it returned, and had not lost the lock"
    assert told == ["begun", "ended"] * 4


async def test_a_thread_that_returns_while_it_leads_is_done(client: Client, rival: AsyncClient) -> None:
    leader = Leader(client, lambda guard: guard.fencing_token)
    assert await asyncio.to_thread(leader.end) == (await rival.locks.view("k")).fencing_token
    assert not (await rival.locks.get("k")).held


async def test_setting_stop_ends_a_campaign_and_gives_its_place_back(
    client: Client, rival: AsyncClient, server: FakeLocks
) -> None:
    """SDK-13."""
    await rival.locks.acquire("k", ttl=30)
    stop = threading.Event()
    leader = Leader(client, lambda guard: "never", stop)
    await until(lambda: server.waiters("k") == 1)
    stop.set()
    assert await asyncio.to_thread(leader.end) is None
    assert server.waiters("k") == 0


async def test_a_function_that_is_none_is_refused(client: Client, async_client: AsyncClient) -> None:
    with pytest.raises(TypeError, match="run must be a function"):
        client.locks.lead("k", Terms().run, ttl=30)
    with pytest.raises(TypeError, match="run must be a function"):
        await async_client.locks.lead("k", "run", ttl=30)  # type: ignore[arg-type]
