"""The request quota of a project: a limit for each minute, and a reserve for lock owners (QUOTA rules in spec/http.md).

Many clients that poll a held lock can spend the project's quota. If a renewal by its healthy owner were then refused,
the owner would lose the lease. Therefore renewals and releases by a current owner are still served, up to the same
number in that minute.

The functions read no clock and do no I/O: the time is an argument. A `Window` is the mutable row of one project, a
`Share` is a value. Ownership is known only once the record is read (`lease.owns`). So `admit` draws on the reserve in
advance, and the reserve is never overdrawn. If the sender proves not to be the owner, the draw is returned.

Nodes that share a quota each count from a `Share`, drawn ahead from a common count (`ports.quota_store`). A draw
belongs to one node, so together the nodes never exceed the limit. What a node draws and does not use is lost at the
minute's end. So each further node costs the others at most 1 / SHARE_PARTS of the quota: with three nodes a project
gets at least 95 % of it, for any distribution of the load. Draws between the limit and twice the limit are the reserve.
"""

from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

WINDOW_MS: Final = 60_000
SHARE_PARTS: Final = 40


class Window(Struct, gc=False):
    """One project's minute: its start, the requests counted, and the draws on the reserve."""

    started_at_ms: int = 0
    used: int = 0
    reserve_used: int = 0


class Share(Struct, frozen=True, gc=False):
    """One node's share of a project's minute.

    `left` and `reserve_left` are drawn and unused. `drawn` is the total of all nodes, as known to this node.
    """

    started_at_ms: int
    left: int = 0
    reserve_left: int = 0
    drawn: int = 0


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


_ADMITTED, _RESERVE, _SPENT = Verdict  # a member of an enum takes long to look up


class Admission(NamedTuple):
    """The quota's decision about one request, and the values of its X-RateLimit header fields.

    `limit` 0 means no quota. `reset_at_seconds` is epoch seconds; `retry_after_seconds` is at least 1.
    """

    verdict: Verdict
    limit: int
    remaining: int
    reset_at_seconds: int
    retry_after_seconds: int


def share_at(share: Share | None, now_ms: int) -> Share:
    """The share at `now_ms`: the same one or a new one of that minute, never of an earlier one."""
    started_at_ms = now_ms - now_ms % WINDOW_MS
    return Share(started_at_ms) if share is None or share.started_at_ms < started_at_ms else share


def admit(window: Window, now_ms: int, *, limit: int, may_draw_on_reserve: bool) -> Admission:
    """Count one request in the window. `may_draw_on_reserve` is for renew and release, if the reserve is on."""
    admission = admit_within(window, now_ms, limit=limit)
    if admission is not None:
        return admission
    if may_draw_on_reserve and window.reserve_used < limit:
        window.reserve_used += 1
        return _admission(_RESERVE, window.started_at_ms, now_ms, limit, window.used)
    return _admission(_SPENT, window.started_at_ms, now_ms, limit, window.used)


def admit_within(window: Window, now_ms: int, *, limit: int) -> Admission | None:
    """Count one request in the window. If the quota is spent, returns None and counts nothing."""
    started_at_ms = now_ms - now_ms % WINDOW_MS
    if window.started_at_ms < started_at_ms:
        window.started_at_ms, window.used, window.reserve_used = started_at_ms, 0, 0
    if limit:
        if window.used >= limit:
            return None
        window.used += 1
    return _admission(_ADMITTED, window.started_at_ms, now_ms, limit, window.used)


def admit_from(
    share: Share | None, now_ms: int, *, limit: int, may_draw_on_reserve: bool
) -> tuple[Share, Admission | Draw]:
    """Count one request from a share, or return the draw that it needs: make it, apply `with_drawn`, then call again.

    `remaining` is an upper bound, because other nodes may have drawn since.
    """
    current = share_at(share, now_ms)
    if limit == 0:
        return current, _admission(_ADMITTED, current.started_at_ms, now_ms, 0, 0)
    if current.left and _used(current) < limit:
        counted = Share(current.started_at_ms, current.left - 1, current.reserve_left, current.drawn)
        return counted, _admission(_ADMITTED, counted.started_at_ms, now_ms, limit, _used(counted))
    if current.drawn < limit:
        return current, Draw(current.started_at_ms, limit, _part_of(limit), for_reserve=False)
    if may_draw_on_reserve:
        if current.reserve_left:
            counted = replace(current, reserve_left=current.reserve_left - 1)
            return counted, _admission(_RESERVE, counted.started_at_ms, now_ms, limit, _used(counted))
        if current.drawn < 2 * limit:
            return current, Draw(current.started_at_ms, 2 * limit, _part_of(limit), for_reserve=True)
    return current, _admission(_SPENT, current.started_at_ms, now_ms, limit, _used(current))


def has_quota(window: Window, now_ms: int, *, limit: int) -> bool:
    """Whether a request can be counted in the window now, without the reserve."""
    return limit == 0 or window.used < limit or window.started_at_ms + WINDOW_MS <= now_ms


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


def return_draw(window: Window, drawn: Admission) -> None:
    """Return a draw on the reserve to the window of its minute."""
    if _is_of(window.started_at_ms, drawn) and window.reserve_used:
        window.reserve_used -= 1


def with_returned(share: Share, drawn: Admission) -> Share:
    """The share after a draw on the reserve was returned; one of another minute is unchanged."""
    return replace(share, reserve_left=share.reserve_left + 1) if _is_of(share.started_at_ms, drawn) else share


def _is_of(started_at_ms: int, drawn: Admission) -> bool:
    return started_at_ms + WINDOW_MS == drawn.reset_at_seconds * 1_000


def _part_of(limit: int) -> int:
    return max(1, limit // SHARE_PARTS)


def _used(share: Share) -> int:
    return share.drawn - share.left - share.reserve_left


def _admission(verdict: Verdict, started_at_ms: int, now_ms: int, limit: int, used: int) -> Admission:
    reset_at_ms = started_at_ms + WINDOW_MS
    retry_after_seconds = -((now_ms - reset_at_ms) // 1_000)
    return Admission(
        verdict,
        limit,
        limit - used if limit > used else 0,
        reset_at_ms // 1_000,
        retry_after_seconds if retry_after_seconds > 1 else 1,
    )
