"""Lock records in etcd: guess or read, decide, compare on the revision of each, put.

Isolation is optimistic. A batch takes its records to be what this node saw last (see `recent`), or reads them in one
linearizable transaction, then reads this node's clock, and writes what changed in a transaction that takes effect only
if none of its records was written since (a record that is not there has revision 0). If one was, the same transaction
reads them anew, and the step is called again, with a new instant. A batch that changes nothing is judged by what was
read, or by guesses that a transaction without writes compares: what it says was true at one moment in between.

Between the reading of the clock and the commit time may pass, but no other writer: what was judged is what is
replaced (case 30). etcd's own leases are not used: after a change of its leader they begin anew (case 31).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final, TypeVar

import msgspec

from ...ports.clock import Clock
from ...ports.lock_store import LockPage, LockQuery, RecordKey, Step
from ...rules.errors import StoreUnavailableError
from ...rules.lease import LockRecord, blocks_others, purgeable
from . import records
from .clock_skew import Clocks
from .endpoints import BrokenWayError, Members
from .layout import Layout, after, end_of
from .lock_pages import read_locks
from .record_cache import ABSENT, RecentRecords, Seen
from .registry import EtcdRegistry
from .transactions import Answer, Delete, Found, Guard, Put, Read

BATCH_MAX: Final = 128  # etcd's own limit of operations and of comparisons in a transaction, unless configured
BATCHES_IN_FLIGHT: Final = 2  # while one is synced to the members' disks, the next one is read and judged
ATTEMPTS_MAX: Final = 20
JITTER_SECONDS: Final = 0.004
UPDATE_SECONDS_MAX: Final = 8.0
SCAN_KEYS: Final = 500

T = TypeVar("T")


class EtcdStore:
    """The LockStore of one node. Made by `EtcdCluster`."""

    def __init__(self, clock: Clock, clocks: Clocks, members: Members, layout: Layout, registry: EtcdRegistry) -> None:
        self._clock: Final = clock
        self._clocks: Final = clocks
        self._members: Final = members
        self._layout: Final = layout
        self._registry: Final = registry
        self._recent: Final = RecentRecords()
        self._recent_since = 0  # so many breaks of the way to the cluster
        self._busy: Final[dict[RecordKey, asyncio.Event]] = {}

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        """Atomic up to BATCH_MAX keys. More are read and judged at once, but written BATCH_MAX at a time: should
        another writer come in between, some are written, and StoreUnavailableError says that nobody knows which.
        """
        try:
            async with asyncio.timeout(UPDATE_SECONDS_MAX), self._alone(keys):
                return await self._update(keys, step)
        except TimeoutError as error:
            self._recent.forget_all()
            raise StoreUnavailableError("etcd_late", "etcd did not answer in time") from error
        except StoreUnavailableError:
            self._recent.forget_all()
            raise

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await read_locks(self._members, self._layout, self._clocks, query, _record)

    async def count_held(self) -> int:
        """By reading every record from one member, which may be a moment behind."""
        await self._clocks.now_ms()
        held = 0
        async for page in self._pages(stale=True):
            now_ms = await self._clocks.now_ms()
            held += sum(blocks_others(_record(found), now_ms) for found in page)
        return held

    async def purge(self, *, limit: int) -> int:
        """By reading every record, on one node of those that serve: others leave it to that one while it lives.

        Also clears away what nodes that died have left half done.
        """
        await self._clocks.now_ms()
        await self._clocks.forget_gone_nodes()
        await self._registry.finish_deletions()
        gone = 0
        if not await self._is_my_turn():
            return gone
        async for page in self._pages():
            now_ms = await self._clocks.now_ms()
            old = [found for found in page if purgeable(_record(found), now_ms)][: limit - gone]
            gone += await self._delete(old)
            if gone >= limit:
                break
        return gone

    async def ready(self) -> None:
        """By a write, which needs a majority and room: this node's instant, compared with the others'."""
        await self._clocks.now_ms()
        await self._clocks.pulse()

    async def pages(self) -> AsyncIterator[Sequence[tuple[RecordKey, LockRecord]]]:
        """All records, page by page; what is written meanwhile may be in it or not."""
        async for page in self._pages():
            yield [(self._layout.record_key(found.key), _record(found)) for found in page]

    async def load(self, locks: Mapping[RecordKey, LockRecord]) -> None:
        """Write these records where nobody else does."""
        for part in _parts(locks.items()):
            await self._members.write((), [Put(self._layout.lock(key), records.written(one)) for key, one in part])

    @asynccontextmanager
    async def _alone(self, keys: Sequence[RecordKey]) -> AsyncIterator[None]:
        """Inside, no other update of this node touches these keys: conflicts are for other nodes."""
        while busy := next((self._busy[key] for key in keys if key in self._busy), None):
            await busy.wait()
        done = asyncio.Event()
        self._busy.update(dict.fromkeys(keys, done))
        try:
            yield
        finally:
            for key in keys:
                del self._busy[key]
            done.set()

    async def _update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        names = dict(zip(keys, map(self._layout.lock, keys), strict=True))
        if self._recent_since != self._members.breaks:
            self._recent.forget_all()
            self._recent_since = self._members.breaks
        seen = self._recent.guesses(names.values()) if len(keys) <= BATCH_MAX else None
        is_guess, guessed_since = seen is not None, self._recent_since
        if seen is None:
            seen = await self._read(names.values())
        for attempt in range(ATTEMPTS_MAX):
            now_ms = await self._clocks.now_ms()
            known = {key: _judged(seen[name], self._clocks, now_ms) for key, name in names.items()}
            stepped = step(known, now_ms)
            changed = {names[key]: record for key, record in stepped.changed.items()}
            newer = await self._write(changed, seen, guessed_since if is_guess else None)
            if is_guess:
                self._recent.told(is_right=newer is None)
            if newer is None:
                return stepped.results
            if is_guess:
                self._members.counts.retries += 1
                is_guess = False
            else:
                self._members.counts.conflicts += 1
            seen.update(newer)
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS * attempt))  # noqa: S311
        raise StoreUnavailableError("conflict", "other nodes kept changing the same locks: try again in a moment")

    async def _read(self, names: Iterable[bytes]) -> dict[bytes, Seen]:
        seen: dict[bytes, Seen] = {}
        for part in _parts(names):
            seen.update(self._seen(part, await self._members.read(*map(Read, part))))
        return seen

    async def _write(
        self, changed: Mapping[bytes, LockRecord], seen: Mapping[bytes, Seen], guessed_since: int | None
    ) -> dict[bytes, Seen] | None:
        """None once all is written; if nothing was, what is there now.

        Of records that were read only those that change are compared: what was said of the others was true then. Of
        guesses all are, and by the cluster they were seen in: one that was restored may count its revisions anew.
        """
        for number, part in enumerate(_parts(changed if guessed_since is None else seen)):
            guards = [Guard(name, seen[name].mod_revision) for name in part]
            puts = [Put(name, records.written(changed[name])) for name in part if name in changed]
            try:
                answer = await self._members.write(guards, puts, map(Read, part), unbroken_since=guessed_since)
            except BrokenWayError:
                return await self._read(part)
            if answer.succeeded:
                for put in puts:
                    self._recent.keep(put.key, Seen(changed[put.key], answer.revision))
                continue
            if number > 0:
                raise StoreUnavailableError("conflict", "another node changed some of these locks meanwhile")
            return self._seen(part, answer)
        return None

    def _seen(self, names: Sequence[bytes], answer: Answer) -> dict[bytes, Seen]:
        """What the reads of these found."""
        seen = {}
        for place, name in enumerate(names):
            found = answer.one(place)
            seen[name] = ABSENT if found is None else Seen(_record(found), found.mod_revision)
            self._recent.keep(name, seen[name])
        return seen

    async def _is_my_turn(self) -> bool:
        """Whether this node is the one that purges, or could become it."""
        key, me = self._layout.purger, self._clocks.node_key
        found = (await self._members.read(Read(key))).one(0)
        if found is not None and (found.value == me or self._clocks.is_alive(found.value)):
            return found.value == me
        return (await self._members.write([Guard(key, _revision(found))], [Put(key, me)])).succeeded

    async def _delete(self, old: Sequence[Found]) -> int:
        """Delete these, if nobody has written them since; how many went."""
        gone = 0
        for part in _parts(old):
            if await self._deleted(part):
                gone += len(part)
            elif len(part) > 1:
                gone += sum([await self._deleted([found]) for found in part])
        return gone

    async def _deleted(self, part: Sequence[Found]) -> bool:
        guards = [Guard(found.key, found.mod_revision) for found in part]
        return (await self._members.write(guards, [Delete(found.key) for found in part])).succeeded

    async def _pages(self, *, stale: bool = False) -> AsyncIterator[Sequence[Found]]:
        begin, end = self._layout.locks, end_of(self._layout.locks)
        while True:
            page = (await self._members.read(Read(begin, end, SCAN_KEYS, stale=stale))).found[0]
            if page:
                yield page
            if len(page) < SCAN_KEYS:
                return
            begin = after(page[-1].key)


def _judged(seen: Seen, clocks: Clocks, now_ms: int) -> LockRecord | None:
    """The record, whose writer's clock must agree with ours."""
    if seen.record is not None:
        clocks.judge(records.written_at_ms(seen.record), now_ms)
    return seen.record


def _record(found: Found) -> LockRecord:
    try:
        return records.read(found.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreUnavailableError(
            "store_corrupt", "a lock record in etcd is not ours: see that nobody else writes under the store's prefix"
        ) from error


def _revision(found: Found | None) -> int:
    return 0 if found is None else found.mod_revision


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, BATCH_MAX)):
        yield part
