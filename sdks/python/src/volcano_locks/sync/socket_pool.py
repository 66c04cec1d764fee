"""The exchanges of `http.pool` over blocking sockets, in the calling thread. Everything here belongs to one process.

A thread that waits for its own socket is woken once per exchange. Waiting for another thread's event loop costs three
wake-ups. An event loop opens the connections (`open_socket`), because resolving a name cannot be limited in time.
"""

import asyncio
import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from volcano_locks.clock import SLEEP_SECONDS_MAX
from volcano_locks.http.pool import KEEP_ALIVE_SECONDS, Address, NotConnectedError, connect
from volcano_locks.http.response_reader import BrokenResponseError, Headers, ResponseReader
from volcano_locks.protocol.messages import Response

if TYPE_CHECKING:
    import ssl

READ_BYTES_MAX = 65_536


class SocketPool:
    """Connections to one API URL. `opener` returns a connected socket and observes its time limit."""

    def __init__(self, address: Address, opener: Callable[[float], socket.socket], now: Callable[[], float]) -> None:
        self._address = address
        self._tls = address.tls_context()
        self._opener = opener
        self._now = now
        self._idle: list[tuple[socket.socket, float]] = []
        self._all: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._finalize = weakref.finalize(self, _close_all, self._all)

    def exchange(
        self, method: str, path: str, headers: Headers, body: bytes, until: float, *, cancelled: Callable[[], bool]
    ) -> Response:
        """Send one request and read its response. An interrupt, or `cancelled` within seconds, closes its connection.

        Raises NotConnectedError, BrokenResponseError, OSError, and TimeoutError when `now() >= until`.
        """
        request = self._address.request(method, path, headers, body)
        sock = self._reuse_idle() or self._open(until)
        reader = ResponseReader(request)
        try:
            response = self._exchange(sock, request, reader, until, cancelled)
        except BaseException:
            self._close(sock)
            raise
        if reader.plain:
            self._idle.append((sock, time.monotonic()))
            self._close_stale()
        else:
            self._close(sock)
        return response

    def interrupt(self) -> None:
        """End all running exchanges without a response."""
        with self._mutex:
            for sock in self._all:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections, without sending anything: a child may close its copies of its parent's sockets."""
        self._idle.clear()
        self._finalize()

    def _reuse_idle(self) -> socket.socket | None:
        """The connection used last, unless it is closed or has been idle for too long."""
        while self._idle:
            try:
                sock, since = self._idle.pop()
            except IndexError:  # another thread took it
                return None
            if time.monotonic() - since < KEEP_ALIVE_SECONDS and not _readable(sock):
                return sock
            self._close(sock)
        return None

    def _close_stale(self) -> None:
        """Close the connections that were idle for too long."""
        with contextlib.suppress(IndexError):  # another thread took the last
            while time.monotonic() - self._idle[0][1] >= KEEP_ALIVE_SECONDS:
                self._close(self._idle.pop(0)[0])

    def _open(self, until: float) -> socket.socket:
        sock = self._opener(until)
        try:
            encrypted = None
            if self._tls is not None:
                sock = encrypted = self._tls.wrap_socket(
                    sock, server_hostname=self._address.host, do_handshake_on_connect=False
                )
            with self._mutex:
                self._all.add(sock)
            if encrypted is not None:
                self._handshake(encrypted, until)
        except OSError as error:
            self._close(sock)
            raise NotConnectedError(f"cannot connect: {type(error).__name__}: {error}") from error
        except BaseException:
            self._close(sock)
            raise
        return sock

    def _handshake(self, sock: "ssl.SSLSocket", until: float) -> None:
        while (remaining := until - self._now()) > 0:
            sock.settimeout(min(remaining, SLEEP_SECONDS_MAX))
            try:
                return sock.do_handshake()
            except TimeoutError as error:
                if error.errno is not None:
                    raise
        raise NotConnectedError("cannot connect: the TLS handshake did not finish in time")

    def _exchange(
        self, sock: socket.socket, request: bytes, reader: ResponseReader, until: float, cancelled: Callable[[], bool]
    ) -> Response:
        sock.settimeout(self._timeout(until))
        sock.sendall(request)
        while not cancelled():
            sock.settimeout(self._timeout(until))
            try:
                data = sock.recv(READ_BYTES_MAX)
            except TimeoutError as error:
                if error.errno is not None:
                    raise BrokenResponseError(f"{type(error).__name__}: {error}") from error
                continue
            response = reader.feed(data)
            if response is not None:
                return response
        raise BrokenResponseError("the client was closed")

    def _timeout(self, until: float) -> float:
        """How long to wait before checking the clock again, because timers stop while a machine sleeps."""
        remaining = until - self._now()
        if remaining <= 0:
            raise TimeoutError
        return min(remaining, SLEEP_SECONDS_MAX)

    def _close(self, sock: socket.socket) -> None:
        with self._mutex:
            self._all.discard(sock)
        sock.close()


async def open_socket(address: Address) -> socket.socket:
    """Return a connected blocking socket. Raises NotConnectedError."""
    transport, _ = await connect(address, asyncio.Protocol)
    try:
        return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    finally:
        transport.abort()


def _readable(sock: socket.socket) -> bool:
    """Whether an idle connection has input: the server closed it or sent unsolicited data."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(sockets: set[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()
