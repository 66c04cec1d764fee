"""Progress on stderr while a command waits for a lock: the holder, the expiry and how many are ahead (CLI-26).

The client does the waiting; a thread polls the lock's state beside it. Each poll counts against the quota, so polls are
rare; on a terminal the remaining time counts down between them.

The number ahead is an estimate. The server reports how many wait, not their order. The number counted at the first poll
falls when fewer wait, or when another waiter gets the lock.
"""

import shutil
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Final, Self

from volcano_locks.errors import RateLimitedError, TransportError, VolcanoError
from volcano_locks.protocol.backoff import is_transient

from .connection import Connection
from .durations import span_text
from .output import fit_names, message, visible

if TYPE_CHECKING:
    from volcano_locks import Client
    from volcano_locks.protocol.lock_view import LockView

FIRST_POLL_SECONDS: Final = 0.3
POLL_SECONDS: Final = 15.0
POLL_SECONDS_MIN: Final = 5.0
POLL_SECONDS_MAX: Final = 240.0
TICK_SECONDS: Final = 1.0
POLL_TIMEOUT_SECONDS: Final = 3.0


@dataclass(slots=True)
class QueuePosition:
    """How many waiters are ahead. Never rises from one poll to the next."""

    ahead: int | None = None
    fencing_token: int | None = None

    def update(self, view: "LockView") -> None:
        """Takes a poll's result. `view.waiters` includes this waiter; 0 means that its request is not queued now."""
        others = view.waiters - 1
        if others < 0:
            return
        if self.ahead is not None:
            others = min(others, max(self.ahead - (view.fencing_token != self.fencing_token), 0))
        self.ahead, self.fencing_token = others, view.fencing_token

    def text(self) -> str:
        """The position for people; empty if it is unknown."""
        if self.ahead is None:
            return ""
        return f", {self.ahead} ahead of you" if self.ahead else ", you are next"


class WaitStatus:
    """What is known about one wait."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._position = QueuePosition()
        self._view: LockView | None = None
        self._failure = ""

    def update(self, view: "LockView") -> None:
        """Takes a poll's result."""
        self._view, self._failure = view, ""
        self._position.update(view)

    def poll_failed(self, error: VolcanoError) -> None:
        """Takes a poll's temporary failure, which the wait itself survives too."""
        self._failure = _failure_text(error)

    def summary(self) -> str:
        """The status without the remaining time. A new line is printed only when this changes."""
        return self._text(self._key, self._holder(), "")

    def text(self, now: datetime, width: int | None) -> str:
        """The whole status at `now`, with the names truncated to fit `width`."""
        remaining = ""
        if self._view is not None and self._view.held and self._view.expires_at is not None:
            seconds = (self._view.expires_at - now).total_seconds()
            remaining = f", expires in {span_text(seconds)}" if seconds > 0 else ""
        key, holder = self._key, self._holder()
        if width is not None:
            key, holder = fit_names((key, holder), width - len(self._text("", "", remaining)))
        return self._text(key, holder, remaining)

    def _holder(self) -> str:
        if self._view is None or not self._view.held:
            return ""
        return visible(self._view.holder or "another client")

    def _text(self, key: str, holder: str, remaining: str) -> str:
        if self._failure:
            return f"waiting for {key}: {self._failure}"
        held = self._view is not None and self._view.held
        return f"waiting for {key}" + (f": held by {holder}{remaining}{self._position.text()}" if held else "")


class WaitProgress:
    """Reports one wait from `begin` to `end`; nothing is written after `end`."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._status = WaitStatus(key)
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._on_terminal = bool(sys.stderr) and sys.stderr.isatty()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Starts reporting. The thread stops after `end` and never keeps the process alive."""
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def end(self) -> None:
        """Ends the report and clears its line. May be called repeatedly."""
        self._ended.set()
        with self._mutex:
            if self._on_terminal:
                self._rewrite("")

    def _run(self) -> None:
        if self._ended.wait(FIRST_POLL_SECONDS):
            return
        # A client of its own, so that abandoning it does not delay the command's client.
        with self._connection.client(POLL_TIMEOUT_SECONDS) as client:
            interval, poll_at = POLL_SECONDS, 0.0
            while not self._ended.is_set():
                now = time.monotonic()
                if now >= poll_at:
                    soon = self._poll(client)
                    poll_at = now + (
                        min(interval, soon) if self._on_terminal and soon < inf else (inf if soon == inf else interval)
                    )
                    interval = interval if self._on_terminal else min(interval * 2, POLL_SECONDS_MAX)
                self._show()
                self._ended.wait(TICK_SECONDS)

    def _poll(self, client: "Client") -> float:
        """Polls the lock. Returns in how many seconds another poll is useful; infinite for never."""
        try:
            view = client.locks.view(self._key)
        except VolcanoError as error:
            if not is_transient(error):
                return inf
            self._status.poll_failed(error)
            return POLL_SECONDS
        self._status.update(view)
        if view.expires_at is None:
            return POLL_SECONDS_MIN
        return max((view.expires_at - datetime.now(UTC)).total_seconds(), POLL_SECONDS_MIN)

    def _show(self) -> None:
        with self._mutex:
            if self._ended.is_set():
                return
            now = datetime.now(UTC)
            if self._on_terminal:
                self._rewrite(self._status.text(now, shutil.get_terminal_size().columns - 1))
            elif self._shown != self._status.summary():
                self._shown = self._status.summary()
                message(self._status.text(now, None))

    def _rewrite(self, text: str) -> None:
        """Replaces the line. Uses spaces, because some terminals support no escape sequences."""
        if text != self._shown:
            blank = " " * (len(self._shown) - len(text))
            sys.stderr.write(f"\r{text}{blank}" if text else f"\r{blank}\r")
            sys.stderr.flush()
            self._shown = text


def _failure_text(error: VolcanoError) -> str:
    if isinstance(error, TransportError):
        return "no response from the server, retrying"
    if isinstance(error, RateLimitedError) and error.code != "lock_rate_limited":
        return "the server serves too many requests of this project, retrying"
    if isinstance(error, RateLimitedError):
        return "the project's quota is spent, retrying"
    return "the server is unavailable, retrying"
