"""Connections to one API URL over blocking sockets, used by the thread that calls.

A thread that waits for its own socket is woken once per exchange; waiting for another thread costs three wake-ups.

Everything here belongs to one process.
"""

import time
import weakref
from collections import deque
from typing import Protocol

from volcano_locks.clock import Clock
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.http.response_reader import RESPONSE_BYTES_MAX, ResponseReader, not_connected
from volcano_locks.http.transport import KEEP_ALIVE_SECONDS
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.call import Call, TimeUp, raise_if_from_handler
from volcano_locks.sync.connection import Connection, ConnectionStream, connect
from volcano_locks.sync.resolver import Resolver


class ResponseStream(Protocol):
    """A response whose body is read as it arrives. `response` has no body."""

    response: Response

    def read(self, until: float, call: Call) -> bytes:
        """Return the next bytes; none at the end. Raises as `ConnectionPool`."""

    def close(self) -> None:
        """Close its connection."""


class ConnectionPool(Protocol):
    """Exchanges requests with a server. Raises NotConnectedError, BrokenResponseError, TimeUp and CallCancelled."""

    def exchange(self, request: OutgoingRequest, until: float, call: Call) -> Response:
        """Send one request and read its complete response."""

    def open_stream(self, request: OutgoingRequest, until: float, call: Call) -> ResponseStream:
        """Send a request whose response is a stream, and return when it begins."""

    def close(self) -> None:
        """Close the connections that are not in use. Sends nothing."""


class SocketPool:
    """A `ConnectionPool` over TCP and TLS."""

    def __init__(self, address: Address, ca_file: str | None, clock: Clock) -> None:
        self._address = address
        self._tls = address.tls_context(ca_file)
        self._resolver = Resolver(*address.connect_to, clock.now)
        self._idle: deque[Connection] = deque()
        self._close_dropped = weakref.finalize(self, _close_all, self._idle)

    def exchange(
        self, request: OutgoingRequest, until: float, call: Call, *, bytes_max: int = RESPONSE_BYTES_MAX
    ) -> Response:
        """As in `ConnectionPool`. A response of more than `bytes_max` bytes counts as broken."""
        message = self._address.encode(request)
        reader = ResponseReader(message, bytes_max)
        connection = self._reuse_idle() or self._open(until, call)
        try:
            connection.begin(until, call)
            connection.send(message)
            while (response := reader.feed(connection.receive())) is None:
                pass
            connection.end()
        except BaseException:
            connection.close()
            raise
        if reader.plain and not call.cancelled:  # a canceller may interrupt the connection even now
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            self._close_stale()
        else:
            connection.close()
        return response

    def open_stream(self, request: OutgoingRequest, until: float, call: Call) -> ConnectionStream:
        connection = self._open(until, call)
        try:
            return ConnectionStream(connection, self._address.encode(request), until, call)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close_dropped.detach()  # Python ignores an interrupt inside a finalizer, so none stays pending (case 17)
        _close_all(self._idle)

    def _reuse_idle(self) -> Connection | None:
        """The connection used last, unless it is closed or has been idle for too long."""
        while (connection := _pop(self._idle)) is not None:
            if time.monotonic() - connection.idle_since < KEEP_ALIVE_SECONDS and not connection.readable():
                return connection
            connection.close()
        return None

    def _close_stale(self) -> None:
        """Close the connection that has been idle for longest, if that is too long."""
        try:
            if time.monotonic() - self._idle[0].idle_since >= KEEP_ALIVE_SECONDS:
                self._idle.popleft().close()
        except IndexError:
            return

    def _open(self, until: float, call: Call) -> Connection:
        try:
            connection = Connection(connect(self._resolver.addresses(until, call), until, call))
            try:
                connection.begin(until, call)
                connection.open_tunnel(self._address)
                if self._tls is not None:
                    connection.start_tls(self._tls, self._address.host)
                connection.end()
            except BaseException:
                connection.close()
                raise
        except TimeUp:
            raise not_connected("the time limit has passed") from None
        except OSError as error:
            raise_if_from_handler(error)
            raise not_connected(error) from error
        return connection


def _pop(idle: deque[Connection]) -> Connection | None:
    try:
        return idle.pop()
    except IndexError:  # empty, perhaps since another thread took the last
        return None


def _close_all(idle: deque[Connection]) -> None:
    while (connection := _pop(idle)) is not None:
        connection.close()
