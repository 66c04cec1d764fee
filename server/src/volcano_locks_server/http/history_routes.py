"""The history of locks: `GET /locks/{key}/history` and `GET /history` (HISTORY rules in spec/history.md).

Readers of the history must not slow down lock traffic. Few queries run in the store at once, within a budget of their
own, and a request waits for at most LIST_SECONDS_MAX.
"""

import asyncio
import re
from typing import Final

import msgspec

from ..ports.lock_store import EntryPosition, HistoryPage, HistoryQuery, LockStore
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.history import Period
from ..rules.hold import HoldEntry
from ..rules.shares import Budgets
from ..rules.values import LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, LockKey, parse_key_prefix, parse_limit
from .codec import instant, parse_instant_ms
from .list_slots import ListSlots
from .lock_list_routes import LIST_SECONDS_MAX, invalid_cursor, parameters

_CURSOR: Final = re.compile(r"history\.(?P<token>[0-9]{1,16})\.(?P<key>[A-Za-z0-9][A-Za-z0-9._:-]{0,127})", re.ASCII)
_PERIOD: Final = ("from", "to", "at")


class _Entry(msgspec.Struct):
    key: str
    fencing_token: int
    holder: str | None
    key_id: str | None
    key_name: str | None
    address: str | None
    client: str | None
    began: str | None
    waited_seconds: float | None
    began_at: str
    renewals: int | None
    renewed_at: str | None
    ended: str | None
    ended_by: str | None
    reason: str | None
    ended_at: str | None
    expires_at: str
    held_seconds: float


class _Held(msgspec.Struct):
    count: int
    p50_seconds: float | None
    p95_seconds: float | None
    maximum_seconds: float | None


class _Page(msgspec.Struct):
    items: list[_Entry]
    next_cursor: str | None
    held: _Held | msgspec.UnsetType = msgspec.UNSET


_encode: Final = msgspec.json.Encoder().encode


class HistoryReader:
    """Reads pages of the history of one store's locks as JSON. `budgets` are the node's."""

    def __init__(self, store: LockStore, budgets: Budgets) -> None:
        self._store: Final = store
        self._slots: Final = ListSlots(budgets.history_at_once, budgets.history_waiting, "history requests")

    async def page(self, project_id: str, key: LockKey | None, query: bytes) -> bytes:
        """The page of one lock, or if `key` is None of all locks with the query's prefix. Raises LockError
        `invalid_request`, `too_many_requests`, `lock_service_unavailable`.
        """
        page = await self._query(history_query(project_id, key, query))
        entries = [_entry(key, entry, page.now_ms) for key, entry in page.entries]
        next_cursor = None if page.next_after is None else cursor_of(page.next_after)
        return _encode(_Page(entries, next_cursor, _held(page)))

    async def _query(self, query: HistoryQuery) -> HistoryPage:
        try:
            async with asyncio.timeout(LIST_SECONDS_MAX), self._slots.slot(query.project_id):
                return await self._store.history_page(query)
        except TimeoutError:
            late = f"the store did not read the history within {LIST_SECONDS_MAX:g} s"
            raise StoreUnavailableError("history_late", late) from None


def history_query(project_id: str, key: LockKey | None, query: bytes) -> HistoryQuery:
    """The query for a page, or LockError `invalid_request` (HISTORY-5)."""
    named = parameters(query, (*_PERIOD, "limit", "cursor", *(("prefix",) if key is None else ())))
    period = Period(*(parse_instant_ms(named[name], name) if name in named else None for name in _PERIOD))
    if period.from_ms is not None and period.to_ms is not None and period.from_ms >= period.to_ms:
        raise LockError("invalid_request", f"to must be after from; got {named['from']} and {named['to']}")
    return HistoryQuery(
        project_id,
        parse_limit(named.get("limit"), LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX),
        key=key,
        prefix=parse_key_prefix(named.get("prefix", "")),
        after=position_of(named["cursor"], key) if "cursor" in named else None,
        period=period,
    )


def cursor_of(position: EntryPosition) -> str:
    return f"history.{position.fencing_token}.{position.key}"


def position_of(cursor: str, lock: LockKey | None = None) -> EntryPosition:
    """The position after which the page begins, or LockError `invalid_request` for an unknown cursor."""
    found = _CURSOR.fullmatch(cursor)
    if found is None or lock not in (None, found["key"]):
        raise invalid_cursor(cursor)
    return EntryPosition(LockKey.parse(found["key"]), int(found["token"]))


def _entry(key: LockKey, entry: HoldEntry, now_ms: int) -> _Entry:
    facts = entry.facts
    by = None if facts is None else facts.by
    return _Entry(
        str(key),
        entry.fencing_token,
        entry.holder,
        key_id=None if by is None else by.key_id,
        key_name=None if by is None else by.key_name,
        address=None if by is None else by.address,
        client=None if by is None else by.client,
        began=None if facts is None else facts.began,
        waited_seconds=facts.waited_ms / 1_000 if facts is not None and facts.began == "waited" else None,
        began_at=instant(entry.began_at_ms),
        renewals=None if facts is None else facts.renewals,
        renewed_at=_instant(entry.renewed_at_ms),
        ended=entry.ended,
        ended_by=entry.ended_by,
        reason=entry.reason,
        ended_at=_instant(entry.ended_at_ms),
        expires_at=instant(entry.expires_at_ms),
        held_seconds=entry.held_ms(now_ms) / 1_000,
    )


def _held(page: HistoryPage) -> _Held | msgspec.UnsetType:
    if page.held is None:
        return msgspec.UNSET
    count, *times_ms = page.held
    return _Held(count, *(None if one is None else one / 1_000 for one in times_ms))


def _instant(ms: int | None) -> str | None:
    return None if ms is None else instant(ms)
