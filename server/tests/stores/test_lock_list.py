"""What every store promises about lists of locks: byte order, one instant, and bounded work for a page."""

import asyncio
from collections.abc import Mapping

import pytest

from volcano_locks_server.ports.lock_store import LockQuery, LockStore, RecordKey
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, Free, Held, LockRecord, Renew
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.lock_pages import SCAN_RECORDS_MAX
from volcano_locks_server.testing import ManualClock

from .store_actions import PROJECT, held, key, run_commands, write_records

# In byte order; every collation but "C" would sort them differently.
KEYS = ["0", "A", "B", "Z", "a", "a-", "a-b", "a.", "a.b", "a0", "a:", "a:b", "aA", "aZ", "a_", "aa", "ab", "b", "z"]


async def walked(locks: LockStore, query: LockQuery) -> tuple[list[str], list[int]]:
    """The keys on all pages, and the size of each page."""
    keys: list[str] = []
    sizes = []
    while True:
        page = await locks.list_locks(query)
        assert len(page.records) <= query.limit
        keys += [one for one, _ in page.records]
        sizes.append(len(page.records))
        if page.next_after is None:
            return keys, sizes
        assert page.next_after > query.after
        query = query._replace(after=page.next_after)


async def filled(locks: LockStore, records: Mapping[RecordKey, LockRecord]) -> None:
    await write_records(locks, *records.items())


async def test_the_list_shows_records_as_they_were_written(store: OpenStore, clock: ManualClock) -> None:
    """LIST-1, LIST-2."""
    records: dict[str, LockRecord] = {
        "free": Free(7, clock.now_ms(), (bytes(32),)),
        "held": held("a", clock.now_ms(), holder="host-1/4711"),
        "nameless": held("b", clock.now_ms()),
    }
    await filled(store.locks, {key(name): record for name, record in records.items()})
    page = await store.locks.list_locks(LockQuery(PROJECT, 10))
    assert page == (list(records.items()), clock.now_ms(), None, [])
    assert all(type(one) is LockKey for one, _ in page.records)


@pytest.mark.parametrize("limit", [1, 2, 7, len(KEYS) - 1, len(KEYS), len(KEYS) + 1])
async def test_pages_list_every_key_once_in_byte_order(store: OpenStore, limit: int) -> None:
    """LIST-1, LIST-4: whatever the order of writes, and without other projects."""
    await filled(store.locks, {key(name): Free(1, 1) for name in reversed(KEYS)})
    await filled(store.locks, {key(name, project_id): Free(1, 1) for name in KEYS for project_id in ("0", "6", "7")})
    keys, sizes = await walked(store.locks, LockQuery(PROJECT, limit))
    assert keys == KEYS
    assert sizes[:-1] == [limit] * (len(sizes) - 1)
    assert sizes[-1] > 0


@pytest.mark.parametrize("prefix", ["a", "a-", "a:b", "ab", "b", "Q", "a:bc", "z", "zz"])
async def test_a_prefix_is_matched_literally(store: OpenStore, prefix: str) -> None:
    """LIST-1: `_` and `.` are no wildcards, and case matters."""
    await filled(store.locks, {key(name): Free(1, 1) for name in KEYS})
    matching = [name for name in KEYS if name.startswith(prefix)]
    assert (await walked(store.locks, LockQuery(PROJECT, 2, prefix)))[0] == matching
    for after in KEYS:
        keys, _ = await walked(store.locks, LockQuery(PROJECT, 3, prefix, after))
        assert keys == [name for name in matching if name > after]


async def test_an_empty_store_has_one_empty_page(store: OpenStore, clock: ManualClock) -> None:
    assert await store.locks.list_locks(LockQuery(PROJECT, 1)) == ([], clock.now_ms(), None, [])
    assert await store.locks.list_locks(LockQuery(PROJECT, 1, held=True)) == ([], clock.now_ms(), None, [])


async def test_the_held_filter_ends_with_the_grace(store: OpenStore, clock: ManualClock) -> None:
    """LIST-3, LEASE-12."""
    await filled(
        store.locks,
        {
            key("a"): held("a", clock.now_ms(), ttl_seconds=5),
            key("b"): Free(1, clock.now_ms()),
            key("c"): held("c", clock.now_ms(), ttl_seconds=60),
            key("d", "another-project"): held("d", clock.now_ms(), ttl_seconds=60),
        },
    )
    clock.advance(5_000 + GRACE_MS - 1)
    assert (await walked(store.locks, LockQuery(PROJECT, 1, held=True)))[0] == ["a", "c"]
    assert (await walked(store.locks, LockQuery(PROJECT, 1, held=False)))[0] == ["b"]
    clock.advance(1)
    assert (await walked(store.locks, LockQuery(PROJECT, 1, held=True)))[0] == ["c"]
    assert (await walked(store.locks, LockQuery(PROJECT, 1, held=False)))[0] == ["a", "b"]
    assert (await store.locks.list_locks(LockQuery(PROJECT, 9))).now_ms == clock.now_ms()


async def test_a_page_scans_a_bounded_number_of_records(store: OpenStore, clock: ManualClock) -> None:
    """LIST-4: behind many held locks the free ones come on a later page, each exactly once."""
    held_count = SCAN_RECORDS_MAX + SCAN_RECORDS_MAX // 2
    free = {"a", "k0750", f"k{SCAN_RECORDS_MAX:04}", "z"}
    names = [*(f"k{number:04}" for number in range(held_count)), "a", "z"]
    now_ms = clock.now_ms()
    await filled(store.locks, {key(one): Free(1, now_ms) if one in free else held("o", now_ms) for one in names})
    keys, sizes = await walked(store.locks, LockQuery(PROJECT, 100, held=False))
    assert keys == sorted(free)
    assert sizes in ([2, 2], [4])  # a store that finds them by index passes over none
    keys, sizes = await walked(store.locks, LockQuery(PROJECT, 500, held=True))
    assert keys == sorted(set(names) - free)
    assert len(sizes) <= 5


async def test_few_held_locks_are_found_among_many_free_ones(store: OpenStore, clock: ManualClock) -> None:
    """LIST-4."""
    now_ms = clock.now_ms()
    lapsed, mine = {"k0003", "m"}, {"k0001", "k1490", "l", "z"}
    await filled(store.locks, {key(f"k{number:04}"): Free(1, now_ms) for number in range(SCAN_RECORDS_MAX * 3 // 2)})
    await filled(store.locks, {key(name): held("o", now_ms, ttl_seconds=5) for name in lapsed})
    clock.advance(5_000 + GRACE_MS)
    await filled(store.locks, {key(name): held("o", clock.now_ms()) for name in mine})
    await filled(store.locks, {key(f"m{number}", "another"): held("o", clock.now_ms()) for number in range(40)})
    for limit in (1, 3, 4, 100):
        assert (await walked(store.locks, LockQuery(PROJECT, limit, held=True)))[0] == sorted(mine)
    assert (await walked(store.locks, LockQuery(PROJECT, 2, "k", "k0001", held=True)))[0] == ["k1490"]


async def test_a_list_contains_earlier_writes(store: OpenStore) -> None:
    """LIST-3, LEASE-14: acknowledged writes are listed, and a step is seen as a whole."""

    async def written(number: int) -> None:
        await filled(store.locks, {key(f"a{number:02}"): Free(1, 1), key(f"b{number:02}"): Free(1, 1)})
        keys, _ = await walked(store.locks, LockQuery(PROJECT, 100))
        assert f"a{number:02}" in keys
        assert sorted(one[1:] for one in keys if one[0] == "a") == sorted(one[1:] for one in keys if one[0] == "b")

    await asyncio.gather(*map(written, range(20)))


async def test_pages_list_unchanged_keys_once_during_concurrent_writes(store: OpenStore) -> None:
    """LIST-4."""
    staying = [f"k{number:02}" for number in range(0, 40, 2)]
    await filled(store.locks, {key(name): Free(1, 1) for name in staying})
    query, met = LockQuery(PROJECT, 3), []
    for number in range(1, 40, 2):
        page = await store.locks.list_locks(query)
        met += [one for one, _ in page.records]
        if page.next_after is None:
            break
        query = query._replace(after=page.next_after)
        await filled(store.locks, {key(f"k{number:02}"): Free(1, 1)})
    assert [one for one in met if one in staying] == staying
    assert len(met) == len(set(met))


async def test_a_list_refuses_an_instant_before_the_newest(store: OpenStore, clock: ManualClock) -> None:
    """LIST-3, LEASE-1. A ManualClock refuses to go back, so the test sets its time."""

    await write_records(store.locks, (key("a"), Free(1, 1)))
    clock._now_ms -= 1
    with pytest.raises(StoreUnavailableError) as caught:
        await store.locks.list_locks(LockQuery(PROJECT, 1))
    assert caught.value.cause_code == "clock_behind"
    clock._now_ms += 1
    assert (await store.locks.list_locks(LockQuery(PROJECT, 1))).records


async def test_the_list_shows_the_instants_of_the_lease(store: OpenStore, clock: ManualClock) -> None:
    """LIST-2."""
    await run_commands(store.locks, (key("a"), Acquire(bytes(32), 30, "host/1")))
    clock.advance(4_321)
    await run_commands(store.locks, (key("a"), Renew(bytes(32), 60)))
    ((_, record),) = (await store.locks.list_locks(LockQuery(PROJECT, 1))).records
    assert isinstance(record, Held)
    assert (record.acquired_at_ms, record.renewed_at_ms) == (clock.now_ms() - 4_321, clock.now_ms())
    assert (record.expires_at_ms, record.ttl_seconds, record.holder) == (clock.now_ms() + 60_000, 60, "host/1")
