"""A node that listens to what nodes tell each other, and remembers it."""

import asyncio
from collections.abc import Callable

from volcano_locks_server.ports.signals import Signals

HEARD_SECONDS = 30.0


class Ear:
    """Starts `signals`, and keeps what is heard. `missed` counts."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self.heard: list[bytes] = []
        self.missed = 0
        self._changed = asyncio.Event()
        signals.start(self._on_heard, self._on_missed)

    async def until(self, so: Callable[[], bool]) -> None:
        """Return when it is so; looked at whenever something is heard or missed, and every so often."""
        async with asyncio.timeout(HEARD_SECONDS):
            while not so():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def listens(self) -> None:
        """Return when messages are heard."""
        await self.until(lambda: self.signals.working)

    async def hears(self, *messages: bytes) -> None:
        """Return when these were heard, in their order among themselves; others do not matter."""
        wanted = set(messages)
        await self.until(lambda: [one for one in self.heard if one in wanted] == list(messages))

    def _on_heard(self, message: bytes) -> None:
        self.heard.append(message)
        self._changed.set()

    def _on_missed(self) -> None:
        self.missed += 1
        self._changed.set()
