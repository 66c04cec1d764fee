"""Moves a server's clock so that everything due on the way happens at its time and completes before the next move."""

import asyncio
from collections.abc import Callable
from typing import Final

from volcano_locks_server.testing import ManualClock

IDLE_TURNS: Final = 12
BUSY_TURNS_MAX: Final = 200
SLEEP_SECONDS: Final = 0.001


async def settle(is_idle: Callable[[], bool]) -> None:
    """Return when `is_idle()` has been true for several turns of this event loop."""
    turns = idle_turns = 0
    while idle_turns < IDLE_TURNS:
        turns += 1
        await asyncio.sleep(0 if turns < BUSY_TURNS_MAX or idle_turns else SLEEP_SECONDS)
        idle_turns = idle_turns + 1 if is_idle() else 0


async def advance(clock: ManualClock, ms: int, is_idle: Callable[[], bool]) -> None:
    """Advance the clock by `ms`, stopping at each instant that something waits for."""
    until_ms = clock.now_ms() + ms
    await settle(is_idle)
    while clock.now_ms() < until_ms:
        due_ms = clock.next_due_ms()
        clock.set(until_ms if due_ms is None else min(due_ms, until_ms))
        await settle(is_idle)


async def advance_until(clock: ManualClock, is_over: Callable[[], bool], is_idle: Callable[[], bool]) -> None:
    """Advance the clock from one due instant to the next until `is_over`."""
    await settle(is_idle)
    while not is_over():
        due_ms = clock.next_due_ms()
        assert due_ms is not None, "it is not over, and nothing is due by the clock"
        clock.set(due_ms)
        await settle(is_idle)
