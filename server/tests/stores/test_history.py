"""What every store promises about the history: the same entries, in order, within bounds (HISTORY rules)."""

from collections.abc import Sequence
from itertools import count

from volcano_locks_server.ports.lock_store import HistoryQuery, LockStore
from volcano_locks_server.ports.registry import Project
from volcano_locks_server.rules.history import DAY_MS, ENTRIES_PER_LOCK_MAX, Period
from volcano_locks_server.rules.hold import HoldEntry, HoldFacts, Requester
from volcano_locks_server.rules.lease import RETENTION_MS, Acquire, ForceRelease, Held, Release, Renew
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.history_pages import SCAN_ENTRIES, TRIM_EVERY
from volcano_locks_server.testing import ManualClock

from .store_actions import PROJECT, digest, key, run_commands, write_records

BY = Requester("key-1", "worker", "10.0.0.7", "volcano-locks-python/1.0")
TTL_SECONDS = 30
numbers = count(1)


async def hold(locks: LockStore, *names: str, times: int = 1) -> None:
    """Acquire and release these locks in one batch, each by a new owner."""
    for _ in range(times):
        owner = f"owner-{next(numbers)}"
        commands = [(key(one), command) for one in names for command in (_acquire(owner), Release(digest(owner)))]
        await run_commands(locks, *commands)


def _acquire(owner: str) -> Acquire:
    return Acquire(digest(owner), TTL_SECONDS, f"host/{owner}", BY)


async def entries_of(locks: LockStore, name: str, **more: int) -> list[HoldEntry]:
    query = HistoryQuery(PROJECT, 1_000, key=LockKey(name), period=Period(**more))
    return [entry for _key, entry in (await locks.history_page(query)).entries]


async def walked(locks: LockStore, query: HistoryQuery) -> list[tuple[str, int]]:
    """The keys and tokens on all pages."""
    found: list[tuple[str, int]] = []
    while True:
        page = await locks.history_page(query)
        assert len(page.entries) <= query.limit
        found += [(one, entry.fencing_token) for one, entry in page.entries]
        if page.next_after is None:
            return found
        assert page.next_after != query.after
        query = query._replace(after=page.next_after)


async def test_an_entry_is_the_same_before_and_after_the_commit_that_stores_it(
    store: OpenStore, clock: ManualClock
) -> None:
    """HISTORY-1, HISTORY-2, HISTORY-3: acquired, renewed twice, expired, then taken over."""
    locks, began_ms = store.locks, clock.now_ms()
    await run_commands(locks, (key("a"), _acquire("ann")))
    await run_commands(locks, (key("a"), Renew(digest("ann"), TTL_SECONDS)))
    renewed_ms = clock.advance(5_000)
    await run_commands(locks, (key("a"), Renew(digest("ann"), TTL_SECONDS)))
    ends_ms = renewed_ms + TTL_SECONDS * 1_000
    current = HoldEntry(began_ms, began_ms, ends_ms, renewed_ms, "host/ann", HoldFacts(BY, "free", renewals=2))
    assert await entries_of(locks, "a") == [current]
    clock.advance(TTL_SECONDS * 1_000 + 1_000)
    expired = HoldEntry(*_cells(current)[:6], "expired", ends_ms + 1_000)
    assert await entries_of(locks, "a") == [expired]
    await run_commands(locks, (key("a"), _acquire("ben")))
    taken_over, stored = await entries_of(locks, "a")
    assert stored == expired
    assert taken_over.facts == HoldFacts(BY, "taken_over")
    assert taken_over.ended is None


def _cells(entry: HoldEntry) -> Sequence[object]:
    return [getattr(entry, name) for name in entry.__struct_fields__]


async def test_each_end_is_distinguished(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-1: released, forced with its reason and by whom, and expired although it was released later."""
    locks = store.locks
    await hold(locks, "a")
    await run_commands(locks, (key("a"), _acquire("ben")))
    clock.advance(1)
    await run_commands(locks, (key("a"), ForceRelease(None, "a stuck job", Requester("key-2", "operator"))))
    await run_commands(locks, (key("a"), _acquire("cid")))
    clock.advance(TTL_SECONDS * 1_000 + 5_000)
    await run_commands(locks, (key("a"), Release(digest("cid"))))
    expired, forced, released = await entries_of(locks, "a")
    assert (released.ended, released.ended_by, released.reason) == ("released", None, None)
    assert (forced.ended, forced.ended_by, forced.reason) == ("forced", "operator", "a stuck job")
    assert (expired.ended, expired.ended_at_ms) == ("expired", expired.expires_at_ms + 1_000)


async def test_a_purged_lock_keeps_the_entry_of_its_expired_hold(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-3, LEASE-13; without history the purge stores nothing."""
    for name in ("a", "b"):
        await run_commands(store.locks, (key(name), _acquire("ann")))
    before = await entries_of(store.locks, "a")
    clock.advance(TTL_SECONDS * 1_000 + 1_000 + RETENTION_MS)
    expired = await entries_of(store.locks, "a")
    assert await store.locks.purge(limit=10, keeps_history=True) == 2
    assert await entries_of(store.locks, "a") == expired != before
    await run_commands(store.locks, (key("c"), _acquire("ann")))
    clock.advance(TTL_SECONDS * 1_000 + 1_000 + RETENTION_MS)
    assert await store.locks.purge(limit=10) == 1
    assert await entries_of(store.locks, "c") == []


async def test_a_period_selects_the_holds_that_overlap_it(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-5: `at`, and `from` and `to` without their end."""
    began_ms = []
    for owner in ("ann", "ben", "cid"):
        began_ms.append(clock.now_ms())
        await run_commands(store.locks, (key("a"), _acquire(owner)))
        clock.advance(1_000)
        await run_commands(store.locks, (key("a"), Release(digest(owner))))
        clock.advance(1_000)

    async def holders(**period: int) -> list[str | None]:
        return [entry.holder for entry in await entries_of(store.locks, "a", **period)]

    assert await holders(at_ms=began_ms[1]) == await holders(at_ms=began_ms[1] + 999) == ["host/ben"]
    assert await holders(at_ms=began_ms[1] + 1_000) == await holders(at_ms=began_ms[0] - 1) == []
    assert await holders(from_ms=began_ms[1] + 999, to_ms=began_ms[2]) == ["host/ben"]
    assert await holders(from_ms=began_ms[1] + 1_000, to_ms=began_ms[2] + 1) == ["host/cid"]
    assert await holders(from_ms=began_ms[1]) == ["host/cid", "host/ben"]


async def test_pages_of_several_locks_show_each_hold_once_in_order(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-5: by the bytes of the key, then the latest first; with current holds, and of one project."""
    names = ["a", "a-", "a-b", "a.b", "a:", "aZ", "a_", "ab", "b"]
    for _ in range(3):
        clock.advance(10)
        await hold(store.locks, *reversed(names))
    await run_commands(store.locks, *((key(one), _acquire("ann")) for one in names[::2]))
    await run_commands(
        store.locks, (key("a", "another"), _acquire("ann")), (key("a", "another"), Release(digest("ann")))
    )
    everything = await walked(store.locks, HistoryQuery(PROJECT, 1_000))
    assert [one for one, _token in everything] == [one for one in names for _ in range(4 - names.index(one) % 2)]
    assert everything == sorted(everything, key=lambda one: (one[0], -one[1]))
    for limit in (1, 2, 7):
        assert await walked(store.locks, HistoryQuery(PROJECT, limit)) == everything
    of_a = [one for one in everything if one[0].startswith("a-")]
    assert await walked(store.locks, HistoryQuery(PROJECT, 2, prefix="a-")) == of_a
    one_lock = HistoryQuery(PROJECT, 2, key=LockKey("a-"))
    assert await walked(store.locks, one_lock) == [one for one in everything if one[0] == "a-"]


async def test_a_walk_over_more_than_one_scan_is_complete(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-5: also if the records without a hold fill a scan."""
    names = [f"k{number:04}" for number in range(SCAN_ENTRIES + 30)]
    for begin in range(0, len(names), 60):
        await hold(store.locks, *names[begin : begin + 60])
    walked_keys = [one for one, _ in await walked(store.locks, HistoryQuery(PROJECT, 500))]
    assert walked_keys == names


async def test_times_held(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-6: of the ended holds alone, whatever page is asked for."""
    for seconds in (*range(1, 20), 100):
        await run_commands(store.locks, (key("a"), Acquire(digest("ann" + str(seconds)), 600, None, BY)))
        clock.advance(seconds * 1_000)
        await run_commands(store.locks, (key("a"), Release(digest("ann" + str(seconds)))))
    await run_commands(store.locks, (key("a"), _acquire("ann")))
    page = await store.locks.history_page(HistoryQuery(PROJECT, 1, key=LockKey("a")))
    assert page.held == (20, 10_000, 19_000, 100_000)
    unknown = await store.locks.history_page(HistoryQuery(PROJECT, 1, key=LockKey("b")))
    assert (unknown.entries, unknown.held) == ([], (0, None, None, None))


async def test_a_lock_keeps_its_last_entries(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-4: the oldest go first; a few more may be stored for a while."""
    for _ in range(ENTRIES_PER_LOCK_MAX + 3 * TRIM_EVERY):
        clock.advance(1)
        await hold(store.locks, "a")
    kept = await entries_of(store.locks, "a")
    assert len(kept) == ENTRIES_PER_LOCK_MAX
    assert kept[0].began_at_ms == clock.now_ms()
    stored = await walked(store.locks, HistoryQuery(PROJECT, 500))
    assert ENTRIES_PER_LOCK_MAX <= len(stored) < ENTRIES_PER_LOCK_MAX + 2 * TRIM_EVERY


async def test_old_entries_are_purged_and_the_oldest_of_too_many(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-4: those that are too old, then the oldest of too many, at most `limit` at once."""
    locks = store.locks
    await locks.purge(limit=1)  # this node purges, over etcd
    for name in "abcdef":
        await hold(locks, name)
        clock.advance(DAY_MS)
    assert await locks.purge(limit=10, keeps_history=True) == 6
    assert await locks.purge_history(kept_days=5, limit=10) == 2

    async def left() -> list[str]:
        return [one for one, _ in await walked(locks, HistoryQuery(PROJECT, 10))]

    assert await left() == ["c", "d", "e", "f"]
    assert await locks.purge_history(kept_days=5, limit=1, entries_max=2) == 1
    assert await left() == ["d", "e", "f"]
    assert await locks.purge_history(kept_days=5, limit=10, entries_max=2) == 1
    assert await left() == ["e", "f"]
    assert await locks.purge_history(kept_days=0, limit=10) == 2
    assert await left() == []


async def test_a_purge_deletes_the_oldest_of_too_many_although_others_are_too_old(
    store: OpenStore, clock: ManualClock
) -> None:
    """HISTORY-4: a store in use has some that are too old every minute."""
    locks = store.locks
    await locks.purge(limit=1)  # this node purges, over etcd
    for name in "abcde":
        await hold(locks, name)
        clock.advance(DAY_MS)
    assert await locks.purge(limit=10, keeps_history=True) == 5
    assert await locks.purge_history(kept_days=5, limit=10, entries_max=2) == 3
    assert [one for one, _ in await walked(locks, HistoryQuery(PROJECT, 10))] == ["d", "e"]


async def test_projects_share_the_room_for_entries(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-4: a project with many holds displaces none of another's; the oldest of its own go first."""
    locks, other = store.locks, "another"
    await locks.purge(limit=1)  # this node purges, over etcd
    for number in range(6):
        clock.advance(1)
        commands = (_acquire(f"ann-{number}"), Release(digest(f"ann-{number}")))
        await run_commands(locks, *((key("old", other), one) for one in commands if number < 3))
        await hold(locks, f"k{number}", times=2)
    clock.advance(RETENTION_MS)
    assert await locks.purge(limit=10, keeps_history=True) == 7

    async def left(project_id: str) -> list[str]:
        return [one for one, _ in await walked(locks, HistoryQuery(project_id, 100))]

    assert (len(await left(PROJECT)), len(await left(other))) == (12, 3)
    purged = 0
    while gone := await locks.purge_history(kept_days=7, limit=4, entries_max=7):
        purged += gone
    assert purged == 8
    assert await left(PROJECT) == ["k4", "k4", "k5", "k5"]
    assert await left(other) == ["old"] * 3
    assert await locks.purge_history(kept_days=7, limit=10, entries_max=4) == 3
    assert (await left(PROJECT), await left(other)) == (["k5", "k5"], ["old"] * 2)


async def test_deleting_a_project_deletes_its_history(store: OpenStore) -> None:
    """HISTORY-4."""
    await store.registry.add_project(Project(PROJECT, "one", 600, 1))
    await hold(store.locks, "a", "b", times=3)
    await run_commands(
        store.locks, (key("a", "another"), _acquire("ann")), (key("a", "another"), Release(digest("ann")))
    )
    await store.registry.delete_project(PROJECT)
    assert await walked(store.locks, HistoryQuery(PROJECT, 10)) == []
    assert len(await walked(store.locks, HistoryQuery("another", 10))) == 1


async def test_facts_of_another_lease_do_not_count(store: OpenStore, clock: ManualClock) -> None:
    """HISTORY-2: a lease that a node of 0.1.0 began has no facts, and its entry says so."""
    record = Held(digest("old"), 5, clock.now_ms() + 1_000, clock.now_ms() + 1_000, 1, 2, 30, "host/old")
    await write_records(store.locks, (key("a"), record))
    await run_commands(store.locks, (key("a"), ForceRelease()))
    (entry,) = await entries_of(store.locks, "a")
    assert (entry.holder, entry.facts, entry.renewed_at_ms, entry.ended, entry.ended_by) == (
        "host/old",
        None,
        2,
        "forced",
        None,
    )
