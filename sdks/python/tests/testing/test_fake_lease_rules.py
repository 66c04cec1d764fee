"""The fake obeys the lease rules to the instant, so that tests against it are meaningful (SDK-10)."""

import pytest

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError
from volcano_locks.testing import FakeAsyncClient, FakeClient, FakeLocks, ManualClock

TOKEN = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
async def client_under_test(server: FakeLocks) -> AsyncClient:
    return server.async_client()


instants = pytest.mark.parametrize(
    ("after", "alive", "held"),
    [(28.999, True, True), (29.0, False, True), (30.999, False, True), (31.0, False, False)],
)


@instants
async def test_renewals_end_at_the_margin(
    client_under_test: AsyncClient, clock: ManualClock, after: float, alive: bool, held: bool
) -> None:
    lease = await client_under_test.locks.acquire("k", ttl=30)
    clock.jump(after)
    assert (await client_under_test.locks.get("k")).held is held
    if alive:
        await client_under_test.locks.renew("k", lease)
        return
    with pytest.raises(LockOwnershipLostError):
        await client_under_test.locks.renew("k", lease)


@instants
async def test_the_same_token_recovers_its_lease_only_before_the_margin(
    client_under_test: AsyncClient, clock: ManualClock, after: float, alive: bool, held: bool
) -> None:
    lease = await client_under_test.locks.acquire("k", ttl=30, token=TOKEN)
    clock.jump(after)
    if held and not alive:
        with pytest.raises(LockOwnershipLostError):
            await client_under_test.locks.acquire("k", ttl=30, token=TOKEN)
        return
    again = await client_under_test.locks.acquire("k", ttl=30, token=TOKEN)
    assert (again.fencing_token == lease.fencing_token) is alive


@instants
async def test_a_takeover_succeeds_only_after_the_grace(
    server: FakeLocks, rival: AsyncClient, after: float, alive: bool, held: bool
) -> None:
    lease = await server.async_client().locks.acquire("k", ttl=30)
    server.clock.jump(after)
    if held:
        with pytest.raises(LockHeldError):
            await rival.locks.acquire("k", ttl=30)
        return
    assert (await rival.locks.acquire("k", ttl=30)).fencing_token > lease.fencing_token


async def test_releases_and_retired_tokens(client_under_test: AsyncClient, rival: AsyncClient) -> None:
    first = await client_under_test.locks.acquire("k", ttl=30, token=TOKEN)
    await client_under_test.locks.release("k", first)
    await client_under_test.locks.release("k", first)
    with pytest.raises(LockOwnershipLostError):
        await client_under_test.locks.acquire("k", ttl=30, token=TOKEN)
    await rival.locks.acquire("k", ttl=30)
    with pytest.raises(LockOwnershipLostError):
        await client_under_test.locks.release("k", first)
    assert (await rival.locks.get("k")).held
    await client_under_test.locks.force_release("k")
    await client_under_test.locks.force_release("never-used")
    assert not (await rival.locks.get("k")).held


async def test_a_late_acquire_after_its_release_is_refused(client_under_test: AsyncClient) -> None:
    """case 15: its release came first and retired the token."""
    await client_under_test.locks.release("k", await client_under_test.locks.acquire("k", ttl=30, token=TOKEN))
    with pytest.raises(LockOwnershipLostError):
        await client_under_test.locks.acquire("k", ttl=30, token=TOKEN)


async def test_a_shorter_ttl_shortens_and_90_days_are_the_limit(
    client_under_test: AsyncClient, clock: ManualClock
) -> None:
    lease = await client_under_test.locks.acquire("k", ttl=7_776_000)
    clock.jump(1000)
    renewed = await client_under_test.locks.renew("k", lease)
    assert renewed.expires_at == lease.expires_at
    assert (await client_under_test.locks.renew("k", lease, ttl=5)).expires_at < lease.expires_at


async def test_fake_clients_may_share_their_locks() -> None:
    server = FakeLocks()
    with FakeClient(server=server) as threaded:
        async with FakeAsyncClient(server=server) as other:
            threaded.locks.acquire("k", ttl=30)
            with pytest.raises(LockHeldError):
                await other.locks.acquire("k", ttl=30)
            assert other.clock is threaded.clock is server.clock
    assert FakeClient().server is not FakeClient().server
