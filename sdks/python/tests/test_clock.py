"""The system clock, and waiting on it (SDK-4, SDK-7)."""

import asyncio
import time
from math import inf

import pytest

from volcano_locks.asyncio import waiting
from volcano_locks.clock import CHECK_SECONDS_MAX, SystemClock
from volcano_locks.sync import call


def test_the_system_clock_includes_suspend() -> None:
    """SDK-4: boot time, if the system has it."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_thread_waits_for_the_instant_or_the_signal() -> None:
    clock, signal = SystemClock(), call.Signal()
    until = clock.now() + 0.01
    call.sleep(clock, until, signal)
    assert clock.now() >= until
    signal.set()
    call.sleep(clock, inf, signal)


async def test_a_task_waits_for_the_instant_or_the_wakeup() -> None:
    clock, wakeup = SystemClock(), waiting.LoopWakeup()
    until = clock.now() + 0.01
    await waiting.sleep(clock, until)
    assert clock.now() >= until
    asyncio.get_running_loop().call_later(0.01, wakeup.set)
    await waiting.sleep(clock, inf, wakeup)


async def test_a_wait_of_90_days_is_made_of_short_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-7: no timer is longer than CHECK_SECONDS_MAX, so none overflows, and a wake from suspend is noticed."""
    slept: list[float] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += 2_000_000

    async def sleep_in_loop(_: object, seconds: float) -> None:
        sleep(seconds)

    monkeypatch.setattr("volcano_locks.clock._now", lambda: now)
    monkeypatch.setattr(call.Signal, "wait", lambda _, seconds: sleep(seconds))
    monkeypatch.setattr(waiting.LoopWakeup, "wait", sleep_in_loop)
    call.sleep(SystemClock(), 7_776_000.0, call.Signal())
    await waiting.sleep(SystemClock(), now + 7_776_000.0)
    assert slept == [CHECK_SECONDS_MAX] * 8
