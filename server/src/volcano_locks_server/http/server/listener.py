"""Listens on a socket and serves an app on its connections, in the running event loop.

Of uvicorn, only the HTTP protocol is used. The server starts and stops listening by itself. Therefore several servers
fit in one process, port 0 works, and the process keeps its own signal handlers.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Collection
from email.utils import formatdate
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from ..app import App
from .connection_limits import ConnectionLimits
from .http1 import HEAD_SECONDS_MAX, KEEP_ALIVE_SECONDS, Http1Connection

BACKLOG: Final = 2048
ACCEPT_TURNS: Final = 4
CLOSE_SECONDS_MAX: Final = 2.0
HANDSHAKE_SECONDS_MAX: Final = HEAD_SECONDS_MAX


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
        bound: socket.socket | None = None,
        connections_max: int | None = None,
    ) -> None:
        self._host: Final = host
        self._port: Final = port
        self._tls: Final = tls
        self._bound = bound
        self._state: Final = ServerState()
        self.limits: Final = ConnectionLimits(
            cast("Collection[Http1Connection]", self._state.connections), limit=connections_max
        )
        self._server: asyncio.Server | None = None
        self._date: asyncio.TimerHandle | None = None
        self.url = ""

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._state.connections)

    def bind(self) -> None:
        """Take the address; connections are refused until `start`. Raises OSError if the address is not available."""
        if self._bound is None:
            self._bound = bound_socket(self._host, self._port)

    async def start(self, app: App) -> None:
        """Listen and accept. Raises OSError if another program listens on the address by now."""
        assert self._bound is not None
        bound, config = self._bound, _config(app)
        bound.listen(BACKLOG)  # here, because uvloop hides the reason if the address was taken meanwhile
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Http1Connection(config, self._state, self.limits),
            sock=bound,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS_MAX,
            backlog=BACKLOG,
        )
        self._tick()
        self.limits.sweep()
        scheme = "http" if self._tls is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{scheme}://{host}:{bound.getsockname()[1]}"

    async def close(self) -> None:
        """Stop accepting, let responses that are being written go out, then close all connections."""
        if self._server is None:
            if self._bound is not None:
                self._bound.close()
            return
        await self._stop_accepting(self._server)
        self.limits.stop()
        if self._date is not None:
            self._date.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                while self._state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.005)
        for connection in list(self._state.connections):
            connection.transport.abort()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS_MAX)
        self._server = None

    async def _stop_accepting(self, server: asyncio.Server) -> None:
        """Close the listening sockets when ACCEPT_TURNS turns of the loop have passed since the last accept.

        asyncio leaks a connection that is accepted just before its server closes. After these turns it is registered.
        """
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()

    def _tick(self) -> None:
        """Renew the Date header field, once a second."""
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        self._date = asyncio.get_running_loop().call_later(1.0, self._tick)


def _config(app: App) -> Config:
    config = Config(
        cast(Any, app),
        interface="asgi3",
        http=Http1Connection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    config.load()
    return config


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address and does not listen yet. Raises OSError."""
    family, _, _, _, address = sorted(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
        key=lambda found: found[0] != socket.AF_INET,
    )[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address[:2])
    except BaseException:
        bound.close()
        raise
    return bound


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate chain and key, PEM files. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
