"""Pages of lock records, for every store in the same way: what to look at, and what of it is on the page.

Keys are ASCII, so the order of their characters is that of their bytes. A store that keeps records in this order
hands over the first `looked_at_max(query)` of `key_range(query)`, whatever their state; one that finds those in the
state asked for by other means hands over `limit + 1` of them. Either way the work for a page is bounded (LIST-4).
"""

from collections.abc import Iterable
from typing import Final

from ..ports.lock_store import LockPage, LockQuery
from ..rules.lease import LockRecord, blocks_others
from ..rules.values import LockKey

LOOKED_AT_MAX: Final = 1_000

_BELOW_ALL: Final = " "  # before every character that a key may have
_ABOVE_ALL: Final = "~"  # and behind every one


def key_range(query: LockQuery) -> tuple[str, str]:
    """The keys to look at: from the first on, to before the second."""
    behind = query.after + _BELOW_ALL if query.after else ""
    return max(query.prefix, behind), query.prefix + _ABOVE_ALL


def looked_at_max(query: LockQuery) -> int:
    """How many records of the range to look at for one page: one more than fit on it, or as many as may be passed
    over. (Where all fit the query, one more tells that there is another page.)
    """
    return query.limit + 1 if query.held is None else max(query.limit + 1, LOOKED_AT_MAX)


def page_of(
    query: LockQuery, looked_at: Iterable[tuple[LockKey, LockRecord]], now_ms: int, *, asked_for: int
) -> LockPage:
    """The page, from the first `asked_for` records of the range (fewer: there are no more), in any order."""
    found = sorted(looked_at, key=lambda row: row[0])
    fitting = found
    if query.held is not None:
        fitting = [row for row in found if blocks_others(row[1], now_ms) is query.held]
    records = fitting[: query.limit]
    next_after = None
    if len(fitting) > query.limit:
        next_after = records[-1][0]
    elif len(found) >= asked_for:
        next_after = found[-1][0]
    return LockPage(records, now_ms, next_after)
