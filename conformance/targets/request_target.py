"""The verbs of requests that may wait, for targets that send them as coroutines in the server's event loop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from volcano_locks_server.testing import ManualClock

from .advance_clock import advance_until, settle
from .arguments import actor_and_key, racer_tokens
from .results import race_result
from .target import Result


class RequestTarget(ABC):
    """A subclass says how a request is performed, by which clock it waits, and when the server is idle."""

    makes_tokens = False

    def __init__(self) -> None:
        self._waits: Final[dict[tuple[str, str], asyncio.Task[Result]]] = {}

    @abstractmethod
    async def _perform(self, verb: str, args: Mapping[str, object]) -> Result:
        """Perform one request to its end."""

    @abstractmethod
    def _server_clock(self) -> ManualClock: ...

    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether the server only keeps requests in wait queues."""

    async def _perform_and_wait(self, verb: str, args: Mapping[str, object]) -> Result:
        """Perform one request. If it waits, the clock advances until its end."""
        task = asyncio.create_task(self._perform(verb, args))
        if args.get("wait_seconds"):
            await advance_until(self._server_clock(), task.done, self._is_idle)
        return await task

    async def _race(self, args: Mapping[str, object]) -> Result:
        racers = ({**args, "token": token} for token in racer_tokens(args))
        race = asyncio.gather(*(self._perform("acquire", racer) for racer in racers))
        if args.get("wait_seconds"):
            await advance_until(self._server_clock(), race.done, self._is_idle)
        return race_result(await race)

    async def _wait(self, args: Mapping[str, object]) -> Result:
        self._waits[actor_and_key(args)] = asyncio.create_task(self._perform("acquire", args))
        await settle(self._is_idle)
        return {}

    async def _waited(self, args: Mapping[str, object]) -> Result:
        await settle(self._is_idle)
        wait = self._waits[actor_and_key(args)]
        return wait.result() if wait.done() else {"pending": True}

    async def _hang_up(self, args: Mapping[str, object]) -> Result:
        self._waits[actor_and_key(args)].cancel()
        await settle(self._is_idle)
        return {}
