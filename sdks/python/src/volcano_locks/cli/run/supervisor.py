"""Supervises a command that may run only while its lease is held (case 38, case 39).

Three events can happen, in any order: the command ends, a signal arrives, the lease is lost. On a loss the group gets
SIGTERM, and SIGKILL after KILL_AFTER_SECONDS. The local deadline is before the lease's expiry, and a takeover is
possible only a second after the expiry, so the group is gone before the grace ends.

When the command ends, processes left in its group are stopped before the lock is released.

Not covered: processes that left the group, processes of another user that may not be signalled, and processes that the
kernel does not end (a dead disk). `Outcome.gone` reports whether the group is gone; if not, the caller keeps the lock.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from volcano_locks.clock import SystemClock

from .. import exit_codes
from ..output import message
from .process_group import POLL_SECONDS, ProcessGroup
from .signals import PASSED_ON, SignalQueue
from .terminal import Terminal
from .watchdog import KILL_AFTER_SECONDS, Watchdog

if TYPE_CHECKING:
    from volcano_locks.protocol.lease import Lease

EXIT_SECONDS: Final = 0.2
LEFTOVER_SECONDS: Final = 5.0
KILLED_SECONDS: Final = 5.0
EXTEND_SECONDS: Final = 1.0  # from a renewal until the watchdog knows the new deadline, at most
EXTEND_LATE_SECONDS: Final = 0.1  # the same shortly before the deadline; less than the watchdog's slack


class HeldLock(Protocol):
    """The part of a lock guard that the supervisor needs."""

    @property
    def key(self) -> str:
        """The lock's key."""

    @property
    def lease(self) -> "Lease":
        """The newest lease."""

    @property
    def lost(self) -> bool:
        """Whether the lease is no longer reliable."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lease is lost or its block is left. False after a time-out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command ended: its exit code (128 + n if a signal killed it), whether a loss was seen and reported while
    it ran, and whether the whole group is gone."""

    exit_code: int
    lost: bool
    gone: bool


class Supervisor:
    """Supervises one group. Use once, in the main thread."""

    def __init__(
        self, group: ProcessGroup, watchdog: Watchdog, guard: HeldLock, signals: SignalQueue, terminal: Terminal
    ) -> None:
        self._group = group
        self._watchdog = watchdog
        self._clock = SystemClock()
        self._guard = guard
        self._signals = signals
        self._terminal = terminal
        self._status: int | None = None
        self._kill_at: float | None = None

    def run(self) -> Outcome:
        """Returns when the command has ended and its group is gone or cannot be ended."""
        threading.Thread(target=self._wake_on_loss, name="loss", daemon=True).start()
        while self._status is None:
            self._handle_next(PASSED_ON)
        self._terminal.take_back()
        gone = self._stop_leftovers()
        return Outcome(self._status, self._kill_at is not None, gone)

    def _handle_next(self, forwarded: tuple[int, ...], seconds: float | None = None) -> None:
        """Waits for an event, for at most `seconds`, and handles it."""
        reports = () if self._watchdog.ended else (self._watchdog.reports,)
        for number in self._signals.wait(self._time_limit(seconds), *reports):
            if number == signal.SIGCONT:
                self._continue()
            elif number in forwarded:
                self._group.send(number)
        self._act_on_loss()
        self._reap()

    def _time_limit(self, seconds: float | None) -> float | None:
        limits = [] if seconds is None else [seconds]
        if self._kill_at is not None:
            limits.append(max(0.0, self._kill_at - time.monotonic()))
        if self._watchdog.ended and self._status is None:
            limits.append(POLL_SECONDS)  # the end of the command may be reported by no signal
        return min(limits, default=None)

    def _wake_on_loss(self) -> None:
        """In a thread of its own: passes each new deadline on to the watchdog, and wakes this one on a loss."""
        while not self._guard.wait_lost(self._extend()):
            pass
        self._signals.wake()

    def _extend(self) -> float:
        """Passes the deadline on. Returns the seconds until the next time: soon if the watchdog is about to act."""
        deadline = self._guard.lease.deadline
        assert deadline is not None
        self._watchdog.extend(deadline)
        left = deadline - self._clock.now()
        return EXTEND_SECONDS if left > 2 * EXTEND_SECONDS else EXTEND_LATE_SECONDS

    def _act_on_loss(self) -> None:
        now = time.monotonic()
        if self._kill_at is None and self._guard.lost:
            self._kill_at = now + KILL_AFTER_SECONDS
            self._group.terminate()
            message(f"the lock {self._guard.key} was lost; stopping the command", colour="red")
        elif self._kill_at is not None and now >= self._kill_at:
            self._group.send(signal.SIGKILL)
            self._kill_at = now + KILL_AFTER_SECONDS

    def _reap(self) -> None:
        """Takes the watchdog's reports of the command, and reaps the children: adopted orphans, the watchdog, and the
        command if it was the watchdog's.
        """
        if not self._watchdog.ended:
            for status in self._watchdog.take_statuses():
                self._changed(status)
            if self._watchdog.ended and self._status is None:
                self._group.send(signal.SIGKILL)
                message("the watchdog was killed, and the command with it", colour="red")
        self._reap_children()
        if self._watchdog.ended and self._status is None and not self._group.alive():
            self._status = exit_codes.SIGNAL_BASE + signal.SIGKILL

    def _reap_children(self) -> None:
        while True:
            try:
                process_id, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if process_id == 0:
                return
            if process_id == self._group.group_id:
                self._changed(status)
            elif process_id == self._watchdog.process_id and os.WIFSTOPPED(status):
                os.kill(process_id, signal.SIGCONT)  # a stopped one would not report the end of the command

    def _changed(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._stopped(os.WSTOPSIG(status))
        else:
            self._status = _exit_code(status)

    def _stopped(self, by: int) -> None:
        """The command was stopped: give it the terminal if it was reading or writing there, else stop with it."""
        if not self._terminal.present or self._kill_at is not None:
            return
        needs_terminal = by in (signal.SIGTTIN, signal.SIGTTOU)
        if needs_terminal and self._terminal.give_to(self._group.group_id):
            self._group.send(signal.SIGCONT)
            return
        # The shell watches only our group. All of it must stop, a waiting script included, or no job owns the
        # terminal. The lease is not renewed meanwhile; `_continue` checks it before the command continues.
        self._terminal.take_back()
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continue(self) -> None:
        self._act_on_loss()
        if self._kill_at is None:
            self._terminal.give_if_interactive(self._group.group_id)
            self._group.send(signal.SIGCONT)

    def _stop_leftovers(self) -> bool:
        if self._wait_gone(EXIT_SECONDS):
            return True
        if self._kill_at is None:
            message("the command ended but left processes running; stopping them before releasing the lock")
            self._group.terminate()
        if self._wait_gone(LEFTOVER_SECONDS):
            return True
        self._group.send(signal.SIGKILL)
        return self._wait_gone(KILLED_SECONDS)

    def _wait_gone(self, seconds: float) -> bool:
        return self._group.wait_gone(seconds, lambda: self._handle_next((), 0))


def _exit_code(status: int) -> int:
    if os.WIFSIGNALED(status):
        return exit_codes.SIGNAL_BASE + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)
