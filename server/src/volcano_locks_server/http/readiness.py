"""Readiness for all who ask: at most one probe a second, whose result they share (OPS-10).

Anyone may ask, so questions must cost the store no more than a fixed share. A failure is shared like a success.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..ports.clock import Clock
from .credential_cache import retrieve_exception

PROBES_APART_MS: Final = 1_000


class Readiness:
    """`probe` returns if the store can serve, and raises StoreUnavailableError if not."""

    def __init__(self, probe: Callable[[], Coroutine[Any, Any, None]], clock: Clock) -> None:
        self._probe: Final = probe
        self._clock: Final = clock
        self._task: asyncio.Task[None] | None = None
        self._began_at_ms = 0

    async def result(self) -> None:
        """Return or raise what the latest probe did. Cancelling one caller does not cancel the probe."""
        now_ms = self._clock.now_ms()
        if self._task is None or (self._task.done() and now_ms >= self._began_at_ms + PROBES_APART_MS):
            self._began_at_ms = now_ms
            self._task = asyncio.create_task(self._probe(), name="readiness")
            self._task.add_done_callback(retrieve_exception)
        await asyncio.shield(self._task)
