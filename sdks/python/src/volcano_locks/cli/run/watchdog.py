"""A small process that stops the command's group if the wrapper is killed with SIGKILL.

The watchdog waits on a pipe whose other end only the wrapper holds. If the pipe closes without a stop message, the
wrapper is dead: the group gets SIGTERM and, KILL_AFTER_SECONDS later, SIGKILL. The lease is not renewed from then on,
so it expires after the group is gone.

It leaves the terminal's session and ignores the signals that end a job, so that it outlives the other processes. It
cannot notice a wrapper that is stopped but not dead. If the watchdog itself is killed, on Linux the kernel still sends
SIGTERM to the command, but not to the command's descendants.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, Self

from .process_group import CommandProcess, ProcessGroup

KILL_AFTER_SECONDS: Final = 0.5
_STOP: Final = b"."
_DESCRIPTORS_MAX: Final = 65_536
_IGNORED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Watchdog:
    """The wrapper's side: started before the command, stopped when the command's group is gone."""

    def __init__(self, process_id: int, pipe: int) -> None:
        self.process_id: Final = process_id
        self._pipe = pipe

    @classmethod
    def start(cls, process: CommandProcess) -> Self:
        """Forks the watchdog for the group of `process`. Call it while this process has one thread."""
        read_end, write_end = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            try:
                os.close(write_end)
                _watch(ProcessGroup(process.group_id), read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        return cls(process_id, write_end)

    def stop(self) -> None:
        """Ends the watchdog and reaps it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, _STOP)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process_id, 0)


def _watch(group: ProcessGroup, read_end: int) -> None:
    os.setsid()
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.dup2(read_end, 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), _DESCRIPTORS_MAX))
    with contextlib.suppress(OSError):  # so that `killall volcano-locks` does not kill the watchdog
        Path("/proc/self/comm").write_text("lock-watchdog")
    if os.read(0, 1) == _STOP:
        return
    group.terminate()
    if not group.wait_gone(KILL_AFTER_SECONDS):
        group.send(signal.SIGKILL)
