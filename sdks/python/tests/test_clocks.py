"""The system's clock and the one a test moves (SDK-4, SDK-7, SDK-10)."""

import asyncio
import time
from math import inf

import pytest

from volcano_locks.clock import NAP_SECONDS_MAX, SystemClock
from volcano_locks.testing import ManualClock


def test_the_system_clock_counts_on_in_suspend() -> None:
    """SDK-4: boot time where there is one."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_the_system_clock_waits_for_the_instant_or_the_signal() -> None:
    clock = SystemClock()
    signal = asyncio.get_running_loop().create_future()
    started = clock.now()
    await clock.wait(started + 0.01, signal)
    assert clock.now() >= started + 0.01
    await clock.pause(0.01)
    await clock.wait(started - 1)
    asyncio.get_running_loop().call_later(0.01, signal.set_result, None)
    await clock.wait(inf, signal)
    assert signal.result() is None


async def test_a_wait_of_90_days_is_made_of_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-7: no timer is ever set for longer than a nap, so none overflows, and a wake from suspend is noticed."""
    naps: list[float] = []
    seconds = iter(range(0, 10_000_000, 2_000_000))

    async def nap(length: float) -> None:
        naps.append(length)

    monkeypatch.setattr("volcano_locks.clock._now", lambda: float(next(seconds)))
    monkeypatch.setattr("asyncio.sleep", nap)
    await SystemClock().wait(7_776_000.0)
    assert naps == [NAP_SECONDS_MAX] * 4


@pytest.mark.real_time
async def test_a_moved_clock_wakes_exactly_who_is_due() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleeper(name: str, until: float) -> None:
        await clock.wait(until)
        woken.append(name)

    tasks = [asyncio.create_task(sleeper(name, until)) for name, until in (("late", 20), ("soon", 10))]
    await asyncio.sleep(0)
    assert clock.next_due() == 10
    clock.jump(9.9)
    await asyncio.sleep(0.001)
    assert woken == []
    clock.jump(0.1)
    await asyncio.sleep(0.001)
    assert woken == ["soon"]
    clock.jump(100)
    await asyncio.gather(*tasks)
    assert woken == ["soon", "late"]
    assert clock.next_due() == inf


async def test_advance_stops_at_every_instant_somebody_waits_for() -> None:
    """SDK-10: a watched task sees each of its instants, and has rested again before the clock moves on."""
    moved: list[float] = []
    clock = ManualClock(on_move=moved.append)
    seen: list[float] = []

    async def every_ten_seconds() -> None:
        due = 10.0
        while True:
            await clock.wait(due)
            await asyncio.sleep(0)
            seen.append(clock.now())
            due += 10

    task = asyncio.create_task(every_ten_seconds())
    clock.watch(task)
    await clock.advance_async(35)
    assert seen == [10.0, 20.0, 30.0]
    assert moved == [10.0, 10.0, 10.0, 5.0]
    assert (clock.utc_now().minute, clock.utc_now().second) == (0, 35)
    task.cancel()
    await asyncio.wait([task])


async def test_a_task_that_never_rests_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-10: a test that cannot settle fails and says why."""
    monkeypatch.setattr("volcano_locks.testing.clock.SETTLE_SECONDS_MAX", 0.01)
    clock = ManualClock()
    task = asyncio.create_task(asyncio.Event().wait(), name="renewal of k")
    clock.watch(task)
    with pytest.raises(TimeoutError, match="do not come to rest: renewal of k"):
        await clock.settle_async()
    with pytest.raises(TimeoutError, match="renewal of k"):
        clock.settle()
    task.cancel()
    await asyncio.wait([task])


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        ManualClock().jump(-1)
