"""Makes the command the terminal's foreground job, as a shell does.

Only the foreground process group may read the terminal and gets Ctrl-C and Ctrl-Z. The command has its own group. It
becomes the foreground group at once if stdin and stdout are the terminal; otherwise only after it was stopped for using
the terminal. So in `run … -- cmd | less`, `less`, which is in the wrapper's group, keeps the terminal. While the
wrapper has the foreground, it gets Ctrl-C and Ctrl-Z and passes them on.

Without a controlling terminal (cron, systemd, containers) every method does nothing.
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
        self._given = False

    @property
    def present(self) -> bool:
        """Whether there is a controlling terminal."""
        return self._descriptor is not None

    def give_if_interactive(self, group_id: int) -> None:
        """Gives `group_id` the foreground if stdin and stdout are the terminal."""
        if self.present and os.isatty(0) and os.isatty(1):
            self.give_to(group_id)

    def give_to(self, group_id: int) -> bool:
        """Gives `group_id` the foreground if our group has it. Returns whether `group_id` has it now."""
        if self._foreground() == os.getpgrp():
            self._given = self._set_foreground(group_id)
        return self._given

    def take_back(self) -> None:
        """Returns the foreground to our own group if we gave it away."""
        if self._given:
            self._given = not self._set_foreground(os.getpgrp())

    def _foreground(self) -> int | None:
        if self._descriptor is None:
            return None
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return None

    def _set_foreground(self, group_id: int) -> bool:
        if self._descriptor is None:
            return False
        # SIGTTOU stops a background group that sets the foreground group, unless it ignores the signal.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(self._descriptor, group_id)
        except OSError:
            return False
        else:
            return True
        finally:
            signal.signal(signal.SIGTTOU, before)
