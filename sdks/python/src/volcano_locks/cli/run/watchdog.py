"""A second pair of eyes: a small process that stops the command's group when the wrapper is killed outright.

Nothing can run in a process that got SIGKILL, so somebody else has to notice. The warden waits on a pipe whose
other end only the wrapper holds; when the pipe closes without a word, the wrapper is dead, and the group gets
SIGTERM and, KILL_AFTER_SECONDS later, SIGKILL. Nobody renews the lease from then on, so it lapses by its TTL,
after the group is gone.

It leaves the terminal's session and ignores the signals that end a job, because it has to outlive all others.
What it cannot do: notice a wrapper that is stopped but not dead, or act when it is killed itself (on Linux the
kernel then still sends the command, though not what it started, a SIGTERM).
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, Self

from .process_group import Child, ProcessGroup

KILL_AFTER_SECONDS: Final = 0.5
_WORD: Final = b"."
_DESCRIPTORS_MAX: Final = 65_536
_DEAF_TO: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Warden:
    """The wrapper's side: posted before the command starts, relieved when its group is gone."""

    def __init__(self, process_id: int, pipe: int) -> None:
        self.process_id: Final = process_id
        self._pipe = pipe

    @classmethod
    def post(cls, child: Child) -> Self:
        """Fork the warden of `child`'s group. Call it while this process has one thread."""
        listening, speaking = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            try:
                os.close(speaking)
                _stand_guard(ProcessGroup(child.group_id), listening)
            finally:
                os._exit(0)
        os.close(listening)
        return cls(process_id, speaking)

    def relieve(self) -> None:
        """The group needs no guard any more: let the warden end, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, _WORD)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process_id, 0)


def _stand_guard(group: ProcessGroup, listening: int) -> None:
    os.setsid()
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    os.dup2(listening, 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), _DESCRIPTORS_MAX))
    with contextlib.suppress(OSError):  # so that `killall volcano-locks` does not take the warden along
        Path("/proc/self/comm").write_text("lock-warden")
    if os.read(0, 1) == _WORD:
        return
    group.terminate()
    if not group.gone_within(KILL_AFTER_SECONDS):
        group.send(signal.SIGKILL)
