"""Wakes the streams of a project with many of them in turns, so that the cost of its events is bounded (EVENT-9).

An event costs a wake-up and a write for each stream. A project with STREAMS_AT_ONCE streams or fewer gets its events at
once. Of one with more, STREAMS_PER_TURN streams are woken every TURN_MS, and each then takes all that is queued for it.
"""

from collections.abc import Callable
from typing import Final

from ..ports.clock import Clock, Timer

STREAMS_AT_ONCE: Final = 50
STREAMS_PER_TURN: Final = 10
TURN_MS: Final = 10


class StreamTurns:
    """`wake(project_id, most)` wakes up to `most` streams of a project, and returns whether others have events. `close`
    ends the turns.
    """

    def __init__(self, clock: Clock, wake: Callable[[str, int], bool]) -> None:
        self._clock: Final = clock
        self._wake: Final = wake
        self._projects: Final[dict[str, None]] = {}  # in the order in which they came
        self._timer: Timer | None = None

    def note(self, project_id: str) -> None:
        """That project has queued events."""
        self._projects[project_id] = None
        if self._timer is None:
            self._timer = self._clock.call_in(TURN_MS, self._turn)

    def close(self) -> None:
        self._projects.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self._timer = None
        for project_id in list(self._projects):
            if not self._wake(project_id, STREAMS_PER_TURN):
                del self._projects[project_id]
        if self._projects:
            self._timer = self._clock.call_in(TURN_MS, self._turn)
