"""Waiting for a held lock by asking again: how long to rest between two attempts.

The rests grow, so that many waiters do not eat the project's quota, and are spread by chance, so that those
who started together do not ask together. A server that names a time (Retry-After) is not asked sooner.

Not promised: an order among waiters, or that a lock which is free for a shorter time than a rest is caught.
"""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from volcano_locks.errors import LockHeldError, RateLimitedError, TransportError, UnavailableError

REST_SECONDS_FIRST: Final = 0.5
REST_SECONDS_MAX: Final = 5.0
REST_GROWTH: Final = 1.6

T = TypeVar("T")


class Patience:
    """Patience for `wait_seconds`, counted from now on the clock `now`."""

    def __init__(
        self, wait_seconds: float, now: Callable[[], float], spread: Callable[[], float] = random.random
    ) -> None:
        self._now = now
        self._until = now() + wait_seconds
        self._spread = spread
        self._rest_seconds = REST_SECONDS_FIRST

    def rest_seconds(self, retry_after: float | None = None) -> float | None:
        """Seconds until the next attempt; None when another one would come too late. The last rest is cut, so
        that the last attempt is made at the very end."""
        left = self._until - self._now()
        if left <= 0 or (retry_after is not None and retry_after > left):
            return None
        rest = max(self._rest_seconds * (0.5 + self._spread() / 2), retry_after or 0.0)
        self._rest_seconds = min(self._rest_seconds * REST_GROWTH, REST_SECONDS_MAX)
        return min(rest, left)


def patiently(attempt: Callable[[], T], patience: Patience) -> T:
    """`attempt()`'s result, tried again while the lock is held or the server cannot answer and patience lasts;
    then the last failure is raised. Anything else is raised at once."""
    while True:
        try:
            return attempt()
        except (LockHeldError, RateLimitedError, UnavailableError, TransportError) as error:
            rest = patience.rest_seconds(error.retry_after)
            if rest is None:
                raise
        time.sleep(rest)
