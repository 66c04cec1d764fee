"""When to renew, as a plan without a clock, a thread or a socket.

Ask `next_step(now)` and do what it says: `Renew` now, `Wait` until an instant, or take the lease for `Lost`.
Tell it the outcome with `renewed` or `failed`, and ask again.

SDK-3: the first try comes at about a third of the TTL, moved by jitter so that many holders do not ask in
step. A failed try is repeated with back-off while the lease is safely alive; a `Retry-After` is honoured, but
never past the half of what is left, so that a healthy holder always has another try.
SDK-4: the deadline moves only on a confirmed answer, to `time that request was sent + ttl`, and never past the
absolute end of one acquisition. Once it has passed, nothing brings the lease back.

Not promised: that a try in the last second would be refused. The server refuses renewals there by its own
clock; the plan merely stops asking.
"""

from dataclasses import dataclass
from typing import NamedTuple

ACQUISITION_SECONDS_MAX = 7_776_000
RENEW_AT_FRACTION = 1 / 3
JITTER_FRACTION = 0.1
MARGIN_SECONDS = 1.0
BACK_OFF_SECONDS_MIN = 0.2
BACK_OFF_SECONDS_MAX = 10.0
TRY_SECONDS_MIN = 1.0


class Renew(NamedTuple):
    """Send a renewal now and give it this long."""

    timeout_seconds: float


class Wait(NamedTuple):
    """Nothing to do before this instant."""

    until: float


class Lost(NamedTuple):
    """The deadline has passed."""


Step = Renew | Wait | Lost


@dataclass(slots=True)
class Heartbeat:
    """The plan of one acquisition. Instants are seconds on the client's clock.

    `acquired_at` is the time before the acquire was sent; `jitter` in [0, 1) places this holder in the
    spread; `timeout_seconds` is the most one request may take.
    """

    ttl_seconds: int
    acquired_at: float
    deadline: float
    timeout_seconds: float
    jitter: float = 0.5
    _failures: int = 0
    _due: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = min(self.deadline, self._end)
        self._due = self._first_try(self.deadline - self.ttl_seconds)

    def next_step(self, now: float) -> Step:
        """What to do at `now`."""
        if now >= self.deadline:
            return Lost()
        if self._last_try <= now or self.deadline >= self._end:
            return Wait(self.deadline)
        if now < self._due:
            return Wait(min(self._due, self._last_try))
        left = self.deadline - now
        return Renew(min(self.timeout_seconds, left, max(TRY_SECONDS_MIN, left / 2)))

    def renewed(self, deadline: float, now: float) -> bool:
        """A renewal was confirmed, good until `deadline`. False: it came too late and changes nothing."""
        if now >= self.deadline:
            return False
        self._failures = 0
        self._due = self._first_try(deadline - self.ttl_seconds)
        self.deadline = min(deadline, self._end)
        return True

    def failed(self, now: float, retry_after: float | None = None) -> None:
        """A renewal was not confirmed; plan the next try."""
        back_off = min(BACK_OFF_SECONDS_MIN * 2.0**self._failures, BACK_OFF_SECONDS_MAX, self.ttl_seconds / 10)
        self._failures = min(self._failures + 1, 32)
        spread = 1 + JITTER_FRACTION * (2 * self.jitter - 1)
        pause = max(back_off * spread, retry_after or 0.0)
        self._due = now + max(min(pause, (self._last_try - now) / 2), BACK_OFF_SECONDS_MIN)

    @property
    def _end(self) -> float:
        return self.acquired_at + ACQUISITION_SECONDS_MAX

    @property
    def _last_try(self) -> float:
        return self.deadline - MARGIN_SECONDS

    def _first_try(self, sent_at: float) -> float:
        spread = 1 + JITTER_FRACTION * (2 * self.jitter - 1)
        return sent_at + self.ttl_seconds * RENEW_AT_FRACTION * spread
