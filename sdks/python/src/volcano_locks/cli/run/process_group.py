"""The process that becomes the command, and the process group that it leads.

The watchdog forks it while `run` has one thread and no connections. The new process waits on a pipe until the lock is
held, then execs the command. So no code runs between fork and exec in a process with threads (the danger of
`preexec_fn`), and starting the command costs no fork after the grant. If `run` dies or gives up before that, the pipe
closes and the process ends without running anything.

The command's descendants stay in its group unless they leave on purpose (`setsid`, `setpgid`, daemons). `run` cannot
reach those; the fencing token protects the data from them.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from .. import exit_codes
from .linux import die_with_parent
from .signals import GivenSignals

POLL_SECONDS: Final = 0.02
_PIPE_BYTES: Final = 65_536
_EXEC_FAILED_SECONDS: Final = 1.0


class ProcessGroup:
    """The processes with the group id `group_id`."""

    def __init__(self, group_id: int) -> None:
        self.group_id: Final = group_id

    def send(self, signal_number: int) -> None:
        """Signals every member. Does nothing if none is left, or none may be signalled."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group_id, signal_number)

    def terminate(self) -> None:
        """SIGTERM, then SIGCONT so that stopped members receive it."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)

    def alive(self) -> bool:
        """Whether a member exists, unreaped ones included."""
        try:
            os.killpg(self.group_id, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def wait_gone(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Waits until no member exists, calling `meanwhile` every POLL_SECONDS. False after a time-out."""
        end = time.monotonic() + seconds
        while True:
            meanwhile()
            if not self.alive():
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)


class CommandProcess(ProcessGroup):
    """The forked process that waits to become the command."""

    def __init__(self, process_id: int, go: int, failure: int) -> None:
        super().__init__(process_id)
        self._go = go
        self._failure = failure
        self._waiting = True

    def start(self, environment: Mapping[str, str]) -> None:
        """Makes the process exec the command with `environment`. OSError if the exec failed; then nothing has run."""
        self._waiting = False
        packed = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
        with contextlib.suppress(BrokenPipeError):
            _write_all(self._go, packed + b"\0")
        os.close(self._go)
        reason = os.read(self._failure, _PIPE_BYTES)
        os.close(self._failure)
        if reason:
            self.wait_gone(_EXEC_FAILED_SECONDS)
            number = int(reason)
            raise OSError(number, os.strerror(number))

    def discard(self) -> bool:
        """Makes the process end if it was never started. Returns whether that is so."""
        if not self._waiting:
            return False
        self._waiting = False
        os.close(self._go)
        os.close(self._failure)
        return True


class CommandLaunch:
    """The pipes to the command's process, made before the fork. `fork` is called in the watchdog, `process` here."""

    def __init__(self, program: str, command: Sequence[str], given: GivenSignals) -> None:
        self._program: Final = program
        self._command: Final = command
        self._given: Final = given
        self._go: Final = os.pipe()
        self._failure: Final = os.pipe()

    def fork(self, close: Sequence[int]) -> int:
        """Forks the process as a child of this one, without the descriptors `close`. Returns its id, which is that of
        its group too.
        """
        parent_id, (go_read, go_write), (failure_read, failure_write) = os.getpid(), self._go, self._failure
        process_id = os.fork()
        if process_id == 0:
            for descriptor in (go_write, failure_read, *close):
                os.close(descriptor)
            self._exec_when_started(parent_id, go_read, failure_write)
        # Parent and child both call setpgid, so that the group exists before either continues.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(process_id, process_id)
        return process_id

    def process(self, process_id: int) -> CommandProcess:
        """The process that `fork` has made in another process."""
        (go_read, go_write), (failure_read, failure_write) = self._go, self._failure
        os.close(go_read)
        os.close(failure_write)
        return CommandProcess(process_id, go_write, failure_read)

    def _exec_when_started(self, parent_id: int, go: int, failure: int) -> NoReturn:
        """The forked process up to its exec."""
        try:
            with contextlib.suppress(PermissionError):
                os.setpgid(0, 0)
            environment = _read_environment(go)
            if environment is None or not die_with_parent(parent_id, signal.SIGKILL):
                os._exit(exit_codes.NOT_ACQUIRED)
            for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and exec keeps ignored signals
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            self._given.restore()
            os.execve(self._program, list(self._command), environment)  # noqa: S606 (running a command is the purpose)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(failure, b"%d" % (error.errno or errno.EIO))
        finally:
            os._exit(exit_codes.NOT_EXECUTABLE)


def _read_environment(go: int) -> dict[bytes, bytes] | None:
    """What `start` sent; None if the pipe closed before it was complete."""
    received = b""
    while chunk := os.read(go, _PIPE_BYTES):
        received += chunk
    if received != b"\0" and not received.endswith(b"\0\0"):
        return None
    pairs = (entry.partition(b"=") for entry in received[:-1].split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
