"""The renewer: the background task that renews a held lock until its block is left or the lock is lost (SDK-6)."""

import asyncio
from collections.abc import Callable

from volcano_locks.asyncio.driver import AsyncDriver
from volcano_locks.asyncio.waiting import LoopWakeup, sleep
from volcano_locks.clock import Clock
from volcano_locks.holding.block import Block
from volcano_locks.holding.hold import BlockLeft, Hold
from volcano_locks.protocol.renewal_plan import Lost, Wait


async def run_renewals(block: Block, hold: Hold, driver: AsyncDriver, on_lost: Callable[[], None]) -> None:
    """Renew `hold` until it is left or lost. Call `on_lost` at most once. Never raises."""
    while True:
        action = hold.next_action()
        if isinstance(action, BlockLeft):
            return
        if isinstance(action, Lost):
            on_lost()
            return
        if isinstance(action, Wait):
            await sleep_while_held(hold, block.clock, action.until)
        else:
            await driver.run(block.renew(action.timeout_seconds))
            await asyncio.sleep(0)


async def sleep_while_held(hold: Hold, clock: Clock, until: float) -> None:
    """Return when `now() >= until`, or when the hold ends."""
    wakeup = LoopWakeup()
    forget = hold.on_end(wakeup.set)
    try:
        await sleep(clock, until, wakeup)
    finally:
        forget()
