"""Refuses a connection with one response, without serving requests on it (HTTP-24)."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

REFUSAL_SECONDS_MAX: Final = 2.0


class Refusal(asyncio.Protocol):
    """Sends one response, and closes the connection when the client has closed its side or after REFUSAL_SECONDS_MAX.

    Until then it discards what the client sends: closing with bytes unread would discard the response.
    """

    def __init__(self, response: bytes, on_end: Callable[["Refusal"], None]) -> None:
        self._response: Final = response
        self._on_end: Final = on_end
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._response)
        self._transport.write_eof()
        self._deadline = asyncio.get_running_loop().call_later(REFUSAL_SECONDS_MAX, self.abort)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_end(self)

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()
