"""One request that waits for a lock, from its arrival to its outcome or its client's disconnect.

A request that ends early, by a disconnect or a cancelled task, leaves its queue at once, and a grant on its way is
revoked (WAIT-5). A grant is also revoked if its client is no longer authorized, or if its lease is almost over, which
is checked last (WAIT-3).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from ..rules.errors import StoreUnavailableError
from ..rules.lease import MARGIN_MS, Acquire, Granted, Refused
from .node_queues import WaitQueues
from .waiter import WaitResult


class WaitRequest(NamedTuple):
    """How an acquire waits: for `wait_ms` at most, or until `disconnected` is done. `authorize` is called before a
    grant is returned; it raises the LockError to return instead. `is_gone` is called last of all: a disconnect takes a
    few turns of the event loop until `disconnected` is done, and a grant may come in between.
    """

    wait_ms: int
    disconnected: "asyncio.Future[None] | None" = None
    is_gone: Callable[[], bool] | None = None
    authorize: Callable[[], Awaitable[object]] | None = None


async def wait_for_grant(
    queues: WaitQueues, key: RecordKey, acquire: Acquire, wait: WaitRequest
) -> Granted | Refused | None:
    """The outcome of an acquire that waits; None if its client disconnected.

    Raises LockError `too_many_waiters`, `too_many_requests`, what `authorize` raises, and StoreUnavailableError if it
    is not known whether the lock was granted.
    """
    disconnected = wait.disconnected
    waiter = queues.join(key, acquire, wait.wait_ms)
    future = waiter.result
    assert future is not None

    def leave(_disconnected: "asyncio.Future[None] | None") -> None:
        queues.leave(waiter, future)

    if disconnected is not None:
        disconnected.add_done_callback(leave)
    try:
        result = await future
        if wait.authorize is not None and isinstance(result.outcome, Granted):
            await wait.authorize()
    except BaseException as error:
        leave(disconnected)
        task = asyncio.current_task()
        is_cancelled = task is not None and task.cancelling()
        is_disconnected = disconnected is not None and disconnected.done()
        if isinstance(error, asyncio.CancelledError) and is_disconnected and not is_cancelled:
            return None
        raise
    finally:
        if disconnected is not None:
            disconnected.remove_done_callback(leave)
    if (disconnected is not None and disconnected.done()) or (wait.is_gone is not None and wait.is_gone()):
        queues.revoke(key, acquire.owner_digest, result)
        return None
    if _is_too_old(result, queues.clock):
        queues.revoke(key, acquire.owner_digest, result)
        raise StoreUnavailableError("grant_late", "the grant took so long that its lease was almost over")
    return result.outcome


def _is_too_old(result: WaitResult, clock: Clock) -> bool:
    """Whether a granted lease has at most its margin left, by the clock of this node (WAIT-3)."""
    if not isinstance(result.outcome, Granted):
        return False
    age_ms = clock.now_ms() - result.began_ms
    return result.outcome.expires_at_ms - result.at_ms - age_ms <= MARGIN_MS
