"""A process that is nothing but one server: its event loop, its signals, its garbage collector and its log."""

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


async def _say_nothing(_server: Server) -> None:
    return


def run(
    server: Server,
    *,
    started: Callable[[Server], Awaitable[None]] = _say_nothing,
    lifeline: int | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, then stop gracefully. For a process that is nothing but this server.

    `started` is awaited once it listens. A second signal ends the process at once. `lifeline` is a descriptor that
    becomes readable when the process that watches over this one is gone: then it stops, too, and as that one decides
    when to end at once, further signals change nothing. Raises what `Server.start` raises.
    """
    allow_many_files()
    _rest_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_forever(server, started, lifeline))


def _rest_garbage_collector() -> None:
    """Serving a request leaves no cycles behind, but makes many objects: at its usual pace the collector would walk
    all that lives a hundred times a second, and its pauses are the longest that a request meets.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER_OBJECTS)


async def run_forever(
    server: Server, started: Callable[[Server], Awaitable[None]], lifeline: int | None = None
) -> None:
    """`run`, in the loop that is running."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def first_signal() -> None:
        stop.set()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def cut(lifeline: int) -> None:
        loop.remove_reader(lifeline)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, first_signal if lifeline is None else stop.set)
    if lifeline is not None:
        loop.add_reader(lifeline, cut, lifeline)
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
    """What libraries warn of becomes lines of our log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log: Final = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.trouble("library", logger=record.name, message=record.getMessage())
