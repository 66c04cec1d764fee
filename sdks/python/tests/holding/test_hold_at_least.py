"""`hold_at_least` with both clients (SDK-12)."""

import pytest

from volcano_locks import AsyncClient, LockHeldError, UnavailableError
from volcano_locks.testing import (
    Answers,
    FaultyTransport,
    Hang,
    ManualClock,
    Pass,
)

from ..client_targets import Target
from ..helpers import until

UNAVAILABLE = Answers(503, b'{"error": "no store", "code": "lock_service_unavailable"}', {"retry-after": "1"})


async def test_a_hold_that_cannot_be_extended_is_reported_like_a_failed_release(
    target: Target, network: FaultyTransport, rival: AsyncClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-12: the block succeeds, and the lease expires as it would have."""
    async with target.hold("k", ttl=30, hold_at_least=60) as guard:
        network.otherwise = UNAVAILABLE
    assert isinstance(guard.release_error, UnavailableError)
    assert "lock k was not released" in caplog.text
    network.otherwise = Pass()
    clock.jump(31)
    assert await rival.locks.acquire("k", ttl=30)


async def test_a_running_renewal_does_not_shorten_the_hold(
    target: Target, network: FaultyTransport, rival: AsyncClient, clock: ManualClock
) -> None:
    """SDK-12: the running renewal ends, or is cancelled, before the last one is sent."""
    async with target.hold("k", ttl=30, hold_at_least=300):
        network.script.append(Hang())
        clock.jump(12)
        await until(lambda: [seen.method for seen in network.seen] == ["POST", "PATCH"])
    assert [seen.method for seen in network.seen] == ["POST", "PATCH", "PATCH"]
    clock.jump(280)
    with pytest.raises(LockHeldError):
        await rival.locks.acquire("k", ttl=30)
