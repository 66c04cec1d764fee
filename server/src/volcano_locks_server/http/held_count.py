"""The number of held locks for `/metrics`, counted in the background while the server is scraped (OPS-3).

Counting takes longer the more locks are held, so a scrape gets the result of the newest count at once. The next count
begins COUNT_EVERY_SECONDS after the end of the one before, or later if that one was slow: counting takes at most
COUNTING_SHARE of the time. It stops SCRAPED_SECONDS after the last scrape. The first scrape after that waits for a
count, but at most FIRST_COUNT_SECONDS_MAX.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..ports.clock import Clock, Timer
from ..rules.errors import StoreUnavailableError
from ..telemetry import Log

COUNT_EVERY_SECONDS: Final = 10.0
COUNTING_SHARE: Final = 0.05
COUNT_SECONDS_MAX: Final = 60.0
FIRST_COUNT_SECONDS_MAX: Final = 2.0
SCRAPED_SECONDS: Final = 120.0


class HeldCount:
    """Calls `count` in the background. `close` ends it."""

    def __init__(self, count: Callable[[], Coroutine[Any, Any, int]], clock: Clock, log: Log) -> None:
        self._count: Final = count
        self._clock: Final = clock
        self._log: Final = log
        self._newest: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._scraped_ms = 0
        self._closed = False

    async def newest(self) -> int | None:
        """The newest count; None if there is none, or the last one failed."""
        self._scraped_ms = self._clock.now_ms()
        if self._timer is None and self._task is None:
            self._start()
        if self._newest is None and self._task is not None:
            await asyncio.wait({self._task}, timeout=FIRST_COUNT_SECONDS_MAX)
        return self._newest

    async def close(self) -> None:
        """Stop counting. Later scrapes get the newest count."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _start(self) -> None:
        if not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="count-held")

    async def _run(self) -> None:
        began_ms = self._clock.now_ms()
        try:
            self._newest = await self._count_once()
        finally:
            self._task = None
        rest_ms = (self._clock.now_ms() - began_ms) * (1 / COUNTING_SHARE - 1)
        self._timer = self._clock.call_in(round(max(COUNT_EVERY_SECONDS * 1_000, rest_ms)), self._count_again)

    async def _count_once(self) -> int | None:
        try:
            async with asyncio.timeout(COUNT_SECONDS_MAX):
                return await self._count()
        except (StoreUnavailableError, TimeoutError):
            return None
        except Exception as error:  # noqa: BLE001 - a bug in a store does not end the counts
            self._log.unexpected_error("count_failed", error)
            return None

    def _count_again(self) -> None:
        self._timer = None
        if self._clock.now_ms() - self._scraped_ms > SCRAPED_SECONDS * 1_000:
            self._newest = None
        else:
            self._start()
