"""A store that was served under a clock a year ahead is served again after a reset (LEASE-19, case 68)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import LockQuery, lock_name
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Granted, Held, Outcome, Refused, Release
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.etcd import reset as etcd_reset
from volcano_locks_server.stores.maintenance import plan_reset, reset_clock
from volcano_locks_server.testing import ManualClock

from .conftest import url_of
from .record_damage import lock_damages
from .store_actions import PROJECT, digest, key, run_commands

YEAR_MS = 365 * 86_400_000
KINDS = ["sqlite", "postgres", "etcd"]
pytestmark = pytest.mark.real_time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def perform(store: OpenStore, name: str, command: Acquire | Release) -> Outcome:
    (outcome,) = await run_commands(store.locks, (key(name), command))
    return outcome


async def granted(store: OpenStore, name: str, owner: str, ttl_seconds: int = 30) -> Granted:
    outcome = await perform(store, name, Acquire(digest(owner), ttl_seconds))
    assert isinstance(outcome, Granted)
    return outcome


async def served_a_year_ahead(url: str) -> dict[str, int]:
    """Serve the store under such a clock. Returns the last token of each lock: one is held, one has expired, one is
    free, one was purged.
    """
    clock = ManualClock(wall_ms() + YEAR_MS)
    store = await open_store(url, clock)
    tokens = {"purged": (await granted(store, "purged", "me")).fencing_token}
    await perform(store, "purged", Release(digest("me")))
    clock.advance(25 * 3_600_000)
    await store.locks.ready()
    assert await store.locks.purge(limit=10) >= 1
    for name, ttl_seconds in (("held", 3_600), ("expired", 5), ("free", 30)):
        tokens[name] = (await granted(store, name, "me", ttl_seconds)).fencing_token
    await perform(store, "free", Release(digest("me")))
    clock.advance(10_000)
    await granted(store, "held", "me", 3_600)
    await store.close()
    return tokens


async def refusal(awaitable: Awaitable[object]) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await awaitable
    return caught.value.cause_code


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reset_store_serves_and_keeps_its_promises(kind: str, request: pytest.FixtureRequest) -> None:
    """LEASE-3, LEASE-19: also over a second restart, and the second reset has nothing to do."""
    url = url_of(kind, request)
    tokens = await served_a_year_ahead(url)
    assert await refusal(open_store(url, SystemClock())) == "clock_behind"
    plan = await plan_reset(url)
    assert plan.held == 1
    assert 3_590_000 <= plan.longest_ms <= 3_600_000
    assert abs(plan.by_ms - YEAR_MS - 25 * 3_600_000 - 10_000) < 60_000
    await reset_clock(url, plan)
    for number in range(2):
        store = await open_store(url, SystemClock())
        refused = await perform(store, "held", Acquire(digest("other"), 30))
        assert isinstance(refused, Refused)
        assert refused.code == "lock_held"
        page = await store.locks.list_locks(LockQuery(PROJECT, 10, held=True))
        assert ("held", True) in [(str(name), isinstance(record, Held)) for name, record in page.records]
        repeated = await granted(store, "held", "me", 3_600)
        assert repeated.fencing_token == tokens["held"]
        assert abs(repeated.expires_at_ms - wall_ms() - 3_600_000) < 60_000
        for name in ("expired", "free", "purged"):
            token = (await granted(store, name, f"other-{number}")).fencing_token
            assert token > tokens[name]
            tokens[name] = token
            await perform(store, name, Release(digest(f"other-{number}")))
        assert (await granted(store, f"new-{number}", "me")).fencing_token >= max(tokens.values())
        await store.close()
    assert (await plan_reset(url)).by_ms == 0


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
async def test_a_store_in_use_is_not_reset(kind: str, request: pytest.FixtureRequest) -> None:
    """LEASE-19: PostgreSQL shows no node from outside; its nodes refuse to go on with a clock that went back."""
    url = url_of(kind, request)
    store = await open_store(url, SystemClock())
    assert await refusal(plan_reset(url)) in ("file_in_use", "store_in_use")
    await store.close()


async def test_a_store_that_was_written_since_it_was_shown_is_not_reset(path: Path) -> None:
    """LEASE-19: what is carried out is what was confirmed."""
    url = f"sqlite:///{path}"
    await served_a_year_ahead(url)
    plan = await plan_reset(url)
    store = await open_store(url, ManualClock(wall_ms() + 2 * YEAR_MS))
    await store.locks.ready()
    await store.close()
    assert await refusal(reset_clock(url, plan)) == "store_in_use"
    assert await refusal(open_store(url, SystemClock())) == "clock_behind"


async def test_a_file_that_is_ahead_within_its_boot_is_reset(path: Path, clock: ManualClock) -> None:
    """LEASE-19: its time goes on by the clock of the boot, so a lease keeps what it has left now."""
    url = f"sqlite:///{path}"
    clock.jump(YEAR_MS)
    store = await open_store(url, clock)
    await granted(store, "held", "me", 60)
    await store.close()
    clock.jump(-YEAR_MS)
    clock.advance(10_000)
    plan = await plan_reset(url, clock)
    assert (plan.by_ms, plan.held, plan.longest_ms) == (YEAR_MS, 1, 50_000)
    await reset_clock(url, plan, clock)
    store = await open_store(url, clock)
    clock.advance(50_999)
    assert isinstance(await perform(store, "held", Acquire(digest("other"), 30)), Refused)
    clock.advance(1)
    await granted(store, "held", "other")
    await store.close()


async def test_an_interrupted_reset_of_etcd_is_continued(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-19: no node serves in between, and no record is moved twice."""
    url = url_of("etcd", request)
    await served_a_year_ahead(url)
    plan = await plan_reset(url)

    async def interrupted(_reset: object, _progress: object) -> None:
        raise asyncio.CancelledError

    finish: Callable[..., object] = etcd_reset._Reset._finish
    monkeypatch.setattr(etcd_reset._Reset, "_finish", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await reset_clock(url, plan)
    monkeypatch.setattr(etcd_reset._Reset, "_finish", finish)
    assert await refusal(open_store(url, SystemClock())) == "half_reset"
    await reset_clock(url, await plan_reset(url))
    store = await open_store(url, SystemClock())
    assert isinstance(await perform(store, "held", Acquire(digest("other"), 30)), Refused)
    page = await store.locks.list_locks(LockQuery(PROJECT, 10, held=True))
    ((_, record),) = page.records
    assert isinstance(record, Held)
    assert 3_500_000 < record.expires_at_ms - wall_ms() < 3_600_000
    await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_damaged_records_are_named_and_left_as_they_are(kind: str, request: pytest.FixtureRequest) -> None:
    """LEASE-18, LEASE-19, case 63: the others are moved."""
    url = url_of(kind, request)
    await served_a_year_ahead(url)
    store = await open_store(url, ManualClock(wall_ms() + 2 * YEAR_MS))
    damages = lock_damages(store, url)
    names = [f"spoilt-{number}" for number in range(len(damages))]
    for name, damage in zip(names, damages, strict=True):
        await granted(store, name, "me", 3_600)
        await damage(key(name))
    await granted(store, "held", "me", 3_600)
    await store.close()
    plan = await plan_reset(url)
    assert sorted(error.record for error in plan.damaged) == sorted(lock_name(key(name)) for name in names)
    await reset_clock(url, plan)
    after = await plan_reset(url)
    assert after.by_ms == 0
    assert [(one.record, one.stored) for one in after.damaged] == [(one.record, one.stored) for one in plan.damaged]
    store = await open_store(url, SystemClock())
    repeated = await granted(store, "held", "me", 3_600)
    assert abs(repeated.expires_at_ms - wall_ms() - 3_600_000) < 60_000
    await store.close()
