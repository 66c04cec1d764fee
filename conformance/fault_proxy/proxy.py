"""The proxy: one listening port for each actor, so that it knows which client sent a request.

    proxy = FaultProxy(harness)
    client = Client(proxy.url("ann"), harness.service_key, clock=clock)
    proxy.add_fault({"kind": "hang_after", "of": ["acquire"], "count": 1})
    proxy.take_sent("ann")  →  {"acquire": 1, …, "tokens": 1, "request_ids": 1}

It runs in the event loop of the server's harness, and its delays are timers of the server's clock. `state` shows
whether anything is still on its way between the clients and the server.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from ..targets.server_harness import ServerHarness
from .connection import HOST, ClientConnection, Timer, Traffic
from .faults import REFUSED, ScriptedFault, SentRequests

BACKLOG: Final = 1_024

T = TypeVar("T")


class NetworkState(NamedTuple):
    """What is on its way between the clients and the server.

    `at_rest`: each of the `open_requests` hangs, is delayed, waits in the server's queue, or is a stream that began.
    If `exchanged` has changed since the last call, a client may have received something. `next_due_seconds` is None if
    nothing is due by the clock.
    """

    at_rest: bool
    open_requests: int
    exchanged: int
    next_due_seconds: float | None


class FaultProxy:
    """A proxy in front of a harness that listens. Call its public methods from another thread than the harness's."""

    def __init__(self, harness: ServerHarness) -> None:
        self.faults: Final[list[ScriptedFault]] = []
        self.traffic: Final = Traffic()
        self._harness: Final = harness
        self._ports: Final[dict[str, _ActorPort]] = {}

    # --- for the targets ---

    def url(self, actor: str) -> str:
        """The base URL of the API for this actor's client."""
        return f"http://{HOST}:{self._in_loop(lambda: self._port(actor).number)}"

    def add_fault(self, args: Mapping[str, object]) -> None:
        """Act out the verb `outage`."""
        self._in_loop(lambda: self._add_fault(ScriptedFault.from_args(args)))

    def clear_faults(self) -> None:
        """End all outages. Requests that already hang continue to hang."""
        self._in_loop(self._clear_faults)

    def take_sent(self, actor: str) -> Mapping[str, object]:
        """What the actor's client sent since the last call."""
        return self._in_loop(lambda: self._port(actor).take_sent())

    def cut_streams(self, actor: str) -> None:
        """Break the connections of the actor's streams."""
        self._in_loop(lambda: self._port(actor).cut_streams())

    def restart_server(self, clock_behind_ms: int = 0) -> Mapping[str, object]:
        """Restart the server, which closes the connections."""
        self._in_loop(self._close_idle)
        return self._harness.restart(clock_behind_ms)

    def follow(self, seconds: float) -> None:
        """Advance the server's clock with a client's clock. This ends outages whose time is over."""
        self._harness.follow(seconds)
        self._in_loop(lambda: None)

    def state(self) -> NetworkState:
        """Whether everything is at rest between the clients and the server, and when something is due."""
        traffic = self.traffic
        return NetworkState(
            at_rest=self._harness.is_idle_soon(lambda: traffic.forwarded),
            open_requests=traffic.forwarded + traffic.held + traffic.streams,
            exchanged=traffic.exchanged,
            next_due_seconds=self._harness.due_in_seconds(),
        )

    def close(self) -> None:
        """Close all connections and ports."""

        async def close() -> None:
            for port in self._ports.values():
                await port.close()

        self._harness.loop.run(close())

    def _in_loop(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return self._harness.loop.run(run())

    # --- for the connections ---

    @property
    def server_port(self) -> int:
        return self._harness.port

    def call_in(self, ms: int, call: Callable[[], None]) -> Timer:
        """Call a function after `ms` of the scenario's clock."""
        return self._harness.clock.call_in(ms, call)

    # --- in the event loop ---

    def _port(self, actor: str) -> "_ActorPort":
        if actor not in self._ports:
            self._ports[actor] = _ActorPort(self, actor)
            self._open_or_close_ports()
        return self._ports[actor]

    def _close_idle(self) -> None:
        for port in self._ports.values():
            port.close_idle()

    def _add_fault(self, fault: ScriptedFault) -> None:
        self.faults.append(fault)
        self._open_or_close_ports()
        if fault.lasts_ms is not None:
            self.call_in(fault.lasts_ms, lambda: self._end_fault(fault))

    def _end_fault(self, fault: ScriptedFault) -> None:
        self.faults[:] = [one for one in self.faults if one is not fault]
        self._open_or_close_ports()

    def _clear_faults(self) -> None:
        self.faults.clear()
        self._open_or_close_ports()

    def _open_or_close_ports(self) -> None:
        for actor, port in self._ports.items():
            if any(one.kind == REFUSED and one.actor in (None, actor) for one in self.faults):
                port.refuse()
            else:
                port.listen()


class _ActorPort:
    """The port of one actor. While it refuses connections, a bound socket that does not listen keeps its number."""

    def __init__(self, proxy: FaultProxy, actor: str) -> None:
        self._sent: Final = SentRequests()
        self._proxy: Final = proxy
        self._actor: Final = actor
        self._bound: Final = _bound_socket(0)
        self.number: Final[int] = self._bound.getsockname()[1]
        self._loop: Final = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._connections: Final[dict[asyncio.Task[None], ClientConnection]] = {}

    def listen(self) -> None:
        """Accept connections."""
        if self._listener is None:
            self._listener = _bound_socket(self.number)
            self._listener.listen(BACKLOG)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def take_sent(self) -> Mapping[str, object]:
        """What the client sent since the last call."""
        return self._sent.take()

    def refuse(self) -> None:
        """Refuse connections, and close those that no request uses."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that no request uses."""
        for task, connection in self._connections.items():
            if connection.is_idle:
                task.cancel()

    def cut_streams(self) -> None:
        """Break the connections of all streams."""
        for task, connection in self._connections.items():
            if connection.is_stream:
                connection.reset()
                task.cancel()

    async def close(self) -> None:
        """Refuse connections and end the open ones."""
        self.refuse()
        self._bound.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        peer, _ = listener.accept()
        connection = ClientConnection(self._proxy, self._actor, self._sent)
        task = self._loop.create_task(connection.serve(peer))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)


def _bound_socket(port: int) -> socket.socket:
    """A socket that is bound to a port, which two of the sockets share."""
    bound = socket.socket()
    bound.setblocking(False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound
