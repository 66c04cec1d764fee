"""The clock of the clients of one face, in step with their server's, and the waits that go on under it.

Time stops at every instant that anybody waits for, a client or the server, and goes on when all that was due has come
to rest: every request under way waits in a line, and every wait of a client rests on this clock.
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

from .server_harness import House

SETTLE_SECONDS_MAX: Final = 20.0
POLL_SECONDS: Final = 0.0005
WHOSE: Final[ContextVar[object]] = ContextVar("WHOSE", default=None)


class _Rest(NamedTuple):
    """Somebody waiting on the clock, until then or until the signal."""

    until: float
    signal: "asyncio.Future[Any] | None"
    loop: asyncio.AbstractEventLoop


class FaceClock(ManualClock):
    """Moves the clock of `house` along; None is for clients without a server.

    What is done within `beginning` is a wait: `settle` returns once it is over or rests. Until there was one, the house
    is not asked.
    """

    def __init__(self, house: House | None = None) -> None:
        super().__init__(on_move=None if house is None else house.follow)
        self._house: Final = house
        self._guard: Final = threading.Lock()
        self._open: Final[dict[Future[Any], list[_Rest]]] = {}
        self._under_way = 0
        self._changes = 0
        self._waits = False

    # --- what goes on ---

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Inside, one more request is under way."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    @contextlib.contextmanager
    def beginning(self, over: "Future[Any]") -> Iterator[None]:
        """What is begun inside is the wait that ends with `over`, wherever it goes on."""
        self._waits = True
        with self._guard:
            self._open[over] = []
        over.add_done_callback(self._forget)
        before = WHOSE.set(over)
        try:
            yield
        finally:
            WHOSE.reset(before)

    async def wait(self, until: float, signal: "asyncio.Future[Any] | None" = None) -> None:
        rest, mine = _Rest(until, signal, asyncio.get_running_loop()), WHOSE.get()
        with self._guard:
            rests = self._open.get(mine) if isinstance(mine, Future) else None
            if rests is not None:
                rests.append(rest)
        try:
            await super().wait(until, signal)
        finally:
            with self._guard:
                if rests is not None:
                    rests.remove(rest)

    # --- moving ---

    def next_due(self) -> float:
        due = self._house.due_in_seconds() if self._house is not None and self._waits else None
        return min(super().next_due(), inf if due is None else self.now() + due)

    def settle(self) -> None:
        give_up = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            changes = self._changes
            super().settle()
            if self._waits_rest():
                self._turn_loops()
                if self._house is not None and self._waits:
                    self._house.settle(lambda: self._under_way)
                if changes == self._changes and self._waits_rest():
                    return
            if time.monotonic() > give_up:
                raise TimeoutError(f"a wait does not come to rest; {self._under_way} requests are under way")
            time.sleep(POLL_SECONDS)

    def go_on_until(self, over: "Future[Any]") -> None:
        """Let time go by until that is over."""
        self.settle()
        while not over.done():
            due = self.next_due()
            assert due < inf, "waits for nothing that will come"
            self.jump(due - self.now())
            self.settle()

    def _change(self, by: int) -> None:
        with self._guard:
            self._under_way += by
            self._changes += 1

    def _forget(self, over: "Future[Any]") -> None:
        with self._guard:
            self._open.pop(over, None)

    def _turn_loops(self) -> None:
        """What the loops of those who rest were told before this has reached them after it."""
        with self._guard:
            rests = [rest for mine in self._open.values() for rest in mine]
        for loop in {rest.loop for rest in rests}:
            with contextlib.suppress(RuntimeError):  # it is closed
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(SETTLE_SECONDS_MAX)

    def _waits_rest(self) -> bool:
        with self._guard:
            return all(self._rest(rests) for over, rests in self._open.items() if not over.done())

    def _rest(self, rests: list[_Rest]) -> bool:
        """Everything rests that rests on the clock, and something that does not merely watch over another does."""
        still = all(self.now() < rest.until and not (rest.signal and rest.signal.done()) for rest in rests)
        return still and any(not isinstance(rest.signal, asyncio.Task) for rest in rests)
