"""How long whoever waits rests after a failure before asking again (SDK-11): longer each time, never in step.

Many wait for one lock or watch it, and what fails for one (a node that stops) fails for all at once. So each rest is
drawn at random from a span that doubles; a server's `Retry-After` is kept and lengthened a little.
"""

import random

from volcano_locks.errors import RateLimitedError, ServerError, TransportError, VolcanoError

REST_SECONDS_MIN = 0.2
REST_SECONDS_MAX = 5.0
LENGTHENED_FRACTION = 0.1


class Rests:
    """The rests of one wait."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def over(self) -> None:
        """Something went well: the next rest is a first one."""
        self._in_a_row = 0

    def seconds(self, failure: VolcanoError) -> float:
        """How long to rest after `failure`: not at all after a first request that got no answer."""
        first = self._in_a_row == 0
        self._in_a_row = min(self._in_a_row + 1, 32)
        drawn = random.random()  # noqa: S311 - it only spreads
        if failure.retry_after:
            return failure.retry_after * (1 + LENGTHENED_FRACTION * drawn)
        if first and isinstance(failure, TransportError):
            return 0.0
        longest = min(REST_SECONDS_MIN * 2.0**self._in_a_row, REST_SECONDS_MAX)
        return REST_SECONDS_MIN + (longest - REST_SECONDS_MIN) * drawn


def passes_by(failure: VolcanoError) -> bool:
    """Whether waiting helps: no answer, a spent quota, a server in trouble."""
    if isinstance(failure, ServerError):
        return failure.status is not None and failure.status >= 500
    return isinstance(failure, (TransportError, RateLimitedError))
