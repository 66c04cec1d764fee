"""When to renew a lease: a pure planner without a clock, a thread or a socket.

The renewer calls `next_action(now)` and performs it: `Renew` now, `Wait` until an instant, or treat the lease as
`Lost`. It reports the outcome with `renewed` or `failed` and asks again.

SDK-3: the first attempt comes at about a third of the TTL, moved by jitter so that many holders do not renew at once,
and after at most 60 seconds, so that a holder notices a forced release. The 60 seconds do not apply while the project
is short of its quota, and `renew_every` replaces both. A failed attempt is repeated with back-off while the lease is
safely alive. A `Retry-After` is honoured up to half of the remaining time, so a healthy holder always has another
attempt.

SDK-4: the deadline moves only on a confirmed renewal, to the time before its request plus the TTL, and never past the
end of the acquisition. A lease that has passed its deadline stays lost.

Limit: the plan only stops renewing in the last second. The server decides by its own clock, and may still grant then.
"""

from typing import NamedTuple

ACQUISITION_SECONDS_MAX = 7_776_000
RENEW_AT_FRACTION = 1 / 3
RENEWAL_INTERVAL_SECONDS_MAX = 60.0
JITTER_FRACTION = 0.1
MARGIN_SECONDS = 1.0
RETRY_SECONDS_MIN = 0.2
RETRY_SECONDS_MAX = 10.0
ATTEMPT_SECONDS_MIN = 1.0


class SeenQuota(NamedTuple):
    """The quota headers of the last response: `X-RateLimit-Limit` and `X-RateLimit-Remaining`. Limit 0: no quota."""

    limit: int
    remaining: int

    @property
    def is_scarce(self) -> bool:
        """Whether half of the quota or more is spent."""
        return self.limit > 0 and self.remaining * 2 <= self.limit


UNLIMITED = SeenQuota(0, 0)


def renewal_interval(ttl_seconds: int, jitter: float, renew_every: float | None, quota: SeenQuota) -> float:
    """Seconds from a confirmed request to the next renewal (SDK-3). `jitter` is in [0, 1)."""
    shorter = 1 - JITTER_FRACTION * jitter
    if renew_every is not None:
        return renew_every * shorter
    third = ttl_seconds * RENEW_AT_FRACTION * _spread(jitter)
    return third if quota.is_scarce else min(third, RENEWAL_INTERVAL_SECONDS_MAX * shorter)


def _spread(jitter: float) -> float:
    return 1 + JITTER_FRACTION * (2 * jitter - 1)


class Renew(NamedTuple):
    """Send a renewal now, with this limit."""

    timeout_seconds: float


class Wait(NamedTuple):
    """Do nothing before this instant."""

    until: float


class Lost(NamedTuple):
    """The deadline has passed."""


Action = Renew | Wait | Lost


class RenewalPlan:
    """The plan of one acquisition. Instants are seconds on the client's clock.

    `acquired_at` is the time before the acquire was sent. `jitter` in [0, 1) spreads holders. `timeout_seconds` limits
    one request. `renew_every` fixes the interval of renewals. `quota` is what the last response showed.
    """

    def __init__(  # noqa: PLR0917 - named by most callers
        self,
        ttl_seconds: int,
        acquired_at: float,
        deadline: float,
        timeout_seconds: float,
        jitter: float = 0.5,
        renew_every: float | None = None,
        quota: SeenQuota | None = None,
    ) -> None:
        self._ttl_seconds = ttl_seconds
        self._acquisition_ends_at = acquired_at + ACQUISITION_SECONDS_MAX
        self._timeout_seconds = timeout_seconds
        self._jitter = jitter
        self._renew_every = renew_every
        self._quota = quota or UNLIMITED
        self._failures = 0
        self.deadline = min(deadline, self._acquisition_ends_at)
        self._next_attempt_at = self._first_attempt_at(self.deadline - ttl_seconds)

    def next_action(self, now: float) -> Action:
        """The action at `now`."""
        if now >= self.deadline:
            return Lost()
        if self._last_attempt_at <= now:
            return Wait(self.deadline)
        if now < self._next_attempt_at:
            return Wait(min(self._next_attempt_at, self._last_attempt_at))
        remaining_seconds = self.deadline - now
        return Renew(min(self._timeout_seconds, remaining_seconds, max(ATTEMPT_SECONDS_MIN, remaining_seconds / 2)))

    def renewed(self, deadline: float, now: float, quota: SeenQuota | None = None) -> bool:
        """A renewal was confirmed until `deadline`, and its response showed `quota`. Return False if it came too late
        and changes nothing.
        """
        self._quota = quota or self._quota
        if now >= self.deadline:
            return False
        self._failures = 0
        self._next_attempt_at = self._first_attempt_at(deadline - self._ttl_seconds)
        self.deadline = min(deadline, self._acquisition_ends_at)
        return True

    def failed(self, now: float, retry_after: float | None = None) -> None:
        """A renewal was not confirmed: plan the next attempt."""
        backoff = min(RETRY_SECONDS_MIN * 2.0**self._failures, RETRY_SECONDS_MAX, self._ttl_seconds / 10)
        self._failures = min(self._failures + 1, 32)
        delay = max(backoff * _spread(self._jitter), retry_after or 0.0)
        self._next_attempt_at = now + max(min(delay, (self._last_attempt_at - now) / 2), RETRY_SECONDS_MIN)

    @property
    def _last_attempt_at(self) -> float:
        return self.deadline - MARGIN_SECONDS

    def _first_attempt_at(self, sent_at: float) -> float:
        return sent_at + renewal_interval(self._ttl_seconds, self._jitter, self._renew_every, self._quota)
