"""The request quota of a project: a fixed minute, and a reserve for those who hold.

A stampede of clients that poll a held lock spends the project's minute. Were its healthy holder then told to
come back later, the stampede would cost it the lease. So when the quota is spent, renewals and releases by a
current owner are still served, up to as many again in that minute (QUOTA rules in spec/http.md).

Pure: windows are values, the time is an argument. Whether somebody is a current owner is the lease's to say
(`lease.owns`), which is known only once the record is read: `admit` draws one from the reserve beforehand, so
that it is never overdrawn, and `given_back` returns what was drawn for somebody who turned out not to own.

Where nodes share a project's minute, each counts from a `Share` that it has drawn ahead from the one count they have
in common (`store.QuotaStore`). What is drawn belongs to one node, so together they never serve more than the limit.
What a node has drawn and is not asked for is lost at the minute's end, and by so much another may refuse too early:
at most by one part in SHARE_PARTS for each other node, 5 % with three nodes, however the load falls on them. The
reserve is the second half of the same count: once the limit is gone, what is drawn up to twice the limit.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000
SHARE_PARTS: Final = 40


@dataclass(frozen=True, slots=True)
class Window:
    """One project's minute: when it began, what was used, what owners drew from the reserve."""

    started_at_ms: int
    used: int = 0
    reserve_used: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one node has of a project's minute that nodes share.

    `left` and `reserve_left` are drawn and not used yet. `drawn` is what all nodes together have drawn at least, as
    far as this one knows.
    """

    started_at_ms: int
    left: int = 0
    reserve_left: int = 0
    drawn: int = 0


class Draw(NamedTuple):
    """What a node is to draw before it can judge: up to `wanted`, unless `limit` are gone in this minute."""

    started_at_ms: int
    limit: int
    wanted: int
    for_reserve: bool


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


def share_at(share: Share | None, now_ms: int) -> Share:
    """The share in the minute that `now_ms` falls into: the same one, or an empty one. A minute never goes back."""
    started_at_ms = now_ms - now_ms % WINDOW_MS
    if share is None or share.started_at_ms < started_at_ms:
        return Share(started_at_ms)
    return share


def admit_from(
    share: Share | None, now_ms: int, *, limit: int, may_draw_on_reserve: bool
) -> tuple[Share, Admission | Draw]:
    """Count one request from a share, or say what to draw for it: hand that to `with_drawn`, then ask again.

    `remaining` is what this node knows of: there are at most so many, for others may have drawn meanwhile.
    """
    current = share_at(share, now_ms)
    if limit == 0:
        return current, _admission(Verdict.ADMITTED, current, now_ms, 0)
    if current.left and _used(current) < limit:
        # Spelt out: this is on every request's way, and `replace` costs half of it again.
        counted = Share(current.started_at_ms, current.left - 1, current.reserve_left, current.drawn)
        return counted, _admission(Verdict.ADMITTED, counted, now_ms, limit)
    if current.drawn < limit:
        return current, Draw(current.started_at_ms, limit, _part_of(limit), for_reserve=False)
    if may_draw_on_reserve:
        if current.reserve_left:
            counted = replace(current, reserve_left=current.reserve_left - 1)
            return counted, _admission(Verdict.RESERVE, counted, now_ms, limit)
        if current.drawn < 2 * limit:
            return current, Draw(current.started_at_ms, 2 * limit, _part_of(limit), for_reserve=True)
    return current, _admission(Verdict.SPENT, current, now_ms, limit)


def with_drawn(share: Share, draw: Draw, count: int) -> Share:
    """The share after a draw that brought `count`; a share of another minute is left alone.

    Fewer than were wanted means that all up to the draw's limit are gone.
    """
    if share.started_at_ms != draw.started_at_ms:
        return share
    drawn = share.drawn + count
    if count < draw.wanted:
        drawn = max(drawn, draw.limit)
    if draw.for_reserve:
        return replace(share, reserve_left=share.reserve_left + count, drawn=drawn)
    return replace(share, left=share.left + count, drawn=drawn)


def share_given_back(share: Share, drawn_from: Admission) -> Share:
    """`given_back` for a share."""
    if share.started_at_ms + WINDOW_MS != drawn_from.reset_at_seconds * 1_000:
        return share
    return replace(share, reserve_left=share.reserve_left + 1)


def _part_of(limit: int) -> int:
    return max(1, limit // SHARE_PARTS)


def _used(share: Share) -> int:
    return share.drawn - share.left - share.reserve_left


def given_back(window: Window, drawn_from: Admission) -> Window:
    """The window after a draw that no owner used; a window that began since is left alone."""
    if window.started_at_ms + WINDOW_MS != drawn_from.reset_at_seconds * 1_000:
        return window
    return Window(window.started_at_ms, window.used, max(0, window.reserve_used - 1))


def _admission(verdict: Verdict, window: Window | Share, now_ms: int, limit: int) -> Admission:
    reset_at_ms = window.started_at_ms + WINDOW_MS
    return Admission(
        verdict=verdict,
        limit=limit,
        remaining=max(0, limit - (window.used if isinstance(window, Window) else _used(window))),
        reset_at_seconds=reset_at_ms // 1_000,
        retry_after_seconds=max(1, -((now_ms - reset_at_ms) // 1_000)),
    )
