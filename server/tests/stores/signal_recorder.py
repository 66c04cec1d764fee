"""Records the signals that one node receives."""

import asyncio
from collections.abc import Callable

from volcano_locks_server.ports.signals import Signals

RECEIVE_SECONDS_MAX = 30.0


class SignalRecorder:
    """Starts `signals` and keeps the messages received; `missed` counts the gaps."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self.received: list[bytes] = []
        self.missed = 0
        self._changed = asyncio.Event()
        signals.start(self._on_received, self._on_missed)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; it is checked after each message and every 50 ms."""
        async with asyncio.timeout(RECEIVE_SECONDS_MAX):
            while not condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def until_working(self) -> None:
        """Return when messages can be received."""
        await self.until(lambda: self.signals.working)

    async def until_received(self, *messages: bytes) -> None:
        """Return when these messages were received in this order; others are ignored."""
        wanted = set(messages)
        await self.until(lambda: [one for one in self.received if one in wanted] == list(messages))

    def _on_received(self, message: bytes) -> None:
        self.received.append(message)
        self._changed.set()

    def _on_missed(self) -> None:
        self.missed += 1
        self._changed.set()
