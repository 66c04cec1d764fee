"""Limits on all connections of one listener: how many may be open, and how long each may keep the server waiting.

One sweep over all connections each SWEEP_SECONDS replaces a timer for each request. When the limit is reached, a new
connection displaces the longest idle ones. A connection with a request in flight is never displaced; if
all are busy, the new one is refused with `lock_service_unavailable` (HTTP-24).
"""

import asyncio
import contextlib
import resource
from collections.abc import Collection
from typing import Final, Protocol

CONNECTIONS_MAX: Final = 10_000
FILES_RESERVED: Final = 64
DISPLACED_PART: Final = 16
SWEEP_SECONDS: Final = 1.0


class LimitedConnection(Protocol):
    """What the limits need from a connection."""

    transport: asyncio.Transport
    waiting_since: float

    def is_idle(self) -> bool: ...
    def close_if_overdue(self, now: float) -> None: ...


class ConnectionLimits:
    """Enforces the limits on the connections in `open_now`, a collection that uvicorn's protocol keeps."""

    def __init__(self, open_now: Collection[LimitedConnection], *, limit: int | None = None) -> None:
        self.open: Final = open_now
        self.limit: Final = limit if limit is not None else _limit()
        self._next_sweep: asyncio.TimerHandle | None = None

    def admits(self, newest: LimitedConnection) -> bool:
        """Whether the newest connection may stay. Over the limit, closes idle connections to make room."""
        if len(self.open) <= self.limit:
            return True
        idle = sorted(
            (one for one in self.open if one is not newest and one.is_idle()), key=lambda one: one.waiting_since
        )
        for one in idle[: max(1, self.limit // DISPLACED_PART)]:
            one.transport.abort()
        return bool(idle)

    def sweep(self) -> None:
        """Close overdue connections, now and every SWEEP_SECONDS until `stop`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for one in list(self.open):
            one.close_if_overdue(now)
        self._next_sweep = loop.call_later(SWEEP_SECONDS, self.sweep)

    def stop(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()


def _limit() -> int:
    """CONNECTIONS_MAX, or less if the process may not open as many files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else max(16, min(CONNECTIONS_MAX, files - FILES_RESERVED))


def allow_many_files() -> None:
    """Raise this process's soft limit of open files to what CONNECTIONS_MAX needs, at most to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
