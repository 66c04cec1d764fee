"""Slots for the list queries that run in the store at once (LIST-8, HISTORY-7).

Projects take turns, within shares (HTTP-32).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ..rules.errors import LockError
from ..rules.shares import Budget, past_share


class ListSlots:
    """`at_once` counts the queries that run, `waiting` the requests that wait for that; `what` names these."""

    def __init__(self, at_once: Budget, waiting: Budget, what: str = "list requests") -> None:
        self._what: Final = what
        self._at_once: Final = at_once
        self._waiting: Final = waiting
        self._queues: Final[dict[str, deque[asyncio.Future[None]]]] = {}  # by project, the next in turn first

    @asynccontextmanager
    async def slot(self, project_id: str) -> AsyncIterator[None]:
        """A slot for one query of this project.

        Raises LockError at once: `too_many_requests` if too many of the project wait, `lock_service_unavailable` if too
        many wait.
        """
        if project_id not in self._queues and self._at_once.excess(project_id) is None:
            self._at_once.add(project_id)
        else:
            await self._wait(project_id)
        try:
            yield
        finally:
            self._release(project_id)

    async def _wait(self, project_id: str) -> None:
        excess = self._waiting.take(project_id)
        if excess == "share":
            raise past_share("too_many_requests", f"waiting {self._what}")
        if excess is not None:
            busy = f"too many {self._what} wait on this node: try again in a moment"
            raise LockError("lock_service_unavailable", busy, retry_after_seconds=1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(project_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(project_id, turn)
            else:
                self._release(project_id)
            raise
        finally:
            self._waiting.give_back(project_id)

    def _leave(self, project_id: str, turn: "asyncio.Future[None]") -> None:
        """Remove a turn that was cancelled, unless `_following` has done so."""
        queue = self._queues.get(project_id)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[project_id]

    def _release(self, project_id: str) -> None:
        self._at_once.give_back(project_id)
        while (following := self._following()) is not None:
            self._at_once.add(following)

    def _following(self) -> str | None:
        """Give the next slot away: to the first project in turn that may have one more. Returns that project."""
        for project_id in [one for one in self._queues if self._at_once.excess(one) is None]:
            queue = self._queues.pop(project_id)
            turns = (queue.popleft() for _ in range(len(queue)))
            turn = next((one for one in turns if not one.done()), None)  # others were cancelled in this moment
            if queue:
                self._queues[project_id] = queue
            if turn is not None:
                turn.set_result(None)
                return project_id
        return None
