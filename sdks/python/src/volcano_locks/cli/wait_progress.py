"""What is told on stderr while a command waits for a lock: who holds it, until when, how many are ahead (CLI-26).

The wait itself is the client's and is not disturbed: a thread looks at the lock now and then. Each look is a request of
the quota, so looks are few; on a terminal the time that is left counts down between them.

Not promised: a place that is exact. The server tells how many wait, not in which order. Whoever was there at the first
look is counted as ahead until there are fewer, or another of them has the lock.
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
from .output import fitted, message

if TYPE_CHECKING:
    from volcano_locks import Client
    from volcano_locks.protocol.lock_view import LockView

FIRST_LOOK_SECONDS: Final = 0.3
LOOK_SECONDS: Final = 15.0
LOOK_SECONDS_MIN: Final = 5.0
LOOK_SECONDS_MAX: Final = 240.0
TICK_SECONDS: Final = 1.0
LOOK_TIMEOUT_SECONDS: Final = 3.0


@dataclass(slots=True)
class Place:
    """How many are ahead, from one look to the next: never more than before."""

    ahead: int | None = None
    fencing_token: int | None = None

    def looked(self, view: "LockView") -> None:
        """`view.waiters` counts this waiter too. None of them: its request is not in line now."""
        others = view.waiters - 1
        if others < 0:
            return
        if self.ahead is not None:
            others = min(others, max(self.ahead - (view.fencing_token != self.fencing_token), 0))
        self.ahead, self.fencing_token = others, view.fencing_token

    def text(self) -> str:
        """What to say of it; nothing where it is not known."""
        if self.ahead is None:
            return ""
        return f", {self.ahead} ahead of you" if self.ahead else ", you are next"


class Standing:
    """What is known of one wait."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._place = Place()
        self._view: LockView | None = None
        self._trouble = ""

    def looked(self, view: "LockView") -> None:
        """What a look at the lock says."""
        self._view, self._trouble = view, ""
        self._place.looked(view)

    def failed(self, error: VolcanoError) -> None:
        """A look failed in a way that passes by, which the wait survives too."""
        self._trouble = _trouble(error)

    def told(self) -> str:
        """What is worth another line when it changes: not the time, which always does."""
        return self._text(self._key, self._holder(), "")

    def line(self, now: datetime, width: int | None) -> str:
        """All of it at `now`; the names are cut to a `width`."""
        left = ""
        if self._view is not None and self._view.held and self._view.expires_at is not None:
            seconds = (self._view.expires_at - now).total_seconds()
            left = f", expires in {span_text(seconds)}" if seconds > 0 else ""
        key, holder = self._key, self._holder()
        if width is not None:
            key, holder = fitted((key, holder), width - len(self._text("", "", left)))
        return self._text(key, holder, left)

    def _holder(self) -> str:
        if self._view is None or not self._view.held:
            return ""
        return self._view.holder or "another"

    def _text(self, key: str, holder: str, left: str) -> str:
        if self._trouble:
            return f"waiting for {key}: {self._trouble}"
        held = self._view is not None and self._view.held
        return f"waiting for {key}" + (f": held by {holder}{left}{self._place.text()}" if held else "")


class Progress:
    """Tells about one wait from `begin` to `end`, after which nothing is written any more."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._standing = Standing(key)
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._on_terminal = bool(sys.stderr) and sys.stderr.isatty()
        self._told = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Tell from now on. The thread ends by itself after `end`, and never keeps the process alive."""
        threading.Thread(target=self._tell, name="progress", daemon=True).start()

    def end(self) -> None:
        """The wait is over: leave an empty line. Repeat at will."""
        self._over.set()
        with self._mutex:
            if self._on_terminal:
                self._rewrite("")

    def _tell(self) -> None:
        if self._over.wait(FIRST_LOOK_SECONDS):
            return
        # A client of its own, so that leaving it half done keeps nobody waiting.
        with self._connection.client(LOOK_TIMEOUT_SECONDS) as client:
            rest, look_at = LOOK_SECONDS, 0.0
            while not self._over.is_set():
                now = time.monotonic()
                if now >= look_at:
                    soon = self._look(client)
                    look_at = now + (
                        min(rest, soon) if self._on_terminal and soon < inf else (inf if soon == inf else rest)
                    )
                    rest = rest if self._on_terminal else min(rest * 2, LOOK_SECONDS_MAX)
                self._show()
                self._over.wait(TICK_SECONDS)

    def _look(self, client: "Client") -> float:
        """Look at the lock; in how many seconds there is reason to look again, never being infinite."""
        try:
            view = client.locks.view(self._key)
        except VolcanoError as error:
            if not is_transient(error):
                return inf
            self._standing.failed(error)
            return LOOK_SECONDS
        self._standing.looked(view)
        if view.expires_at is None:
            return LOOK_SECONDS_MIN
        return max((view.expires_at - datetime.now(UTC)).total_seconds(), LOOK_SECONDS_MIN)

    def _show(self) -> None:
        with self._mutex:
            if self._over.is_set():
                return
            now = datetime.now(UTC)
            if self._on_terminal:
                self._rewrite(self._standing.line(now, shutil.get_terminal_size().columns - 1))
            elif self._told != self._standing.told():
                self._told = self._standing.told()
                message(self._standing.line(now, None))

    def _rewrite(self, text: str) -> None:
        """In place of the line before. Spaces and no escapes: there are terminals that know none."""
        if text != self._told:
            blank = " " * (len(self._told) - len(text))
            sys.stderr.write(f"\r{text}{blank}" if text else f"\r{blank}\r")
            sys.stderr.flush()
            self._told = text


def _trouble(error: VolcanoError) -> str:
    if isinstance(error, TransportError):
        return "no answer from the server, trying again"
    if isinstance(error, RateLimitedError):
        return "the quota is spent, trying again"
    return "the server cannot answer now, trying again"
