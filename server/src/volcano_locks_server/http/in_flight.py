"""Counts the requests in progress, so that a server that stops can complete them (HTTP-23)."""

import asyncio


class InFlight:
    """The number of requests in progress, over both ways that requests take."""

    def __init__(self) -> None:
        self.count = 0
        self._idle: asyncio.Event | None = None

    def enter(self) -> None:
        self.count += 1

    def leave(self) -> None:
        self.count -= 1
        if not self.count and self._idle is not None:
            self._idle.set()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Return True once no request is in progress, False if some are left after `seconds`."""
        if not self.count:
            return True
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
