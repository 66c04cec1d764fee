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
from volcano_locks.holding.block import BlocksOfClient
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

        Cancelling `call` cancels the operation and raises StoppedError. Closing the client waits for shielded requests.
        """
        results: list[T] = []
        run = _Run(self, call or Call(self._clock))
        try:
            run.begin()
            run.perform(operation, None, results)
            run.end()
            return results[0]
        except BaseException as error:
            try:
                if results and undo is not None:
                    with contextlib.suppress(VolcanoError):  # the interrupt is what the caller gets
                        run.perform(undo(results[0]), None, [])
                elif getattr(operation, "gi_frame", None) is not None:  # interrupted between two effects
                    run.perform(operation, error, [])
            finally:
                run.end()
            if isinstance(error, CallCancelled):
                raise (VolcanoError(CLOSED) if self._closed else StoppedError()) from None
            raise

    def iterate(self, operation: Operation[None]) -> Iterator[object]:
        """Yield the items that `operation` emits. Dropping the iterator ends it."""
        run = _Run(self, Call(self._clock))
        try:
            while True:
                run.call = Call(self._clock)
                try:
                    run.begin()
                    effect = operation.send(None)
                    while not isinstance(effect, Emit):
                        effect = run.step(operation, effect)
                except StopIteration:
                    return
                except CallCancelled:
                    raise VolcanoError(CLOSED) from None
                finally:
                    run.end()
                yield effect.item
                if os.getpid() != run.process.pid:
                    raise VolcanoError("this iterator belongs to the parent process: create a new one in the child")
        finally:
            run.close_stream()
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
        """Whether a call of another thread runs. If a call of this thread runs, a signal handler interrupted it."""
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


class _Run:
    """Performs one operation for one call, in one process."""

    def __init__(self, driver: Driver, call: Call) -> None:
        self.process = driver._process_of_now()
        self.call = call
        self._driver = driver
        self._stream: ResponseStream | None = None

    def begin(self) -> None:
        """From here to `end`, closing the client cancels the call."""
        self.process.running[id(self.call)] = weakref.ref(self.call)
        if self._driver._closed:
            raise VolcanoError(CLOSED)

    def end(self) -> None:
        """The call has ended."""
        self.process.running.pop(id(self.call), None)
        if self._driver._closed:
            self.process.ended.put(None)
            self.process.pool.close()

    def perform(self, operation: Operation[T], error: BaseException | None, results: list[T]) -> None:
        """Run `operation` from its start, or from `error`, and add its result to `results`."""
        try:
            effect = operation.send(None) if error is None else operation.throw(error)
            while True:
                effect = self.step(operation, effect)
        except StopIteration as end:
            results.append(end.value)

    def step(self, operation: Operation[T], effect: Effect) -> Effect:
        """Perform `effect` and return the next one. Every failure is thrown into the operation, so that it cleans up.

        Raises StopIteration and what the operation raises.
        """
        try:
            result = self._perform_effect(effect)
        except BaseException as error:  # noqa: BLE001 - the operation handles every failure
            return operation.throw(error)
        return operation.send(result)

    def close_stream(self) -> None:
        """Close the event stream, if one is open."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _perform_effect(self, effect: Effect) -> Result:
        clock, call = self._driver._clock, self.call
        if isinstance(effect, Sleep):
            call.check()
            if effect.in_wait or not clock.skip_pause(effect.seconds):
                call.wait(clock.now() + effect.seconds, Signal())
            return None
        assert not isinstance(effect, Emit)
        request = effect if isinstance(effect, Request) else effect.request
        if effect.timeout_seconds <= 0:
            raise no_time_error(request)
        until = clock.now() + effect.timeout_seconds
        try:
            if isinstance(effect, ReadStream):
                assert self._stream is not None
                return self._stream.read(until, call)
            if request.shielded:
                call = Call(clock, shielded=True)
            call.check()
            return self._send(request, until, call)
        except TimeUp:
            raise timeout_error(request, effect.timeout_seconds) from None
        except (NotConnectedError, BrokenResponseError) as error:
            raise self.process.codec.failure(request, error) from error

    def _send(self, request: Request, until: float, call: Call) -> Response:
        codec, pool = self.process.codec, self.process.pool
        outgoing = codec.encode(request)
        if request.streams:
            self.close_stream()
            self._stream = stream = pool.open_stream(outgoing, until, call)
            response = stream.response
            while response.status != 200 and len(response.body) < RESPONSE_BYTES_MAX:
                if not (more := stream.read(until, call)):
                    break
                response = response._replace(body=response.body + more)
        else:
            response = pool.exchange(outgoing, until, call)
        self._driver._blocks.last_headers = response.headers
        return codec.redact(response, request)
