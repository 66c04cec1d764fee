"""SDK-28: who held a lock, read from the history by both clients."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volcano_locks import Client, HoldEntry
from volcano_locks.testing import FakeLocks, ManualClock
from volcano_locks_server.testing import running_server

FIELDS = ("holder", "began", "ended", "reason", "renewals", "held_seconds")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def locks(clock: ManualClock) -> FakeLocks:
    """Locks with a released, a forced, an expired and a current hold of `a`, each two seconds after the other."""
    server = FakeLocks(clock)
    with server.client(holder="ann") as ann:
        lease = ann.locks.acquire("a", ttl=30)
        clock.advance(1)
        ann.locks.release("a", ann.locks.renew("a", lease))
        clock.advance(1)
        ann.locks.acquire("a", ttl=30)
        clock.advance(1)
        ann.locks.force_release("a", reason="stuck")
        clock.advance(1)
        ann.locks.acquire("a", ttl=5)
        clock.advance(8)
        ann.locks.acquire("a", ttl=30)
        clock.advance(2)
    return server


def shown(hold: HoldEntry) -> tuple[Any, ...]:
    return tuple(getattr(hold, name) for name in FIELDS)


def test_holds_are_iterated_from_the_latest_to_the_first(locks: FakeLocks) -> None:
    """SDK-28."""
    with locks.client() as client:
        holds = list(client.locks.history("a"))
        assert list(client.locks.history("b")) == []
        assert list(client.locks.history(prefix="a")) == holds
    assert [shown(hold) for hold in holds] == [
        ("ann", "taken_over", None, None, 0, 2.0),
        ("ann", "free", "expired", None, 0, 6.0),
        ("ann", "free", "forced", "stuck", 0, 1.0),
        ("ann", "free", "released", None, 1, 1.0),
    ]


def test_a_period_selects_holds(locks: FakeLocks, clock: ManualClock) -> None:
    """SDK-28: `at`, and `since` and `before`; an instant needs a zone."""
    began_at = clock.utc_now() - timedelta(seconds=14)
    with locks.client() as client:

        def ends(**period: datetime) -> list[str | None]:
            return [hold.ended for hold in client.locks.history("a", **period)]

        assert ends(at=began_at + timedelta(seconds=2.5)) == ["forced"]
        assert ends(since=began_at + timedelta(seconds=2.5), before=began_at + timedelta(seconds=5)) == [
            "expired",
            "forced",
        ]
        for wrong, error in ((datetime(2026, 1, 1), ValueError), ("03:12", TypeError)):  # noqa: DTZ001 - refused
            with pytest.raises(error, match="at must"):
                client.locks.history("a", at=wrong)  # type: ignore[arg-type]


async def test_the_asyncio_client_iterates_too(locks: FakeLocks) -> None:
    """SDK-28."""
    async with locks.async_client() as client:
        assert [hold.ended async for hold in client.locks.history("a")] == [None, "expired", "forced", "released"]


def test_a_server_s_pages_are_read_on_demand() -> None:
    """SDK-28: more holds than one page has."""

    with running_server() as server, Client(server.url, server.service_key, holder="host/1") as client:
        for _ in range(101):
            client.locks.release("a", client.locks.acquire("a", ttl=30))
        holds = list(client.locks.history("a"))
    assert len(holds) == 101
    assert (holds[0].holder, holds[0].began, holds[0].ended, holds[0].address) == (
        "host/1",
        "free",
        "released",
        "127.0.0.1",
    )
    assert holds[0].client is not None
    assert holds[0].began_at.tzinfo == UTC
