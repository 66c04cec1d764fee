"""One queue for all events of a running command: signals, reports of the watchdog, a lost lease.

Signals become bytes in a pipe through `signal.set_wakeup_fd`, a loss through `wake`; the watchdog's reports have a pipe
of their own. So one thread waits in one place and handles events in order. A full pipe drops bytes, which loses
nothing: the reader checks the state of the children and of the lease, not only the byte.
"""

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from types import FrameType
from typing import Final, Self

from .. import exit_codes

WAKE: Final = 0
_BYTES_MAX: Final = 4096

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON: Final = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class GivenSignals:
    """The signal mask that `run` was given, and whether SIGCHLD was ignored. A parent's settings survive exec."""

    mask: frozenset[int]
    child_ignored: bool

    @classmethod
    def take(cls) -> Self:
        """Unblocks every signal and stops ignoring SIGCHLD, because `run` relies on them (case 52)."""
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return cls(frozenset(signal.pthread_sigmask(signal.SIG_SETMASK, ())), ignored)

    def restore(self) -> None:
        """Puts both back, for the command."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN if self.child_ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def interrupt_on_ending_signals() -> None:
    """Until the command runs, ENDING signals raise Interrupted; ignored ones (nohup) stay ignored."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise exit_codes.Interrupted(number)

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


class SignalQueue:
    """The queue. After `open`, the signals in PASSED_ON only appear here and do nothing else to this process."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing

    @classmethod
    def open(cls) -> Self:
        """Takes over the signals. Call it in the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (*PASSED_ON, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, _do_nothing)
        return cls(reading, writing)

    def wake(self) -> None:
        """Wakes `wait`, from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._writing, bytes([WAKE]))

    def wait(self, seconds: float | None, *descriptors: int) -> tuple[int, ...]:
        """The signals received, in order; empty after `seconds`, a `wake`, or when one of the descriptors can be read.
        May return early.
        """
        select.select([self._reading, *descriptors], [], [], seconds)
        try:
            received = os.read(self._reading, _BYTES_MAX)
        except BlockingIOError:
            return ()
        return tuple(number for number in received if number != WAKE)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler, because exec resets handled signals to the default action but keeps ignored ones."""
