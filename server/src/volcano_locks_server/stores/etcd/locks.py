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
from contextlib import suppress
from itertools import islice
from typing import Final, TypeVar

import msgspec

from ...ports.lock_store import EndedHold, HistoryPage, HistoryQuery, LockPage, LockQuery, RecordKey, Step, TakeoverHold
from ...rules.errors import DamagedRecordError, StoreUnavailableError
from ...rules.history import ENTRIES_ETCD_MAX, entry_at_purge
from ...rules.lease import Damaged, Held, LockRecord, StoredRecord, blocks_others, free_from_ms, purgeable
from ...rules.record_check import damage_of, is_intact
from ..damage import lock_entry, shown_stored
from ..history_pages import lock_page, locks_page
from ..lock_pages import build_page, key_range, scan_limit
from ..readiness import node_probe_key, write_probe
from . import records
from .audit import audit_puts
from .clock_skew import ClockSkewMonitor
from .endpoints import ConnectionChangedError, Endpoints
from .history import EtcdHistory, entries_in
from .layout import Layout, after, end_of
from .record_cache import ABSENT, RecordCache, VersionedRecord
from .registry import EtcdRegistry
from .transactions import Compare, Delete, Get, KeyValue, Op, Put, TransactionResult

BATCH_MAX: Final = 64  # keys, each with a record and an entry: etcd allows 128 operations in a transaction by default
ATTEMPTS_MAX: Final = 20
JITTER_SECONDS: Final = 0.004
UPDATE_SECONDS_MAX: Final = 8.0
KEYS_PER_PAGE: Final = 500

T = TypeVar("T")


class EtcdStore:
    """The LockStore of one node. Made by `EtcdCluster`."""

    def __init__(
        self,
        skew_monitor: ClockSkewMonitor,
        endpoints: Endpoints,
        layout: Layout,
        registry: EtcdRegistry,
        history: EtcdHistory,
    ) -> None:
        self._skew_monitor: Final = skew_monitor
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._registry: Final = registry
        self._history: Final = history
        self._cache: Final = RecordCache()
        self._probe_key: Final = node_probe_key()
        self._trimming: asyncio.Task[None] | None = None
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
            _refuse_future(record, self._skew_monitor, read_ms)
        return build_page(query, found, now_ms, history=self._skew_monitor.history, requested=requested)

    async def count_held(self) -> int:
        """Reads every record from one member, which may be slightly behind."""
        await self._skew_monitor.now_ms()
        held = 0
        async for page in self._pages(stale=True):
            now_ms = await self._skew_monitor.now_ms()
            history = self._skew_monitor.history
            held += sum(blocks_others(history.present(record, now_ms), now_ms) for _, record in intact(page))
        return held

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        """One linearizable read of records and entries."""
        now_ms = await self._skew_monitor.now_ms()
        rows, found = (await self._endpoints.read(*self._history.reads(query))).reads
        records = [(self._layout.record_key(row.key).key, _record(row)) for row in rows]
        read_ms = await self._skew_monitor.now_ms()
        for _, record in records:
            _refuse_future(record, self._skew_monitor, read_ms)
        clock_history = self._skew_monitor.history
        entries = entries_in(found)
        if query.key is None:
            return locks_page(query, records, entries, now_ms, clock_history)
        found_record = records[0][1] if records else None
        return lock_page(query, found_record, [entry for _key, entry in entries], now_ms, clock_history)

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        """On the node that purges the records."""
        now_ms = await self._skew_monitor.now_ms()
        if not await self._is_purger():
            return 0
        kept_max = ENTRIES_ETCD_MAX if entries_max is None else entries_max
        return await self._history.purge(now_ms, kept_days=kept_days, limit=limit, entries_max=kept_max)

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
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
            history = self._skew_monitor.history
            old = [(found, one) for found, one in intact(page) if purgeable(history.present(one, now_ms), now_ms)]
            purged += await self._delete(self._deletions(old[: limit - purged], keeps_history=keeps_history))
            if purged >= limit:
                break
        return purged

    async def ready(self) -> None:
        """Compares this node's clock with the others' first."""
        await self._skew_monitor.now_ms()
        await self._skew_monitor.announce()
        await write_probe(self, self._probe_key)

    def takeover_hold(self) -> TakeoverHold | None:
        return self._skew_monitor.takeover_hold()

    async def last_free_from_ms(self) -> int:
        """The latest end of a grace of any lease, 0 if there is none. Reads every record."""
        last_ms = 0
        async for page in self._pages():
            last_ms = max(last_ms, *(free_from_ms(one) for _, one in intact(page) if isinstance(one, Held)), 0)
        return last_ms

    async def pages(self) -> AsyncIterator[Sequence[tuple[RecordKey, StoredRecord]]]:
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
            stepped = step(self._skew_monitor.history.present_all(known, now_ms), now_ms)
            changed = {names[key]: record for key, record in stepped.changed.items()}
            entries = self._history.puts(stepped.ended) if stepped.ended else {}
            audit = [put for entry in stepped.audit for put in audit_puts(self._layout, entry)]
            newer = await self._write(changed, entries, current, guessed_since if is_guess else None, audit)
            if is_guess:
                self._cache.note_guess(was_right=newer is None)
            if newer is None:
                if stepped.ended:
                    self._trim_later(stepped.ended)
                return stepped.results
            if is_guess:
                self._endpoints.counts.retries += 1
                is_guess = False
            else:
                self._endpoints.counts.conflicts += 1
            current.update(newer)
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS * attempt))  # noqa: S311
        raise StoreUnavailableError("conflict", "other nodes kept changing the same locks: try again in a moment")

    def _trim_later(self, ended: Sequence[EndedHold]) -> None:
        """Trim without delaying the batch; a failure leaves it to the next time."""
        if (due := self._history.due(ended)) and self._trimming is None:
            self._trimming = asyncio.create_task(self._trim(due), name="trim-history")

    def stop_trimming(self) -> None:
        """End the work in the background."""
        if self._trimming is not None:
            self._trimming.cancel()

    async def _trim(self, due: Sequence[RecordKey]) -> None:
        try:
            with suppress(StoreUnavailableError):
                await self._history.trim(due)
        finally:
            self._trimming = None

    async def _read(self, names: Iterable[bytes]) -> dict[bytes, VersionedRecord]:
        current: dict[bytes, VersionedRecord] = {}
        for part in _parts(names):
            current.update(self._versioned(part, await self._endpoints.read(*map(Get, part))))
        return current

    async def _write(
        self,
        changed: Mapping[bytes, LockRecord],
        entries: Mapping[bytes, Put],
        current: Mapping[bytes, VersionedRecord],
        guessed_since: int | None,
        audit: Sequence[Put],
    ) -> dict[bytes, VersionedRecord] | None:
        """None once everything is written, else the current records. `entries` are those of the locks' ended holds.

        Of the records that were read, only changed ones are compared: what the step read of the others was true then.
        All guesses are compared, on the same connection: a restored cluster may reuse revisions. Entries of the audit
        that do not fit in are written before the records: one of an action that then fails is better than none.
        """
        room = BATCH_MAX - len(entries) - (len(changed) if guessed_since is None else len(current))
        if audit and (len(audit) > room or not changed):
            for puts in _parts(audit):
                await self._endpoints.write((), puts)
            audit = ()
        for number, part in enumerate(_parts(changed if guessed_since is None else current)):
            compares = [Compare(name, current[name].mod_revision) for name in part]
            puts = [Put(name, records.encode(changed[name])) for name in part if name in changed]
            more = [entries[name] for name in part if name in entries]
            ops = [*puts, *more, *audit]
            try:
                result = await self._endpoints.write(compares, ops, map(Get, part), if_unchanged_since=guessed_since)
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

    def _deletions(
        self, old: Sequence[tuple[KeyValue, LockRecord]], *, keeps_history: bool
    ) -> list[tuple[KeyValue, list[Op]]]:
        """The operations that delete each record, and that store the entry of the last hold in it."""
        deletions: list[tuple[KeyValue, list[Op]]] = []
        for found, record in old:
            ops: list[Op] = [Delete(found.key)]
            if keeps_history and (entry := entry_at_purge(record)) is not None:
                ops += self._history.puts([(self._layout.record_key(found.key), entry)]).values()
            deletions.append((found, ops))
        return deletions

    async def _delete(self, old: Sequence[tuple[KeyValue, list[Op]]]) -> int:
        """Delete these unless they were written since; returns how many were deleted."""
        purged = 0
        for part in _parts(old):
            if await self._deleted(part):
                purged += len(part)
            elif len(part) > 1:
                purged += sum([await self._deleted([one]) for one in part])
        return purged

    async def _deleted(self, part: Sequence[tuple[KeyValue, list[Op]]]) -> bool:
        compares = [Compare(found.key, found.mod_revision) for found, _ops in part]
        return (await self._endpoints.write(compares, [op for _found, ops in part for op in ops])).succeeded

    async def _pages(self, *, stale: bool = False) -> AsyncIterator[Sequence[KeyValue]]:
        begin, end = self._layout.locks, end_of(self._layout.locks)
        while True:
            page = (await self._endpoints.read(Get(begin, end, KEYS_PER_PAGE, stale=stale))).reads[0]
            if page:
                yield page
            if len(page) < KEYS_PER_PAGE:
                return
            begin = after(page[-1].key)


def _checked(versioned: VersionedRecord, skew_monitor: ClockSkewMonitor, now_ms: int) -> StoredRecord | None:
    """The record, after comparing the clock of its writer."""
    if versioned.record is not None:
        _refuse_future(versioned.record, skew_monitor, now_ms)
    return versioned.record


def _refuse_future(record: StoredRecord, skew_monitor: ClockSkewMonitor, now_ms: int) -> None:
    if not isinstance(record, Damaged):
        skew_monitor.refuse_future_record(records.written_at_ms(record), now_ms)


def intact(page: Sequence[KeyValue]) -> Iterator[tuple[KeyValue, LockRecord]]:
    """The records of these keys without damaged ones."""
    for found in page:
        record = _record(found)
        if not isinstance(record, Damaged):
            yield found, record


def damage_of_page(layout: Layout, page: Sequence[KeyValue]) -> list[DamagedRecordError]:
    """The damaged records of these keys."""
    entries = (lock_entry(layout.record_key(found.key), _record(found)) for found in page)
    return [entry for entry in entries if isinstance(entry, DamagedRecordError)]


def _record(found: KeyValue) -> StoredRecord:
    """The record in a value; every value is decoded here."""
    try:
        record = records.decode(found.value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Damaged(f"it is not JSON of a lock record: {error}"[:200], shown_stored(found.value))
    if is_intact(record):
        return record
    return Damaged(damage_of(record) or "its parts have wrong types", shown_stored(found.value))


def _revision(found: KeyValue | None) -> int:
    return 0 if found is None else found.mod_revision


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, BATCH_MAX)):
        yield part
