"""The system clock (SDK-4, SDK-7)."""

import asyncio
import time
from math import inf

import pytest

from volcano_locks.clock import SLEEP_SECONDS_MAX, SystemClock


def test_the_system_clock_includes_suspend() -> None:
    """SDK-4: boot time, if the system has it."""
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


async def test_a_wait_of_90_days_is_made_of_short_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-7: no timer is longer than SLEEP_SECONDS_MAX, so none overflows, and a wake from suspend is noticed."""
    sleeps: list[float] = []
    seconds = iter(range(0, 10_000_000, 2_000_000))

    async def sleep(seconds_asleep: float) -> None:
        sleeps.append(seconds_asleep)

    monkeypatch.setattr("volcano_locks.clock._now", lambda: float(next(seconds)))
    monkeypatch.setattr("asyncio.sleep", sleep)
    await SystemClock().wait(7_776_000.0)
    assert sleeps == [SLEEP_SECONDS_MAX] * 4
