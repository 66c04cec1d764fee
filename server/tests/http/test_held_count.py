"""The held locks of `/metrics` are counted in the background, and no scrape waits for a slow store (OPS-3)."""

import asyncio
import dataclasses
import io
import json
from collections.abc import AsyncIterator

import httpx2
import pytest

from volcano_locks_server.http.held_count import (
    COUNT_EVERY_SECONDS,
    COUNTING_SHARE,
    FIRST_COUNT_SECONDS_MAX,
    SCRAPED_SECONDS,
    HeldCount,
)
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.telemetry import LineWriter, Log
from volcano_locks_server.testing import ManualClock, memory_store

EVERY_MS = round(COUNT_EVERY_SECONDS * 1_000)


class SlowStore:
    """Counts `held` locks once `open` is set; counting takes `seconds` of the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.held = 7
        self.seconds = 0.0
        self.counts = 0
        self.failure: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def count(self) -> int:
        self.counts += 1
        await self.open.wait()
        self.clock.advance(round(self.seconds * 1_000))
        if self.failure is not None:
            raise self.failure
        return self.held


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> SlowStore:
    return SlowStore(clock)


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
async def held(store: SlowStore, clock: ManualClock, log: io.StringIO) -> AsyncIterator[HeldCount]:
    writer = LineWriter(log)
    counts = HeldCount(store.count, clock, Log(writer, "info"))
    yield counts
    await counts.close()
    await asyncio.to_thread(writer.close)


async def settle() -> None:
    """Let timers fire and their tasks run as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_scrape_during_a_count_gets_the_one_before_at_once(
    held: HeldCount, store: SlowStore, clock: ManualClock
) -> None:
    """OPS-3."""
    assert await held.newest() == 7
    store.held = 8
    store.open.clear()
    clock.advance(EVERY_MS)
    await settle()
    assert (store.counts, await held.newest()) == (2, 7)
    store.open.set()
    await settle()
    assert await held.newest() == 8


async def test_a_change_shows_after_one_interval_without_a_scrape_in_between(
    held: HeldCount, store: SlowStore, clock: ManualClock
) -> None:
    """OPS-3."""
    assert await held.newest() == 7
    for expected in (8, 9, 10):
        store.held = expected
        clock.advance(EVERY_MS - 1)
        await settle()
        assert await held.newest() == expected - 1
        clock.advance(1)
        await settle()
        assert await held.newest() == expected


async def test_a_slow_count_takes_a_small_share_of_the_time(
    held: HeldCount, store: SlowStore, clock: ManualClock
) -> None:
    """OPS-3."""
    store.seconds = 3.0
    began_ms = clock.now_ms()
    assert await held.newest() == 7
    for _ in range(20):
        clock.set(clock.next_due_ms() or 0)
        await settle()
        await held.newest()
    assert store.counts == 21
    counting = (store.counts - 1) * store.seconds / ((clock.now_ms() - began_ms) / 1_000)
    assert counting == pytest.approx(COUNTING_SHARE, rel=0.06)


async def test_counting_stops_with_the_scrapes_and_begins_again(
    held: HeldCount, store: SlowStore, clock: ManualClock
) -> None:
    """OPS-3: what an old count said is forgotten."""
    assert await held.newest() == 7
    for _ in range(30):
        clock.advance(EVERY_MS)
        await settle()
    assert store.counts == 1 + SCRAPED_SECONDS // COUNT_EVERY_SECONDS
    store.held = 8
    assert await held.newest() == 8


@pytest.mark.parametrize("failure", [StoreUnavailableError("disk_error", "the disk reports an error"), KeyError("bug")])
async def test_a_failed_count_is_unknown_and_repeated(
    held: HeldCount, store: SlowStore, clock: ManualClock, failure: Exception
) -> None:
    """OPS-3."""
    assert await held.newest() == 7
    store.failure = failure
    clock.advance(EVERY_MS)
    await settle()
    assert await held.newest() is None
    store.failure = None
    clock.advance(EVERY_MS)
    await settle()
    assert await held.newest() == 7


async def test_a_bug_of_a_store_is_logged(held: HeldCount, store: SlowStore, log: io.StringIO) -> None:
    """OPS-3, HTTP-19."""
    store.failure = ZeroDivisionError("a bug")
    assert await held.newest() is None
    await held.close()
    held._log.writer.close()
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert line["event"] == "count_failed"
    assert "ZeroDivisionError" in line["exception"]


async def test_close_ends_a_running_count_and_the_scrape_that_waits_for_it(
    held: HeldCount, store: SlowStore, clock: ManualClock
) -> None:
    """OPS-3, HTTP-23: a stopping server does not wait for a slow store."""
    store.open.clear()
    scrape = asyncio.create_task(held.newest())
    await settle()
    assert not scrape.done()
    await held.close()
    assert await scrape is None
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "count-held"] == []
    assert clock.next_due_ms() is None
    assert (await held.newest(), store.counts) == (None, 1)


async def test_close_between_two_counts_leaves_no_timer(held: HeldCount, store: SlowStore, clock: ManualClock) -> None:
    """OPS-3."""
    assert await held.newest() == 7
    await held.close()
    assert clock.next_due_ms() is None
    assert (await held.newest(), store.counts) == (7, 1)


async def test_a_stopping_server_ends_a_count_before_it_closes_the_store(clock: ManualClock) -> None:
    """OPS-3, HTTP-23."""

    class HangingStore(MemoryStore):
        counting = False

        async def count_held(self) -> int:
            self.counting = True
            try:
                await asyncio.Event().wait()
            finally:
                self.counting = False
            return 0

    locks = HangingStore(clock)
    counting_at_close: list[bool] = []

    async def close_store() -> None:
        counting_at_close.append(locks.counting)

    store = dataclasses.replace(memory_store(locks), close=close_store)
    server = Server(Settings(port=0, store="memory://"), clock=clock, store=store, log_stream=io.StringIO())
    await server.open()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=server.app), base_url="http://x") as client:
        scrape = asyncio.create_task(client.get("/metrics"))
        await settle()
        assert locks.counting
        async with asyncio.timeout(FIRST_COUNT_SECONDS_MAX / 2):
            await server.close()
        assert "volcano_locks_held" not in (await scrape).text
    assert counting_at_close == [False]
