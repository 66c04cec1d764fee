"""Log lines: JSON, one event a line, written beside the event loop and never in its way.

A line goes into a bounded queue that a thread empties into the stream. Where the reader of the stream is too
slow, lines are dropped and counted (`LineWriter.dropped`), because a lock service that waits for its log holds
up everybody. Events a caller can cause at will (`Log.often`) have a budget per second; what went over it is
told in one line when the second is over. At level `info` a grant or release builds nothing.
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
OFTEN_PER_SECOND_MAX: Final = 100
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
        """Write what is queued, as far as the stream takes it within CLOSE_SECONDS_MAX."""
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
                with contextlib.suppress(OSError, ValueError):  # a stream that is gone takes no lines
                    self._stream.write(text)
                    self._stream.flush()
            if self._closing:
                return


class PlainWriter(LineWriter):
    """Writes each line at once, without a thread: for a process that forks and serves nobody by itself."""

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = write


class Log:
    """A structured log. `debug` tells whether anything is written at that level: ask before building a line.

    `worker` is a number that stands in every line.
    """

    def __init__(self, writer: LineWriter, level: str, *, worker: int | None = None) -> None:
        self.debug: Final = LEVELS[level] <= logging.DEBUG
        self.writer: Final = writer
        self._info: Final = LEVELS[level] <= logging.INFO
        logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            writer,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
                structlog.processors.format_exc_info,
                _render,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
            cache_logger_on_first_use=True,
        )
        self._logger: Final = logger if worker is None else logger.bind(worker=worker)
        self._second = 0
        self._left = OFTEN_PER_SECOND_MAX
        self._passed_over = 0

    def event(self, name: str, /, **fields: object) -> None:
        """Something an operator wants to know of (level info)."""
        self._logger.info(name, **fields)

    def detail(self, name: str, /, **fields: object) -> None:
        """Something for whoever looks closely (level debug)."""
        self._logger.debug(name, **fields)

    def trouble(self, name: str, /, **fields: object) -> None:
        """Something an operator should look at (level warning)."""
        self._logger.warning(name, **fields)

    def bug(self, name: str, error: BaseException, /, **fields: object) -> None:
        """A failure of this program, with its trace (level error)."""
        self._logger.error(name, exc_info=error, **fields)

    def often(self) -> bool:
        """Whether an event that callers cause at will may be written now; asks of the budget of this second."""
        if not self._info:
            return False
        second = int(time.monotonic())
        if second != self._second:
            passed_over, self._passed_over = self._passed_over, 0
            self._second, self._left = second, OFTEN_PER_SECOND_MAX
            if passed_over:
                self._logger.info("lines_passed_over", count=passed_over)
        if self._left == 0:
            self._passed_over += 1
            return False
        self._left -= 1
        return True


def new_log(level: str, stream: TextIO | None = None, *, worker: int | None = None) -> Log:
    """A log of `level` (`debug`, `info`, `warning`, `error`) on `stream`, by default stderr; of that worker, if any."""
    return Log(LineWriter(stream), level, worker=worker)


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return msgspec.json.encode(event, enc_hook=_plain).decode()


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)
