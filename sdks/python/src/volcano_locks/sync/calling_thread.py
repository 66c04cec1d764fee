"""The second driver of operations: it runs them in the calling thread, over blocking sockets.

It does for a threaded client what `transport.perform` does in an event loop, and saves two thread switches per request.
`BackgroundLoop` keeps what needs an event loop: renewals, the requests of a block, opening connections, and all calls
of a client with its own transport, proxy or clock.

An interrupt (Ctrl-C) is thrown into the operation, which releases what may have been acquired, and then propagates.
Closing the client from another thread does the same to running calls. After `fork` the child opens its own connections.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from volcano_locks.clock import SLEEP_SECONDS_MAX, Clock
from volcano_locks.config import Config
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.http.pool import Address
from volcano_locks.http.transport import HttpCodec, no_time_error, timeout_error
from volcano_locks.protocol.effects import Effect, Operation, Request, Sleep
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.background_loop import CLEAN_UP_SECONDS_MAX, BackgroundLoop
from volcano_locks.sync.socket_pool import SocketPool, open_socket

T = TypeVar("T")


class CallingThreadDriver:
    """Performs operations in the calling thread. May be shared by threads."""

    def __init__(self, config: Config, clock: Clock, background: BackgroundLoop) -> None:
        self._address = Address.of(config.api_url)
        self._codec = HttpCodec(config)
        self._clock = clock
        self._background = background
        self._closed = False
        self._reset()

    def run(self, operation: Operation[T], undo: Callable[[T], Operation[None]] | None = None) -> T:
        """Return the operation's result. If an interrupt takes the result from the caller, pass it to `undo`."""
        results: list[T] = []
        try:
            self._enter()
            self._perform(operation, results)
            self._leave()
            return results[0]
        except BaseException as error:
            try:
                if results and undo is not None:
                    self._perform(undo(results[0]), [])
            finally:
                self._leave()
            if isinstance(error, asyncio.CancelledError):
                raise VolcanoError(CLOSED) from None
            raise

    def close(self) -> None:
        """Interrupt the running calls and wait, bounded, for their clean-up; then refuse all calls. Idempotent."""
        self._after_fork()
        with self._running:
            self._closed = True
            self._closing.set()
            self._sockets.interrupt()
            self._running.wait_for(lambda: not self._threads - {threading.get_ident()}, CLEAN_UP_SECONDS_MAX)
        self._sockets.close()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._running = threading.Condition()
        self._closing = threading.Event()
        self._threads: set[int] = set()
        self._common_headers = self._codec.common_headers()
        self._sockets = SocketPool(self._address, self._open, self._clock.now)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._sockets.close()
            self._reset()

    def _enter(self) -> None:
        self._after_fork()
        with self._running:
            if self._closed:
                raise VolcanoError(CLOSED)
            self._threads.add(threading.get_ident())

    def _leave(self) -> None:
        with self._running:
            self._threads.discard(threading.get_ident())
            self._running.notify_all()

    def _perform(self, operation: Operation[T], results: list[T]) -> None:
        """Run `operation`. Any exception is thrown into it, so that it can clean up, and is raised at its end."""
        response: Response | None = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(response) if error is None else operation.throw(error)
                response, error = None, None
                response = self._perform_effect(effect)
            except StopIteration as end:
                results.append(end.value)
                return
            except BaseException as caught:
                if getattr(operation, "gi_frame", None) is None:
                    raise  # raised by the operation itself
                error = caught

    def _perform_effect(self, effect: Effect) -> Response | None:
        if self._closed and not (isinstance(effect, Request) and effect.shielded):
            raise asyncio.CancelledError
        if isinstance(effect, Sleep):
            until = self._clock.now() + effect.seconds
            while (left := until - self._clock.now()) > 0:
                if self._closing.wait(min(left, SLEEP_SECONDS_MAX)):
                    raise asyncio.CancelledError
            return None
        return self._send(effect)

    def _send(self, request: Request) -> Response:
        if request.timeout_seconds <= 0:
            raise no_time_error(request)
        fields, body = self._codec.encode(request, self._common_headers)
        until = self._clock.now() + request.timeout_seconds
        try:
            response = self._sockets.exchange(
                request.method,
                request.path,
                fields,
                body,
                until,
                cancelled=lambda: self._closed and not request.shielded,
            )
            return self._codec.redact(response, request)
        except VolcanoError:
            raise
        except Exception as error:
            if self._closed and not request.shielded:
                raise asyncio.CancelledError from None
            if isinstance(error, TimeoutError) and error.errno is None:
                raise timeout_error(request) from None
            raise self._codec.failure(request, error) from error

    def _open(self, until: float) -> socket.socket:
        async def close(sock: socket.socket) -> None:
            sock.close()

        return self._background.run(lambda: self._clock.within(until, open_socket(self._address)), undo=close)
