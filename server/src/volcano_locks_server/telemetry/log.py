"""Logs lines of JSON, one event a line, without blocking the event loop.

A thread writes the lines from a bounded queue to the stream. If the stream is too slow, lines are dropped and counted
(`LineWriter.dropped`): blocking on the log would stop all lock traffic. Events that clients can cause at will are
limited per second by `Log.within_rate`; a later line has the count of lines left out. At both limits each project has a
share, so that one project's lines do not displace those of others (OPS-13). At level `info`, ordinary grants and
releases build no line.
"""

import contextlib
import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import msgspec
import structlog

from ..rules.shares import LOG_LINES_PER_SECOND_MAX, LOG_LINES_WAITING_MAX, Budget

NAMED_PROJECTS_MAX: Final = 10  # with a line each about the lines left out; those of others have one together
CLOSE_SECONDS_MAX: Final = 2.0
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LineWriter:
    """Writes lines to a stream from a thread of its own. `write` never blocks.

    `budget` counts the lines that wait, by project; lines of no project have no share.
    """

    def __init__(self, stream: TextIO | None = None, budget: Budget | None = None) -> None:
        self.dropped = 0
        self._budget: Final = budget or Budget("log_lines_waiting", LOG_LINES_WAITING_MAX)
        self._stream: Final = stream if stream is not None else sys.stderr
        self._lines: Final[deque[tuple[str, str | None]]] = deque()
        self._written: Final[deque[str | None]] = deque()  # the projects of lines that wait no longer
        self._wake: Final = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def write(self, line: str, project_id: str | None = None) -> None:
        self.settle()
        if self._closing or self._budget.take(project_id) is not None:
            self.dropped += 1
            return
        self._lines.append((line, project_id))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    debug = info = warning = error = critical = write

    def settle(self) -> None:
        """Give back the places of the lines that were written since the last call."""
        while self._written:
            self._budget.give_back(self._written.popleft())

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
                taken = [self._lines.popleft() for _ in range(len(self._lines))]
                self._written.extend(project_id for _, project_id in taken)
                text = "".join(f"{line}\n" for line, _ in taken)
                with contextlib.suppress(OSError, ValueError):  # the stream may be closed
                    self._stream.write(text)
                    self._stream.flush()
            if self._closing:
                return


class PlainWriter(LineWriter):
    """Writes each line at once, without a thread, for the parent process that forks workers."""

    def write(self, line: str, project_id: str | None = None) -> None:  # noqa: ARG002 - nothing waits
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = write


class Log:
    """A structured log. Check `debug_enabled` before building a line of level debug, and `grants_enabled` before one
    about a grant or a release: `grant` writes it at level info if `log_grants`, else at debug.

    `info` is for events of interest to operators, `warning` for those that an operator should look at. `worker` is a
    number that every line has. `rate` counts the lines of this second that clients can cause at will.
    """

    def __init__(
        self,
        writer: LineWriter,
        level: str,
        *,
        worker: int | None = None,
        log_grants: bool = False,
        rate: Budget | None = None,
    ) -> None:
        self.debug_enabled: Final = LEVELS[level] <= logging.DEBUG
        self.writer: Final = writer
        self._is_info_enabled: Final = LEVELS[level] <= logging.INFO
        self.grants_enabled: Final = self.debug_enabled or (log_grants and self._is_info_enabled)
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
        self.grant: Final = logger.info if log_grants else logger.debug
        self.warning: Final = logger.warning
        self._error: Final = logger.error
        self._second = 0
        self._rate: Final = rate or Budget("log_lines_per_second", LOG_LINES_PER_SECOND_MAX)
        self._left_out: Final[Counter[str]] = Counter()  # by project, "" for requests of none

    def unexpected_error(self, name: str, error: BaseException, /, **fields: object) -> None:
        """Log a bug of this program with its trace (level error)."""
        self._error(name, exc_info=error, **fields)

    def within_rate(self, project_id: str | None = None) -> bool:
        """Whether a line that clients can cause at will may be written in this second; if so, counts it.

        `project_id` is the project that causes it; requests of no project together are treated like one.
        """
        if not self._is_info_enabled:
            return False
        self.settle()
        who = project_id or ""
        if self._rate.take(who) is None:
            return True
        self._left_out[who] += 1
        return False

    def settle(self) -> None:
        """Begin a new second if it is time, and write how many lines were left out in the one before."""
        self.writer.settle()
        second = int(time.monotonic())
        if second == self._second:
            return
        self._second = second
        self._rate.clear()
        if self._left_out:
            left_out, named = self._left_out.copy(), self._left_out.most_common(NAMED_PROJECTS_MAX)
            self._left_out.clear()
            for who, count in named:
                self.info("lines_passed_over", project_id=who or None, count=count)
            others = left_out.total() - sum(count for _, count in named)
            if others:
                self.info("lines_passed_over", project_id=None, count=others, of="other projects")


def _render(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str, str | None], dict[str, Any]]:
    """The arguments of `LineWriter.write`."""
    return (msgspec.json.encode(event, enc_hook=_plain).decode(), event.get("project_id")), {}


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)
