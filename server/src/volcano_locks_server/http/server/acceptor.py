"""Accepts connections from a listening socket, and gives each one to its protocol when its transport is ready.

Each turn of the event loop accepts up to ACCEPTS_PER_TURN connections, so that new clients get their turn beside
thousands of busy ones (case 60). A turn starts up to HANDSHAKES_PER_TURN TLS handshakes, one of each client address
after the other: each takes the time of several requests, and needs no credential. Other processes may accept from the
same socket. A connection that the limits do not admit gets 503 and is closed; with TLS it is closed without a
response, because that would take a handshake.
"""

import asyncio
import contextlib
import errno
import functools
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from ...rules.errors import LockError
from ...telemetry import Log
from ..responses import closing_response
from .connection_limits import HANDSHAKE_SECONDS_MAX, ConnectionLimits
from .freed_memory import TLS_CONNECTIONS_PER_TRIM, trim
from .handshake import RECORD_TYPE, Handshake
from .handshake_queue import HandshakeQueue
from .http1 import Http1Connection
from .refusal import Refusal

ACCEPTS_PER_TURN: Final = 64
HANDSHAKES_PER_TURN: Final = 8
ACCEPT_PAUSE_SECONDS: Final = 1.0
REFUSALS_MAX: Final = 32
CLOSE_SECONDS_MAX: Final = 2.0
FULL_MESSAGE: Final = "all connections that the server allows, in all or from one address, are busy: try again soon"
PLAIN_HTTP_MESSAGE: Final = "this port serves HTTPS and got plain HTTP: begin the address with https://"

_CLIENT_IS_GONE: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,  # a firewall rule
        errno.EPROTO,
    }
)


class Acceptor:
    """Accepts from `listening` between `start` and `close`, and closes it.

    `tls` is the context of new handshakes, None for plain HTTP. A new context applies from the next handshake on.
    """

    def __init__(
        self,
        listening: socket.socket,
        new_connection: Callable[[], Http1Connection],
        limits: ConnectionLimits,
        log: Log,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.tls = tls
        self._listening: Final = listening
        self._new_connection: Final = new_connection
        self._limits: Final = limits
        self._log: Final = log
        self._loop: Final = asyncio.get_running_loop()
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._handshakes: Final = HandshakeQueue()  # that have not started
        self._handshake_turn: asyncio.Handle | None = None
        self._until_trim = TLS_CONNECTIONS_PER_TRIM
        self._refusals: Final[set[Refusal]] = set()
        self._pause_end: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)

    async def close(self) -> None:
        """Stop accepting. After that, each accepted connection is closed or has called `ConnectionLimits.add`."""
        self._loop.remove_reader(self._listening)
        if self._pause_end is not None:
            self._pause_end.cancel()
        self._listening.close()
        self._limits.abort_handshakes()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS_MAX)
        for refusal in self._refusals:
            refusal.abort()

    # --- accepting ---

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _CLIENT_IS_GONE:
                    continue
                self._pause(error)
                return
            accepted.setblocking(False)
            self._begin(accepted, address[0])

    def _pause(self, error: OSError) -> None:
        """Accept nothing for ACCEPT_PAUSE_SECONDS: the process or the system has no more files or memory for it."""
        self._log.warning("accept_paused", cause=errno.errorcode.get(error.errno or 0), seconds=ACCEPT_PAUSE_SECONDS)
        self._loop.remove_reader(self._listening)
        self._pause_end = self._loop.call_later(
            ACCEPT_PAUSE_SECONDS, self._loop.add_reader, self._listening, self._accept
        )

    def _begin(self, accepted: socket.socket, peer_address: str) -> None:
        if not self._limits.admits(peer_address):
            if self.tls is None:
                self._refuse(accepted, LockError("lock_service_unavailable", FULL_MESSAGE, retry_after_seconds=1))
            else:
                accepted.close()
            return
        connection = self._new_connection()
        if self.tls is None:
            self._limits.accepted(connection, peer_address)
            self._connect(accepted, connection, on_failure=lambda _: self._limits.remove(connection))
            return
        handshake = Handshake(accepted, functools.partial(self._begin_handshake, connection, peer_address))
        self._limits.accepted(connection, peer_address, handshake)
        handshake.wait_for_first_byte()

    def _begin_handshake(
        self, connection: Http1Connection, peer_address: str, handshake: Handshake, first_byte: bytes
    ) -> None:
        if first_byte == RECORD_TYPE:
            start = functools.partial(self._start_handshake, connection, peer_address, handshake)
            self._handshakes.add(peer_address, start)
            if self._handshake_turn is None:
                self._handshake_turn = self._loop.call_soon(self._start_handshakes)
            return
        self._limits.remove(connection)
        if not first_byte:
            handshake.accepted.close()
            return
        if self._log.within_rate():
            self._log.info("plain_http_refused", address=peer_address)
        self._refuse(handshake.accepted, LockError("invalid_request", PLAIN_HTTP_MESSAGE))

    def _start_handshakes(self) -> None:
        self._handshake_turn = None
        for _ in range(HANDSHAKES_PER_TURN):
            if self._handshakes:
                self._handshakes.take()()
        if self._handshakes:
            self._handshake_turn = self._loop.call_soon(self._start_handshakes)

    def _start_handshake(self, connection: Http1Connection, peer_address: str, handshake: Handshake) -> None:
        if handshake.is_aborted:
            return
        self._until_trim -= 1
        if not self._until_trim:
            self._until_trim = TLS_CONNECTIONS_PER_TRIM
            trim()
        on_failure = functools.partial(self._handshake_failed, connection, peer_address)
        handshake.task = self._connect(handshake.accepted, connection, on_failure=on_failure, tls=self.tls)

    def _handshake_failed(self, connection: Http1Connection, peer_address: str, error: BaseException) -> None:
        self._limits.remove(connection)
        if isinstance(error, ssl.SSLError) and self._log.within_rate():
            self._log.info("tls_handshake_failed", address=peer_address, reason=error.reason)

    def _refuse(self, accepted: socket.socket, error: LockError) -> None:
        """Close the connection with this response. Over REFUSALS_MAX at once, the client may not receive it."""
        response = closing_response(error)
        if len(self._refusals) >= REFUSALS_MAX:
            with contextlib.suppress(OSError):
                accepted.send(response)
            accepted.close()
            return
        refusal = Refusal(response, self._refusals.discard)
        self._refusals.add(refusal)
        self._connect(accepted, refusal, on_failure=lambda _: self._refusals.discard(refusal))

    # --- transports ---

    def _connect(
        self,
        accepted: socket.socket,
        protocol: asyncio.BaseProtocol,
        *,
        on_failure: Callable[[BaseException], None],
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Task[Any]:
        """Start a task that gives the socket a transport, with TLS after the handshake, and then the protocol."""
        seconds = None if tls is None else HANDSHAKE_SECONDS_MAX
        connected = self._loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=seconds
        )
        task = self._loop.create_task(connected, name="connect")
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._connected, accepted, on_failure))
        return task

    def _connected(
        self, accepted: socket.socket, on_failure: Callable[[BaseException], None], task: asyncio.Task[Any]
    ) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            accepted.close()
            on_failure(error)
