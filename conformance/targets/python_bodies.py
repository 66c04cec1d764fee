"""The functions that run while a Python client holds a lock: the bodies of blocks, and of `lead`."""

import threading
from concurrent.futures import Future
from typing import Any, Final, Protocol

from volcano_locks import AsyncLockGuard, LockGuard
from volcano_locks.clock import Wakeup

RESULT: Final = "the function's result"


class BodyError(Exception):
    """Raised by a block's body if the scenario says so."""


class BodyCancelled(KeyboardInterrupt):
    """The interrupt that ends a block's body if the scenario says so."""


def end_body(how: str) -> None:
    """The end of a body: it returns or raises."""
    if how == "raises":
        raise BodyError("the body's own error")
    if how == "cancelled":
        raise BodyCancelled


class Body(Protocol):
    """A block whose body runs until `finish`. `entered` has its guard; `over` ends with what the block raises."""

    @property
    def entered(self) -> Future[Any]: ...
    @property
    def over(self) -> Future[Any]: ...
    @property
    def stopped(self) -> bool: ...

    def finish(self, how: str) -> None:
        """End the body: it returns, raises, or is cancelled."""


class Campaign:
    """A call of `lead`: how often its function started and ended, its latest fencing token, and how it must end.

    `wakeup` ends the wait of the function that runs now.
    """

    def __init__(self) -> None:
        self.over: Future[Any] = Future()
        self.starts = 0
        self.ends = 0
        self.fencing_token: int | None = None
        self.stop: Final = threading.Event()
        self.how: str | None = None
        self.wakeup: Wakeup | None = None

    def begin(self, guard: LockGuard | AsyncLockGuard, wakeup: Wakeup) -> None:
        """Record a start of the function."""
        assert self.starts == self.ends, "two runs of one campaign overlap"
        assert not guard.lost, "the function starts with a lease that is lost"
        self.starts += 1
        self.fencing_token = guard.fencing_token
        self.wakeup = wakeup

    def finish(self, how: str) -> None:
        """End the function."""
        self.how = how
        if self.wakeup is not None:
            self.wakeup.set()

    def result(self) -> str | None:
        """What the function returns, or raises, when it has been ended. None after a loss."""
        if self.how == "raises":
            raise BodyError("the function's own error")
        return RESULT if self.how == "returns" else None
