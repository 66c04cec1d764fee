"""Serves one port with several worker processes, which a parent process starts and replaces.

The parent binds the port, so that it stays taken while a worker is replaced, and forks the workers. They accept from
the same socket. A worker that exits is replaced, after a back-off that grows while it keeps exiting. The parent serves
nothing, runs no thread and no event loop, and opens no store, so that forking is safe at any time.

The first worker starts alone. If it cannot start, the parent exits with its exit code. At the first signal to stop,
the parent stops the workers and waits for them; at the second, it kills them. It passes SIGHUP on to the workers, which
reload the certificate. If the parent dies, the workers see the end of a pipe that only the parent holds open, and stop
as if signalled.

The parent alone reports to a service manager (OPS-16). If the manager watches, each worker sends signs of life to the
parent, which kills and replaces a worker that sends none.

The load may be uneven: a few long-lived connections may all belong to one worker.
"""

import os
import selectors
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from ..http.server.listener import bound_socket
from ..rules.errors import LockError
from ..telemetry import Log, PlainWriter
from .listen_errors import listen_errors
from .process import STOP_SIGNALS, run
from .server import Server
from .service_manager import REPORTS_PER_INTERVAL, ServiceManager
from .settings import Settings, SettingsError

BACKOFF_SECONDS_MIN: Final = 0.1
BACKOFF_SECONDS_MAX: Final = 5.0
SETTLED_SECONDS: Final = 10.0
STOP_SECONDS_MAX: Final = 60.0
EXIT_NOT_STARTED: Final = 69
_WATCHED: Final = (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGHUP)

Announce = Callable[[Server], Awaitable[None]]


@dataclass(slots=True)
class _Worker:
    """One of the workers: its process, if it runs, when it was last alive, and when the next one may start."""

    number: int
    pid: int = 0
    started_at: float = 0.0
    ready: bool = False
    alive_at: float = 0.0
    backoff_seconds: float = 0.0
    due_at: float = 0.0


class _Reports(NamedTuple):
    """What the reading end of a worker's pipe carries: the reports of the process `pid`."""

    worker: _Worker
    pid: int


class _Parent:
    """The supervisor of a worker: the writing end of a pipe to the parent process, which must not block the worker."""

    def __init__(self, pipe: int, watchdog_seconds: float | None) -> None:
        self._pipe: Final = pipe
        self.watchdog_seconds = watchdog_seconds
        os.set_blocking(pipe, False)

    def ready(self, status: str) -> None:
        self.alive(status)

    def alive(self, status: str) -> None:  # noqa: ARG002 - the parent reports the number of workers
        with suppress(OSError):  # the parent died, which the other pipe shows, or it does not read now
            os.write(self._pipe, b"a")

    def reload(self, action: Callable[[], None]) -> None:
        action()

    def stopping(self) -> None: ...


def run_workers(settings: Settings, workers: int, announce: Announce, environ: Mapping[str, str]) -> None:
    """Serve with this many processes until SIGTERM or SIGINT; the first one awaits `announce` once it listens.

    `environ` names the service manager, if there is one.
    Returns when all have exited. Raises SettingsError if the address is not available, and SystemExit with the exit
    code of the first worker if it could not start. In a worker, raises what `process.run` raises.
    """
    with listen_errors(settings):
        bound = bound_socket(settings.host, settings.port)
    _Prefork(settings, workers, announce, bound, environ).run()


class _Prefork:
    def __init__(
        self, settings: Settings, workers: int, announce: Announce, bound: socket.socket, environ: Mapping[str, str]
    ) -> None:
        self._settings: Final = settings
        self._announce: Final = announce
        self._bound: Final = bound
        self._log: Final = Log(PlainWriter(), settings.log_level)
        self._manager: Final = ServiceManager(environ, self._log)
        self._check_at = time.monotonic()
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
            self._check_workers()
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
        if self._first_is_ready and self._manager.watchdog_seconds is not None:
            due.append(self._check_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _check_workers(self) -> None:
        """Kill each worker that gave no sign of life for too long, then give one to the service manager."""
        seconds, now = self._manager.watchdog_seconds, time.monotonic()
        if seconds is None or not self._first_is_ready or self._stopping_since is not None or now < self._check_at:
            return
        pause = seconds / REPORTS_PER_INTERVAL
        if now < self._check_at + pause:  # else this process was paused, and the workers probably too
            for worker in self._workers:
                if worker.ready and now - worker.alive_at > seconds:
                    self._log.warning("worker_hangs", worker=worker.number, pid=worker.pid, seconds=seconds)
                    worker.ready = False
                    os.kill(worker.pid, signal.SIGKILL)
        self._check_at = now + pause
        self._manager.alive(self._status())

    def _status(self) -> str:
        return f"serving with {sum(worker.ready for worker in self._workers)} of {len(self._workers)} workers"

    def _fork(self, worker: _Worker) -> None:
        reports_read, reports_write = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # a signal in between must reach the parent's handlers
        pid = os.fork()
        if pid == 0:
            os.close(reports_read)
            self._run_worker(worker, reports_write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.close(reports_write)
        self._events.register(reports_read, selectors.EVENT_READ, _Reports(worker, pid))
        worker.pid, worker.started_at, worker.ready = pid, time.monotonic(), False

    def _run_worker(self, worker: _Worker, reports_write: int) -> NoReturn:
        """In the new process: run the worker, then exit."""
        os.setpgid(0, 0)  # so that Ctrl-C reaches only the parent, which signals the workers once
        signal.set_wakeup_fd(-1)
        for number in _WATCHED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(_WATCHED) - {signal.SIGHUP})  # `run` unblocks it
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

        server = Server(self._settings, bound=self._bound, worker=worker.number)
        parent = _Parent(reports_write, self._manager.watchdog_seconds)
        try:
            run(server, started=started, parent_pipe=self._parent_pipe[0], supervisor=parent)
        except (SettingsError, LockError) as error:
            if not self._first_is_ready:
                raise  # the command line prints it
            Log(PlainWriter(), self._settings.log_level, worker=worker.number).warning("start_failed", why=str(error))
            raise SystemExit(EXIT_NOT_STARTED) from None
        raise SystemExit(0)

    def _handle_readable(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, _Reports):
            self._read_reports(key.data, key.fd)
            return
        with suppress(BlockingIOError):
            for number in self._signals[0].recv(4096):
                if number in STOP_SIGNALS:
                    self._stop(number)
                elif number == signal.SIGHUP:
                    self._manager.reload(lambda: self._signal_all(signal.SIGHUP))
        self._reap()

    def _read_reports(self, reports: _Reports, pipe: int) -> None:
        """The first report says that the worker is ready, each later one that it is alive."""
        worker = reports.worker
        if not os.read(pipe, 4096):
            self._events.unregister(pipe)
            os.close(pipe)
        elif reports.pid == worker.pid:  # else it was sent before the process ended
            worker.alive_at = time.monotonic()
            if not worker.ready:
                self._worker_is_ready(worker)

    def _worker_is_ready(self, worker: _Worker) -> None:
        worker.ready = True
        if self._stopping_since is None:
            self._first_is_ready = True
            self._manager.ready(self._status())
        if not self._ready_logged and all(worker.ready for worker in self._workers):
            self._ready_logged = True
            self._log.info("workers_ready", workers=len(self._workers))

    def _stop(self, number: int) -> None:
        """Stop all workers; the second time, kill them and this process."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._bound.close()
            self._manager.stopping()
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
