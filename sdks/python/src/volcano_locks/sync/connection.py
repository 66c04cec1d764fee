"""One connection of a threaded client, used by the thread that calls.

Socket time-outs end its waits. Another thread ends them with `shutdown`, never with `close`, after which the system may
give the descriptor to another file.
"""

import errno
import os
import select
import selectors
import socket
import time
from typing import TYPE_CHECKING

from volcano_locks.http.address import Address
from volcano_locks.http.response_reader import BrokenResponseError, StreamReader, broken, not_connected
from volcano_locks.http.transport import RACE_SECONDS, READ_BYTES_MAX
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.call import Call, raise_if_from_handler
from volcano_locks.sync.resolver import Addresses

if TYPE_CHECKING:
    import ssl

CONNECT_CHECK_SECONDS = 0.05
_CONNECTING = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})


class Connection:
    """One connection, used by one thread at a time. It is a `Wakeup`: setting it ends the thread's wait."""

    def __init__(self, sock: socket.socket) -> None:
        self.idle_since = 0.0
        self._socket = sock
        self._interrupted = False
        self._until = 0.0
        self._call: Call | None = None
        self._end = _nothing

    def set(self) -> None:
        self._interrupted = True
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not SSLSocket's, which drops its state
        except OSError as error:  # closed already
            raise_if_from_handler(error)

    def is_set(self) -> bool:
        return self._interrupted

    def begin(self, until: float, call: Call) -> None:
        """From here to `end`, cancelling the call and moving the clock to `until` interrupt the connection."""
        self._until, self._call = until, call
        self._end = call.interruptible(until, self)

    def end(self) -> None:
        """End what `begin` started: from here on, neither interrupts the connection."""
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

    def send(self, data: bytes) -> None:
        """Send all of `data`, which is short."""
        self._socket.settimeout(self._remaining())
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def receive(self) -> bytes:
        """The next bytes; none at the end."""
        while True:
            self._socket.settimeout(self._remaining())
            try:
                data = self._socket.recv(READ_BYTES_MAX)
            except OSError as error:
                if not _is_pause(error):
                    raise self._broken(error) from error
                continue
            if self._interrupted:
                self._remaining()
            return data

    def open_tunnel(self, address: Address) -> None:
        """Open a tunnel through the proxy, if TLS needs one. Raises NotConnectedError."""
        if address.tunnel is None:
            return
        reader = StreamReader(address.tunnel)
        self.send(address.tunnel)
        try:
            while reader.head is None:
                reader.feed(self.receive())
        except BrokenResponseError as error:
            raise not_connected(error) from error
        address.check_tunnel(reader.head[0])

    def start_tls(self, context: "ssl.SSLContext", host: str) -> None:
        """Begin TLS. Raises NotConnectedError."""
        try:
            self._socket = encrypted = context.wrap_socket(
                self._socket, server_hostname=host.encode(), do_handshake_on_connect=False
            )
            while True:
                encrypted.settimeout(self._remaining())
                try:
                    return encrypted.do_handshake()
                except TimeoutError as error:
                    if not _is_pause(error):
                        raise
        except OSError as error:
            self._broken(error)
            raise not_connected(error) from error

    def _remaining(self) -> float:
        assert self._call is not None
        return self._call.remaining(self._until)

    def _broken(self, error: OSError) -> BrokenResponseError:
        """The error for a broken connection. Raises a known cause instead: a handler, a cancelled call, no time."""
        raise_if_from_handler(error)
        self._remaining()
        return broken(error)


class ConnectionStream:
    """The response to `request`, read as it arrives: a `ResponseStream`."""

    def __init__(self, connection: Connection, request: bytes, until: float, call: Call) -> None:
        self._connection = connection
        self._reader = reader = StreamReader(request)
        connection.begin(until, call)
        connection.send(request)
        while reader.head is None:
            reader.feed(connection.receive())
        connection.end()
        self.response = Response(*reader.head, b"")

    def read(self, until: float, call: Call) -> bytes:
        self._connection.begin(until, call)
        try:
            while not self._reader.unread and not self._reader.ended:
                self._reader.feed(self._connection.receive())
        finally:
            self._connection.end()
        return self._reader.take()

    def close(self) -> None:
        self._connection.close()


def _is_pause(error: OSError) -> bool:
    """Whether only the socket's time-out has passed."""
    raise_if_from_handler(error)
    return isinstance(error, TimeoutError) and error.errno is None


def connect(addresses: Addresses, until: float, call: Call) -> socket.socket:
    """Try the addresses, each a little after the one before, and return the first that connects. Raises OSError."""
    left, failure, next_at = list(addresses), OSError("the name has no address"), 0.0
    connecting: list[socket.socket] = []
    try:
        while left or connecting:
            if left and (time.monotonic() >= next_at or not connecting):
                next_at = time.monotonic() + RACE_SECONDS
                try:
                    connecting.append(_begin_connecting(left.pop(0)))
                except OSError as error:
                    raise_if_from_handler(error)
                    failure = error
                    continue
            for sock in _writable(connecting, min(call.remaining(until), CONNECT_CHECK_SECONDS)):
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                connecting.remove(sock)
                if code == 0:
                    return sock
                failure = OSError(code, os.strerror(code))
                sock.close()
    finally:
        for sock in connecting:
            sock.close()
    raise failure


def _writable(socks: list[socket.socket], seconds: float) -> list[socket.socket]:
    """A selector for each wait, because `unregister` ignores a time limit that is an `OSError`."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_WRITE)
        ready = [key.fileobj for key, _ in selector.select(seconds)]
    return [sock for sock in socks if sock in ready]


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
