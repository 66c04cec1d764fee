"""Logs lines of JSON, one event a line, without blocking the event loop.

A thread writes the lines from a bounded queue to the stream. If the stream is too slow, lines are dropped and counted
(`LineWriter.dropped`): blocking on the log would stop all lock traffic. Events that clients can cause at will are
limited per second by `Log.within_rate`; a later line has the count of lines left out. At level `info`, ordinary grants
and releases build no line.
"""

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import msgspec
import structlog

LINES_MAX: Final = 10_000
LIMITED_PER_SECOND_MAX: Final = 100
CLOSE_SECONDS_MAX: Final = 2.0
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LineWriter:
    """Writes lines to a stream from a thread of its own. `write` never blocks."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.dropped = 0
        self._stream: Final = stream if stream is not None else sys.stderr
        self._lines: Final[deque[str]] = deque()
        self._wake: Final = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        if len(self._lines) >= LINES_MAX or self._closing:
            self.dropped += 1
            return
        self._lines.append(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    debug = info = warning = error = critical = write

    def close(self) -> None:
        """Write the queued lines, for at most CLOSE_SECONDS_MAX."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                waiting = len(self._lines)
                text = "\n".join(self._lines.popleft() for _ in range(waiting)) + "\n"
                with contextlib.suppress(OSError, ValueError):  # the stream may be closed
                    self._stream.write(text)
                    self._stream.flush()
            if self._closing:
                return


class PlainWriter(LineWriter):
    """Writes each line at once, without a thread, for the parent process that forks workers."""

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = write


class Log:
    """A structured log. Check `debug_enabled` before building a line of level debug.

    `info` is for events of interest to operators, `warning` for those that an operator should look at. `worker` is a
    number that every line has.
    """

    def __init__(self, writer: LineWriter, level: str, *, worker: int | None = None) -> None:
        self.debug_enabled: Final = LEVELS[level] <= logging.DEBUG
        self.writer: Final = writer
        self._is_info_enabled: Final = LEVELS[level] <= logging.INFO
        about = {} if worker is None else {"worker": worker}
        logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            writer,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
                structlog.processors.format_exc_info,
                _render,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        ).bind(**about)
        self.debug: Final = logger.debug
        self.info: Final = logger.info
        self.warning: Final = logger.warning
        self._error: Final = logger.error
        self._second = 0
        self._left = LIMITED_PER_SECOND_MAX
        self._left_out = 0

    def unexpected_error(self, name: str, error: BaseException, /, **fields: object) -> None:
        """Log a bug of this program with its trace (level error)."""
        self._error(name, exc_info=error, **fields)

    def within_rate(self) -> bool:
        """Whether a line that clients can cause at will may be written in this second; if so, counts it."""
        if not self._is_info_enabled:
            return False
        second = int(time.monotonic())
        if second != self._second:
            left_out, self._left_out = self._left_out, 0
            self._second, self._left = second, LIMITED_PER_SECOND_MAX
            if left_out:
                self.info("lines_passed_over", count=left_out)
        if self._left == 0:
            self._left_out += 1
            return False
        self._left -= 1
        return True


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return msgspec.json.encode(event, enc_hook=_plain).decode()


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)
