"""All connections of one listener: how many there may be, and how long each may keep us waiting.

One look at every connection each SWEEP_SECONDS instead of a timer for each: a lock request then costs no timer.
Where there is no room for a new connection, those that wait for nothing longest make room; a connection with a
request in flight never does. If all are busy, the new one is turned away with `lock_service_unavailable`.
"""

import asyncio
import contextlib
import resource
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .http1 import BoundedHttpProtocol

CONNECTIONS_MAX: Final = 10_000
FILES_RESERVED: Final = 64
MAKE_ROOM_PART: Final = 16
SWEEP_SECONDS: Final = 1.0


class Connections:
    """The connections in `open`, which uvicorn's protocol keeps."""

    def __init__(self, open_now: "Collection[BoundedHttpProtocol]", *, limit: int | None = None) -> None:
        self.open: Final = open_now
        self.limit: Final = limit if limit is not None else _limit()
        self._sweeping: asyncio.TimerHandle | None = None

    def has_room(self, newest: "BoundedHttpProtocol") -> bool:
        """Whether the newest connection may stay; makes room for it where that can be done."""
        if len(self.open) <= self.limit:
            return True
        waiting = sorted(
            (one for one in self.open if one is not newest and one.makes_room()), key=lambda one: one.waiting_since
        )
        for one in waiting[: max(1, self.limit // MAKE_ROOM_PART)]:
            one.transport.abort()
        return bool(waiting)

    def sweep(self) -> None:
        """Hang up on those that took too long, now and every SWEEP_SECONDS until `stop`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for one in list(self.open):
            one.hang_up_if_overdue(now)
        self._sweeping = loop.call_later(SWEEP_SECONDS, self.sweep)

    def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()


def _limit() -> int:
    """CONNECTIONS_MAX, or less where the process may not open so many files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else max(16, min(CONNECTIONS_MAX, files - FILES_RESERVED))


def allow_many_files() -> None:
    """Raise this process's soft limit of open files as far as it may, for the connections' sake."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
