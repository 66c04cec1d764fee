"""What watchers of one node are told: everything once, in order, in time; resuming without a gap."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from volcano_locks_server.events import LockEvent, Subscriber, hub, subscriber
from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, ForceRelease, Release, Renew
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .hub_nodes import MINE, OTHER, PROJECT, Node, lock, moved, taken, timers, turns, words

TAKE = Acquire(MINE, 30, "host/1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(clock: ManualClock) -> AsyncIterator[Node]:
    one = Node(MemoryStore(clock), clock)
    one.hub.start()
    yield one
    await one.hub.close()
    assert timers(clock) == 0


async def test_what_happens_is_told_to_who_watches_and_to_nobody_else(node: Node) -> None:
    """EVENT-1, EVENT-2, HTTP-2: by key, by the beginning of keys, and never another project's."""
    one, some, all_ = await node.watch(key="a1"), await node.watch(prefix="a"), await node.watch()
    await node.do("a1", TAKE)
    await node.do("a12", TAKE)
    await node.do("b", TAKE)
    await node.do("a1", TAKE, project_id="another")
    await node.do("a1", Renew(MINE, 30))
    await node.do("a1", Release(MINE))
    await node.do("b", ForceRelease())
    assert words(one) == ["acquired a1", "renewed a1", "released a1"]
    assert words(some) == ["acquired a1", "acquired a12", "renewed a1", "released a1"]
    assert words(all_) == ["acquired a1", "acquired a12", "acquired b", "renewed a1", "released a1", "force_released b"]


async def test_lines_are_told_too(node: Node) -> None:
    """EVENT-2."""
    watcher = await node.watch()
    node.hub.publish([LockEvent("waiting", lock("a"), None, "host/2", 7, "held")])
    node.hub.publish([LockEvent("gave_up", lock("a"), None, "host/2", 8, "hung_up")])
    assert words(watcher) == ["waiting a", "gave_up a"]


async def test_an_end_is_told_when_lease_and_grace_are_over(node: Node, clock: ManualClock) -> None:
    """EVENT-3: without anybody asking for the lock; renewals put it off, a shorter TTL brings it nearer."""
    watcher = await node.watch()
    await node.do("a", TAKE)
    await node.do("b", Acquire(MINE, 3_600))
    await moved(clock, 20_000)
    await node.do("a", Renew(MINE, 30))
    await node.do("b", Renew(MINE, 10))
    assert words(watcher) == ["acquired a", "acquired b", "renewed a", "renewed b"]
    await moved(clock, 10_999)
    assert words(watcher) == []
    await moved(clock, 1)
    (told,) = taken(watcher)
    assert told.event is not None
    assert (told.event.kind, told.event.lock.key) == ("expired", "b")
    assert told.event.at_ms == clock.now_ms() == told.at_ms
    await moved(clock, 20_000)
    assert words(watcher) == ["expired a"]


async def test_an_end_is_told_once_whoever_finds_it(node: Node, clock: ManualClock) -> None:
    """EVENT-3: not again by the takeover, the late release or the force release that finds it so."""
    watcher = await node.watch()
    for key in ("a", "b", "c"):
        await node.do(key, Acquire(MINE, 5))
    await moved(clock, 5_000 + GRACE_MS)
    assert words(watcher)[3:] == ["expired a", "expired b", "expired c"]
    await node.do("a", Acquire(OTHER, 30))
    await node.do("b", Release(MINE))
    await node.do("c", ForceRelease())
    assert words(watcher) == ["acquired a"]


async def test_the_end_of_a_lease_from_before_the_watching_is_told_in_time(node: Node, clock: ManualClock) -> None:
    """EVENT-3: known from a list; what ended before is not told, neither by the timer nor by a takeover."""
    await node.do("long_over", Acquire(MINE, 5))
    await moved(clock, 60_000)
    await node.do("a", TAKE)
    await node.do("given_back", TAKE)
    for number in range(hub.LIST_LIMIT + 10):
        await node.do(f"many{number}", TAKE, project_id="another")
        await node.do(f"many{number}", TAKE)
    watcher = await node.watch()
    await node.do("given_back", Release(MINE))
    await node.do("long_over", TAKE)
    assert words(watcher) == ["released given_back", "acquired long_over"]
    await moved(clock, 30_000 + GRACE_MS)
    told = words(watcher)
    assert len(told) == len(set(told)) == hub.LIST_LIMIT + 12
    assert {"expired a", "expired long_over", f"expired many{hub.LIST_LIMIT + 9}"} <= set(told)


async def test_a_release_while_the_list_is_read_is_not_followed_by_an_end(node: Node, clock: ManualClock) -> None:
    """EVENT-3: the list may be older than the events."""
    await node.do("a", Acquire(MINE, 5))
    page = await node.store.list_locks(LockQuery(PROJECT, 10, held=True))
    watcher = await node.watch()
    await node.do("a", Release(MINE))
    for _, record in page.records:
        node.hub._expiries.note_listed(lock("a"), record, page.now_ms)  # type: ignore[arg-type]
    await moved(clock, 60_000)
    assert words(watcher) == ["released a"]


async def test_nothing_is_kept_while_nobody_watches(node: Node, clock: ManualClock) -> None:
    """EVENT-6: the hub is live from the first watcher until a minute after the last, and holds nothing else."""
    assert not node.hub.live
    watcher = await node.watch()
    assert node.hub.live
    await node.do("a", TAKE)
    node.hub.unsubscribe(watcher)
    node.hub.unsubscribe(watcher)
    await moved(clock, hub.LINGER_MS - 1)
    assert node.hub.live
    await moved(clock, 1)
    assert not node.hub.live
    assert (node.hub.subscriber_count, node.hub._feeds, len(node.hub._expiries), timers(clock)) == (0, {}, 0, 0)


async def test_who_comes_back_within_a_minute_has_missed_nothing(node: Node, clock: ManualClock) -> None:
    """EVENT-5: from the id seen last; from the beginning's id too."""
    watcher = await node.watch(prefix="a")
    began_at = watcher.began_at
    await node.do("a", TAKE)
    (first,) = taken(watcher)
    node.hub.unsubscribe(watcher)
    await node.do("b", TAKE)
    await node.do("a", Release(MINE))
    await moved(clock, hub.LINGER_MS - 1)
    again = await node.watch(prefix="a", after=first.id)
    assert again.began_at == first.id
    assert words(again) == ["released a"]
    from_the_beginning = await node.watch(after=began_at)
    assert words(from_the_beginning) == ["acquired a", "acquired b", "released a", "expired b"]
    await node.do("a", Acquire(OTHER, 30))
    assert words(again) == words(from_the_beginning) == ["acquired a"]


async def test_an_id_that_cannot_be_resumed_from_is_answered_with_a_reset(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-5: too old, another node's, from before a pause, or no id at all."""
    monkeypatch.setattr(hub, "RING_MAX", 3)
    watcher = await node.watch()
    oldest = watcher.began_at
    await node.do_all([("a", TAKE), ("a", Release(MINE)), ("b", TAKE)])
    assert words(await node.watch(after=oldest)) == ["acquired a", "released a", "acquired b"]
    await node.do("b", Release(MINE))
    assert words(await node.watch(after=oldest)) == ["reset too_old"]
    epoch, number = oldest.split("-")
    for unknown in ("x", f"{'0' * 12}-{number}", f"{epoch}-5", f"{epoch}-", "1" * 9_000, f"{epoch}-1\x00"):
        assert words(await node.watch(after=unknown)) == ["reset unknown_id"]
    for one in list(node.hub._feeds[PROJECT].subscribers):
        node.hub.unsubscribe(one)
    await moved(clock, hub.LINGER_MS)
    resumed = await node.watch(after=oldest)
    assert words(resumed) == ["reset unknown_id"]
    assert resumed.began_at.split("-")[0] != epoch


async def test_who_missed_more_than_its_queue_holds_lists_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-5, EVENT-7: it would be ended at once, come back with the same id, and so on for ever."""
    monkeypatch.setattr(subscriber, "QUEUE_MAX", 3)
    oldest = (await node.watch()).began_at
    await node.do_all([(key, TAKE) for key in ("a1", "a2", "a3", "b")])
    assert words(await node.watch(prefix="a", after=oldest)) == ["acquired a1", "acquired a2", "acquired a3"]
    behind = await node.watch(after=oldest)
    assert words(behind) == ["reset too_old"]
    await node.do("c", TAKE)
    assert words(behind) == ["acquired c"]


async def test_a_reset_leaves_a_place_to_resume_from(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-5: whoever heard the reset goes on from it; whoever did not hears it."""
    monkeypatch.setattr(hub, "RING_MAX", 4)
    watcher = await node.watch()
    await node.do_all([("a", TAKE), ("b", TAKE)])
    before = taken(watcher)[-1].id
    node.hub._missed()
    (reset,) = taken(watcher)
    await node.do_all([(key, TAKE) for key in ("c", "d", "e")])
    assert words(await node.watch(after=before)) == ["reset too_old"]
    assert words(await node.watch(after=reset.id)) == ["acquired c", "acquired d", "acquired e"]


async def test_a_watcher_that_is_too_slow_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7: its queue is bounded, and costs the others nothing."""
    monkeypatch.setattr(subscriber, "QUEUE_MAX", 3)
    slow, quick = await node.watch(), await node.watch()
    seen = []
    for key in "abcd":
        await node.do(key, TAKE)
        seen += words(quick)
    assert slow.ended
    assert taken(slow) == []
    assert len(seen) == 4
    assert not quick.ended


async def test_a_watcher_takes_many_events_in_parts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7: so a thousand slow readers do not make a thousand copies of what waits for them."""
    monkeypatch.setattr(subscriber, "TAKE_MAX", 2)
    watcher = await node.watch()
    await node.do_all([(key, TAKE) for key in "abcde"])
    async with asyncio.timeout(30):
        parts = [[told.event.lock.key for told in await watcher.take() if told.event] for _ in range(3)]
    assert parts == [["a", "b"], ["c", "d"], ["e"]]
    waiting = asyncio.create_task(watcher.take())
    await turns()
    assert not waiting.done()
    watcher.wake()
    assert await waiting == []


async def test_watchers_are_bounded_and_leave_their_place(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7."""
    monkeypatch.setattr(hub, "SUBSCRIBERS_MAX", 1)
    first = await node.watch()
    with pytest.raises(LockError) as refused:
        await node.watch()
    assert (refused.value.code, refused.value.retry_after_seconds) == ("lock_service_unavailable", 1)
    node.hub.unsubscribe(Subscriber(PROJECT))
    with pytest.raises(LockError):
        await node.watch()
    node.hub.unsubscribe(first)
    await node.watch()


async def test_stopping_ends_every_watcher_and_refuses_more(node: Node) -> None:
    """EVENT-7, HTTP-23."""
    watcher = await node.watch()
    waiting = asyncio.create_task(watcher.take())
    await turns()
    node.hub.end_subscribers()
    assert await asyncio.wait_for(waiting, 30) == []
    assert watcher.ended
    with pytest.raises(LockError, match="stopping"):
        await node.watch()


async def test_a_store_that_cannot_be_listed_is_asked_again(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-3: the end of what was held before is told all the same."""
    monkeypatch.setattr(hub, "LIST_RETRY_SECONDS", 0.0)
    await node.do("a", TAKE)
    listed, refusals = node.store.list_locks, [1, 2]

    async def list_locks(query: LockQuery) -> object:
        if refusals:
            refusals.pop()
            raise StoreUnavailableError("store_error", "broken")
        return await listed(query)

    monkeypatch.setattr(node.store, "list_locks", list_locks)
    watcher = await node.watch()
    await turns()
    await moved(clock, 30_000 + GRACE_MS)
    assert words(watcher) == ["expired a"]


async def test_renewals_and_ends_leave_the_queue_bounded(node: Node, clock: ManualClock) -> None:
    """EVENT-6: a TTL that grows and shrinks, and leases that are given back at once, do not pile up."""
    await node.watch(key="none")
    for number in range(3_000):
        await node.do("a", Acquire(MINE, 5 + 2 * (number % 2)))
        await node.do(f"b{number}", Acquire(MINE, 3_600))
        await node.do(f"b{number}", Release(MINE))
    assert len(node.hub._expiries._heap) <= 1_010


@pytest.mark.real_time
async def test_an_end_is_told_in_time_by_the_systems_clock() -> None:
    """EVENT-3: not before the grace is over, and soon after; the limit here is a busy machine's."""
    clock = SystemClock()
    one = Node(MemoryStore(clock), clock)
    watcher = await one.watch()
    now_ms = clock.now_ms()
    one.hub.publish([LockEvent("acquired", lock("a"), 1, None, now_ms, "free", now_ms + 100 - GRACE_MS)])
    assert words(watcher) == ["acquired a"]
    watcher._awake.clear()
    (told,) = await asyncio.wait_for(watcher.take(), 30)
    assert (told.why, told.at_ms) == ("not_renewed", now_ms + 100)
    assert 0 <= clock.now_ms() - told.at_ms < 1_000
    await one.hub.close()


async def test_many_watchers_of_other_locks_cost_an_event_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-1, EVENT-6: an event is given to those who watch its lock, and the others are not even asked."""
    given: list[Subscriber] = []
    monkeypatch.setattr(Subscriber, "put", lambda watcher, _told: given.append(watcher))
    others = [await node.watch(key=f"b{number}") for number in range(20)]
    others += [await node.watch(prefix=prefix) for prefix in ("ax", "b", "abc", "abcde")]
    mine = [await node.watch(key="abcd"), await node.watch(prefix=""), await node.watch(prefix="abcd")]
    gone = await node.watch(prefix="a")
    node.hub.unsubscribe(gone)
    await node.do("abcd", TAKE)
    assert set(given) == {*mine, others[-2]}
    assert len(given) == 4
    for watcher in (*others, *mine):
        node.hub.unsubscribe(watcher)
    channel = node.hub._feeds[PROJECT]
    assert (channel._by_key, channel._by_prefix, channel._prefix_lengths) == ({}, {}, ())
