"""The order in which TLS handshakes start: one of each client address in turn. Pure: no I/O."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from ..client_networks import network_of


class HandshakeQueue:
    """Handshakes that have not started. Hundreds from one address hold up no other address (HTTP-24)."""

    def __init__(self) -> None:
        self._by_network: Final[OrderedDict[str, deque[Callable[[], None]]]] = OrderedDict()  # the next one first

    def __bool__(self) -> bool:
        return bool(self._by_network)

    def add(self, address: str, start: Callable[[], None]) -> None:
        """Add a handshake of this client address, after its earlier ones."""
        self._by_network.setdefault(network_of(address), deque()).append(start)

    def take(self) -> Callable[[], None]:
        """Remove the next handshake. Raises KeyError if there is none."""
        network, starts = self._by_network.popitem(last=False)
        start = starts.popleft()
        if starts:
            self._by_network[network] = starts
        return start
