"""The other driver of flows: in the thread that calls, over blocking sockets.

It does what `transport.perform` does in an event loop, for a threaded client's own verbs, and saves them two
changes of thread a request. What needs an event loop stays with `Background`: renewals, a block's own requests,
opening connections, and all verbs of a client with a transport, a proxy or a clock of its own.

An interrupt (Ctrl-C) goes into the flow, which gives back what may have been acquired, and then on. Closing the
client from another thread does the same to the verbs under way. After `fork` the child opens its own connections.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from volcano_locks.clock import NAP_SECONDS_MAX, Clock
from volcano_locks.config import Config
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.http.pool import Address
from volcano_locks.http.transport import Envelope, late, no_time
from volcano_locks.protocol.effects import Flow, Request, Sleep
from volcano_locks.protocol.messages import Answer
from volcano_locks.sync.background_loop import CLEAN_UP_SECONDS_MAX, Background
from volcano_locks.sync.socket_pool import Sockets, open_socket

T = TypeVar("T")


class Caller:
    """Performs flows in the calling thread. May be shared by threads."""

    def __init__(self, config: Config, clock: Clock, background: Background) -> None:
        self._address = Address.of(config.api_url)
        self._envelope = Envelope(config)
        self._clock = clock
        self._background = background
        self._closed = False
        self._begin()

    def run(self, flow: Flow[T], undo: Callable[[T], Flow[None]] | None = None) -> T:
        """The flow's result. A result that an interrupt takes away from the caller is handed to `undo`."""
        results: list[T] = []
        try:
            self._enter()
            self._perform(flow, results)
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
        """Interrupt what is under way and wait for its cleaning up, bounded; then refuse everything. Idempotent."""
        self._after_fork()
        with self._under_way:
            self._closed = True
            self._closing.set()
            self._sockets.interrupt()
            self._under_way.wait_for(lambda: not self._threads - {threading.get_ident()}, CLEAN_UP_SECONDS_MAX)
        self._sockets.close()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._under_way = threading.Condition()
        self._closing = threading.Event()
        self._threads: set[int] = set()
        self._usual = self._envelope.usual()
        self._sockets = Sockets(self._address, self._open, self._clock.now)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._sockets.abandon()
            self._begin()

    def _enter(self) -> None:
        self._after_fork()
        with self._under_way:
            if self._closed:
                raise VolcanoError(CLOSED)
            self._threads.add(threading.get_ident())

    def _leave(self) -> None:
        with self._under_way:
            self._threads.discard(threading.get_ident())
            self._under_way.notify_all()

    def _perform(self, flow: Flow[T], results: list[T]) -> None:
        """Drive `flow`. What is raised meanwhile goes into it, so that it can clean up, and comes out at its end."""
        answer: Answer | None = None
        error: BaseException | None = None
        while True:
            try:
                step = flow.send(answer) if error is None else flow.throw(error)
                answer, error = None, None
                answer = self._step(step)
            except StopIteration as end:
                results.append(end.value)
                return
            except BaseException as caught:
                if getattr(flow, "gi_frame", None) is None:
                    raise  # the flow has ended with it
                error = caught

    def _step(self, step: Request | Sleep) -> Answer | None:
        if self._closed and not (isinstance(step, Request) and step.to_the_end):
            raise asyncio.CancelledError
        if isinstance(step, Sleep):
            until = self._clock.now() + step.seconds
            while (left := until - self._clock.now()) > 0:
                if self._closing.wait(min(left, NAP_SECONDS_MAX)):
                    raise asyncio.CancelledError
            return None
        return self._sent(step)

    def _sent(self, request: Request) -> Answer:
        if request.timeout_seconds <= 0:
            raise no_time(request)
        fields, body = self._envelope.outgoing(request, self._usual)
        until = self._clock.now() + request.timeout_seconds
        try:
            received = self._sockets.exchange(
                request.method,
                request.path,
                fields,
                body,
                until,
                ended=lambda: self._closed and not request.to_the_end,
            )
            return self._envelope.answer(request, received)
        except VolcanoError:
            raise
        except Exception as error:
            if self._closed and not request.to_the_end:
                raise asyncio.CancelledError from None
            if isinstance(error, TimeoutError) and error.errno is None:
                raise late(request) from None
            raise self._envelope.failure(request, error) from error

    def _open(self, until: float) -> socket.socket:
        async def close(sock: socket.socket) -> None:
            sock.close()

        return self._background.run(lambda: self._clock.within(until, open_socket(self._address)), undo=close)
