"""Moving a server's clock: each thing that is due on the way happens at its time, and ends before time goes on."""

import asyncio
from collections.abc import Callable
from typing import Final

from volcano_locks_server.testing import ManualClock

QUIET_TURNS: Final = 12
BUSY_TURNS_MAX: Final = 200
NAP_SECONDS: Final = 0.001


async def come_to_rest(is_at_rest: Callable[[], bool]) -> None:
    """Return once it is at rest and stays so, in this event loop."""
    turns = quiet = 0
    while quiet < QUIET_TURNS:
        turns += 1
        await asyncio.sleep(0 if turns < BUSY_TURNS_MAX or quiet else NAP_SECONDS)
        quiet = quiet + 1 if is_at_rest() else 0


async def go_on(clock: ManualClock, ms: int, is_at_rest: Callable[[], bool]) -> None:
    """Let `ms` milliseconds go by."""
    until_ms = clock.now_ms() + ms
    await come_to_rest(is_at_rest)
    while clock.now_ms() < until_ms:
        due_ms = clock.next_due_ms()
        clock.set(until_ms if due_ms is None else min(due_ms, until_ms))
        await come_to_rest(is_at_rest)


async def go_on_until(clock: ManualClock, is_over: Callable[[], bool], is_at_rest: Callable[[], bool]) -> None:
    """Let time go by until something is over that is waited for."""
    await come_to_rest(is_at_rest)
    while not is_over():
        due_ms = clock.next_due_ms()
        assert due_ms is not None, "waits for nothing that will come"
        clock.set(due_ms)
        await come_to_rest(is_at_rest)
