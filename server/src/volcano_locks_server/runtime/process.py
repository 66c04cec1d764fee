"""Runs one server in a process of its own: event loop, signals, garbage collector and the log of libraries."""

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import uvloop

from ..http.server.connection_limits import allow_many_files
from ..telemetry import Log
from .server import Server
from .service_manager import Supervisor, Unsupervised, report_alive

COLLECT_AFTER_OBJECTS: Final = (20_000, 20, 50)
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(
    server: Server,
    *,
    started: Callable[[Server], Awaitable[None]],
    parent_pipe: int | None = None,
    supervisor: Supervisor | None = None,
    ends_with_terminal: bool = False,
) -> None:
    """Run until SIGTERM or SIGINT, then stop gracefully.

    `started` is awaited once the server listens. A second signal ends the process at once. `parent_pipe` is for a
    worker: a descriptor that becomes readable when the parent process has died, which stops the worker. The parent
    decides when to kill a worker, so a worker ignores further signals. `supervisor` gets the server's state (OPS-16).
    SIGHUP reloads the certificate (OPS-7), or ends the process if `ends_with_terminal`. Raises what `Server.start`
    raises.
    """
    allow_many_files()
    _tune_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        main = run_forever(server, started, parent_pipe, supervisor, ends_with_terminal=ends_with_terminal)
        runner.run(main)


def _tune_garbage_collector() -> None:
    """Run the collector less often. A request allocates many objects but leaves no cycles; with the defaults, the
    collector would run a hundred times a second, and its pauses would dominate the longest response times.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER_OBJECTS)


async def run_forever(
    server: Server,
    started: Callable[[Server], Awaitable[None]],
    parent_pipe: int | None = None,
    supervisor: Supervisor | None = None,
    *,
    ends_with_terminal: bool = False,
) -> None:
    """`run`, in the running event loop."""
    supervisor = supervisor or Unsupervised()
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
    if not ends_with_terminal:
        loop.add_signal_handler(signal.SIGHUP, supervisor.reload, server.reload_certificate)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a new worker blocks it until it is handled
    if parent_pipe is not None:
        loop.add_reader(parent_pipe, parent_died, parent_pipe)
    try:
        async with server:
            bridge = _LogBridge(server.log)
            logging.getLogger().addHandler(bridge)
            try:
                await started(server)
                supervisor.ready(f"serving {server.url}")
                async with _reports(supervisor, server):
                    await stop.wait()
                supervisor.stopping()
            finally:
                logging.getLogger().removeHandler(bridge)
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _reports(supervisor: Supervisor, server: Server) -> AsyncIterator[None]:
    """In the block, a supervisor that watches gets its reports."""
    seconds = supervisor.watchdog_seconds
    if seconds is None:
        yield
        return
    reports = asyncio.create_task(report_alive(supervisor, seconds, server), name="watchdog")
    try:
        yield
    finally:
        reports.cancel()
        await asyncio.wait([reports])


class _LogBridge(logging.Handler):
    """Writes warnings of libraries to the server's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log: Final = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warning("library", logger=record.name, message=record.getMessage())
