"""What every store promises of a list of locks: the order of bytes, one instant, and bounded work for a page."""

import asyncio
from collections.abc import Mapping

import pytest

from volcano_locks_server.ports.lock_store import LockQuery, LockStore, RecordKey
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, Free, Held, LockRecord, Renew
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.lock_pages import LOOKED_AT_MAX
from volcano_locks_server.testing import ManualClock

from .deeds import PROJECT, act, held, key, put

# In the order of their bytes; every language but "C" would sort them otherwise.
KEYS = ["0", "A", "B", "Z", "a", "a-", "a-b", "a.", "a.b", "a0", "a:", "a:b", "aA", "aZ", "a_", "aa", "ab", "b", "z"]


async def walked(locks: LockStore, query: LockQuery) -> tuple[list[str], list[int]]:
    """The keys that a walk over all pages meets, and how many each page had."""
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
    await put(locks, *records.items())


async def test_records_come_back_as_they_were_written(store: OpenStore, clock: ManualClock) -> None:
    """LIST-1, LIST-2."""
    records: dict[str, LockRecord] = {
        "free": Free(7, clock.now_ms(), (bytes(32),)),
        "held": held("a", clock.now_ms(), holder="host-1/4711"),
        "nameless": held("b", clock.now_ms()),
    }
    await filled(store.locks, {key(name): record for name, record in records.items()})
    page = await store.locks.list_locks(LockQuery(PROJECT, 10))
    assert page == (list(records.items()), clock.now_ms(), None)
    assert all(type(one) is LockKey for one, _ in page.records)


@pytest.mark.parametrize("limit", [1, 2, 7, len(KEYS) - 1, len(KEYS), len(KEYS) + 1])
async def test_a_walk_meets_every_key_once_in_the_order_of_bytes(store: OpenStore, limit: int) -> None:
    """LIST-1, LIST-4: whatever was written first, and nothing of other projects."""
    await filled(store.locks, {key(name): Free(1, 1) for name in reversed(KEYS)})
    await filled(store.locks, {key(name, project_id): Free(1, 1) for name in KEYS for project_id in ("0", "6", "7")})
    keys, sizes = await walked(store.locks, LockQuery(PROJECT, limit))
    assert keys == KEYS
    assert sizes[:-1] == [limit] * (len(sizes) - 1)
    assert sizes[-1] > 0


@pytest.mark.parametrize("prefix", ["a", "a-", "a:b", "ab", "b", "Q", "a:bc", "z", "zz"])
async def test_a_prefix_is_of_the_key_and_taken_as_it_stands(store: OpenStore, prefix: str) -> None:
    """LIST-1: `_` and `.` stand for themselves, and case matters."""
    await filled(store.locks, {key(name): Free(1, 1) for name in KEYS})
    fitting = [name for name in KEYS if name.startswith(prefix)]
    assert (await walked(store.locks, LockQuery(PROJECT, 2, prefix)))[0] == fitting
    for after in KEYS:
        keys, _ = await walked(store.locks, LockQuery(PROJECT, 3, prefix, after))
        assert keys == [name for name in fitting if name > after]


async def test_nothing_is_a_page_too(store: OpenStore, clock: ManualClock) -> None:
    assert await store.locks.list_locks(LockQuery(PROJECT, 1)) == ([], clock.now_ms(), None)
    assert await store.locks.list_locks(LockQuery(PROJECT, 1, held=True)) == ([], clock.now_ms(), None)


async def test_held_ends_with_the_grace_by_the_stores_clock(store: OpenStore, clock: ManualClock) -> None:
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


async def test_a_page_passes_over_no_more_than_it_may(store: OpenStore, clock: ManualClock) -> None:
    """LIST-4: behind a crowd of held locks the free ones come on a later page, and none is met twice or left out."""
    crowd = LOOKED_AT_MAX + LOOKED_AT_MAX // 2
    free = {"a", "k0750", f"k{LOOKED_AT_MAX:04}", "z"}
    names = [*(f"k{number:04}" for number in range(crowd)), "a", "z"]
    now_ms = clock.now_ms()
    await filled(store.locks, {key(one): Free(1, now_ms) if one in free else held("o", now_ms) for one in names})
    keys, sizes = await walked(store.locks, LockQuery(PROJECT, 100, held=False))
    assert keys == sorted(free)
    assert sizes in ([2, 2], [4])  # a store that finds them otherwise need not pass over any
    keys, sizes = await walked(store.locks, LockQuery(PROJECT, 500, held=True))
    assert keys == sorted(set(names) - free)
    assert len(sizes) <= 5


async def test_few_held_locks_are_found_behind_a_crowd_of_free_ones(store: OpenStore, clock: ManualClock) -> None:
    """LIST-4."""
    now_ms = clock.now_ms()
    lapsed, mine = {"k0003", "m"}, {"k0001", "k1490", "l", "z"}
    await filled(store.locks, {key(f"k{number:04}"): Free(1, now_ms) for number in range(LOOKED_AT_MAX * 3 // 2)})
    await filled(store.locks, {key(name): held("o", now_ms, ttl_seconds=5) for name in lapsed})
    clock.advance(5_000 + GRACE_MS)
    await filled(store.locks, {key(name): held("o", clock.now_ms()) for name in mine})
    await filled(store.locks, {key(f"m{number}", "another"): held("o", clock.now_ms()) for number in range(40)})
    for limit in (1, 3, 4, 100):
        assert (await walked(store.locks, LockQuery(PROJECT, limit, held=True)))[0] == sorted(mine)
    assert (await walked(store.locks, LockQuery(PROJECT, 2, "k", "k0001", held=True)))[0] == ["k1490"]


async def test_a_list_sees_what_was_written_before_it(store: OpenStore) -> None:
    """LIST-3, LEASE-14: whoever was answered is found, and a step is seen whole."""

    async def written(number: int) -> None:
        await filled(store.locks, {key(f"a{number:02}"): Free(1, 1), key(f"b{number:02}"): Free(1, 1)})
        keys, _ = await walked(store.locks, LockQuery(PROJECT, 100))
        assert f"a{number:02}" in keys
        assert sorted(one[1:] for one in keys if one[0] == "a") == sorted(one[1:] for one in keys if one[0] == "b")

    await asyncio.gather(*map(written, range(20)))


async def test_what_was_there_throughout_is_met_once_whatever_else_comes_and_goes(store: OpenStore) -> None:
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


async def test_a_list_is_not_judged_by_an_instant_before_the_newest(store: OpenStore) -> None:
    """LIST-3, LEASE-1."""
    clock = store.locks._clock  # type: ignore[attr-defined]  # a ManualClock refuses to go back, so it is forced
    await put(store.locks, (key("a"), Free(1, 1)))
    clock._now_ms -= 1
    with pytest.raises(StoreUnavailableError) as caught:
        await store.locks.list_locks(LockQuery(PROJECT, 1))
    assert caught.value.cause_code == "clock_behind"
    clock._now_ms += 1
    assert (await store.locks.list_locks(LockQuery(PROJECT, 1))).records


async def test_the_instants_of_a_lease_are_those_of_its_record(store: OpenStore, clock: ManualClock) -> None:
    """LIST-2: what an acquire wrote is what the list tells."""
    await act(store.locks, (key("a"), Acquire(bytes(32), 30, "host/1")))
    clock.advance(4_321)
    await act(store.locks, (key("a"), Renew(bytes(32), 60)))
    ((_, record),) = (await store.locks.list_locks(LockQuery(PROJECT, 1))).records
    assert isinstance(record, Held)
    assert (record.acquired_at_ms, record.renewed_at_ms) == (clock.now_ms() - 4_321, clock.now_ms())
    assert (record.expires_at_ms, record.ttl_seconds, record.holder) == (clock.now_ms() + 60_000, 60, "host/1")
