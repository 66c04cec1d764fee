"""Runs one server in a process of its own: event loop, signals, garbage collector and the log of libraries."""

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from ..http.server.connection_limits import allow_many_files
from ..telemetry import Log
from .server import Server

COLLECT_AFTER_OBJECTS: Final = (20_000, 20, 50)
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(server: Server, *, started: Callable[[Server], Awaitable[None]], parent_pipe: int | None = None) -> None:
    """Run until SIGTERM or SIGINT, then stop gracefully.

    `started` is awaited once the server listens. A second signal ends the process at once. `parent_pipe` is for a
    worker: a descriptor that becomes readable when the parent process has died, which stops the worker. The parent
    decides when to kill a worker, so a worker ignores further signals. Raises what `Server.start` raises.
    """
    allow_many_files()
    _tune_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_forever(server, started, parent_pipe))


def _tune_garbage_collector() -> None:
    """Run the collector less often. A request allocates many objects but leaves no cycles; with the defaults, the
    collector would run a hundred times a second, and its pauses would dominate the longest response times.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER_OBJECTS)


async def run_forever(
    server: Server, started: Callable[[Server], Awaitable[None]], parent_pipe: int | None = None
) -> None:
    """`run`, in the running event loop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def first_signal() -> None:
        stop.set()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def parent_died(parent_pipe: int) -> None:
        loop.remove_reader(parent_pipe)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, first_signal if parent_pipe is None else stop.set)
    if parent_pipe is not None:
        loop.add_reader(parent_pipe, parent_died, parent_pipe)
    try:
        async with server:
            bridge = _LogBridge(server.log)
            logging.getLogger().addHandler(bridge)
            try:
                await started(server)
                await stop.wait()
            finally:
                logging.getLogger().removeHandler(bridge)
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


class _LogBridge(logging.Handler):
    """Writes warnings of libraries to the server's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log: Final = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warning("library", logger=record.name, message=record.getMessage())
