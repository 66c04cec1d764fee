"""Watching over a command that may run only while the lease is held (case 38, case 39).

Three things can happen, in any order: the command ends, signals come for it, the lease is lost. On loss the
whole group gets SIGTERM and KILL_AFTER_SECONDS later SIGKILL. The local deadline lies before the lease's
expiry, and nobody may take over until a second after that, so the group is gone before the grace ends.

When the command ends, what it left running in its group is stopped too: the lock may be released only when
nobody works under it any more.

Not promised: anything about processes that left the group, about processes of another user that we may not
signal, or about a process the kernel will not end (a dead disk). `Ended.gone` says whether the group is gone;
the caller keeps the lock when it is not.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Final, Protocol

from .. import exit_codes
from ..output import message
from .process_group import ProcessGroup
from .signals import PASSED_ON, Events
from .terminal import Terminal
from .watchdog import KILL_AFTER_SECONDS

DYING_SECONDS: Final = 0.2
LEFTOVER_SECONDS: Final = 5.0
LAST_WAIT_SECONDS: Final = 5.0


class Guard(Protocol):
    """What is needed of a held lock."""

    @property
    def key(self) -> str:
        """The lock's."""

    @property
    def lost(self) -> bool:
        """Whether the lease must not be relied on any more."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until it is lost or its block is left; False when the time was up first."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: the command's exit code (128 + n when a signal killed it), whether a loss was seen and told
    while anything ran, and whether the whole group is gone."""

    exit_code: int
    lost: bool
    gone: bool


class Supervisor:
    """One watch over one group. Used once, in the main thread."""

    def __init__(self, group: ProcessGroup, guard: Guard, events: Events, terminal: Terminal) -> None:
        self._group = group
        self._guard = guard
        self._events = events
        self._terminal = terminal
        self._status: int | None = None
        self._kill_at: float | None = None

    def watch(self) -> Ended:
        """Return when the command has ended and its group is gone, or will not go."""
        threading.Thread(target=self._tell_loss, name="loss", daemon=True).start()
        while self._status is None:
            self._turn(PASSED_ON)
        self._terminal.take_back()
        gone = self._clear_leftovers()
        return Ended(self._status, self._kill_at is not None, gone)

    def _turn(self, passed_on: tuple[int, ...], seconds: float | None = None) -> None:
        """Wait for something, for at most `seconds`, and act on it."""
        for number in self._events.wait(self._patience(seconds)):
            if number == signal.SIGCONT:
                self._go_on()
            elif number in passed_on:
                self._group.send(number)
        self._act_on_loss()
        self._reap()

    def _patience(self, seconds: float | None) -> float | None:
        if self._kill_at is None:
            return seconds
        until_kill = max(0.0, self._kill_at - time.monotonic())
        return until_kill if seconds is None else min(seconds, until_kill)

    def _tell_loss(self) -> None:
        self._guard.wait_lost()
        self._events.tell()

    def _act_on_loss(self) -> None:
        now = time.monotonic()
        if self._kill_at is None and self._guard.lost:
            self._kill_at = now + KILL_AFTER_SECONDS
            self._group.terminate()
            message(f"ownership of {self._guard.key} was lost; stopping the command", colour="red")
        elif self._kill_at is not None and now >= self._kill_at:
            self._group.send(signal.SIGKILL)
            self._kill_at = now + KILL_AFTER_SECONDS

    def _reap(self) -> None:
        """Collect every child that ended or stopped: the command, adopted orphans, the warden."""
        while True:
            try:
                process_id, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if process_id == 0:
                return
            if process_id != self._group.group_id:
                continue
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            else:
                self._status = _exit_code(status)

    def _stopped(self, by: int) -> None:
        """The command was stopped: lend it the terminal if that is what it wants, else stop along with it."""
        if not self._terminal.present or self._kill_at is not None:
            return
        reached_for_it = by in (signal.SIGTTIN, signal.SIGTTOU)
        if reached_for_it and self._terminal.lend(self._group.group_id):
            self._group.send(signal.SIGCONT)
            return
        # The shell sees only our group: it must see all of it stop (a script that waits for us included), or the
        # terminal is nobody's. Nobody renews meanwhile; `_go_on` looks before it lets the command go on.
        self._terminal.take_back()
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        self._act_on_loss()
        if self._kill_at is None:
            self._terminal.lend_at_start(self._group.group_id)
            self._group.send(signal.SIGCONT)

    def _clear_leftovers(self) -> bool:
        if self._gone_within(DYING_SECONDS):
            return True
        if self._kill_at is None:
            message("the command left processes behind; stopping them before the lock is released")
            self._group.terminate()
        if self._gone_within(LEFTOVER_SECONDS):
            return True
        self._group.send(signal.SIGKILL)
        return self._gone_within(LAST_WAIT_SECONDS)

    def _gone_within(self, seconds: float) -> bool:
        return self._group.gone_within(seconds, lambda: self._turn((), 0))


def _exit_code(status: int) -> int:
    if os.WIFSIGNALED(status):
        return exit_codes.SIGNAL_BASE + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)
