"""Slows down the senders of credentials that fail, by address (HTTP-35).

A sender may fail FREE_FAILURES times at once; after that, its failures are spaced FAILURE_EVERY_MS apart, and each
response waits at most DELAY_MS_MAX for its turn. Only responses to failed credentials wait: a credential is always
checked first, so a valid key behind the same address is never delayed.

All is bounded. An address costs one number, and past ADDRESSES_MAX the address whose last failure is longest ago is
forgotten. A waiting response holds its connection, so at most DELAYED_MAX wait, DELAYED_PER_ADDRESS_MAX of one address;
further ones are sent at once.
"""

import asyncio
from collections import Counter
from typing import Final

from ..ports.clock import Clock
from ..telemetry import Metrics
from .client_networks import network_of

FREE_FAILURES: Final = 10
FAILURE_EVERY_MS: Final = 1_000
DELAY_MS_MAX: Final = 1_000
ADDRESSES_MAX: Final = 4_096
DELAYED_PER_ADDRESS_MAX: Final = 32
DELAYED_MAX: Final = 256


class FailedCredentials:
    """The failures of one server."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._paid_until_ms: Final[dict[str, int]] = {}  # when the failures so far are spaced as they should be
        self._delayed: Final[Counter[str]] = Counter()
        self._waiting: Final[set[asyncio.Future[None]]] = set()
        self._stopping = False

    @property
    def address_count(self) -> int:
        """The number of addresses whose failures are remembered."""
        return len(self._paid_until_ms)

    async def slow_down(self, address: str | None) -> None:
        """Count a failed credential from this address (None: unknown), and wait if it failed too often."""
        self._metrics.failed_credentials += 1
        network = "" if address is None else network_of(address)
        delay_ms = self._delay_ms(network)
        if not delay_ms or self._stopping or not self._has_place(network):
            return
        self._metrics.delayed_credentials += 1
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_in(delay_ms, lambda: _end(over))
        self._delayed[network] += 1
        self._waiting.add(over)
        try:
            await over
        finally:
            timer.cancel()
            self._waiting.discard(over)
            self._delayed[network] -= 1
            if not self._delayed[network]:
                del self._delayed[network]

    def stop(self) -> None:
        """Send the responses that wait, and delay no more, because the server is stopping."""
        self._stopping = True
        for over in self._waiting:
            _end(over)

    def _has_place(self, network: str) -> bool:
        return len(self._waiting) < DELAYED_MAX and self._delayed[network] < DELAYED_PER_ADDRESS_MAX

    def _delay_ms(self, network: str) -> int:
        now_ms = self._clock.now_ms()
        paid_until_ms = max(self._paid_until_ms.pop(network, 0), now_ms)
        delay_ms = min(max(0, paid_until_ms - now_ms - (FREE_FAILURES - 1) * FAILURE_EVERY_MS), DELAY_MS_MAX)
        most_ms = now_ms + FREE_FAILURES * FAILURE_EVERY_MS + DELAY_MS_MAX
        if len(self._paid_until_ms) >= ADDRESSES_MAX:
            del self._paid_until_ms[next(iter(self._paid_until_ms))]
        self._paid_until_ms[network] = min(paid_until_ms + FAILURE_EVERY_MS, most_ms)
        return delay_ms


def _end(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
