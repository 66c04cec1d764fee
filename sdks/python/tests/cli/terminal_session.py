"""The command line on a terminal of its own."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

PROGRAM = (sys.executable, "-c", "from volcano_locks.cli import main; main()")
WAIT_SECONDS = 60.0
Until = Callable[[Callable[[], object]], None]

# Makes the terminal on stdin the controlling one, as a login does.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


class Session:
    """A terminal with one program on it."""

    def __init__(self, environment: dict[str, str], *arguments: str, piped: bool = False) -> None:
        self.keyboard, process_end = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, *PROGRAM, *arguments],
            env=environment,
            stdin=process_end,
            stdout=subprocess.DEVNULL if piped else process_end,
            stderr=process_end,
            start_new_session=True,
        )
        os.close(process_end)
        self.output = b""

    def read_until(self, text: bytes) -> None:
        """Read until `text` was printed."""
        while text not in self.output:
            assert select.select([self.keyboard], [], [], WAIT_SECONDS)[0], self.output
            more = os.read(self.keyboard, 4096)
            if not more:
                raise EOFError("the program closed its terminal")
            self.output += more

    def read_to_end(self) -> bytes:
        """Everything that was printed until the program ended."""
        with suppress(OSError, EOFError):  # systems differ in how they report a closed terminal
            while True:
                self.read_until(b"never printed")
        return self.output

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def wait_stopped(self, until: Until) -> None:
        """Wait until the program is stopped, as a shell would."""
        until(lambda: os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)[1]))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_SECONDS)
        os.close(self.keyboard)


def lines_on_terminal(environment: dict[str, str], *arguments: str, columns: int = 80) -> list[str]:
    """What a command prints on a terminal of this width."""
    session = Session(environment | {"COLUMNS": str(columns)}, *arguments)
    lines = session.read_to_end().decode().splitlines()
    assert session.process.wait(WAIT_SECONDS) == 0, lines
    session.close()
    return lines
