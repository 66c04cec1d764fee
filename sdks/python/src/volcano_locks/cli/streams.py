"""Makes stdout and stderr safe to use, whatever the parent left there (CLI-34, case 53).

A standard descriptor that is closed would be given to the next file or pipe that is opened, and the command of `run`
would write into it. A failed write to stderr would replace the exit code by a traceback, and a pipe that is full would
stop the program, `run` even while its lease is lost.
"""

import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDERR_SECONDS_MAX: Final = 0.25
"""How long a message waits until a full pipe or a stopped terminal takes it; then it is dropped."""


def make_safe() -> None:
    """Call once, at the start of the process, before a file is opened."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDWR)  # gets this number; it is closed again when a command is executed
    if sys.stdout is not None:
        raw = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
        sys.stdout = _StrictText(raw, sys.stdout.encoding, sys.stdout.errors, line_buffering=sys.stdout.isatty())
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    sys.stderr = _ForgivingText(io.BufferedWriter(_Forgiving(2, "w", closefd=False)), encoding, "backslashreplace")
    sys.stderr.reconfigure(line_buffering=True)


def use_plain_stderr() -> None:
    """For a server, whose log has a thread and bounds of its own."""
    if isinstance(sys.stderr, _ForgivingText) and sys.__stderr__ is not None:
        sys.stderr = sys.__stderr__


class StdoutError(Exception):
    """stdout cannot be written: it is full, or its reader is gone. No OSError, which click handles in its own way."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror)
        self.cause: Final = cause


class _StrictText(io.TextIOWrapper):
    """stdout as `make_safe` leaves it. Its failures differ from those of other files and of connections.

    The layers below are not ours: an interrupt between their write and their note of it would write the text twice.
    """

    def write(self, text: str, /) -> int:
        """Raises StdoutError."""
        try:
            return super().write(text)
        except OSError as error:
            raise StdoutError(error) from None

    def flush(self) -> None:
        """Raises StdoutError."""
        try:
            super().flush()
        except OSError as error:
            raise StdoutError(error) from None


class _ForgivingText(io.TextIOWrapper):
    """stderr as `make_safe` leaves it."""


class _Forgiving(io.FileIO):
    """A file that takes everything: what it cannot write at once, or soon, is lost."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Writes a part that does not block, and returns its length; that of everything if it is dropped."""
        waiting = memoryview(data)
        with suppress(OSError, ValueError):
            if select.select([], [self], [], STDERR_SECONDS_MAX)[1]:
                return super().write(waiting[: select.PIPE_BUF]) or len(waiting)
        return len(waiting)
