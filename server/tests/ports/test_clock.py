"""The system's clock: close to the wall at the start, then steady (LEASE-1)."""

import asyncio
import gc
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from volcano_locks_server.ports import clock as clock_module
from volcano_locks_server.ports.clock import AGREES_MS, SystemClock, kernel_is_synchronised, mark_of
from volcano_locks_server.testing import ManualClock


def test_it_starts_at_the_wall_time() -> None:
    """LEASE-1."""
    assert abs(SystemClock().now_ms() - time.time_ns() // 1_000_000) < 2_000


def test_stepping_the_wall_clock_changes_nothing() -> None:
    """LEASE-1, case 30: only the monotonic clock moves it."""
    wall, steady = [1_800_000_000_000_000_000], [5_000_000_000]
    clock = SystemClock(wall_ns=lambda: wall[0], steady_ns=lambda: steady[0])
    assert clock.now_ms() == 1_800_000_000_000
    wall[0] -= 3_600_000_000_000
    assert clock.now_ms() == 1_800_000_000_000
    steady[0] += 1_234_567_890
    assert clock.now_ms() == 1_800_000_001_234


def test_it_never_goes_back() -> None:
    """LEASE-1."""
    clock = SystemClock()
    seen = [clock.now_ms() for _ in range(10_000)]
    assert seen == sorted(seen)


@pytest.mark.real_time
async def test_a_timer_never_fires_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT-4: by this clock, which counts suspended time; a long timer sleeps in steps, and can be cancelled."""
    monkeypatch.setattr("volcano_locks_server.ports.clock.TIMER_STEP_MS", 5)
    clock = SystemClock()
    done: list[int] = []
    due_ms = clock.now_ms() + 30
    clock.call_in(30, lambda: done.append(clock.now_ms()))
    clock.call_in(10, lambda: done.append(0)).cancel()
    async with asyncio.timeout(5):
        while not done:
            await asyncio.sleep(0.001)
    assert done[0] >= due_ms


@pytest.mark.real_time
async def test_a_timer_that_fired_is_freed_without_the_garbage_collector() -> None:
    fired = asyncio.Event()

    def call() -> None:
        fired.set()

    reference = weakref.ref(call)
    gc.disable()
    try:
        SystemClock().call_in(1, call)
        del call
        async with asyncio.timeout(5):
            await fired.wait()
        assert reference() is None
    finally:
        gc.enable()


async def test_a_cancelled_timer_frees_its_call() -> None:
    """Its owner often keeps the timer, and the call refers to its owner. A timer may be cancelled again."""

    def call() -> None: ...

    reference = weakref.ref(call)
    timer = SystemClock().call_in(60_000, call)
    del call
    timer.cancel()
    assert reference() is None
    timer.cancel()


@pytest.mark.real_time
async def test_timers_with_the_same_slack_fire_together() -> None:
    """WAIT-1: at the next multiple of the slack, and not before."""
    now_ms = [1_800_000_000_000]
    clock = SystemClock(wall_ns=lambda: now_ms[0] * 1_000_000, steady_ns=lambda: now_ms[0] * 1_000_000)
    done: list[int] = []
    for ms in (30, 60):
        clock.call_in(ms, lambda: done.append(now_ms[0]), slack_ms=100)
    now_ms[0] += 99
    await asyncio.sleep(0.15)  # a timer by the loop's clock would have fired
    assert done == []
    now_ms[0] += 1
    async with asyncio.timeout(5):
        while len(done) < 2:
            await asyncio.sleep(0.001)


async def test_moving_a_manual_clock_fires_due_timers() -> None:
    """In the order of their due times, without cancelled ones."""
    clock = ManualClock()
    done: list[str] = []
    clock.call_in(20, lambda: done.append("second"))
    clock.call_in(10, lambda: done.append("first"))
    clock.call_in(15, lambda: done.append("called off")).cancel()
    clock.advance(9)
    await asyncio.sleep(0)
    assert done == []
    clock.advance(11)
    await asyncio.sleep(0)
    assert done == ["first", "second"]


def test_the_boot_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-17: every clock of this machine names the same boot, whose time goes on."""
    first, second = SystemClock().boot(), SystemClock().boot()
    assert first.id == second.id
    assert first.id.startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert 0 < first.up_ms <= second.up_ms


def test_a_wall_clock_counts_only_if_the_kernel_reports_it_as_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-17: and a mark only if the store's clock agrees with it."""
    wall_ms = 1_000_000
    clock = SystemClock(wall_ns=lambda: wall_ms * 1_000_000, steady_ns=lambda: 0)
    monkeypatch.setattr(clock_module, "kernel_is_synchronised", lambda: False)
    assert clock.synchronised_ms() is None
    assert not mark_of(clock, wall_ms).is_synchronised
    monkeypatch.setattr(clock_module, "kernel_is_synchronised", lambda: True)
    for off_ms, agrees in ((0, True), (AGREES_MS, True), (-AGREES_MS, True), (AGREES_MS + 1, False)):
        assert mark_of(clock, wall_ms + off_ms).is_synchronised is agrees


@pytest.mark.parametrize(
    ("state", "status", "expected"), [(0, 0, True), (5, 0, False), (0, 0x40, False), (-1, 0, False)]
)
def test_the_kernels_report_is_read(monkeypatch: pytest.MonkeyPatch, state: int, status: int, expected: bool) -> None:
    """LEASE-17: an unsynchronised clock, and a kernel that does not say."""

    def adjtimex(timex: Any) -> int:
        timex._obj.status = status
        return state

    assert isinstance(kernel_is_synchronised(), bool)
    monkeypatch.setattr(clock_module, "_adjtimex", lambda: adjtimex)
    assert kernel_is_synchronised() is expected
    monkeypatch.setattr(clock_module, "_adjtimex", lambda: None)
    assert not kernel_is_synchronised()
