"""One request that waits in a line: from its join to its answer, or to its hanging up.

The lines know no requests, and requests know no batches; this is where they meet. Whoever stops waiting, by `gone` or
by being cancelled, has left the line before anything else happens, and what was granted in that moment is given back
(WAIT-5). So is a grant whose bearer turns out to have no right to it any more, and one that took so long that its lease
is almost over, which is looked at last of all (WAIT-3).
"""

import asyncio
from collections.abc import Awaitable, Callable

from ..ports.clock import Clock
from ..ports.lock_store import RecordKey
from ..rules.errors import StoreUnavailableError
from ..rules.lease import MARGIN_MS, Acquire, Granted
from .wait_queue import Lines
from .waiter import Waited


async def wait_in_line(
    lines: Lines,
    key: RecordKey,
    acquire: Acquire,
    wait_ms: int,
    *,
    gone: "asyncio.Future[None] | None" = None,
    still_may: Callable[[], Awaitable[object]] | None = None,
) -> Waited | None:
    """What came of an acquire that may wait for `wait_ms`; None once `gone` is done.

    A grant is told only after `still_may`, which raises the LockError that is to be the answer instead. Else raises
    LockError `too_many_waiters`, and StoreUnavailableError where it is not known whether it was granted.
    """
    place = lines.join(key, acquire, wait_ms)
    answer = place.answer
    assert answer is not None

    def leave(_gone: "asyncio.Future[None] | None") -> None:
        lines.leave(place, answer)

    if gone is not None:
        gone.add_done_callback(leave)
    try:
        waited = await answer
        if still_may is not None and isinstance(waited.outcome, Granted):
            await still_may()
    except BaseException as error:
        leave(gone)
        this = asyncio.current_task()
        is_cancelled = this is not None and this.cancelling()
        if isinstance(error, asyncio.CancelledError) and gone is not None and gone.done() and not is_cancelled:
            return None
        raise
    finally:
        if gone is not None:
            gone.remove_done_callback(leave)
    if gone is not None and gone.done():
        lines.give_back(key, acquire.owner_digest, waited)
        return None
    if _too_old(waited, lines.clock):
        lines.give_back(key, acquire.owner_digest, waited)
        raise StoreUnavailableError("grant_late", "the grant took so long that its lease was almost over")
    return waited


def _too_old(waited: Waited, clock: Clock) -> bool:
    """Whether a granted lease has no more than its margin left, as far as this node can tell (WAIT-3)."""
    outcome = waited.outcome
    if not isinstance(outcome, Granted):
        return False
    age_ms = clock.now_ms() - waited.began_ms
    return outcome.expires_at_ms - waited.at_ms - age_ms <= MARGIN_MS
