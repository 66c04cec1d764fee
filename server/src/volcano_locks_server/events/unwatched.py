"""The projects of which not all leases are watched, because they exceed their share: subscribers get resets (EVENT-9).

A client lists the locks again after a reset. So it misses the end of a lease for RESETS_APART_MS at most, although no
`expired` was published for it. Once the project has room again, its leases are listed, and if all fit, the resets end.
"""

from collections.abc import Callable
from typing import Final

from ..ports.clock import Clock, Timer
from ..rules.shares import Budget

RESETS_APART_MS: Final = 10_000
ROOM_PARTS: Final = 8  # leases are listed again when one such part of the share is free


class UnwatchedProjects:
    """`reset` is called with a project of which not all leases are watched, `list_again` if it has room for more.

    `watched` counts the leases that are watched. One timer serves all projects; `close` ends it.
    """

    def __init__(
        self, clock: Clock, watched: Budget, *, reset: Callable[[str], None], list_again: Callable[[str], None]
    ) -> None:
        self._clock: Final = clock
        self._watched: Final = watched
        self._reset: Final = reset
        self._list_again: Final = list_again
        self._projects: Final[set[str]] = set()
        self._reset_at_ms: int | None = None
        self._timer: Timer | None = None
        self._closed = False

    def note(self, project_id: str) -> None:
        """A lease of that project is not watched."""
        self._projects.add(project_id)
        if self._timer is None and not self._closed:
            before_ms = self._reset_at_ms
            delay_ms = 0 if before_ms is None else before_ms + RESETS_APART_MS - self._clock.now_ms()
            self._timer = self._clock.call_in(max(0, delay_ms), self._reset_all)

    def forget(self, project_id: str) -> None:
        """That project has no subscribers any more."""
        self._projects.discard(project_id)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _reset_all(self) -> None:
        self._timer = None
        self._reset_at_ms = self._clock.now_ms()
        for project_id in list(self._projects):
            self._reset(project_id)
            if ROOM_PARTS * self._watched.used_by(project_id) <= (ROOM_PARTS - 1) * self._watched.share:
                self._projects.discard(project_id)
                self._list_again(project_id)
        if self._projects:
            self._timer = self._clock.call_in(RESETS_APART_MS, self._reset_all)
