"""The renewals of one hold, in a task and in a thread (SDK-3, SDK-6)."""

import sys
import threading

import pytest

from volcano_locks import AsyncLockGuard, LockOwnershipLostError
from volcano_locks.errors import ConflictError
from volcano_locks.protocol.messages import Response
from volcano_locks.testing import Answers, FakeLocks, FaultyTransport, ManualClock
from volcano_locks.testing.in_memory import HttpRequest, NewWakeup, Server, Serving

from ..client_targets import Target

LOST = Answers(409, b'{"error": "taken over", "code": "lock_ownership_lost"}')


@pytest.fixture(autouse=True)
def jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the jitter, so that renewals are due at exactly a third of the TTL."""
    monkeypatch.setattr("volcano_locks.holding.block.random_fraction", lambda: 0.5)


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("loop"), TimeoutError(), ConflictError("409")])
async def test_a_renewal_may_raise_anything_until_the_deadline(
    target: Target, network: FaultyTransport, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """SDK-6, case 1, case 2, case 5: the loss is found once, at the deadline."""
    attempts: list[float] = []
    losses: list[float] = []

    serve = network.serve

    def fail(request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        if request.method == "PATCH":
            attempts.append(clock.now())
            raise error
        return serve(request, new_wakeup)

    with pytest.raises(LockOwnershipLostError, match="not renewed within its 30 seconds"):  # noqa: PT012
        async with target.hold("k", ttl=30) as guard:
            guard._hold.on_end(lambda: losses.append(clock.now()))
            monkeypatch.setattr(network, "serve", fail)
            await clock.advance_async(60)
    assert losses == [1030.0]
    assert len(attempts) > 4
    assert max(attempts) < 1029


async def test_a_loss_reported_by_the_server_ends_the_renewals(
    target: Target, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-3: `lock_ownership_lost` is a loss. The client knows of it and releases nothing."""
    losses: list[float] = []
    with pytest.raises(LockOwnershipLostError, match="taken over"):  # noqa: PT012
        async with target.hold("k", ttl=30) as guard:
            guard._hold.on_end(lambda: losses.append(clock.now()))
            network.script.append(LOST)
            await clock.advance_async(25)
    assert losses == [1010.0]
    assert [seen.method for seen in network.seen] == ["POST", "PATCH"]


async def test_the_interval_of_renewals_can_be_set(
    target: Target, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-3: jitter shortens the interval by at most a tenth."""
    async with target.hold("k", ttl=600, renew_every=100):
        await clock.advance_async(94)
        assert len(network.seen) == 1
        await clock.advance_async(2)
        assert len(network.seen) == 2
    for every in (0.5, 201):
        with pytest.raises(ValueError, match="renew_every"):
            target.hold("k", ttl=600, renew_every=every)
        with pytest.raises(ValueError, match="renew_every"):
            target.client.locks.exclusive("k", ttl=600, renew_every=every)
        with pytest.raises(ValueError, match="renew_every"):
            await target.lead("k", lead_async if target.name == "async" else print, ttl=600, renew_every=every)
    with pytest.raises(TypeError, match="renew_every"):
        target.hold("k", ttl=600, renew_every="10")
    assert [seen.method for seen in network.seen] == ["POST", "PATCH", "DELETE"]


@pytest.mark.parametrize(("remaining", "renews_at"), [(51, 57), (50, 200)])
async def test_the_quota_in_the_last_response_sets_the_first_renewal(
    target: Target, network: FaultyTransport, clock: ManualClock, remaining: int, renews_at: float
) -> None:
    """SDK-3: at most a minute, unless half of the quota is spent."""
    network.inner = WithQuota(network.inner, remaining)
    async with target.hold("k", ttl=600):
        await clock.advance_async(renews_at - 1)
        assert len(network.seen) == 1
        await clock.advance_async(1)
        assert len(network.seen) == 2


async def test_the_quota_in_any_response_sets_the_next_renewal(
    target: Target, network: FaultyTransport, server: FakeLocks, clock: ManualClock
) -> None:
    """SDK-3: also in the error of another call; a renewal that shows no quota keeps what the last one showed."""
    spent = {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "3"}
    network.script.append(Answers(429, b"", spent))
    with pytest.raises(Exception, match="HTTP 429"):
        await target.force_release("other")
    network.script.append(Answers(200, b'{"held": false}', spent))
    await target.get("other")
    network.inner = WithQuota(server, 3)
    async with target.hold("k", ttl=600):
        network.inner = WithQuota(server, 100)
        await clock.advance_async(199)
        assert len(network.seen) == 3
        await clock.advance_async(1 + 56)
        assert len(network.seen) == 4, "the renewal showed quota again, so the next one is due in a minute"
        await clock.advance_async(1)
        assert len(network.seen) == 5


async def lead_async(guard: AsyncLockGuard) -> None: ...


class WithQuota:
    """A server of a project with a quota of 100."""

    def __init__(self, server: Server, remaining: int) -> None:
        self.server = server
        self.quota = {"x-ratelimit-limit": "100", "x-ratelimit-remaining": str(remaining)}

    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        reply = yield from self.server.serve(request, new_wakeup)
        assert isinstance(reply, Response)
        return reply._replace(headers={**reply.headers, **self.quota})


def test_without_a_thread_to_be_had_the_others_renew(
    server: FakeLocks, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6, case 2: the system's limit of threads ends no renewal."""
    with (
        server.client() as client,
        client.locks.with_lock("a", ttl=30) as one,
        client.locks.with_lock("b", ttl=30) as two,
    ):
        clock.settle()

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        clock.advance(100)
        assert not one.lost
        assert not two.lost


async def test_a_thread_that_rechecks_the_time_misses_no_renewal(
    target: Target, network: FaultyTransport, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manual clock stops at each renewal, although the sleeping thread wakes up between its look and its move."""
    monkeypatch.setattr("volcano_locks.testing.clock.RECHECK_SECONDS", 0.000_01)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.000_001)
    try:
        async with target.hold("k", ttl=30):
            await clock.advance_async(600)
    finally:
        sys.setswitchinterval(interval)
    assert len(network.seen) >= 60
