"""Performs the operations of a threaded client in the calling thread, over blocking sockets.

An interrupt (Ctrl-C, a time limit) is thrown into the operation, which releases what may have been acquired, and then
propagates as itself. Closing the client from another thread does the same to running calls. After `fork` the
child opens its own connections.
"""

import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from volcano_locks.clock import Clock
from volcano_locks.config import Config
from volcano_locks.errors import CLOSED, VolcanoError
from volcano_locks.holding.blocks_of_client import BlocksOfClient
from volcano_locks.http.address import Address
from volcano_locks.http.response_reader import RESPONSE_BYTES_MAX, BrokenResponseError, NotConnectedError
from volcano_locks.http.transport import HttpCodec, Transport, no_time_error, timeout_error
from volcano_locks.protocol.effects import Effect, Emit, Operation, ReadStream, Request, Result, Sleep
from volcano_locks.protocol.messages import Response
from volcano_locks.protocol.operations import BEST_EFFORT_RELEASE_SECONDS_MAX
from volcano_locks.sync.call import Call, CallCancelled, Signal, TimeUp
from volcano_locks.sync.pool import ConnectionPool, ResponseStream, SocketPool

CLEAN_UP_SECONDS_MAX = BEST_EFFORT_RELEASE_SECONDS_MAX + 6.0

T = TypeVar("T")


class StoppedError(Exception):
    """The caller cancelled the call, or set its stop event."""


class _Process:
    """What belongs to one process: its connections and running calls. A fork's child makes its own."""

    def __init__(self, codec: HttpCodec, pool: ConnectionPool) -> None:
        self.pid = os.getpid()
        self.codec = codec
        self.pool = pool
        self.running: dict[int, weakref.ref[Call]] = {}  # weak, because an interrupt may prevent a removal
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def calls(self) -> list[Call]:
        """The running calls."""
        return [call for running in list(self.running.values()) if (call := running()) is not None]


class Driver:
    """Performs operations. May be shared by threads."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        transport: Transport | None = None,
        blocks: BlocksOfClient | None = None,
    ) -> None:
        self._blocks = blocks or BlocksOfClient()
        self._config = config
        self._clock = clock
        self._transport = transport
        self._address = Address.of(config.api_url)
        self._closed = False
        self._process = self._new_process()

    def run(
        self,
        operation: Operation[T],
        undo: Callable[[T], Operation[object]] | None = None,
        *,
        call: Call | None = None,
    ) -> T:
        """Return the operation's result. If an interrupt takes the result from the caller, pass it to `undo`.

        Cancelling `call` cancels the operation and raises StoppedError. Closing the client waits for a shielded one.
        """
        results: list[T] = []
        process = self._process_of_now()
        call = call or Call(self._clock)
        try:
            self._begin(process, call)
            self._perform(operation, None, process, call, results)
            self._end(process, call)
            return results[0]
        except BaseException as error:
            try:
                if results and undo is not None:
                    with contextlib.suppress(VolcanoError):  # the interrupt is what the caller gets
                        self._perform(undo(results[0]), None, process, call, [])
                elif getattr(operation, "gi_frame", None) is not None:  # interrupted between two effects
                    self._perform(operation, error, process, call, [])
            finally:
                self._end(process, call)
            if isinstance(error, CallCancelled):
                raise (VolcanoError(CLOSED) if self._closed else StoppedError()) from None
            raise

    def iterate(self, operation: Operation[None]) -> Iterator[object]:
        """Yield the items that `operation` emits. Dropping the iterator ends it."""
        process = self._process_of_now()
        stream = _OpenStream()
        try:
            while True:
                call = Call(self._clock)
                try:
                    self._begin(process, call)
                    effect = operation.send(None)
                    while not isinstance(effect, Emit):
                        effect = self._step(operation, effect, process, call, stream)
                except StopIteration:
                    return
                except CallCancelled:
                    raise VolcanoError(CLOSED) from None
                finally:
                    self._end(process, call)
                yield effect.item
                if os.getpid() != process.pid:
                    raise VolcanoError("this iterator belongs to the parent process: create a new one in the child")
        finally:
            stream.close()
            operation.close()

    def close(self) -> None:
        """Cancel the running calls and wait, bounded, for their clean-up; then refuse all calls. Idempotent."""
        process = self._process_of_now()
        self._closed = True
        until = time.monotonic() + CLEAN_UP_SECONDS_MAX
        for call in process.calls():
            call.cancel()
        while self._others_run(process) and (left := until - time.monotonic()) > 0:
            try:
                process.ended.get(timeout=min(left, 0.1))
            except queue.Empty:
                continue
        process.pool.close()

    def _others_run(self, process: _Process) -> bool:
        """Whether a call of another thread runs. One of this thread was interrupted by a signal handler."""
        return any(call.thread_id != threading.get_ident() for call in process.calls())

    def _process_of_now(self) -> _Process:
        process = self._process
        if process.pid != os.getpid():
            if self._transport is not None:
                raise VolcanoError("a client with a transport cannot be used after a fork: create one in the child")
            process.pool.close()  # only the child's copies of the sockets
            process = self._process = self._new_process()
        return process

    def _new_process(self) -> _Process:
        if self._transport is not None:
            pool = self._transport.connections(self._clock)
        else:
            pool = SocketPool(self._address, self._config.ca_file, self._clock)
        return _Process(HttpCodec(self._config, self._address.proxy), pool)

    def _begin(self, process: _Process, call: Call) -> None:
        process.running[id(call)] = weakref.ref(call)
        if self._closed:
            raise VolcanoError(CLOSED)

    def _end(self, process: _Process, call: Call) -> None:
        process.running.pop(id(call), None)
        if self._closed:
            process.ended.put(None)
            process.pool.close()

    def _perform(
        self, operation: Operation[T], error: BaseException | None, process: _Process, call: Call, results: list[T]
    ) -> None:
        """Run `operation` from its start, or from `error`. Every failure is thrown into it, so that it can clean up."""
        try:
            effect = operation.send(None) if error is None else operation.throw(error)
            while True:
                effect = self._step(operation, effect, process, call)
        except StopIteration as end:
            results.append(end.value)

    def _step(
        self,
        operation: Operation[T],
        effect: Effect,
        process: _Process,
        call: Call,
        stream: "_OpenStream | None" = None,
    ) -> Effect:
        """Perform `effect` and return the next one. Raises StopIteration and what the operation raises."""
        try:
            result = self._perform_effect(effect, process, call, stream)
        except BaseException as error:  # noqa: BLE001 - the operation handles every failure
            return operation.throw(error)
        return operation.send(result)

    def _perform_effect(self, effect: Effect, process: _Process, call: Call, stream: "_OpenStream | None") -> Result:
        if isinstance(effect, Sleep):
            call.check()
            if effect.in_wait or not self._clock.skip_pause(effect.seconds):
                call.wait(self._clock.now() + effect.seconds, Signal())
            return None
        if isinstance(effect, ReadStream):
            assert stream is not None
            request, seconds = effect.request, effect.timeout_seconds
        else:
            assert isinstance(effect, Request)
            request, seconds = effect, effect.timeout_seconds
            if seconds <= 0:
                raise no_time_error(request)
        until = self._clock.now() + seconds
        try:
            if isinstance(effect, ReadStream):
                return stream.read(until, call) if stream is not None else b""
            if request.shielded:
                call = Call(self._clock, shielded=True)
            response = self._send(request, process, until, call, stream)
            self._blocks.last_headers = response.headers
            return process.codec.redact(response, request)
        except TimeUp:
            raise timeout_error(request, seconds) from None
        except (NotConnectedError, BrokenResponseError) as error:
            raise process.codec.failure(request, error) from error

    def _send(
        self, request: Request, process: _Process, until: float, call: Call, stream: "_OpenStream | None"
    ) -> Response:
        call.check()
        outgoing = process.codec.encode(request)
        if not request.streams:
            return process.pool.exchange(outgoing, until, call)
        assert stream is not None
        return stream.open(process.pool.open_stream(outgoing, until, call), until, call)


class _OpenStream:
    """The event stream of an iterating caller; opening the next one closes it."""

    def __init__(self) -> None:
        self._stream: ResponseStream | None = None

    def open(self, stream: ResponseStream, until: float, call: Call) -> Response:
        """Read the head, and the body too if it is not a 200."""
        self.close()
        self._stream = stream
        status, headers = stream.head(until, call)
        body = b""
        while status != 200 and len(body) < RESPONSE_BYTES_MAX and (more := stream.read(until, call)):
            body += more
        return Response(status, headers, body)

    def read(self, until: float, call: Call) -> bytes:
        assert self._stream is not None
        return self._stream.read(until, call)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
