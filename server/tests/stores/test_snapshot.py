"""What every store promises about reading and loading it as a whole, from each store into each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from testsupport.engines import etcd, postgres

from volcano_locks_server.ports.registry import NewSecret, Project, ServiceKey
from volcano_locks_server.ports.snapshot import (
    PAGE_ENTRIES_MAX,
    Entry,
    Snapshot,
    StoredLock,
    StoredSecret,
    StoredServiceKey,
)
from volcano_locks_server.rules.clock_history import ClockHistory
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Acquire, Free, Granted, Held
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import START_MS, ManualClock

from .store_actions import digest, held, key, read_records, run_commands, write_records

P1 = Project("p-1", "zebra", 600, 1_000)
P2 = Project("p-2", "aardvark", 0, 2_000)
K1 = ServiceKey("k-9", "p-1", "worker", "sk-abcd", ("*",), 1_001, last_used_at_ms=5)
K2 = ServiceKey("k-2", "p-2", "cron", "sk-efgh", ("*", "locks.manage"), 1_002, expires_at_ms=9_000)
HELD = StoredLock(key("a", "p-1"), structs.replace(held("one", START_MS, holder="host/1"), fencing_token=START_MS + 70))
FREE = StoredLock(key("a", "p-2"), Free(START_MS + 99, START_MS, (digest("x"), digest("y"))))


def new_url(kind: str, tmp_path: Path) -> str:
    """The URL of an empty store that is not `store`."""
    match kind:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'target.db'}"
        case "postgres":
            server = postgres.shared()
            return server.url(server.new_database())
        case "etcd":
            return etcd.shared().url()
    return "memory://"


@pytest.fixture(params=["memory", "sqlite", "postgres", "etcd"])
async def target(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenStore]:
    opened = await open_store(new_url(request.param, tmp_path), clock)
    yield opened
    await opened.close()


def whole(store: OpenStore) -> Snapshot:
    assert store.snapshot is not None
    return store.snapshot


async def all_of(store: OpenStore) -> list[Entry]:
    return [entry async for page in whole(store).pages() for entry in page]


async def fill(store: OpenStore) -> None:
    """Two projects with one key each, the first with a second secret; a held lock and a free one."""
    for project in (P1, P2):
        await store.registry.add_project(project)
    await store.registry.add_service_key(replace(K1, key_prefix="sk-old"), digest("old"))
    await store.registry.add_service_key(K2, digest("two"))
    await store.registry.replace_secret("p-1", "k-9", NewSecret(digest("new"), "sk-abcd", 7_000))
    await write_records(store.locks, HELD, FREE)


async def pages_of(*entries: Entry) -> AsyncIterator[Sequence[Entry]]:
    yield entries


async def test_pages_contain_every_entry(store: OpenStore) -> None:
    await fill(store)
    entries = await all_of(store)
    new, old, two = digest("new"), digest("old"), digest("two")
    assert entries[:4] == [
        P1,
        P2,
        StoredServiceKey(K1, (StoredSecret(new, None), StoredSecret(old, 7_000))),
        StoredServiceKey(K2, (StoredSecret(two, None),)),
    ]
    assert set(entries[4:]) == {HELD, FREE}


async def test_a_load_copies_the_whole_store(store: OpenStore, target: OpenStore) -> None:
    await fill(store)
    many = [StoredLock(key(f"m{number}", "p-2"), Free(number, 1)) for number in range(2 * PAGE_ENTRIES_MAX)]
    await write_records(store.locks, *many)
    await whole(target).load(whole(store).pages(), await whole(store).newest_ms())
    loaded, expected = await all_of(target), await all_of(store)
    assert loaded[:4] == expected[:4]
    assert len(loaded) == len(expected) == 4 + 2 + len(many)
    assert set(loaded[4:]) == set(expected[4:])
    assert await target.registry.credential(digest("old")) == await store.registry.credential(digest("old"))
    assert (await target.registry.projects(limit=1, cursor=None)).items == [P1]
    await target.registry.add_project(Project("p-3", "later", 1, 3_000))
    assert [entry for entry in await all_of(target) if isinstance(entry, Project)][-1].id == "p-3"


async def test_pages_are_neither_empty_nor_too_long(store: OpenStore) -> None:
    await fill(store)
    await write_records(
        store.locks, *(StoredLock(key(f"m{number}", "p-1"), Free(1, 1)) for number in range(PAGE_ENTRIES_MAX))
    )
    lengths = [len(page) async for page in whole(store).pages()]
    assert min(lengths) >= 1
    assert max(lengths) <= PAGE_ENTRIES_MAX


@pytest.mark.parametrize("there", ["project", "lock"])
async def test_a_load_refuses_a_store_that_is_not_empty(target: OpenStore, there: str) -> None:
    await target.registry.add_project(P2)
    if there == "lock":
        await write_records(target.locks, FREE)
    with pytest.raises(StoreUnavailableError, match="choose an empty one"):
        await whole(target).load(pages_of(P1), 0)
    assert await all_of(target) == ([P2, FREE] if there == "lock" else [P2])


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "etcd"])
async def test_a_failed_load_leaves_nothing_and_can_be_repeated(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    async def broken() -> AsyncIterator[Sequence[Entry]]:
        yield [P1, HELD]
        raise RuntimeError("the other store is gone")

    url = new_url(kind, tmp_path)
    store = await open_store(url, clock)
    with pytest.raises(RuntimeError, match="gone"):
        await whole(store).load(broken(), START_MS)
    with pytest.raises(StoreUnavailableError) if kind == "etcd" else nullcontext():
        assert (await store.registry.projects(limit=5, cursor=None)).items == []
        assert await read_records(store.locks, HELD.key) == [None]
    await whole(store).load(pages_of(P1, HELD), START_MS)
    await store.close()
    again = await open_store(url, clock)
    assert await all_of(again) == [P1, HELD]
    await again.close()


async def test_time_does_not_go_back_after_a_load(target: OpenStore, clock: ManualClock) -> None:
    """LEASE-3: for a record purged before the copy, only the clock keeps fencing tokens rising."""
    last_token = START_MS + 4_000
    await whole(target).load(pages_of(P1), last_token + 1)
    acquire = (key("purged", "p-1"), Acquire(digest("me"), 30))
    with pytest.raises(StoreUnavailableError) as caught:
        await run_commands(target.locks, acquire)
    assert caught.value.cause_code == "clock_behind"
    clock.advance(4_001)
    (outcome,) = await run_commands(target.locks, acquire)
    assert isinstance(outcome, Granted)
    assert outcome.fencing_token > last_token
    assert await whole(target).newest_ms() == last_token + 1


async def test_the_newest_instant_of_a_load_survives_a_restart(path: Path, clock: ManualClock) -> None:
    store = await open_store(f"sqlite:///{path}", clock)
    await whole(store).load(pages_of(P1), START_MS + 60_000)
    await store.close()
    with pytest.raises(StoreUnavailableError) as caught:
        await open_store(f"sqlite:///{path}", clock)
    assert caught.value.cause_code == "clock_behind"


async def test_a_copied_lease_keeps_its_owner_and_its_token(target: OpenStore) -> None:
    assert isinstance(HELD.record, Held)
    await whole(target).load(pages_of(P1, HELD), START_MS)
    (repeated,) = await run_commands(target.locks, (HELD.key, Acquire(digest("one"), 30)))
    (refused,) = await run_commands(target.locks, (HELD.key, Acquire(digest("other"), 30)))
    assert isinstance(repeated, Granted)
    assert repeated.fencing_token == HELD.record.fencing_token
    assert not isinstance(refused, Granted)


async def test_a_load_continues_the_history_of_the_clock(target: OpenStore, clock: ManualClock) -> None:
    """KEEP-2, LEASE-17, LEASE-19: takeovers stay held, and tokens lead the clock as they did in the source."""
    history = ClockHistory(jumped_at_ms=START_MS, jumped_by_ms=60_000, jumps_ms=60_000, token_lead_ms=3_600_000)
    lease = held("one", START_MS - 80_000)  # at the jump, 11 of its 31 seconds were left
    await whole(target).load(pages_of(P1, StoredLock(HELD.key, lease)), START_MS, history)
    assert (await whole(target).clock_history()).token_lead_ms == 3_600_000
    clock.advance(10_999)
    take = (HELD.key, Acquire(digest("other"), 30))
    assert not isinstance((await run_commands(target.locks, take))[0], Granted)
    clock.advance(1)
    assert isinstance((await run_commands(target.locks, take))[0], Granted)
    (unknown,) = await run_commands(target.locks, (key("unknown", "p-1"), Acquire(digest("me"), 30)))
    assert isinstance(unknown, Granted)
    assert unknown.fencing_token == clock.now_ms() + 3_600_000


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "etcd"])
async def test_a_target_whose_clock_is_ahead_ends_no_lease(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    """KEEP-2, LEASE-17: the difference of the two clocks is a jump."""
    lease = held("one", START_MS)
    clock.advance(3_600_000)
    target = await open_store(new_url(kind, tmp_path), clock)
    await whole(target).load(pages_of(P1, StoredLock(HELD.key, lease)), START_MS + 1_000)
    clock.advance(29_999)
    take = (HELD.key, Acquire(digest("other"), 30))
    assert not isinstance((await run_commands(target.locks, take))[0], Granted)
    clock.advance(1)
    assert isinstance((await run_commands(target.locks, take))[0], Granted)
    await target.close()
