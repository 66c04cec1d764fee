"""The renewer: the background task that renews a held lock until its block is left or the lock is lost (SDK-6)."""

import asyncio
from collections.abc import Awaitable, Callable

from volcano_locks.clock import Clock
from volcano_locks.errors import LockOwnershipLostError
from volcano_locks.holding.hold import BlockLeft, Hold
from volcano_locks.protocol.lease import Lease
from volcano_locks.protocol.renewal_plan import Lost, Wait


async def run_renewals(
    hold: Hold, renew: Callable[[Lease, float], Awaitable[Lease]], clock: Clock, on_lost: Callable[[], None]
) -> None:
    """Renew `hold` until it is left or lost. Call `on_lost` at most once. Never raises."""
    while True:
        action = hold.next_action()
        if isinstance(action, BlockLeft):
            return
        if isinstance(action, Lost):
            on_lost()
            return
        try:
            if isinstance(action, Wait):
                await clock.wait(action.until, hold.ended)
            else:
                hold.renewed(await renew(hold.lease, action.timeout_seconds))
        except LockOwnershipLostError as error:
            hold.lose(error)
        except Exception as error:  # noqa: BLE001 - after any error the lease may still be alive (case 2)
            hold.failed(error)
            await asyncio.sleep(0)
