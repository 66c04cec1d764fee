"""Sets the clock of an etcd store back to this machine's (see `clock_reset`).

A reset is longer than any etcd transaction. So it begins by writing RESETTING in place of the layout's version, and how
far it moves the records to a key of its own, and writes the version last. Meanwhile no node serves from the prefix. If
it is interrupted, another one continues: records that were written after that key have been moved already.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from ...ports.clock import Clock, mark_of
from ...rules.clock_history import ClockHistory
from ...rules.errors import DamagedRecordError, StoreUnavailableError
from ...rules.lease import Held, LockRecord, blocks_others
from ..clock_reset import ClockReset, moved_back, newer_than_shown
from . import records
from .address import EtcdAddress
from .endpoints import Endpoints
from .layout import RESETTING, SCHEMA, Layout, after, end_of
from .locks import BATCH_MAX, damage_of_page, intact
from .peer_clocks import SILENCE_SECONDS, NodeInstant, PeerClocks
from .transactions import Compare, Delete, Get, KeyValue, Put


class _Progress(msgspec.Struct, frozen=True):
    """How far the records are moved, and the history after the reset."""

    by_ms: int
    history: ClockHistory


async def plan_reset(url: str, clock: Clock) -> ClockReset:
    """What a reset would do. Raises ValueError for an invalid URL, and StoreUnavailableError."""
    async with _opened(url, clock) as reset:
        return await reset.plan()


async def reset_clock(url: str, clock: Clock, shown: ClockReset) -> None:
    """Carry out what was shown. Raises ValueError and StoreUnavailableError."""
    async with _opened(url, clock) as reset:
        await reset.carry_out(shown)


@asynccontextmanager
async def _opened(url: str, clock: Clock) -> "AsyncIterator[_Reset]":
    address = EtcdAddress.parse(url)
    endpoints = Endpoints(address)
    try:
        await endpoints.refuse_two_clusters()
        yield _Reset(endpoints, Layout(address.prefix), clock)
    finally:
        await endpoints.close()


class _Reset:
    """One reset over these endpoints."""

    def __init__(self, endpoints: Endpoints, layout: Layout, clock: Clock) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._clock: Final = clock
        self._peer_clocks: Final = PeerClocks(clock, endpoints, layout)

    async def plan(self) -> ClockReset:
        """Takes SILENCE_SECONDS, to find a node that serves. Raises StoreUnavailableError `store_in_use` then."""
        if (progress := await self._progress()) is not None:
            now_ms = self._clock.now_ms()
            return ClockReset(now_ms + progress[0].by_ms, now_ms)
        await self._peer_clocks.sample(None, is_first=True)
        await asyncio.sleep(SILENCE_SECONDS)
        await self._peer_clocks.sample(None)
        if any(peer.is_new for peer in self._peer_clocks.peers.values()):
            raise StoreUnavailableError("store_in_use", "a node serves from this store: stop all nodes first")
        newest_ms = self._peer_clocks.newest_used_ms()
        found: list[LockRecord] = []
        damaged: list[DamagedRecordError] = []
        async for page in self._pages():
            found += [record for _, record in intact(page)]
            damaged += damage_of_page(self._layout, page)
        newest_ms = max([newest_ms, *map(records.written_at_ms, found)])
        presented = (self._peer_clocks.history.present(record, newest_ms) for record in found)
        left_ms = [
            max(0, record.expires_at_ms - newest_ms)
            for record in presented
            if isinstance(record, Held) and blocks_others(record, newest_ms)
        ]
        return ClockReset(newest_ms, self._clock.now_ms(), len(left_ms), max(left_ms, default=0), damaged)

    async def carry_out(self, shown: ClockReset) -> None:
        if (progress := await self._progress()) is None:
            plan = await self.plan()
            newer_than_shown(shown, plan)
            begun = _Progress(plan.by_ms, self._peer_clocks.history.after_reset(plan.by_ms))
            key = self._layout.clock_reset
            schema = Put(self._layout.schema, RESETTING)
            await self._endpoints.write((), [schema, Put(key, msgspec.json.encode(begun))])
            progress = await self._progress()
        assert progress is not None
        reset, revision = progress
        async for page in self._pages():
            old = [found for found in page if found.mod_revision < revision]
            for begin in range(0, len(old), BATCH_MAX):
                await self._move_back(old[begin : begin + BATCH_MAX], reset.by_ms)
        await self._finish(reset)

    async def _move_back(self, part: Sequence[KeyValue], by_ms: int) -> None:
        """Damaged records stay as they are: only an operator repairs them (LEASE-18)."""
        puts = [Put(found.key, records.encode(moved_back(record, by_ms))) for found, record in intact(part)]
        compares = [Compare(found.key, found.mod_revision) for found, _ in intact(part)]
        if not (await self._endpoints.write(compares, puts)).succeeded:
            raise StoreUnavailableError("store_in_use", "a node writes to this store: stop all nodes, then start again")

    async def _finish(self, reset: _Progress) -> None:
        """Delete what has instants of the old time, and let nodes serve."""
        layout, now_ms = self._layout, self._clock.now_ms()
        instant = NodeInstant.of(mark_of(self._clock, now_ms), "loaded", reset.history)
        quotas = layout.root + b"quota/"
        await self._endpoints.write((), [Delete(one, end_of(one)) for one in (layout.nodes, layout.signals, quotas)])
        await self._endpoints.write(
            (),
            [
                Put(layout.node("loaded"), msgspec.json.encode(instant)),
                Put(layout.clock, msgspec.json.encode(reset.history)),
                Delete(layout.clock_reset),
                Put(layout.schema, str(SCHEMA).encode()),
            ],
        )

    async def _progress(self) -> tuple[_Progress, int] | None:
        """A reset that was begun, and the revision at which it began."""
        found = (await self._endpoints.read(Get(self._layout.clock_reset))).one(0)
        if found is None:
            return None
        try:
            return msgspec.json.decode(found.value, type=_Progress), found.mod_revision
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreUnavailableError(
                "store_corrupt",
                "the key clock-reset of the unfinished reset is damaged, so it cannot be continued: "
                "restore a snapshot of etcd",
            ) from error

    async def _pages(self) -> AsyncIterator[Sequence[KeyValue]]:
        begin, end = self._layout.locks, end_of(self._layout.locks)
        while page := (await self._endpoints.read(Get(begin, end, BATCH_MAX))).reads[0]:
            yield page
            begin = after(page[-1].key)
