"""A small process, the parent of the command, that ends the command's group if the wrapper cannot.

The watchdog waits on a pipe whose other end only the wrapper holds. If the pipe closes without a stop message, the
wrapper is dead. If the lease's deadline passes, the wrapper is stopped or stuck, or it ends the group itself at the
same time. In both cases the group gets SIGTERM and, KILL_AFTER_SECONDS later, SIGKILL. A dead wrapper does not renew
the lease, so it expires after the group is gone.

If the watchdog dies too, on Linux the kernel kills the command, because it is the watchdog's child and asked for that
(`linux.die_with_parent`). The kernel reaches only the process that the wrapper started, not its descendants, and not a
program that is set-user-id.

The watchdog has another process name than the wrapper and a process group of its own, and ignores the signals that end
a job, so that it outlives the other processes. It stays in the terminal's session: without a parent in its session, the
command's group could not be stopped by the terminal. As the command's parent it reports to the wrapper how the command
stops and ends.
"""

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from types import FrameType
from typing import Final, Self

from volcano_locks.clock import SystemClock

from .process_group import POLL_SECONDS, ProcessGroup

KILL_AFTER_SECONDS: Final = 0.5
DEADLINE_SLACK_SECONDS: Final = 0.2
"""How long after the deadline the watchdog acts, so that a last renewal can still arrive and the wrapper is first."""

CHECK_SECONDS: Final = 1.0  # between two looks at the clock: time-outs stand still while the machine is suspended
PROCESS_NAME: Final = "lock-watchdog"
_DEADLINE: Final = struct.Struct("d")  # one message to the watchdog: the new deadline, or 0 to stop
_STOP: Final = 0.0
_STATUS: Final = struct.Struct("i")  # one message of the watchdog: first the command's process id, then wait statuses
_MESSAGES_MAX: Final = 64
_DESCRIPTORS_MAX: Final = 65_536
_IGNORED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Watchdog:
    """The wrapper's side: started before the command, stopped when the command's group is gone.

    `command_id` is the command's process id. `reports` can be read when `take_statuses` has something to return.
    """

    def __init__(self, process_id: int, command_id: int, orders: int, reports: int) -> None:
        self.process_id: Final = process_id
        self.command_id: Final = command_id
        self.reports: Final = reports
        self.ended = False
        self._orders = orders
        self._deadline = inf

    @classmethod
    def start(cls, fork_command: Callable[[Sequence[int]], int]) -> Self:
        """Forks the watchdog, which calls `fork_command` with the descriptors that the command's process must close.
        Call it while this process has one thread.
        """
        orders_read, orders_write = os.pipe()
        reports_read, reports_write = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            try:
                os.close(orders_write)
                os.close(reports_read)
                _Watch(fork_command((orders_read, reports_write)), orders_read, reports_write).run()
            finally:
                os._exit(0)
        os.close(orders_read)
        os.close(reports_write)
        first = os.read(reports_read, _STATUS.size)
        if len(first) < _STATUS.size:
            raise OSError("the watchdog ended before the command was started")
        os.set_blocking(reports_read, False)
        return cls(process_id, _STATUS.unpack(first)[0], orders_write, reports_read)

    def extend(self, deadline: float) -> None:
        """The command may run until `deadline` (an instant of `SystemClock`). Call it after each renewal."""
        if deadline != self._deadline:
            self._deadline = deadline
            with contextlib.suppress(BrokenPipeError):
                os.write(self._orders, _DEADLINE.pack(deadline))

    def take_statuses(self) -> list[int]:
        """The command's wait statuses since the last call, in order. Sets `ended` if the watchdog is dead."""
        try:
            received = os.read(self.reports, _STATUS.size * _MESSAGES_MAX)
        except BlockingIOError:
            return []
        self.ended = not received
        return [status for (status,) in _STATUS.iter_unpack(received)]

    def stop(self) -> None:
        """Ends the watchdog and reaps it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, _DEADLINE.pack(_STOP))
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process_id, 0)


class _Watch:
    """The watchdog's side."""

    def __init__(self, command_id: int, orders: int, reports: int) -> None:
        self._group: Final = ProcessGroup(command_id)
        self._clock: Final = SystemClock()
        self._deadline = inf
        self._stopped = False
        os.setpgid(0, 0)
        os.dup2(orders, 0)
        os.dup2(reports, 1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 2)
        os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), _DESCRIPTORS_MAX))
        self._child_changed, wakeup = os.pipe()
        for descriptor in (1, self._child_changed, wakeup):
            os.set_blocking(descriptor, False)
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        with contextlib.suppress(OSError):  # so that `pkill volcano-locks` does not kill the watchdog
            Path("/proc/self/comm").write_text(PROCESS_NAME)
        self._report(command_id)

    def run(self) -> None:
        """Returns after a stop message, or when the wrapper is dead and the group is gone or was killed."""
        while not self._stopped:
            left = self._deadline + DEADLINE_SLACK_SECONDS - self._clock.now()
            ready, _, _ = select.select([0, self._child_changed], [], [], min(max(left, 0.0), CHECK_SECONDS))
            self._report_changes()
            if 0 in ready and not self._take_orders():
                self._end_group()
                return
            if self._clock.now() >= self._deadline + DEADLINE_SLACK_SECONDS and not self._stopped:
                self._deadline = inf
                self._end_group()

    def _take_orders(self) -> bool:
        """Takes the wrapper's messages. False if it is dead."""
        received = os.read(0, _DEADLINE.size * _MESSAGES_MAX)
        for (deadline,) in _DEADLINE.iter_unpack(received):
            self._stopped = self._stopped or deadline == _STOP
            self._deadline = deadline
        return bool(received)

    def _end_group(self) -> None:
        self._group.terminate()
        if not self._group.wait_gone(KILL_AFTER_SECONDS, self._report_changes):
            self._group.send(signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            self._report_changes()

    def _report_changes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._child_changed, _DESCRIPTORS_MAX)
        with contextlib.suppress(ChildProcessError):
            while True:
                process_id, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if process_id == 0:
                    return
                self._report(status)

    def _report(self, number: int) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(1, _STATUS.pack(number))


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler, because an ignored or defaulted SIGCHLD wakes nothing."""
