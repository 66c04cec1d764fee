"""The clock of a target's clients: it moves the server's clock along and knows which waits are in progress.

Each move stops at the next instant that a client or the server waits for. It continues when everything due there is
idle: every request in flight is in a wait queue, and every wait of a client is blocked on this clock.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from math import inf
from typing import Any, Final, NamedTuple

from volcano_locks.testing import ManualClock

from .server_harness import ServerHarness

SETTLE_SECONDS_MAX: Final = 20.0
POLL_SECONDS: Final = 0.0005
CURRENT_WAIT: Final[ContextVar[object]] = ContextVar("CURRENT_WAIT", default=None)


class _ClockWait(NamedTuple):
    """A coroutine that waits on the clock, until an instant or a signal."""

    until: float
    signal: "asyncio.Future[Any] | None"
    loop: asyncio.AbstractEventLoop


class ClientClock(ManualClock):
    """Moves the clock of `harness` along. None is for clients without a server.

    Work started inside `tracking` is a wait: `settle` returns when it is over or blocked on this clock. The harness is
    consulted only after the first such wait.
    """

    def __init__(self, harness: ServerHarness | None = None) -> None:
        super().__init__(on_move=None if harness is None else harness.follow)
        self._harness: Final = harness
        self._guard: Final = threading.Lock()
        self._open: Final[dict[Future[Any], list[_ClockWait]]] = {}
        self._in_flight = 0
        self._changes = 0
        self._has_waits = False

    # --- what is in progress ---

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Counts one more request in flight."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    @contextlib.contextmanager
    def tracking(self, over: "Future[Any]") -> Iterator[None]:
        """Work started inside belongs to the wait that ends with `over`, in whatever thread it continues."""
        self._has_waits = True
        with self._guard:
            self._open[over] = []
        over.add_done_callback(self._forget)
        before = CURRENT_WAIT.set(over)
        try:
            yield
        finally:
            CURRENT_WAIT.reset(before)

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        wait, current = _ClockWait(until, signal, asyncio.get_running_loop()), CURRENT_WAIT.get()
        with self._guard:
            waits = self._open.get(current) if isinstance(current, Future) else None
            if waits is not None:
                waits.append(wait)
        try:
            await super().wait(until, signal)
        finally:
            with self._guard:
                if waits is not None:
                    waits.remove(wait)

    # --- moving ---

    def next_due(self) -> float:
        due = self._harness.due_in_seconds() if self._harness is not None and self._has_waits else None
        return min(super().next_due(), inf if due is None else self.now() + due)

    def settle(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            changes = self._changes
            super().settle()
            if self._waits_are_idle():
                self._turn_loops()
                if self._harness is not None and self._has_waits:
                    self._harness.settle(lambda: self._in_flight)
                if changes == self._changes and self._waits_are_idle():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"a wait is still busy; {self._in_flight} requests are in flight")
            time.sleep(POLL_SECONDS)

    def advance_until(self, over: "Future[Any]") -> None:
        """Advance the clock until `over` is done."""
        self.settle()
        while not over.done():
            due = self.next_due()
            assert due < inf, "it is not over, and nothing is due by the clock"
            self.jump(due - self.now())
            self.settle()

    def _change(self, by: int) -> None:
        with self._guard:
            self._in_flight += by
            self._changes += 1

    def _forget(self, over: "Future[Any]") -> None:
        with self._guard:
            self._open.pop(over, None)

    def _turn_loops(self) -> None:
        """Let the event loops of all waits process the callbacks that are scheduled now."""
        with self._guard:
            loops = {wait.loop for waits in self._open.values() for wait in waits}
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(SETTLE_SECONDS_MAX)

    def _waits_are_idle(self) -> bool:
        with self._guard:
            return all(self._is_idle(waits) for over, waits in self._open.items() if not over.done())

    def _is_idle(self, waits: list[_ClockWait]) -> bool:
        """Every wait is blocked on the clock, and at least one does more than watch another task."""
        blocked = all(self.now() < wait.until and not (wait.signal and wait.signal.done()) for wait in waits)
        return blocked and any(not isinstance(wait.signal, asyncio.Task) for wait in waits)
