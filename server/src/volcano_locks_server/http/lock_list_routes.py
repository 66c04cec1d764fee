"""The bodies of `GET /locks` and `GET /locks/{key}?view=full`: who holds what, for whoever looks (LIST rules).

Looking must not stand in the way of working: at most LISTS_AT_ONCE pages and rows are asked of the store at once, at
most LISTS_WAITING_MAX wait for that, and none for longer than LIST_SECONDS_MAX.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from ..ports.lock_store import LockPage, LockQuery, LockStore, RecordKey
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import Held, LockRecord, blocks_others
from ..rules.values import LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, LockKey, parse_key_prefix, parse_whole_number, shown
from .codec import instant

LISTS_AT_ONCE: Final = 4
LISTS_WAITING_MAX: Final = 100
LIST_SECONDS_MAX: Final = 10.0

Waiters = Callable[[RecordKey], int]

_HELD_BY_STATE: Final = {"held": True, "free": False, "all": None}
_CURSOR: Final = "locks."


class Listed(NamedTuple):
    """The body of a page or a row, in JSON."""

    body: bytes


class _Row(msgspec.Struct):
    key: str
    held: bool
    holder: str | None = None
    acquired_at: str | None = None
    renewed_at: str | None = None
    expires_at: str | None = None
    ttl_seconds: int | None = None
    fencing_token: int | None = None
    waiters: int = 0


class _Page(msgspec.Struct):
    items: list[_Row]
    next_cursor: str | None


_encode: Final = msgspec.json.Encoder().encode


class Listing:
    """Pages and rows of one store's locks. `waiters` tells how many requests wait for a lock."""

    def __init__(self, store: LockStore, waiters: Waiters) -> None:
        self._store: Final = store
        self._waiters: Final = waiters
        self._at_once: Final = asyncio.Semaphore(LISTS_AT_ONCE)
        self._begun = 0

    async def page(self, project_id: str, parameters: bytes) -> Listed:
        """The page that the address asks for. Raises LockError `invalid_request`, `lock_service_unavailable`."""
        page = await self._asked(lock_query(project_id, parameters))
        rows = [self._row(project_id, key, record, page.now_ms) for key, record in page.records]
        next_cursor = None if page.next_after is None else _CURSOR + page.next_after
        return Listed(_encode(_Page(rows, next_cursor)))

    async def row(self, project_id: str, key: LockKey) -> Listed:
        """The row of one lock, also if nothing is stored about it. Raises LockError `lock_service_unavailable`."""
        page = await self._asked(LockQuery(project_id, 1, prefix=key))  # of keys that begin so, it is the first
        record = next((record for found, record in page.records if found == key), None)
        return Listed(_encode(self._row(project_id, key, record, page.now_ms)))

    def _row(self, project_id: str, key: LockKey, record: LockRecord | None, now_ms: int) -> _Row:
        waiters = self._waiters(RecordKey(project_id, key))
        token = None if record is None else record.fencing_token or None  # 0: it was freed before it was ever held
        if not isinstance(record, Held) or not blocks_others(record, now_ms):
            return _Row(str(key), held=False, fencing_token=token, waiters=waiters)
        return _Row(
            str(key),
            held=True,
            holder=record.holder,
            acquired_at=instant(record.acquired_at_ms),
            renewed_at=instant(record.renewed_at_ms),
            expires_at=instant(record.expires_at_ms),
            ttl_seconds=record.ttl_seconds,
            fencing_token=token,
            waiters=waiters,
        )

    async def _asked(self, query: LockQuery) -> LockPage:
        if self._begun >= LISTS_AT_ONCE + LISTS_WAITING_MAX:
            raise LockError(
                "lock_service_unavailable",
                "too many requests list locks at once: try again in a moment",
                retry_after_seconds=1,
            )
        self._begun += 1
        try:
            async with asyncio.timeout(LIST_SECONDS_MAX), self._at_once:
                return await self._store.list_locks(query)
        except TimeoutError:
            late = f"the store did not list locks within {LIST_SECONDS_MAX:g} s"
            raise StoreUnavailableError("list_late", late) from None
        finally:
            self._begun -= 1


def wants_row(parameters: bytes) -> bool:
    """Whether a read of one lock asks for its row (`view=full`). LockError `invalid_request` for another view."""
    view = _named(parameters, ("view",)).get("view")
    if view not in (None, "full"):
        raise LockError("invalid_request", f"view must be full or be left out; got {shown(view)}")
    return view is not None


def asked_prefix(parameters: bytes) -> str:
    """What the keys to be watched begin with, or LockError `invalid_request` (EVENT-1)."""
    return parse_key_prefix(_named(parameters, ("prefix",)).get("prefix", ""))


def lock_query(project_id: str, parameters: bytes) -> LockQuery:
    """What the address asks for, or LockError `invalid_request` (LIST-1, LIST-6)."""
    named = _named(parameters, ("prefix", "state", "limit", "cursor"))
    state = named.get("state", "all")
    if state not in _HELD_BY_STATE:
        raise LockError("invalid_request", f"state must be held, free or all; got {shown(state)}")
    cursor = named.get("cursor")
    return LockQuery(
        project_id,
        _limit(named.get("limit")),
        prefix=parse_key_prefix(named.get("prefix", "")),
        after="" if cursor is None else after_of(cursor),
        held=_HELD_BY_STATE[state],
    )


def after_of(cursor: str) -> str:
    """The key behind which the page begins, or LockError `invalid_request` for a strange cursor."""
    begin, key = cursor[: len(_CURSOR)], cursor[len(_CURSOR) :]
    try:
        if begin == _CURSOR:
            return LockKey.parse(key)
    except LockError:
        pass
    raise LockError(
        "invalid_request", f"cursor must be the next_cursor of an earlier page of this list; got {shown(cursor)}"
    )


def _limit(asked: str | None) -> int:
    if asked is None:
        return LIST_LIMIT_DEFAULT
    is_short_number = asked.isascii() and asked.isdigit() and len(asked) <= len(str(LIST_LIMIT_MAX))
    return parse_whole_number(int(asked) if is_short_number else asked, "limit", 1, LIST_LIMIT_MAX)


def _named(parameters: bytes, names: Iterable[str]) -> dict[str, str]:
    """Those of the address's parameters that have these names, each at most once."""
    known = frozenset(names)
    found: dict[str, str] = {}
    for name, value in parse_qsl(parameters.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            continue
        if name in found:
            raise LockError("invalid_request", f"{name} must stand in the address once; it came several times")
        found[name] = value
    return found
