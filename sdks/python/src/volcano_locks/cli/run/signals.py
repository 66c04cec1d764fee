"""One queue for what can happen to a running command: signals, ends of children, the loss of the lease.

Everything becomes a byte in a pipe: signals by `signal.set_wakeup_fd`, anything else by `tell`. So the one
thread that decides waits in one place and decides in one order. A full pipe drops bytes; that loses nothing,
because whoever reads looks at the world (children, `lost`) and not only at the byte.
"""

import contextlib
import os
import select
import signal
from types import FrameType
from typing import Final, Self

from .. import exit_codes

WAKE: Final = 0
_BYTES_MAX: Final = 4096

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON: Final = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


def interrupt_on_ending_signals() -> None:
    """Until the command runs, a signal that asks to end raises Interrupted; those ignored (nohup) stay ignored."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise exit_codes.Interrupted(number)

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


class Events:
    """The queue. From `open` on, the signals in PASSED_ON do nothing to this process but appear here."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing

    @classmethod
    def open(cls) -> Self:
        """Take over the signals; call it in the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (*PASSED_ON, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, _nothing)
        return cls(reading, writing)

    def tell(self) -> None:
        """Wake the waiter; may be called from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._writing, bytes([WAKE]))

    def wait(self, seconds: float | None) -> tuple[int, ...]:
        """The signals that came, in order; empty after `seconds` or a `tell`. Wakes early rather than late."""
        select.select([self._reading], [], [], seconds)
        try:
            received = os.read(self._reading, _BYTES_MAX)
        except BlockingIOError:
            return ()
        return tuple(number for number in received if number != WAKE)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A caught signal reaches the command with its default action; an ignored one would stay ignored."""
