"""Shares: how much of a node-wide budget one project may use (HTTP-32).

A budget has `limit` places. One project may use half of them, and a quarter while more than half of all are in use, but
always one. So a project at its maximum leaves room: others get their quarter even if it came first.

Nothing here waits, reads a clock or does I/O. A `Budget` is the mutable count of one node; who owns the things that it
counts takes and gives back their places.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Final, Literal, TypeVar

from .errors import Code, LockError

WAITERS_MAX: Final = 8_000  # with STREAMS_MAX less than the connections of a process, so that some stay for others
STREAMS_MAX: Final = 1_000
WATCHED_LEASES_MAX: Final = 100_000
ENDED_LEASES_MAX: Final = 10_000
KEPT_EVENTS_MAX: Final = 20_000
LISTS_AT_ONCE_MAX: Final = 4
LISTS_WAITING_MAX: Final = 100
HISTORY_AT_ONCE_MAX: Final = 2
HISTORY_WAITING_MAX: Final = 100
COMMANDS_PENDING_MAX: Final = 20_000
LOG_LINES_PER_SECOND_MAX: Final = 100
LOG_LINES_WAITING_MAX: Final = 10_000
ADMIN_REQUESTS_MAX: Final = 100
READER_REQUESTS_MAX: Final = 20

P = TypeVar("P")
E = TypeVar("E")

Excess = Literal["share", "budget"]
"""What a request for one more place exceeds: its project's share, or the whole budget."""


def share_of(limit: int, used: int) -> int:
    """How many of `limit` places one project may use while `used` are in use."""
    return max(1, limit // (4 if 2 * used > limit else 2))


def equal_share(counts: Iterable[int], places: int) -> int:
    """How many of its entries each project keeps, given how many each has (AUDIT-5, HISTORY-4). What a project leaves
    of an equal share goes to the others.
    """
    room = places
    for place, count in enumerate(ordered := sorted(counts)):
        share = max(1, room // (len(ordered) - place))
        if count > share:
            return share
        room -= count
    return places


def past_equal_share(counts: Mapping[P, int], places: int) -> dict[P, int]:
    """How many entries each project has past its equal share, for those that have more."""
    share = equal_share(counts.values(), places)
    return {project_id: count - share for project_id, count in counts.items() if count > share}


def entries_to_purge(
    entries: Iterable[E],
    project_of: Callable[[E], P],
    ended_at_ms: Callable[[E], int],
    *,
    until_ms: int,
    places: int,
    limit: int,
) -> list[E]:
    """Up to `limit` entries: those that ended up to `until_ms`, then the oldest of projects with more than a share."""
    old: list[E] = []
    of_projects: dict[P, list[E]] = {}
    for entry in entries:
        of_project = old if ended_at_ms(entry) <= until_ms else of_projects.setdefault(project_of(entry), [])
        of_project.append(entry)
    gone = nsmallest(limit, old, ended_at_ms)
    excess = past_equal_share({one: len(of_project) for one, of_project in of_projects.items()}, places)
    for one, count in excess.items():
        gone += nsmallest(min(count, limit - len(gone)), of_projects[one], ended_at_ms)
    return gone


class Budget:
    """The places of one budget that are in use, by project. A project of None has no share, only the budget."""

    __slots__ = ("_by_project", "limit", "name", "refused", "used")

    def __init__(self, name: str, limit: int) -> None:
        self.name: Final = name
        self.limit = limit
        self.used = 0
        self.refused: Final[dict[Excess, int]] = {"share": 0, "budget": 0}
        self._by_project: Final[dict[str | None, int]] = {}

    @property
    def share(self) -> int:
        """How many places one project may use now."""
        return share_of(self.limit, self.used)

    def used_by(self, project_id: str | None) -> int:
        return self._by_project.get(project_id, 0)

    def excess(self, project_id: str | None) -> Excess | None:
        """What one more place for this project would exceed; None if there is room."""
        if self.used >= self.limit:
            return "budget"
        if project_id is not None and self._by_project.get(project_id, 0) >= share_of(self.limit, self.used):
            return "share"
        return None

    def take(self, project_id: str | None) -> Excess | None:
        """Take a place. If there is no room, counts the refusal, and returns what it exceeds."""
        own = self._by_project.get(project_id, 0)
        if own < self.limit >> 2 and self.used < self.limit:  # within a quarter, for speed: each request takes a place
            self.used += 1
            self._by_project[project_id] = own + 1
            return None
        excess = self.excess(project_id)
        if excess is None:
            self.add(project_id)
        else:
            self.refused[excess] += 1
        return excess

    def add(self, project_id: str | None) -> None:
        """Take a place for which `excess` found room."""
        self.used += 1
        self._by_project[project_id] = self._by_project.get(project_id, 0) + 1

    def give_back(self, project_id: str | None, count: int = 1) -> None:
        left = self._by_project.get(project_id, 0) - count
        self.used -= count
        if left:
            self._by_project[project_id] = left
        else:
            self._by_project.pop(project_id, None)

    def displaced(self, project_id: str) -> str | None:
        """For entries that may be dropped: the project whose oldest one makes room for a new one of this project.

        That is the project itself if it has its share, or the one with the most entries if the budget is used up. None
        if there is room.
        """
        excess = self.excess(project_id)
        if excess is None:
            return None
        self.refused[excess] += 1
        if self._by_project.get(project_id, 0) >= share_of(self.limit, self.used):
            return project_id
        return max((one for one in self._by_project if one is not None), key=self._by_project.__getitem__)

    def clear(self) -> None:
        """Give back all places."""
        self.used = 0
        self._by_project.clear()


def past_share(code: Code, what: str) -> LockError:
    """The error for a request past its project's share; `what` names what the budget is of."""
    return LockError(
        code, f"this project has its share of the {what} on this node: retry in a second", retry_after_seconds=1
    )


class Budgets:
    """All node-wide budgets of one server. `limits` replaces the limits of those that it names."""

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self.waiters: Final = Budget("waiters", WAITERS_MAX)
        self.streams: Final = Budget("streams", STREAMS_MAX)
        self.watched_leases: Final = Budget("watched_leases", WATCHED_LEASES_MAX)
        self.ended_leases: Final = Budget("ended_leases", ENDED_LEASES_MAX)
        self.kept_events: Final = Budget("kept_events", KEPT_EVENTS_MAX)
        self.lists_at_once: Final = Budget("lists_at_once", LISTS_AT_ONCE_MAX)
        self.lists_waiting: Final = Budget("lists_waiting", LISTS_WAITING_MAX)
        self.history_at_once: Final = Budget("history_at_once", HISTORY_AT_ONCE_MAX)
        self.history_waiting: Final = Budget("history_waiting", HISTORY_WAITING_MAX)
        self.commands_pending: Final = Budget("commands_pending", COMMANDS_PENDING_MAX)
        self.log_lines_per_second: Final = Budget("log_lines_per_second", LOG_LINES_PER_SECOND_MAX)
        self.log_lines_waiting: Final = Budget("log_lines_waiting", LOG_LINES_WAITING_MAX)
        self.admin_requests: Final = Budget("admin_requests", ADMIN_REQUESTS_MAX)
        self.reader_requests: Final = Budget("reader_requests", READER_REQUESTS_MAX)
        for name, limit in (limits or {}).items():
            getattr(self, name).limit = limit

    def __iter__(self) -> Iterator[Budget]:
        return iter(vars(self).values())
