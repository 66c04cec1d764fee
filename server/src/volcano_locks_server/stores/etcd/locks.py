"""Stores lock records in etcd: take them from the cache or read them, run the step, compare revisions, write.

Isolation is optimistic. A batch uses the records that this node last saw (see `record_cache`), or reads them in one
linearizable transaction. Then it reads this node's clock, and writes what changed in a transaction that takes effect
only if none of its records was written since; a record that does not exist has revision 0. If one was, the same
transaction reads them again, and the step runs again with a new instant. A batch that changes nothing decides by what
it read, or compares its guesses in a transaction without writes: its results were true at one moment in between.

Time may pass between reading the clock and the commit, but no other writer can commit: an update replaces exactly what
the step saw (case 30). etcd's own leases are not used: they start over when etcd's leader changes (case 31).

Within a node, `GroupCommit` keeps each key in one batch in flight (see its docstring), so conflicts come only from
other nodes. An update does not depend on this: two updates of one key in the same process conflict like those of two
nodes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

import msgspec

from ...ports.lock_store import LockPage, LockQuery, RecordKey, Step
from ...rules.errors import StoreUnavailableError
from ...rules.lease import LockRecord, blocks_others, purgeable
from ..lock_pages import build_page, key_range, scan_limit
from . import records
from .clock_skew import ClockSkewMonitor
from .endpoints import ConnectionChangedError, Endpoints
from .layout import Layout, after, end_of
from .record_cache import ABSENT, RecordCache, VersionedRecord
from .registry import EtcdRegistry
from .transactions import Compare, Delete, Get, KeyValue, Put, TransactionResult

BATCH_MAX: Final = 128  # etcd's default limit of operations and of comparisons in a transaction
ATTEMPTS_MAX: Final = 20
JITTER_SECONDS: Final = 0.004
UPDATE_SECONDS_MAX: Final = 8.0
KEYS_PER_PAGE: Final = 500

T = TypeVar("T")


class EtcdStore:
    """The LockStore of one node. Made by `EtcdCluster`."""

    def __init__(
        self, skew_monitor: ClockSkewMonitor, endpoints: Endpoints, layout: Layout, registry: EtcdRegistry
    ) -> None:
        self._skew_monitor: Final = skew_monitor
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._registry: Final = registry
        self._cache: Final = RecordCache()
        self._cached_since = 0  # the value of connection_changes that the cache belongs to

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        """Atomic up to BATCH_MAX keys. A longer update is read and decided at once, but written BATCH_MAX keys at a
        time. If another writer interferes, some parts are written and StoreUnavailableError is raised.
        """
        try:
            async with asyncio.timeout(UPDATE_SECONDS_MAX):
                return await self._update(keys, step)
        except TimeoutError as error:
            self._cache.clear()
            raise StoreUnavailableError("etcd_late", "etcd did not respond in time") from error
        except StoreUnavailableError:
            self._cache.clear()
            raise

    async def list_locks(self, query: LockQuery) -> LockPage:
        """One linearizable read of a range of keys.

        The instant is read before the records, so a lease renewed in between does not show as ended. Afterwards the
        clock is compared with the instants in the records (see `clock_skew`).
        """
        now_ms = await self._skew_monitor.now_ms()
        of_project, requested = self._layout.locks_of(query.project_id), scan_limit(query)
        begin, end = (of_project + key.encode() for key in key_range(query))
        rows = (await self._endpoints.read(Get(begin, end, requested))).reads[0]
        found = [(self._layout.record_key(row.key).key, _record(row)) for row in rows]
        read_ms = await self._skew_monitor.now_ms()
        for _, record in found:
            self._skew_monitor.refuse_future_record(records.written_at_ms(record), read_ms)
        return build_page(query, found, now_ms, requested=requested)

    async def count_held(self) -> int:
        """Reads every record from one member, which may be slightly behind."""
        await self._skew_monitor.now_ms()
        held = 0
        async for page in self._pages(stale=True):
            now_ms = await self._skew_monitor.now_ms()
            held += sum(blocks_others(_record(found), now_ms) for found in page)
        return held

    async def purge(self, *, limit: int) -> int:
        """Reads every record, on one node at a time: the others leave it to that node while it is alive.

        Also finishes the deletions of nodes that died, and deletes the keys of those nodes.
        """
        await self._skew_monitor.now_ms()
        await self._skew_monitor.delete_gone_nodes()
        await self._registry.finish_deletions()
        purged = 0
        if not await self._is_purger():
            return purged
        async for page in self._pages():
            now_ms = await self._skew_monitor.now_ms()
            old = [found for found in page if purgeable(_record(found), now_ms)][: limit - purged]
            purged += await self._delete(old)
            if purged >= limit:
                break
        return purged

    async def ready(self) -> None:
        """Writes this node's instant, which needs a majority and disk space, and compares it with the others'."""
        await self._skew_monitor.now_ms()
        await self._skew_monitor.announce()

    async def pages(self) -> AsyncIterator[Sequence[tuple[RecordKey, LockRecord]]]:
        """All records, page by page; concurrent writes may be missing."""
        async for page in self._pages():
            yield [(self._layout.record_key(found.key), _record(found)) for found in page]

    async def load(self, locks: Mapping[RecordKey, LockRecord]) -> None:
        """Write these records; the caller excludes other writers."""
        for part in _parts(locks.items()):
            await self._endpoints.write((), [Put(self._layout.lock(key), records.encode(one)) for key, one in part])

    async def _update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        names = dict(zip(keys, map(self._layout.lock, keys), strict=True))
        if self._cached_since != self._endpoints.connection_changes:
            self._cache.clear()
            self._cached_since = self._endpoints.connection_changes
        current = self._cache.guesses(names.values()) if len(keys) <= BATCH_MAX else None
        is_guess, guessed_since = current is not None, self._cached_since
        if current is None:
            current = await self._read(names.values())
        for attempt in range(ATTEMPTS_MAX):
            now_ms = await self._skew_monitor.now_ms()
            known = {key: _checked(current[name], self._skew_monitor, now_ms) for key, name in names.items()}
            stepped = step(known, now_ms)
            changed = {names[key]: record for key, record in stepped.changed.items()}
            newer = await self._write(changed, current, guessed_since if is_guess else None)
            if is_guess:
                self._cache.note_guess(was_right=newer is None)
            if newer is None:
                return stepped.results
            if is_guess:
                self._endpoints.counts.retries += 1
                is_guess = False
            else:
                self._endpoints.counts.conflicts += 1
            current.update(newer)
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS * attempt))  # noqa: S311
        raise StoreUnavailableError("conflict", "other nodes kept changing the same locks: try again in a moment")

    async def _read(self, names: Iterable[bytes]) -> dict[bytes, VersionedRecord]:
        current: dict[bytes, VersionedRecord] = {}
        for part in _parts(names):
            current.update(self._versioned(part, await self._endpoints.read(*map(Get, part))))
        return current

    async def _write(
        self, changed: Mapping[bytes, LockRecord], current: Mapping[bytes, VersionedRecord], guessed_since: int | None
    ) -> dict[bytes, VersionedRecord] | None:
        """None once everything is written, else the current records.

        Of the records that were read, only changed ones are compared: what the step read of the others was true then.
        All guesses are compared, on the same connection: a restored cluster may reuse revisions.
        """
        for number, part in enumerate(_parts(changed if guessed_since is None else current)):
            compares = [Compare(name, current[name].mod_revision) for name in part]
            puts = [Put(name, records.encode(changed[name])) for name in part if name in changed]
            try:
                result = await self._endpoints.write(compares, puts, map(Get, part), if_unchanged_since=guessed_since)
            except ConnectionChangedError:
                return await self._read(part)
            if result.succeeded:
                for put in puts:
                    self._cache.put(put.key, VersionedRecord(changed[put.key], result.revision))
                continue
            if number > 0:
                raise StoreUnavailableError("conflict", "another node changed some of these locks meanwhile")
            return self._versioned(part, result)
        return None

    def _versioned(self, names: Sequence[bytes], result: TransactionResult) -> dict[bytes, VersionedRecord]:
        """What the reads of these found."""
        current = {}
        for index, name in enumerate(names):
            found = result.one(index)
            current[name] = ABSENT if found is None else VersionedRecord(_record(found), found.mod_revision)
            self._cache.put(name, current[name])
        return current

    async def _is_purger(self) -> bool:
        """Whether this node purges, or could take over the purge."""
        key, me = self._layout.purger, self._skew_monitor.node_key
        found = (await self._endpoints.read(Get(key))).one(0)
        if found is not None and (found.value == me or self._skew_monitor.is_alive(found.value)):
            return found.value == me
        return (await self._endpoints.write([Compare(key, _revision(found))], [Put(key, me)])).succeeded

    async def _delete(self, old: Sequence[KeyValue]) -> int:
        """Delete these unless they were written since; returns how many were deleted."""
        purged = 0
        for part in _parts(old):
            if await self._deleted(part):
                purged += len(part)
            elif len(part) > 1:
                purged += sum([await self._deleted([found]) for found in part])
        return purged

    async def _deleted(self, part: Sequence[KeyValue]) -> bool:
        compares = [Compare(found.key, found.mod_revision) for found in part]
        return (await self._endpoints.write(compares, [Delete(found.key) for found in part])).succeeded

    async def _pages(self, *, stale: bool = False) -> AsyncIterator[Sequence[KeyValue]]:
        begin, end = self._layout.locks, end_of(self._layout.locks)
        while True:
            page = (await self._endpoints.read(Get(begin, end, KEYS_PER_PAGE, stale=stale))).reads[0]
            if page:
                yield page
            if len(page) < KEYS_PER_PAGE:
                return
            begin = after(page[-1].key)


def _checked(versioned: VersionedRecord, skew_monitor: ClockSkewMonitor, now_ms: int) -> LockRecord | None:
    """The record, after comparing the clock of its writer."""
    if versioned.record is not None:
        skew_monitor.refuse_future_record(records.written_at_ms(versioned.record), now_ms)
    return versioned.record


def _record(found: KeyValue) -> LockRecord:
    try:
        return records.decode(found.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreUnavailableError(
            "store_corrupt",
            "a lock record in etcd has another format: no other program may write under the store's prefix",
        ) from error


def _revision(found: KeyValue | None) -> int:
    return 0 if found is None else found.mod_revision


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, BATCH_MAX)):
        yield part
