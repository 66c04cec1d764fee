"""The same exchanges as in `connections`, over blocking sockets in the thread that asks.

A thread that waits for its own socket is woken once an exchange; one that waits for another thread's event loop
is woken by it, after that was woken twice. A connection is opened by others (`open_socket`, in an event loop),
since resolving a name knows no limit of time.

Everything belongs to one process.
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

from volcano_locks.clock import NAP_SECONDS_MAX
from volcano_locks.http.pool import KEEP_ALIVE_SECONDS, Address, NotConnectedError, connect
from volcano_locks.http.response_reader import BrokenAnswerError, Fields, Reader, Received

if TYPE_CHECKING:
    import ssl

READ_BYTES_MAX = 65_536


class Sockets:
    """Connections to one API URL. `opened` gives a connected socket and is bounded in time by whoever gives it."""

    def __init__(self, address: Address, opened: Callable[[float], socket.socket], now: Callable[[], float]) -> None:
        self._address = address
        self._tls = address.tls_context()
        self._opened = opened
        self._now = now
        self._free: list[tuple[socket.socket, float]] = []
        self._all: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._finalize = weakref.finalize(self, _close_all, self._all)

    def exchange(
        self, method: str, path: str, headers: Fields, body: bytes, until: float, *, ended: Callable[[], bool]
    ) -> Received:
        """Send one request and read its answer. An interrupt ends its connection, and so does `ended` within seconds.

        Raises NotConnectedError, BrokenAnswerError, OSError, and TimeoutError once `now() >= until`.
        """
        request = self._address.request(method, path, headers, body)
        sock = self._kept() or self._connected(until)
        reader = Reader(to=request)
        try:
            received = self._exchanged(sock, request, reader, until, ended)
        except BaseException:
            self._end(sock)
            raise
        if reader.plain:
            self._free.append((sock, time.monotonic()))
            self._end_old()
        else:
            self._end(sock)
        return received

    def interrupt(self) -> None:
        """End all exchanges under way: whoever waits there gets no answer."""
        with self._mutex:
            for sock in self._all:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections."""
        self._free.clear()
        self._finalize()

    def abandon(self) -> None:
        """Let go of a parent's connections, without a word to the server."""
        self._free.clear()
        self._finalize()

    def _kept(self) -> socket.socket | None:
        """The connection that was in use last, unless it is closed or has been free for too long."""
        while self._free:
            try:
                sock, since = self._free.pop()
            except IndexError:  # another thread took it
                return None
            if time.monotonic() - since < KEEP_ALIVE_SECONDS and not _readable(sock):
                return sock
            self._end(sock)
        return None

    def _end_old(self) -> None:
        """Those that nobody has needed for long: a crowd that has gone leaves many."""
        with contextlib.suppress(IndexError):  # another thread took the last
            while time.monotonic() - self._free[0][1] >= KEEP_ALIVE_SECONDS:
                self._end(self._free.pop(0)[0])

    def _connected(self, until: float) -> socket.socket:
        sock = self._opened(until)
        try:
            encrypted = None
            if self._tls is not None:
                sock = encrypted = self._tls.wrap_socket(
                    sock, server_hostname=self._address.host, do_handshake_on_connect=False
                )
            with self._mutex:
                self._all.add(sock)
            if encrypted is not None:
                self._shake_hands(encrypted, until)
        except OSError as error:
            self._end(sock)
            raise NotConnectedError(f"cannot connect: {type(error).__name__}: {error}") from error
        except BaseException:
            self._end(sock)
            raise
        return sock

    def _shake_hands(self, sock: "ssl.SSLSocket", until: float) -> None:
        while (left := until - self._now()) > 0:
            sock.settimeout(min(left, NAP_SECONDS_MAX))
            try:
                return sock.do_handshake()
            except TimeoutError as error:
                if error.errno is not None:
                    raise
        raise NotConnectedError("cannot connect: the TLS handshake has not ended")

    def _exchanged(
        self, sock: socket.socket, request: bytes, reader: Reader, until: float, ended: Callable[[], bool]
    ) -> Received:
        sock.settimeout(self._nap(until))
        sock.sendall(request)
        while not ended():
            sock.settimeout(self._nap(until))
            try:
                data = sock.recv(READ_BYTES_MAX)
            except TimeoutError as error:
                if error.errno is not None:
                    raise BrokenAnswerError(f"{type(error).__name__}: {error}") from error
                continue
            received = reader.take(data)
            if received is not None:
                return received
        raise BrokenAnswerError("the client was closed")

    def _nap(self, until: float) -> float:
        """How long to wait before looking at the clock again: timers stand still while a machine sleeps."""
        left = until - self._now()
        if left <= 0:
            raise TimeoutError
        return min(left, NAP_SECONDS_MAX)

    def _end(self, sock: socket.socket) -> None:
        with self._mutex:
            self._all.discard(sock)
        sock.close()


async def open_socket(address: Address) -> socket.socket:
    """A connected socket, for whoever wants to block on it. Raises NotConnectedError."""
    transport, _ = await connect(address, asyncio.Protocol)
    try:
        return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    finally:
        transport.abort()


def _readable(sock: socket.socket) -> bool:
    """Of a connection that waits for nothing: the server has closed it, or speaks unasked."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(sockets: set[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()
