"""Retry back-off with jitter, for waits and watches (SDK-11).

Many clients wait for one lock or watch it, and a node that stops fails them all at once. So each delay is drawn at
random from a span that doubles with each failure. A `Retry-After` takes precedence and is lengthened by up to a tenth.
"""

import os

from volcano_locks.errors import RECORD_DAMAGED, RateLimitedError, ServerError, TransportError, VolcanoError

BACKOFF_SECONDS_MIN = 0.2
BACKOFF_SECONDS_MAX = 5.0
RETRY_AFTER_JITTER_FRACTION = 0.1


class Backoff:
    """The delays of one wait or watch."""

    def __init__(self) -> None:
        self._failures = 0

    def reset(self) -> None:
        """Start over after a success."""
        self._failures = 0

    def next_delay(self, failure: VolcanoError) -> float:
        """Seconds to pause after `failure`; 0 after the first request without a response."""
        first = self._failures == 0
        self._failures = min(self._failures + 1, 32)
        fraction = random_fraction()
        if failure.retry_after:
            return failure.retry_after * (1 + RETRY_AFTER_JITTER_FRACTION * fraction)
        if first and isinstance(failure, TransportError):
            return 0.0
        longest = min(BACKOFF_SECONDS_MIN * 2.0**self._failures, BACKOFF_SECONDS_MAX)
        return BACKOFF_SECONDS_MIN + (longest - BACKOFF_SECONDS_MIN) * fraction


def random_fraction() -> float:
    """A number from 0 to below 1. The module `random` takes 5 ms to load."""
    return int.from_bytes(os.urandom(6)) / 2**48


def is_transient(failure: VolcanoError) -> bool:
    """Whether a later attempt may succeed: no response, a 429, or a 5xx other than a damaged record (SDK-11)."""
    if failure.code == RECORD_DAMAGED:
        return False
    if isinstance(failure, ServerError):
        return failure.status is not None and failure.status >= 500
    return isinstance(failure, (TransportError, RateLimitedError))
