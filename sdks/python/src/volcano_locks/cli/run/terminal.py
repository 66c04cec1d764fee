"""Lending the terminal to the command, as a shell does with its jobs.

Only the terminal's foreground group may read from it and is reached by Ctrl-C and Ctrl-Z. The command has a
group of its own, so the terminal is lent to it: at once when stdin and stdout are the terminal, and otherwise
only when the command was stopped for reaching for it. The difference is `run … -- cmd | less`: there `less`
shares the wrapper's group and needs the terminal more. While it is not lent, Ctrl-C and Ctrl-Z reach the
wrapper, which passes them on.

Without a controlling terminal (cron, systemd, containers) nothing here does anything.
"""

import contextlib
import os
import signal


class Terminal:
    """The controlling terminal, if there is one."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        self._lent = False

    @property
    def present(self) -> bool:
        """Whether there is a terminal at all."""
        return self._descriptor is not None

    def lend_at_start(self, group_id: int) -> None:
        """Lend it when the command plainly is the terminal's user."""
        if self.present and os.isatty(0) and os.isatty(1):
            self.lend(group_id)

    def lend(self, group_id: int) -> bool:
        """Make `group_id` the foreground group if ours is; whether it is now."""
        if self._foreground() == os.getpgrp():
            self._lent = self._give(group_id)
        return self._lent

    def take_back(self) -> None:
        """Make our own group the foreground group again, if we lent the terminal."""
        if self._lent:
            self._lent = not self._give(os.getpgrp())

    def _foreground(self) -> int | None:
        if self._descriptor is None:
            return None
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return None

    def _give(self, group_id: int) -> bool:
        if self._descriptor is None:
            return False
        # A background group that sets the foreground group is stopped by SIGTTOU unless it ignores the signal.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(self._descriptor, group_id)
        except OSError:
            return False
        else:
            return True
        finally:
            signal.signal(signal.SIGTTOU, before)
