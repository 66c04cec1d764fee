"""Leadership: campaign, run a function while leading, and campaign again after a loss (SDK-13).

Each term is a block of its own, so the next campaign begins only after the function has ended and the block was left.

Limit: a thread cannot be stopped. Check `guard.lost` before what only the leader may do, and send the fencing token
along.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from volcano_locks.errors import LockOwnershipLostError
from volcano_locks.features.exclusive import checked_async, checked_plain, checked_result
from volcano_locks.sync.driver import StoppedError

if TYPE_CHECKING:
    from volcano_locks.asyncio.block import AsyncLockBlock, AsyncLockGuard
    from volcano_locks.sync.block import LockBlock, LockGuard

T = TypeVar("T")


def lead(block: "Callable[[], LockBlock]", run: "Callable[[LockGuard], T]", stop: threading.Event | None) -> T | None:
    """Return the result of `run`, or None if `stop` was set during a campaign. Each `block()` is one term."""
    checked_plain(run)
    while stop is None or not stop.is_set():
        term = block()
        try:
            with term as guard:
                return checked_result(run, run(guard))
        except StoppedError:
            return None
        except LockOwnershipLostError as error:
            if error is not term.loss:
                raise
    return None


async def lead_async(block: "Callable[[], AsyncLockBlock]", run: "Callable[[AsyncLockGuard], Awaitable[T]]") -> T:
    """Return the result of `run`. Each `block()` is one term."""
    checked_async(run)
    while True:
        term = block()
        try:
            async with term as guard:
                return checked_result(run, await run(guard))
        except LockOwnershipLostError as error:
            if error is not term.loss:
                raise
