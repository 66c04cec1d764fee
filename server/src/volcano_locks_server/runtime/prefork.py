"""Serves one port with several worker processes, which a parent process starts and replaces.

The parent binds the port, so that it stays taken while a worker is replaced, and forks the workers. They accept from
the same socket. A worker that exits is replaced, after a back-off that grows while it keeps exiting. The parent serves
nothing, runs no thread and no event loop, and opens no store, so that forking is safe at any time.

The first worker starts alone. If it cannot start, the parent exits with its exit code. At the first signal to stop,
the parent stops the workers and waits for them; at the second, it kills them. If the parent dies, the workers see the
end of a pipe that only the parent holds open, and stop as if signalled.

The load may be uneven: a few long-lived connections may all belong to one worker.
"""

import os
import selectors
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from ..http.server.listener import bound_socket
from ..rules.errors import LockError
from ..telemetry import Log, PlainWriter
from .process import STOP_SIGNALS, run
from .server import Server, listen_errors
from .settings import Settings, SettingsError

BACKOFF_SECONDS_MIN: Final = 0.1
BACKOFF_SECONDS_MAX: Final = 5.0
SETTLED_SECONDS: Final = 10.0
STOP_SECONDS_MAX: Final = 60.0
EXIT_NOT_STARTED: Final = 69
_WATCHED: Final = (*STOP_SIGNALS, signal.SIGCHLD)

Announce = Callable[[Server], Awaitable[None]]


@dataclass(slots=True)
class _Worker:
    """One of the workers: its process, if it runs, and when the next one may start."""

    number: int
    pid: int = 0
    started_at: float = 0.0
    ready: bool = False
    backoff_seconds: float = 0.0
    due_at: float = 0.0


def run_workers(settings: Settings, workers: int, announce: Announce) -> None:
    """Serve with this many processes until SIGTERM or SIGINT; the first one awaits `announce` once it listens.

    Returns when all have exited. Raises SettingsError if the address is not available, and SystemExit with the exit
    code of the first worker if it could not start. In a worker, raises what `process.run` raises.
    """
    with listen_errors(settings):
        bound = bound_socket(settings.host, settings.port)
    _Prefork(settings, workers, announce, bound).run()


class _Prefork:
    def __init__(self, settings: Settings, workers: int, announce: Announce, bound: socket.socket) -> None:
        self._settings: Final = settings
        self._announce: Final = announce
        self._bound: Final = bound
        self._log: Final = Log(PlainWriter(), settings.log_level)
        self._workers: Final = [_Worker(number) for number in range(1, workers + 1)]
        self._events: Final = selectors.DefaultSelector()
        self._parent_pipe: Final = os.pipe()
        self._signals: Final = socket.socketpair()
        self._first_is_ready = False
        self._ready_logged = False
        self._stopping_since: float | None = None

    def run(self) -> None:
        """Run until all workers have exited."""
        for end in self._signals:
            end.setblocking(False)
        signal.set_wakeup_fd(self._signals[1].fileno(), warn_on_full_buffer=False)
        for number in _WATCHED:
            signal.signal(number, _ignore)
        self._events.register(self._signals[0], selectors.EVENT_READ)
        while True:
            self._start_those_due()
            if self._stopping_since is not None and not any(worker.pid for worker in self._workers):
                break
            for key, _ in self._events.select(self._seconds_to_next()):
                self._handle_readable(key)
        self._log.info("workers_stopped")

    def _start_those_due(self) -> None:
        """Start the workers whose back-off is over: only the first until it is ready, and none when stopping."""
        if self._stopping_since is not None:
            if time.monotonic() - self._stopping_since > STOP_SECONDS_MAX:
                self._signal_all(signal.SIGKILL)
            return
        now = time.monotonic()
        for worker in self._workers if self._first_is_ready else self._workers[:1]:
            if not worker.pid and worker.due_at <= now:
                self._fork(worker)

    def _seconds_to_next(self) -> float | None:
        if self._stopping_since is not None:
            return 1.0
        due = [worker.due_at for worker in self._workers if self._first_is_ready and not worker.pid]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _fork(self, worker: _Worker) -> None:
        ready_read, ready_write = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # a signal in between must reach the parent's handlers
        pid = os.fork()
        if pid == 0:
            os.close(ready_read)
            self._run_worker(worker, ready_write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.close(ready_write)
        self._events.register(ready_read, selectors.EVENT_READ, worker)
        worker.pid, worker.started_at, worker.ready = pid, time.monotonic(), False

    def _run_worker(self, worker: _Worker, ready_write: int) -> NoReturn:
        """In the new process: run the worker, then exit."""
        os.setpgid(0, 0)  # so that Ctrl-C reaches only the parent, which signals the workers once
        signal.set_wakeup_fd(-1)
        for number in _WATCHED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        for key in list(self._events.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._events.close()
        for end in self._signals:
            end.close()
        os.close(self._parent_pipe[1])

        async def started(server: Server) -> None:
            if not self._first_is_ready:
                await self._announce(server)
            os.write(ready_write, b"r")
            os.close(ready_write)

        server = Server(self._settings, bound=self._bound, worker=worker.number)
        try:
            run(server, started=started, parent_pipe=self._parent_pipe[0])
        except (SettingsError, LockError) as error:
            if not self._first_is_ready:
                raise  # the command line prints it
            Log(PlainWriter(), self._settings.log_level, worker=worker.number).warning("start_failed", why=str(error))
            raise SystemExit(EXIT_NOT_STARTED) from None
        raise SystemExit(0)

    def _handle_readable(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, _Worker):
            assert isinstance(key.fileobj, int)
            if os.read(key.fileobj, 1):
                key.data.ready = self._first_is_ready = True
                self._log_when_all_are_ready()
            self._events.unregister(key.fileobj)
            os.close(key.fileobj)
            return
        with suppress(BlockingIOError):
            for number in self._signals[0].recv(4096):
                if number in STOP_SIGNALS:
                    self._stop(number)
        self._reap()

    def _log_when_all_are_ready(self) -> None:
        if not self._ready_logged and all(worker.ready for worker in self._workers):
            self._ready_logged = True
            self._log.info("workers_ready", workers=len(self._workers))

    def _stop(self, number: int) -> None:
        """Stop all workers; the second time, kill them and this process."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._bound.close()
            self._signal_all(signal.SIGTERM)
            return
        self._signal_all(signal.SIGKILL)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)  # not reaped yet, so the pid is still this worker's

    def _reap(self) -> None:
        """Collect the workers that exited."""
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                self._exited(worker, os.waitstatus_to_exitcode(status))

    def _exited(self, worker: _Worker, code: int) -> None:
        pid, worker.pid, worker.ready = worker.pid, 0, False
        if self._stopping_since is not None:
            return
        if not self._first_is_ready:
            raise SystemExit(code if code >= 0 else EXIT_NOT_STARTED)
        settled = time.monotonic() - worker.started_at >= SETTLED_SECONDS
        grown = 0.0 if settled else min(BACKOFF_SECONDS_MAX, worker.backoff_seconds * 2)
        worker.backoff_seconds = max(BACKOFF_SECONDS_MIN, grown)
        worker.due_at = time.monotonic() + worker.backoff_seconds
        self._log.warning("worker_ended", worker=worker.number, pid=pid, exit_code=code)


def _ignore(_number: int, _frame: object) -> None:
    """The wake-up descriptor receives the signal."""
