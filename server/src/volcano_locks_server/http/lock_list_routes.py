"""The lists of locks: `GET /locks` and `GET /locks/{key}?view=full` (LIST rules in spec/watching.md).

Lists must not slow down lock traffic. Therefore few queries run in the store at once (`list_slots`), and a request
waits for at most LIST_SECONDS_MAX.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from ..events import EVENT_NAMES
from ..ports.lock_store import STORE_SECONDS_MAX, LockPage, LockQuery, LockStore, RecordKey, lock_name
from ..queue.waiter import Waiter
from ..rules.errors import DamagedRecordError, LockError, StoreUnavailableError
from ..rules.lease import Damaged, Held, LockRecord, blocks_others
from ..rules.shares import Budgets
from ..rules.values import LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, LockKey, parse_key_prefix, parse_limit, shown
from ..telemetry import Log
from .audit_log import log_error
from .codec import instant
from .list_slots import ListSlots

LIST_SECONDS_MAX: Final = STORE_SECONDS_MAX
QUEUE_SHOWN_MAX: Final = 20

Waiters = Callable[[RecordKey], int]
FirstWaiters = Callable[[RecordKey, int], Sequence[Waiter]]
"""The first waiters of a lock on this node, in order; at most so many."""

_HELD_BY_STATE: Final = {"held": True, "free": False, "all": None}
_CURSOR: Final = "locks."


class _LockRow(msgspec.Struct):
    key: str
    held: bool
    holder: str | None = None
    acquired_at: str | None = None
    renewed_at: str | None = None
    expires_at: str | None = None
    ttl_seconds: int | None = None
    fencing_token: int | None = None
    waiters: int = 0


class _Queued(msgspec.Struct):
    holder: str | None
    since: str


class _FullRow(_LockRow):
    queue: list[_Queued] = []


class _LockPage(msgspec.Struct):
    items: list[_LockRow]
    next_cursor: str | None


_encode: Final = msgspec.json.Encoder().encode


class LockListReader:
    """Reads pages and rows of one store's locks as JSON. `waiters` counts the waiters of a lock on all nodes, `first`
    returns those of this node. `budgets` are the node's.

    A page leaves out damaged records and logs them (LEASE-18).
    """

    def __init__(
        self,
        store: LockStore,
        waiters: Waiters,
        log: Log,
        budgets: Budgets,
        *,
        first: FirstWaiters = lambda _lock, _count: (),
    ) -> None:
        self._log: Final = log
        self._store: Final = store
        self._waiters: Final = waiters
        self._first: Final = first
        self._slots: Final = ListSlots(budgets.lists_at_once, budgets.lists_waiting)

    async def page(self, project_id: str, query: bytes) -> bytes:
        """The page that the query asks for. Raises LockError `invalid_request`, `too_many_requests`,
        `lock_service_unavailable`.
        """
        page = await self._query(lock_query(project_id, query))
        for key, damaged in page.damaged:
            log_error(self._log, _damage(project_id, key, damaged), {"project_id": project_id})
        rows = [self._row(project_id, key, record, page.now_ms) for key, record in page.records]
        next_cursor = None if page.next_after is None else _CURSOR + page.next_after
        return _encode(_LockPage(rows, next_cursor))

    async def row(self, project_id: str, key: LockKey) -> bytes:
        """The row of one lock, known or not, with its queue (LIST-9). Raises LockError `too_many_requests`,
        `lock_service_unavailable`, `lock_record_damaged`.
        """
        page = await self._query(LockQuery(project_id, 1, prefix=key))  # a key sorts before the keys that begin with it
        for damaged_key, damaged in page.damaged:
            if damaged_key == key:
                raise _damage(project_id, key, damaged)
        record = next((record for found, record in page.records if found == key), None)
        row = self._row(project_id, key, record, page.now_ms)
        waiters = self._first(RecordKey(project_id, key), QUEUE_SHOWN_MAX)
        queue = [_Queued(one.acquire.holder, instant(one.since_ms)) for one in waiters]
        return _encode(_FullRow(**msgspec.structs.asdict(row), queue=queue))

    def _row(self, project_id: str, key: LockKey, record: LockRecord | None, now_ms: int) -> _LockRow:
        waiters = self._waiters(RecordKey(project_id, key))
        token = None if record is None else record.fencing_token or None  # 0: released before it was ever held
        if not isinstance(record, Held) or not blocks_others(record, now_ms):
            return _LockRow(str(key), held=False, fencing_token=token, waiters=waiters)
        return _LockRow(
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

    async def _query(self, query: LockQuery) -> LockPage:
        try:
            async with asyncio.timeout(LIST_SECONDS_MAX), self._slots.slot(query.project_id):
                return await self._store.list_locks(query)
        except TimeoutError:
            late = f"the store did not list locks within {LIST_SECONDS_MAX:g} s"
            raise StoreUnavailableError("list_late", late) from None


def _damage(project_id: str, key: LockKey, damaged: Damaged) -> DamagedRecordError:
    return DamagedRecordError(lock_name(RecordKey(project_id, key)), damaged.reason)


def wants_row(query: bytes) -> bool:
    """Whether a read of one lock asks for its row (`view=full`). Raises LockError `invalid_request` (LIST-5)."""
    view = parameters(query, ("view",)).get("view")
    if view not in (None, "full"):
        raise LockError("invalid_request", f"view must be full, or be left out; got {shown(view)}")
    return view is not None


def watched_prefix(query: bytes) -> str:
    """The prefix of the keys to watch, or LockError `invalid_request` (EVENT-1)."""
    return parse_key_prefix(parameters(query, ("prefix",)).get("prefix", ""))


def watched_events(query: bytes) -> frozenset[str] | None:
    """The names of the events to send, None for all, or LockError `invalid_request` (EVENT-11)."""
    named = parameters(query, ("events",)).get("events")
    if named is None:
        return None
    asked = named.split(",")
    unknown = [one for one in asked if one not in EVENT_NAMES]
    if unknown:
        raise LockError(
            "invalid_request", f"events must be names of {', '.join(EVENT_NAMES)}, with commas; got {shown(unknown[0])}"
        )
    return frozenset(asked)


def lock_query(project_id: str, query: bytes) -> LockQuery:
    """The query for a page, or LockError `invalid_request` (LIST-1, LIST-6)."""
    named = parameters(query, ("prefix", "state", "limit", "cursor"))
    state = named.get("state", "all")
    if state not in _HELD_BY_STATE:
        raise LockError("invalid_request", f"state must be held, free or all; got {shown(state)}")
    cursor = named.get("cursor")
    return LockQuery(
        project_id,
        parse_limit(named.get("limit"), LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX),
        prefix=parse_key_prefix(named.get("prefix", "")),
        after="" if cursor is None else after_of(cursor),
        held=_HELD_BY_STATE[state],
    )


def after_of(cursor: str) -> str:
    """The key after which the page begins, or LockError `invalid_request` for an unknown cursor."""
    begin, key = cursor[: len(_CURSOR)], cursor[len(_CURSOR) :]
    try:
        if begin == _CURSOR:
            return LockKey.parse(key)
    except LockError:
        pass
    raise invalid_cursor(cursor)


def invalid_cursor(cursor: str) -> LockError:
    return LockError(
        "invalid_request", f"cursor must be the next_cursor of an earlier page of this list; got {shown(cursor)}"
    )


def parameters(query: bytes, names: Iterable[str]) -> dict[str, str]:
    """The query parameters with these names. Raises LockError `invalid_request` for one that is repeated."""
    known = frozenset(names)
    found: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            continue
        if name in found:
            raise LockError("invalid_request", f"{name} must be given once; it was given several times")
        found[name] = value
    return found
