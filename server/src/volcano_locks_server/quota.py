"""The request quota of a project: a fixed minute, and a reserve for those who hold.

A stampede of clients that poll a held lock spends the project's minute. Were its healthy holder then told to
come back later, the stampede would cost it the lease. So when the quota is spent, renewals and releases by a
current owner are still served, up to as many again in that minute (QUOTA rules in spec/http.md).

Pure: windows are values, the time is an argument. Whether somebody is a current owner is the lease's to say
(`lease.owns`), which is known only once the record is read: `admit` draws one from the reserve beforehand, so
that it is never overdrawn, and `given_back` returns what was drawn for somebody who turned out not to own.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Window:
    """One project's minute: when it began, what was used, what owners drew from the reserve."""

    started_at_ms: int
    used: int = 0
    reserve_used: int = 0


class Verdict(Enum):
    ADMITTED = "admitted"
    RESERVE = "reserve"
    SPENT = "spent"


class Admission(NamedTuple):
    """What the quota says of one request, and what its answer's X-RateLimit headers say.

    `limit` 0 means no quota. `reset_at_seconds` is epoch seconds; `retry_after_seconds` is at least 1.
    """

    verdict: Verdict
    limit: int
    remaining: int
    reset_at_seconds: int
    retry_after_seconds: int


def window_at(window: Window | None, now_ms: int) -> Window:
    """The window that `now_ms` falls into: the same one, or a fresh one. A window never goes back."""
    started_at_ms = now_ms - now_ms % WINDOW_MS
    if window is None or window.started_at_ms < started_at_ms:
        return Window(started_at_ms)
    return window


def admit(window: Window | None, now_ms: int, *, limit: int, may_draw_on_reserve: bool) -> tuple[Window, Admission]:
    """Count one request. `may_draw_on_reserve` is for renew and release where the reserve is switched on."""
    current = window_at(window, now_ms)
    if limit == 0:
        return current, _admission(Verdict.ADMITTED, current, now_ms, 0)
    if current.used < limit:
        counted = Window(current.started_at_ms, current.used + 1, current.reserve_used)
        return counted, _admission(Verdict.ADMITTED, counted, now_ms, limit)
    if may_draw_on_reserve and current.reserve_used < limit:
        drawn = Window(current.started_at_ms, current.used, current.reserve_used + 1)
        return drawn, _admission(Verdict.RESERVE, drawn, now_ms, limit)
    return current, _admission(Verdict.SPENT, current, now_ms, limit)


def given_back(window: Window, drawn_from: Admission) -> Window:
    """The window after a draw that no owner used; a window that began since is left alone."""
    if window.started_at_ms + WINDOW_MS != drawn_from.reset_at_seconds * 1_000:
        return window
    return Window(window.started_at_ms, window.used, max(0, window.reserve_used - 1))


def _admission(verdict: Verdict, window: Window, now_ms: int, limit: int) -> Admission:
    reset_at_ms = window.started_at_ms + WINDOW_MS
    return Admission(
        verdict=verdict,
        limit=limit,
        remaining=max(0, limit - window.used),
        reset_at_seconds=reset_at_ms // 1_000,
        retry_after_seconds=max(1, -((now_ms - reset_at_ms) // 1_000)),
    )
