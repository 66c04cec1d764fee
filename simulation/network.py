"""The network between clients and nodes: delays, lost requests and responses, duplicates, and partitions.

A connection carries one request. If one of its ways is lost, the client notices nothing until its time is up. A broken
connection is noticed after a delay. The network keeps nothing for longer than LIFETIME_SECONDS.
"""

from collections.abc import Callable
from math import log
from random import Random
from typing import Final

from .node import Node, Process
from .server_request import ServerRequest
from .world import World

LIFETIME_SECONDS: Final = 8.0


class Network:
    """`loses` and `duplicates` are shares of requests; until `slow_until` a way may take `slow_seconds`. A
    response to one of `slow_clients` may take SLOW_CLIENT_SECONDS until that client's time.
    """

    SLOW_CLIENT_SECONDS: Final = 3.0

    def __init__(self, world: World, random: Random) -> None:
        self.loses = 0.0
        self.duplicates = 0.0
        self.slow_until = 0.0
        self.slow_seconds = 1.0
        self.cut_until: Final[dict[tuple[str, str], float]] = {}
        self.slow_clients: Final[dict[str, float]] = {}
        self._world: Final = world
        self._random: Final = random

    def send(
        self,
        client: str,
        node: Node,
        request: tuple[str, str, dict[bytes, bytes], bytes],
        on_response: Callable[[bytes | None, bool], None],
    ) -> "Exchange":
        """Send a request. `on_response` gets the response; or None and whether the request may have been sent."""
        exchange = Exchange(self, client, node, on_response)
        if self._is_lost(client, node):
            return exchange
        server_request = ServerRequest(*request, exchange.responded)
        exchange.server_request = server_request
        exchange.arrives_at = self._world.now + self._delay()
        self._world.at(exchange.arrives_at, exchange.arrive, server_request)
        if self.duplicates and self._random.random() < self.duplicates:
            exchange.is_repeated = True
            again = ServerRequest(*request, lambda _response: None)
            later = self._delay() + self._random.random() * LIFETIME_SECONDS / 2
            self._world.after(later, exchange.arrive_again, again)
        return exchange

    def _delay(self) -> float:
        seconds = 0.000_1 - 0.000_5 * log(1.0 - self._random.random())
        if self._world.now < self.slow_until:
            seconds += self._random.random() * self.slow_seconds
        return min(seconds, LIFETIME_SECONDS / 2)

    def _is_lost(self, client: str, node: Node) -> bool:
        if self.cut_until and self._world.now < self.cut_until.get((client, node.name), 0.0):
            return True
        return self.loses > 0 and self._random.random() < self.loses


class Exchange:
    """One request on its way, and its response."""

    def __init__(
        self, network: Network, client: str, node: Node, on_response: Callable[[bytes | None, bool], None]
    ) -> None:
        self.server_request: ServerRequest | None = None
        self.waits = False
        self.is_repeated = False
        """The network delivers the request twice, perhaps the second copy first."""
        self.arrives_at = 0.0
        self._network: Final = network
        self._client: Final = client
        self._node: Final = node
        self._on_response: Final = on_response

    def arrive(self, request: ServerRequest) -> None:
        process = self._node.process
        if process is None or not process.is_serving:
            if request is self.server_request:
                self._network._world.after(self._network._delay(), self._on_response, None, False)
        else:
            process.loop.call_soon(process.accept, request)

    def arrive_again(self, request: ServerRequest) -> None:
        key = request.target.split("/")[2]
        self._network._world.note("network", f"delivers a copy of {request.method} by {self._client}", key)
        self.arrive(request)

    def responded(self, response: bytes | None) -> None:
        network = self._network
        if not network._is_lost(self._client, self._node):
            seconds = network._delay()
            if network.slow_clients and network._world.now < network.slow_clients.get(self._client, 0.0):
                seconds += network._random.random() * network.SLOW_CLIENT_SECONDS
            network._world.after(seconds, self._on_response, response, True)

    def break_at_client(self) -> None:
        """The client gets an error; the node still believes in the connection."""
        self._on_response(None, True)

    def close(self) -> None:
        """The client closes the connection; the node learns of it unless that is lost."""
        request, network, process = self.server_request, self._network, self._node.process
        if request is not None and process is not None and not network._is_lost(self._client, self._node):
            learns_at = max(network._world.now, self.arrives_at) + network._delay()
            network._world.at(learns_at, _disconnect, process, request)


def _disconnect(process: Process, request: ServerRequest) -> None:
    if not process.loop.is_killed:
        process.loop.call_soon(request.disconnect)
