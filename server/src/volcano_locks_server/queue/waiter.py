"""A place in a line, the line of one lock, and what a waiter is told: the state that `lines` works on."""

import asyncio
from typing import Final, NamedTuple

from ..ports.clock import Timer
from ..ports.lock_store import RecordKey
from ..rules.lease import Acquire, GiveBack, Granted, Outcome, Refused

RETRY_MS_MIN: Final = 50


class Waited(NamedTuple):
    """What came of a wait. For a grant: `at_ms` is the store's time of it, `began_ms` this node's and not later than
    that, and `untold` whether it is to be given back if nobody is told.
    """

    outcome: Granted | Refused
    at_ms: int = 0
    began_ms: int = 0
    untold: bool = False


class Place:
    """A waiter's place in a line. `answer` is that of the request that waits in it now, None while there is none."""

    __slots__ = (
        "acquire",
        "answer",
        "asked",
        "in_flight",
        "in_line",
        "judged",
        "key",
        "late",
        "maybe",
        "over",
        "shown",
        "timer",
    )

    def __init__(self, key: RecordKey, acquire: Acquire) -> None:
        self.key: Final = key
        self.acquire = acquire
        self.answer: asyncio.Future[Waited] | None = None
        self.asked: asyncio.Future[Outcome | None] | None = None
        self.timer: Timer | None = None
        self.in_line = False  # it was found waiting by a batch: from then on it has its turn
        self.judged = False  # by a batch, since this request came
        self.over = False  # its time: it is answered as soon as it is judged and in no batch
        self.in_flight = False  # in a batch that is being committed
        self.late = False  # in one that nobody waits for any more
        self.maybe: GiveBack | None = None  # what a batch that failed may have granted
        self.shown = False  # others were told that it waits

    def __repr__(self) -> str:
        return f"Place({self.key})"


class Line:
    """The places of one lock by their token's digest, in order of arrival, and how the lock last stood."""

    __slots__ = ("failing", "free_at_ms", "looking", "places", "present", "retry", "retry_ms", "timer", "yielding")

    def __init__(self) -> None:
        self.places: Final[dict[bytes, Place]] = {}
        self.present = 0  # places with a request
        self.timer: Timer | None = None
        self.free_at_ms = 0  # on this node's clock
        self.retry: Timer | None = None
        self.retry_ms = RETRY_MS_MIN
        self.failing = False
        self.looking = False  # a look is on its way and in no batch yet
        self.yielding = False

    def cancel_timers(self) -> None:
        """Nothing will look at it by itself."""
        for timer in (self.timer, self.retry):
            if timer is not None:
                timer.cancel()
