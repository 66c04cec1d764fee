"""What tests of this server, and of things that use it, need: a clock that the test moves."""

import threading
from typing import Final

# 2026-07-20T14:00:00Z: a whole minute, so that a quota's window begins with the test.
START_MS: Final = 1_784_556_000_000


class ManualClock:
    """A clock that stands still until the test moves it. May be moved from any thread."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._guard: Final = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move on by `ms` milliseconds; the new time."""
        if ms < 0:
            raise ValueError(f"a clock never goes back; got {ms} ms")
        with self._guard:
            self._now_ms += ms
            return self._now_ms

    def set(self, now_ms: int) -> int:
        """Move on to the instant `now_ms`; the new time."""
        with self._guard:
            if now_ms < self._now_ms:
                raise ValueError(f"a clock never goes back; it is {self._now_ms}, got {now_ms}")
            self._now_ms = now_ms
            return self._now_ms
