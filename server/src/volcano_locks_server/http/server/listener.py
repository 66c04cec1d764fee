"""Listens on a socket and serves an app on its connections, in the running event loop.

Several listeners fit in one process, port 0 works, and the process keeps its own signal handlers.
"""

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from ...telemetry import Log
from ..app import App
from .acceptor import Acceptor
from .client_address import TrustedProxies
from .connection_context import ConnectionContext
from .connection_limits import ConnectionLimits
from .http1 import Http1Connection

BACKLOG: Final = 10_000  # fewer if the system allows fewer; a client that finds it full tries again after a second
CLOSE_SECONDS_MAX: Final = 2.0
RECEIVE_BUFFER_BYTES: Final = 65_536  # of the kernel, for each connection; holds two heads
SEND_BUFFER_BYTES: Final = 65_536  # of the kernel, which else keeps up to 4 MB for a client that does not read
TLS_RECEIVE_BUFFER_BYTES: Final = 12_288  # uvloop keeps twice the largest read in memory for each connection


class Listener:
    """Holds its address from `bind` to `close`, and accepts connections for an app from `start` on.

    `bound` is a socket that has the address already; other processes may share it.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        log: Log,
        limits: ConnectionLimits,
        proxies: TrustedProxies,
        bound: socket.socket | None = None,
    ) -> None:
        self.limits: Final = limits
        self._proxies: Final = proxies
        self._host: Final = host
        self._port: Final = port
        self._tls = tls
        self._log: Final = log
        self._bound = bound
        self._context: ConnectionContext | None = None
        self._acceptor: Acceptor | None = None
        self.url = ""

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self.limits.count

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use this context for the handshakes from now on. Connections that are open keep theirs."""
        self._tls = context
        if self._acceptor is not None:
            self._acceptor.tls = context

    def bind(self) -> None:
        """Take the address; connections are refused until `start`. Raises OSError if the address is not available."""
        if self._bound is None:
            self._bound = bound_socket(self._host, self._port)

    async def start(self, app: App) -> None:
        """Listen and accept. Raises OSError if another program listens on the address by now."""
        assert self._bound is not None
        bound = self._bound
        self._context = context = ConnectionContext(app, app.lease_requests, self.limits, self._proxies)
        buffer_bytes = RECEIVE_BUFFER_BYTES if self._tls is None else TLS_RECEIVE_BUFFER_BYTES
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)  # accepted sockets inherit both
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound.listen(BACKLOG)
        self._acceptor = Acceptor(bound, lambda: Http1Connection(context), self.limits, self._log, self._tls)
        self._acceptor.start()
        self.limits.sweep()
        scheme = "http" if self._tls is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{scheme}://{host}:{bound.getsockname()[1]}"

    async def close(self) -> None:
        """Stop accepting, let responses that are being written go out, then close all connections."""
        if self._acceptor is None or self._context is None:
            if self._bound is not None:
                self._bound.close()
            return
        await self._acceptor.close()
        self.limits.stop()
        for connection in list(self.limits.open):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self.limits.all_closed()
        for connection in list(self.limits.open):
            connection.transport.abort()
        await self._context.turns.cancel(CLOSE_SECONDS_MAX)
        self._acceptor = None


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address and does not listen yet. Raises OSError."""
    family, kind, protocol, _, address = sorted(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
        key=lambda found: found[0] != socket.AF_INET,
    )[0]
    bound = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY if it knows that the protocol is TCP
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address[:2])
    except BaseException:
        bound.close()
        raise
    return bound
