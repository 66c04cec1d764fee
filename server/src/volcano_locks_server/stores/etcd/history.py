"""The history in etcd: entries as keys of their own, written in the transaction that writes the record.

A key names the lock, the fencing token and the end of the hold, so that the purge reads keys only:

    <prefix>/1/history/<project id>/<lock key>,<inverted token>,<ended_at_ms>

The token is subtracted from INVERT, so that the latest entry of a lock comes first. A comma sorts before every
character of a key. Holds of one lock that ended in one batch share a key, because a transaction has few operations.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ...ports.lock_store import EndedHold, HistoryQuery, RecordKey
from ...rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX
from ...rules.hold import HoldEntry
from ...rules.shares import entries_to_purge
from ...rules.values import LockKey
from ..history_pages import LOCK_ENTRIES_READ, SCAN_ENTRIES, Keyed, TrimTurns, scanned_keys
from .endpoints import Endpoints
from .layout import Layout, after, end_of
from .transactions import Delete, Get, KeyValue, Put

INVERT: Final = 10**16 - 1  # above every fencing token
KEYS_PER_PAGE: Final = 1_000
DELETES_MAX: Final = 128  # etcd's default limit of operations in a transaction

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[HoldEntry]).decode


class EtcdHistory:
    """The history of one node's store."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._turns: Final = TrimTurns()

    def puts(self, ended: Iterable[EndedHold]) -> Mapping[bytes, Put]:
        """The writes of these entries, by the etcd key of their lock."""
        by_lock: dict[RecordKey, list[HoldEntry]] = {}
        for lock, entry in ended:
            by_lock.setdefault(lock, []).append(entry)
        return {self._layout.lock(lock): self._put(lock, entries) for lock, entries in by_lock.items()}

    def due(self, ended: Iterable[EndedHold]) -> list[RecordKey]:
        """The locks to trim now that these entries were added (`TrimTurns`)."""
        return self._turns.due(ended)

    async def trim(self, locks: Sequence[RecordKey]) -> None:
        """Delete the oldest entries of these locks past ENTRIES_PER_LOCK_MAX."""
        prefixes = [self._of_lock(lock) for lock in locks[:DELETES_MAX]]
        ranges = [(prefix, _end(prefix)) for prefix in prefixes]
        reads = [Get(begin, end, ENTRIES_PER_LOCK_MAX + 1, keys_only=True) for begin, end in ranges]
        found = (await self._endpoints.read(*reads)).reads
        past = [
            Delete(keys[ENTRIES_PER_LOCK_MAX].key, end)
            for keys, (_begin, end) in zip(found, ranges, strict=True)
            if len(keys) > ENTRIES_PER_LOCK_MAX
        ]
        if past:
            await self._endpoints.write((), past)

    def reads(self, query: HistoryQuery) -> tuple[Get, Get]:
        """The reads of the records and of the entries that a page is built from."""
        layout = self._layout
        if query.key is not None:
            lock = RecordKey(query.project_id, query.key)
            prefix = self._of_lock(lock)
            return Get(layout.lock(lock)), Get(prefix, _end(prefix), LOCK_ENTRIES_READ)
        begin, end = scanned_keys(query)
        locks, entries = layout.locks_of(query.project_id), layout.history_of(query.project_id)
        return (
            Get(locks + begin.encode(), locks + end.encode(), SCAN_ENTRIES),
            Get(entries + begin.encode(), entries + end.encode(), SCAN_ENTRIES),
        )

    async def purge(self, now_ms: int, *, kept_days: int, limit: int, entries_max: int) -> int:
        """Delete the oldest entries; reads the keys of all."""
        if not kept_days:
            return await self._delete_all(limit)
        keys = [key async for page in self._pages() for key in page]
        until_ms = now_ms - kept_days * DAY_MS
        gone = entries_to_purge(
            keys, self._project_of, _ended_at_ms, until_ms=until_ms, places=entries_max, limit=limit
        )
        for begin in range(0, len(gone), DELETES_MAX):
            await self._endpoints.write((), map(Delete, gone[begin : begin + DELETES_MAX]))
        return len(gone)

    async def delete_of(self, project_id: str) -> None:
        """Delete the history of a project."""
        await self._delete_range(self._layout.history_of(project_id))

    async def _delete_all(self, limit: int) -> int:
        return await self._delete_range(self._layout.history, limit)

    async def _delete_range(self, prefix: bytes, limit: int | None = None) -> int:
        gone = 0
        while limit is None or gone < limit:
            page = (await self._endpoints.read(Get(prefix, end_of(prefix), KEYS_PER_PAGE, keys_only=True))).reads[0]
            if not page:
                break
            await self._endpoints.write((), [Delete(prefix, after(page[-1].key))])
            gone += len(page)
        return gone

    async def _pages(self) -> AsyncIterator[Sequence[bytes]]:
        begin, end = self._layout.history, end_of(self._layout.history)
        while True:
            page = (await self._endpoints.read(Get(begin, end, KEYS_PER_PAGE, keys_only=True))).reads[0]
            yield [found.key for found in page]
            if len(page) < KEYS_PER_PAGE:
                return
            begin = after(page[-1].key)

    def _project_of(self, key: bytes) -> bytes:
        return key[len(self._layout.history) :].partition(b"/")[0]

    def _of_lock(self, lock: RecordKey) -> bytes:
        return self._layout.history_of(lock.project_id) + f"{lock.key},".encode()

    def _put(self, lock: RecordKey, entries: Sequence[HoldEntry]) -> Put:
        last = entries[-1]
        place = f"{INVERT - last.fencing_token:016d},{last.ended_at_ms}"
        return Put(self._of_lock(lock) + place.encode(), _encode(entries))


def _end(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with `prefix`, which ends with a comma."""
    return prefix[:-1] + b"-"


def entries_in(found: Sequence[KeyValue]) -> list[Keyed]:
    """The entries in these keys, in order; those that cannot be decoded are left out."""
    keyed = []
    for one in found:
        key = LockKey(one.key.rpartition(b"/")[2].partition(b",")[0].decode("utf-8", "backslashreplace"))
        try:
            entries = _decode(one.value)
        except (msgspec.MsgspecError, UnicodeError):
            continue
        keyed += [(key, entry) for entry in reversed(entries)]
    return keyed


def _ended_at_ms(key: bytes) -> int:
    """The end of the hold, from the entry's key; 0 if another program wrote it, so that it goes first."""
    digits = key.rpartition(b",")[2]
    return int(digits) if digits.isdigit() else 0
