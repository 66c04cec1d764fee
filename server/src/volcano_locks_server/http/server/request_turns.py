"""Starts the requests that the ASGI application serves, a bounded number in each turn of the event loop.

Without the bound, a flood of them makes turns of seconds, in which no other connection is read. Requests whose service
key is known and all others wait in lines of their own, so strangers delay no key's requests. The lines are as bounded
as connections are: each has one request in progress. Lease requests that take the short way do not wait here.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

STARTS_PER_TURN: Final = 64  # of each line; as many as are accepted


class RequestTurns:
    """The requests of one listener, started in turns."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._lines: Final[tuple[deque[Coroutine[Any, Any, None]], ...]] = (deque(), deque())
        self._started = [0, 0]  # in this turn
        self._next_turn: asyncio.Handle | None = None

    def start(self, work: Coroutine[Any, Any, None], *, is_known: bool) -> None:
        """Run `work` in a task that `cancel` ends: now, or in a later turn after those before it in its line."""
        line = 0 if is_known else 1
        if self._started[line] < STARTS_PER_TURN and not self._lines[line]:
            self._start(work, line)
        else:
            self._lines[line].append(work)
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._turn)

    async def cancel(self, seconds: float) -> None:
        """End all requests, in at most `seconds`."""
        for line in self._lines:
            while line:
                line.popleft().close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _turn(self) -> None:
        self._next_turn = None
        self._started = [0, 0]
        for number, line in enumerate(self._lines):
            while line and self._started[number] < STARTS_PER_TURN:
                self._start(line.popleft(), number)
        if any(self._started):
            self._next_turn = self._loop.call_soon(self._turn)

    def _start(self, work: Coroutine[Any, Any, None], line: int) -> None:
        self._started[line] += 1
        task = self._loop.create_task(work, name="request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
