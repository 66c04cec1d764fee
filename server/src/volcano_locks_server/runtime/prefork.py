"""Several processes that serve one port, and the one that watches over them.

The parent binds the port, so that nobody else has it while a worker is replaced, and forks the workers, which listen
on it together: the system gives each connection to whichever asks first. A worker that ends is replaced, after a
growing rest if it keeps ending. The parent itself serves nothing, runs no thread and no event loop, and opens no
store, so that forking is safe at any time.

The first worker starts alone: if it cannot, nothing has started, and the exit is its own. Asked to stop, the parent
asks the workers and waits; asked again, it ends them at once. Should the parent die, the workers see the end of their
lifeline, a pipe that only the parent holds open, and stop as if asked.

Not promised: an even load. Few connections that live long may sit in few workers.
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
from .server import Server, listening_on
from .settings import Settings, SettingsError

REST_SECONDS_MIN: Final = 0.1
REST_SECONDS_MAX: Final = 5.0
SETTLED_SECONDS: Final = 10.0
STOP_SECONDS_MAX: Final = 60.0
EXIT_NOT_STARTED: Final = 69
_WATCHED: Final = (*STOP_SIGNALS, signal.SIGCHLD)

Announce = Callable[[Server], Awaitable[None]]


@dataclass(slots=True)
class _Worker:
    """One place among the workers: the process that has it, if any, and when the next one may."""

    number: int
    pid: int = 0
    started_at: float = 0.0
    ready: bool = False
    rest_seconds: float = 0.0
    due_at: float = 0.0


def run_workers(settings: Settings, workers: int, announce: Announce) -> None:
    """Serve with so many processes until SIGTERM or SIGINT; the first one awaits `announce` once it listens.

    Returns when all are gone. Raises SettingsError where the address cannot be had, and SystemExit with the code of
    the first worker where that one could not start. In a worker, raises what `process.run` raises.
    """
    with listening_on(settings):
        bound = bound_socket(settings.host, settings.port)
    _Parent(settings, workers, announce, bound).run()


class _Parent:
    def __init__(self, settings: Settings, workers: int, announce: Announce, bound: socket.socket) -> None:
        self._settings: Final = settings
        self._announce: Final = announce
        self._bound: Final = bound
        self._log: Final = Log(PlainWriter(), settings.log_level)
        self._workers: Final = [_Worker(number) for number in range(1, workers + 1)]
        self._events: Final = selectors.DefaultSelector()
        self._lifeline: Final = os.pipe()
        self._signals: Final = socket.socketpair()
        self._begun = False
        self._told_ready = False
        self._stopping_since: float | None = None

    def run(self) -> None:
        """Watch until all workers are gone."""
        for end in self._signals:
            end.setblocking(False)
        signal.set_wakeup_fd(self._signals[1].fileno(), warn_on_full_buffer=False)
        for number in _WATCHED:
            signal.signal(number, _noted)
        self._events.register(self._signals[0], selectors.EVENT_READ)
        while True:
            self._start_those_due()
            if self._stopping_since is not None and not any(worker.pid for worker in self._workers):
                break
            for key, _ in self._events.select(self._seconds_to_next()):
                self._heard(key)
        self._log.event("workers_stopped")

    def _start_those_due(self) -> None:
        """The first alone until it is ready, then all whose rest is over; none any more when stopping."""
        if self._stopping_since is not None:
            if time.monotonic() - self._stopping_since > STOP_SECONDS_MAX:
                self._signal_all(signal.SIGKILL)
            return
        now = time.monotonic()
        for worker in self._workers if self._begun else self._workers[:1]:
            if not worker.pid and worker.due_at <= now:
                self._fork(worker)

    def _seconds_to_next(self) -> float | None:
        if self._stopping_since is not None:
            return 1.0
        resting = [worker.due_at for worker in self._workers if self._begun and not worker.pid]
        return max(0.0, min(resting) - time.monotonic()) if resting else None

    def _fork(self, worker: _Worker) -> None:
        ready_end, tell_end = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # a signal in between is for the parent's handlers only
        pid = os.fork()
        if pid == 0:
            os.close(ready_end)
            self._become(worker, tell_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.close(tell_end)
        self._events.register(ready_end, selectors.EVENT_READ, worker)
        worker.pid, worker.started_at, worker.ready = pid, time.monotonic(), False

    def _become(self, worker: _Worker, tell_end: int) -> NoReturn:
        """In the new process: be that worker, and never return to the parent's work."""
        os.setpgid(0, 0)  # Ctrl-C at a terminal is the parent's to pass on, once
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
        os.close(self._lifeline[1])

        async def started(server: Server) -> None:
            if not self._begun:
                await self._announce(server)
            os.write(tell_end, b"r")
            os.close(tell_end)

        server = Server(self._settings, bound=self._bound, worker=worker.number)
        try:
            run(server, started=started, lifeline=self._lifeline[0])
        except (SettingsError, LockError) as error:
            if not self._begun:
                raise  # nothing has started yet: the command line says why
            Log(PlainWriter(), self._settings.log_level, worker=worker.number).trouble("start_failed", why=str(error))
            raise SystemExit(EXIT_NOT_STARTED) from None
        raise SystemExit(0)

    def _heard(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, _Worker):
            assert isinstance(key.fileobj, int)
            if os.read(key.fileobj, 1):
                key.data.ready = self._begun = True
                self._tell_when_all_are_ready()
            self._events.unregister(key.fileobj)
            os.close(key.fileobj)
            return
        with suppress(BlockingIOError):
            for number in self._signals[0].recv(4096):
                if number in STOP_SIGNALS:
                    self._stop(number)
        self._bury()

    def _tell_when_all_are_ready(self) -> None:
        if not self._told_ready and all(worker.ready for worker in self._workers):
            self._told_ready = True
            self._log.event("workers_ready", workers=len(self._workers))

    def _stop(self, number: int) -> None:
        """Ask all to stop; the second time, end them and this process at once."""
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
                os.kill(worker.pid, number)  # not buried yet, so the number is still this worker's

    def _bury(self) -> None:
        """Take note of the workers that ended."""
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: _Worker, code: int) -> None:
        pid, worker.pid, worker.ready = worker.pid, 0, False
        if self._stopping_since is not None:
            return
        if not self._begun:
            raise SystemExit(code if code >= 0 else EXIT_NOT_STARTED)
        settled = time.monotonic() - worker.started_at >= SETTLED_SECONDS
        worker.rest_seconds = REST_SECONDS_MIN if settled else _longer(worker.rest_seconds)
        worker.due_at = time.monotonic() + worker.rest_seconds
        self._log.trouble("worker_ended", worker=worker.number, pid=pid, exit_code=code)


def _longer(rest_seconds: float) -> float:
    return min(REST_SECONDS_MAX, max(REST_SECONDS_MIN, rest_seconds * 2))


def _noted(_number: int, _frame: object) -> None:
    """The wake-up descriptor tells of the signal."""
