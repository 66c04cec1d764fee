"""The request quota of a project: a limit for each minute, and a reserve for lock owners (QUOTA rules in spec/http.md).

Many clients that poll a held lock can spend the project's quota. If a renewal by its healthy owner were then refused,
the owner would lose the lease. Therefore renewals and releases by a current owner are still served, up to the same
number in that minute.

The functions are pure: windows are values, the time is an argument. Ownership is known only once the record is read
(`lease.owns`). So `admit` draws on the reserve in advance, and the reserve is never overdrawn. If the sender proves
not to be the owner, `with_returned` returns the draw.

Nodes that share a quota each count from a `Share`, drawn ahead from a common count (`ports.quota_store`). A draw
belongs to one node, so together the nodes never exceed the limit. What a node draws and does not use is lost at the
minute's end. So each further node costs the others at most 1 / SHARE_PARTS of the quota: with three nodes a project
gets at least 95 % of it, for any distribution of the load. Draws between the limit and twice the limit are the reserve.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, TypeVar

WINDOW_MS: Final = 60_000
SHARE_PARTS: Final = 40


@dataclass(frozen=True, slots=True)
class Window:
    """One project's minute: its start, the requests counted, and the draws on the reserve."""

    started_at_ms: int
    used: int = 0
    reserve_used: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """One node's share of a project's minute.

    `left` and `reserve_left` are drawn and unused. `drawn` is the total of all nodes, as known to this node.
    """

    started_at_ms: int
    left: int = 0
    reserve_left: int = 0
    drawn: int = 0


W = TypeVar("W", Window, Share)


class Draw(NamedTuple):
    """A draw that a node needs before it can decide: up to `wanted`, while fewer than `limit` are drawn in total."""

    started_at_ms: int
    limit: int
    wanted: int
    for_reserve: bool


class Verdict(Enum):
    ADMITTED = "admitted"
    RESERVE = "reserve"
    SPENT = "spent"


class Admission(NamedTuple):
    """The quota's decision about one request, and the values of its X-RateLimit header fields.

    `limit` 0 means no quota. `reset_at_seconds` is epoch seconds; `retry_after_seconds` is at least 1.
    """

    verdict: Verdict
    limit: int
    remaining: int
    reset_at_seconds: int
    retry_after_seconds: int


def window_at(window: W | None, now_ms: int, new: Callable[[int], W]) -> W:
    """The window or share at `now_ms`: the same one or a `new` one of that minute, never of an earlier one."""
    started_at_ms = now_ms - now_ms % WINDOW_MS
    if window is None or window.started_at_ms < started_at_ms:
        return new(started_at_ms)
    return window


def admit(window: Window | None, now_ms: int, *, limit: int, may_draw_on_reserve: bool) -> tuple[Window, Admission]:
    """Count one request. `may_draw_on_reserve` is for renew and release, if the reserve is switched on."""
    current = window_at(window, now_ms, Window)
    if limit == 0:
        return current, _admission(Verdict.ADMITTED, current, now_ms, 0)
    if current.used < limit:
        counted = Window(current.started_at_ms, current.used + 1, current.reserve_used)
        return counted, _admission(Verdict.ADMITTED, counted, now_ms, limit)
    if may_draw_on_reserve and current.reserve_used < limit:
        drawn = Window(current.started_at_ms, current.used, current.reserve_used + 1)
        return drawn, _admission(Verdict.RESERVE, drawn, now_ms, limit)
    return current, _admission(Verdict.SPENT, current, now_ms, limit)


def admit_from(
    share: Share | None, now_ms: int, *, limit: int, may_draw_on_reserve: bool
) -> tuple[Share, Admission | Draw]:
    """Count one request from a share, or return the draw that it needs: make it, apply `with_drawn`, then call again.

    `remaining` is an upper bound, because other nodes may have drawn since.
    """
    current = window_at(share, now_ms, Share)
    if limit == 0:
        return current, _admission(Verdict.ADMITTED, current, now_ms, 0)
    if current.left and _used(current) < limit:
        # `replace` takes 1.5 times as long, and every request passes here.
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
    """The share after a draw that yielded `count`; a share of another minute is unchanged.

    Fewer than were wanted means that the draw's limit is reached.
    """
    if share.started_at_ms != draw.started_at_ms:
        return share
    drawn = share.drawn + count
    if count < draw.wanted:
        drawn = max(drawn, draw.limit)
    if draw.for_reserve:
        return replace(share, reserve_left=share.reserve_left + count, drawn=drawn)
    return replace(share, left=share.left + count, drawn=drawn)


def with_returned(window: W, drawn_from: Admission) -> W:
    """Return a draw on the reserve to the window or share; one of another minute is unchanged."""
    if window.started_at_ms + WINDOW_MS != drawn_from.reset_at_seconds * 1_000:
        return window
    if isinstance(window, Window):
        return replace(window, reserve_used=max(0, window.reserve_used - 1))
    return replace(window, reserve_left=window.reserve_left + 1)


def _part_of(limit: int) -> int:
    return max(1, limit // SHARE_PARTS)


def _used(share: Share) -> int:
    return share.drawn - share.left - share.reserve_left


def _admission(verdict: Verdict, window: Window | Share, now_ms: int, limit: int) -> Admission:
    reset_at_ms = window.started_at_ms + WINDOW_MS
    return Admission(
        verdict=verdict,
        limit=limit,
        remaining=max(0, limit - (window.used if isinstance(window, Window) else _used(window))),
        reset_at_seconds=reset_at_ms // 1_000,
        retry_after_seconds=max(1, -((now_ms - reset_at_ms) // 1_000)),
    )
