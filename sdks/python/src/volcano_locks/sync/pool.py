"""Connections to one API URL over blocking sockets, used by the thread that calls.

A thread that waits for its own socket is woken once per exchange. Socket time-outs end its waits. Another thread ends
them with `shutdown`, never with `close`, after which the system may give the descriptor to another file.

Everything here belongs to one process.
"""

import errno
import os
import select
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from volcano_locks.clock import Clock
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.http.response_reader import (
    RESPONSE_BYTES_MAX,
    BrokenResponseError,
    ResponseReader,
    StreamReader,
    broken,
    not_connected,
)
from volcano_locks.http.transport import KEEP_ALIVE_SECONDS, RACE_SECONDS, READ_BYTES_MAX
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.call import Call
from volcano_locks.sync.resolver import Addresses, Resolver

if TYPE_CHECKING:
    import ssl

CONNECT_CHECK_SECONDS = 0.05
_CONNECTING = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})
_SOCKET_MODULES = frozenset({"volcano_locks", "socket", "ssl", "selectors", "gevent", "eventlet"})


class ResponseStream(Protocol):
    """A response that is read as it arrives. Raises BrokenResponseError and what `Call.remaining` raises."""

    def head(self, until: float, call: Call) -> tuple[int, Mapping[str, str]]:
        """Return status and header fields, with lower-case names, when they have arrived."""

    def read(self, until: float, call: Call) -> bytes:
        """Return the next bytes; none at the end."""

    def close(self) -> None:
        """Close its connection."""


class ConnectionPool(Protocol):
    """Exchanges requests with a server. Raises NotConnectedError, BrokenResponseError, TimeUp and CallCancelled."""

    def exchange(self, request: OutgoingRequest, until: float, call: Call) -> Response:
        """Send one request and read its complete response."""

    def open_stream(self, request: OutgoingRequest, until: float, call: Call) -> ResponseStream:
        """Send a request whose response is a stream."""

    def close(self) -> None:
        """Close the connections that are not in use. Sends nothing."""


class SocketPool:
    """A `ConnectionPool` over TCP and TLS."""

    def __init__(self, address: Address, ca_file: str | None, clock: Clock) -> None:
        self._address = address
        self._tls = address.tls_context(ca_file)
        self._resolver = Resolver(*address.connect_to, clock.now)
        self._idle: deque[Connection] = deque()

    def exchange(
        self, request: OutgoingRequest, until: float, call: Call, *, bytes_max: int = RESPONSE_BYTES_MAX
    ) -> Response:
        """As in `ConnectionPool`. A response of more than `bytes_max` bytes counts as broken."""
        message = self._address.encode(request)
        connection = self._reuse_idle() or self._open(until, call)
        reader = ResponseReader(message, bytes_max)
        try:
            connection.begin(until, call)
            connection.send(message, until, call)
            while (response := reader.feed(connection.receive(until, call))) is None:
                pass
            connection.end()
        except BaseException:
            connection.close()
            raise
        if reader.plain:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            self._close_stale()
        else:
            connection.close()
        return response

    def open_stream(self, request: OutgoingRequest, until: float, call: Call) -> "SocketStream":
        message = self._address.encode(request)
        connection = self._open(until, call)
        connection.begin(until, call)
        connection.send(message, until, call)
        connection.end()
        return SocketStream(connection, StreamReader(message))

    def close(self) -> None:
        while (connection := self._pop_idle()) is not None:
            connection.close()

    def _pop_idle(self) -> "Connection | None":
        try:
            return self._idle.pop()
        except IndexError:  # empty, perhaps since another thread took the last
            return None

    def _reuse_idle(self) -> "Connection | None":
        """The connection used last, unless it is closed or has been idle for too long."""
        while (connection := self._pop_idle()) is not None:
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

    def _open(self, until: float, call: Call) -> "Connection":
        try:
            connection = Connection(self._address, _connect(self._resolver.addresses(until, call), until, call))
        except OSError as error:
            raise_if_from_handler(error)
            raise not_connected(error) from error
        try:
            connection.begin(until, call)
            connection.open_tunnel(until, call)
            if self._tls is not None:
                connection.start_tls(self._tls, until, call)
            connection.end()
        except BaseException:
            connection.close()
            raise
        return connection


class Connection:
    """One connection, used by one thread at a time. It is a `Wakeup`: setting it ends the thread's wait."""

    def __init__(self, address: Address, sock: socket.socket) -> None:
        self.idle_since = 0.0
        self._address = address
        self._socket = sock
        self._interrupted = False
        self._end = _nothing

    def __del__(self) -> None:
        self._socket.close()

    def set(self) -> None:
        self._interrupted = True
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not SSLSocket's, which drops its state
        except OSError:
            return  # closed already

    def is_set(self) -> bool:
        return self._interrupted

    def begin(self, until: float, call: Call) -> None:
        """From here to `end`, cancelling the call and moving the clock to `until` interrupt the connection."""
        self._end = call.interruptible(until, self)

    def end(self) -> None:
        """The connection is no longer waited for."""
        self._end()
        self._end = _nothing

    def close(self) -> None:
        """Close it, in the thread that uses it."""
        self.end()
        self._socket.close()

    def readable(self) -> bool:
        """Whether it has input though idle: the server closed it or sent unsolicited data."""
        if not hasattr(select, "poll"):
            return bool(select.select([self._socket], [], [], 0)[0])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, data: bytes, until: float, call: Call) -> None:
        """Send all of `data`, which is short."""
        self._socket.settimeout(call.remaining(until))
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise_if_from_handler(error)
            call.remaining(until)
            raise broken(error) from error

    def receive(self, until: float, call: Call) -> bytes:
        """The next bytes; none at the end."""
        while True:
            self._socket.settimeout(call.remaining(until))
            try:
                data = self._socket.recv(READ_BYTES_MAX)
            except OSError as error:
                raise_if_from_handler(error)
                if _is_pause(error):
                    continue
                call.remaining(until)
                raise broken(error) from error
            if self._interrupted:
                call.remaining(until)
            return data

    def open_tunnel(self, until: float, call: Call) -> None:
        """Open a tunnel through the proxy, if TLS needs one. Raises NotConnectedError."""
        request = self._address.tunnel
        if request is None:
            return
        reader = StreamReader(request)
        self.send(request, until, call)
        try:
            while reader.head is None:
                reader.feed(self.receive(until, call))
        except BrokenResponseError as error:
            raise not_connected(error) from error
        self._address.check_tunnel(reader.head[0])

    def start_tls(self, context: "ssl.SSLContext", until: float, call: Call) -> None:
        """Begin TLS. Raises NotConnectedError."""
        try:
            self._socket = encrypted = context.wrap_socket(
                self._socket, server_hostname=self._address.host, do_handshake_on_connect=False
            )
            while True:
                encrypted.settimeout(call.remaining(until))
                try:
                    return encrypted.do_handshake()
                except TimeoutError as error:
                    raise_if_from_handler(error)
        except OSError as error:
            raise_if_from_handler(error)
            call.remaining(until)
            raise not_connected(error) from error


class SocketStream:
    """A `ResponseStream` over a connection of its own."""

    def __init__(self, connection: Connection, reader: StreamReader) -> None:
        self._connection = connection
        self._reader = reader

    def head(self, until: float, call: Call) -> tuple[int, Mapping[str, str]]:
        while self._reader.head is None:
            self._receive(until, call)
        return self._reader.head

    def read(self, until: float, call: Call) -> bytes:
        while not self._reader.unread and not self._reader.ended:
            self._receive(until, call)
        return self._reader.take()

    def close(self) -> None:
        self._connection.close()

    def _receive(self, until: float, call: Call) -> None:
        self._connection.begin(until, call)
        try:
            self._reader.feed(self._connection.receive(until, call))
        finally:
            self._connection.end()


def raise_if_from_handler(error: OSError) -> None:
    """Raise `error` again if a signal handler raised it while a socket waited: it is the program's, not the network's.

    A time limit of the program may well be a `TimeoutError`. The frames of its traceback show where it came from.
    """
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _SOCKET_MODULES:
            raise error
        frame = frame.tb_next


def _is_pause(error: OSError) -> bool:
    """Whether only the socket's time-out has passed."""
    return isinstance(error, TimeoutError) and error.errno is None


def _connect(addresses: Addresses, until: float, call: Call) -> socket.socket:
    """Try the addresses, each a little after the one before, and return the first that connects. Raises OSError."""
    left, failure, next_at = list(addresses), OSError("the name has no address"), 0.0
    with selectors.DefaultSelector() as selector:
        try:
            while left or selector.get_map():
                if left and (time.monotonic() >= next_at or not selector.get_map()):
                    next_at = time.monotonic() + RACE_SECONDS
                    try:
                        selector.register(_begin_connecting(left.pop(0)), selectors.EVENT_WRITE)
                    except OSError as error:
                        raise_if_from_handler(error)
                        failure = error
                        continue
                for key, _ in selector.select(min(call.remaining(until), CONNECT_CHECK_SECONDS)):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    selector.unregister(sock)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code == 0:
                        return sock
                    failure = OSError(code, os.strerror(code))
                    sock.close()
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
    raise failure


def _begin_connecting(address: tuple[object, ...]) -> socket.socket:
    family, kind, protocol, _, target = address
    sock = socket.socket(family, kind, protocol)  # type: ignore[arg-type]
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(target)  # type: ignore[arg-type]
    except BaseException:
        sock.close()
        raise
    if code in _CONNECTING:
        return sock
    sock.close()
    raise OSError(code, os.strerror(code))


def _nothing() -> None:
    """Nothing to end."""
