"""The `with` block for threads: the calling thread enters and leaves it, `renewals` renews the lock.

A loss does not interrupt the body. An interrupt (Ctrl-C) while entering releases what was acquired; an interrupt while
leaving does not prevent the release.
"""

import threading
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import ParamSpec, TypeVar

from volcano_locks.errors import LockOwnershipLostError, VolcanoError
from volcano_locks.holding.block import Block, exit_error
from volcano_locks.holding.guard import BaseGuard
from volcano_locks.holding.hold import Hold
from volcano_locks.sync.call import Call, Signal, sleep
from volcano_locks.sync.driver import Driver
from volcano_locks.sync.renewals import Entry, Renewals

P = ParamSpec("P")
R = TypeVar("R")


class LockGuard(BaseGuard):
    """The held lock in the body of `with client.locks.with_lock(…)`. May be used from any thread."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Block until the loss, the end of the block, or `timeout` seconds; return `lost`."""
        hold, clock = self._hold, self._clock
        until = inf if timeout is None else clock.now() + timeout
        while hold.not_held_error() is None and clock.now() < until:
            signal = Signal()
            forget = hold.on_end(signal.set)
            try:
                sleep(clock, min(until, hold.deadline()), signal)
            finally:
                forget()
        return hold.not_held_error() is not None


class LockBlock:
    """The context manager that `with_lock` returns, for one `with`; or a decorator. `loss` is set on leaving."""

    def __init__(
        self,
        block: Block,
        driver: Driver,
        renewals: Renewals,
        stop: threading.Event | None = None,
        new_block: "Callable[[], LockBlock] | None" = None,
    ) -> None:
        self.loss: LockOwnershipLostError | None = None
        self._block = block
        self._driver = driver
        self._renewals = renewals
        self._stop = stop
        self._new_block = new_block
        self._entry: Entry | None = None
        self._guard: LockGuard | None = None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """A decorator: each call runs in a block of its own. An argument named `guard` is passed as by `exclusive`."""
        from volcano_locks.features.exclusive import threaded  # noqa: PLC0415 - rarely needed

        new_block = self._new_block
        if new_block is None:
            raise TypeError("with_lock as a decorator takes no token: each call makes its own")
        return threaded("", "raise", lambda _key, _wait: new_block())(function)

    def __enter__(self) -> LockGuard:
        enter = self._block.enter(threading.get_ident())
        try:
            call = Call(self._block.clock, self._stop)
            hold = self._driver.run(enter, undo=lambda _: self._block.leave(), call=call)
            self._entry = self._renewals.add(self._block, hold, self)
            self._guard = LockGuard(hold, self._block.clock)
        except BaseException:
            if self._block.hold is not None:
                self._leave(self._block.hold)
            raise
        return self._guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold = self._block.hold
        assert hold is not None
        assert self._guard is not None
        try:
            self.loss = self._leave(hold)
        except BaseException:  # an interrupt must not prevent the release (case 17)
            self._leave(hold)
            raise
        self._guard._release_error = self._block.release_error
        outcome = exit_error(error, self.loss, self._block.release_error)
        if outcome is not None:
            raise outcome

    def _leave(self, hold: Hold) -> LockOwnershipLostError | None:
        self._block.stop()
        if hold.forked:
            return hold.loss()
        if self._entry is not None:
            self._entry.end_renewal(let_finish=self._block.needs_last_renewal())
        try:
            return self._driver.run(self._block.leave(), call=Call(self._block.clock, shielded=True))
        except VolcanoError as closed:
            self._block.not_released(closed)
            return hold.loss()
