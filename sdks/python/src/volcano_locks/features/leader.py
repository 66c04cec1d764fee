"""Leadership: campaign, run a function while leading, campaign again when it was lost (SDK-13).

The function runs inside a block of its own for each term, so a term ends as a block does: no next campaign begins
before the function has ended and the block is left.

Not promised: that a function which does not look ends. In a thread nothing can stop it; ask `guard.lost` before what
only the leader may do, and send the fencing token along.
"""

import threading
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, TypeVar

from volcano_locks.errors import LockOwnershipLostError
from volcano_locks.holding.guard import AsyncLockGuard, LockGuard
from volcano_locks.sync.background_loop import StoppedError

if TYPE_CHECKING:
    from volcano_locks.asyncio.block import AsyncLockBlock
    from volcano_locks.sync.block import LockBlock

T = TypeVar("T")


def lead(block: "Callable[[], LockBlock]", run: Callable[[LockGuard], T], stop: threading.Event | None) -> T | None:
    """`run`'s result, or None once `stop` was set in a campaign. Each `block` is one term."""
    if not callable(run) or iscoroutinefunction(run):
        raise TypeError(f"run must be a function that takes the guard, got {run!r:.200}")
    while stop is None or not stop.is_set():
        term = block()
        try:
            with term as guard:
                return run(guard)
        except StoppedError:
            return None
        except LockOwnershipLostError as error:
            if error is not term.loss:
                raise
    return None


async def lead_async(block: "Callable[[], AsyncLockBlock]", run: Callable[[AsyncLockGuard], Awaitable[T]]) -> T:
    """`run`'s result. Each `block` is one term."""
    if not callable(run):
        raise TypeError(f"run must be a function that takes the guard, got {run!r:.200}")
    while True:
        term = block()
        try:
            async with term as guard:
                return await run(guard)
        except LockOwnershipLostError as error:
            if error is not term.loss:
                raise
