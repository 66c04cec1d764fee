"""The event hub of one node: each event once, in order, in time; resuming without a gap."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from volcano_locks_server.events import LockEvent, NumberedEvent, Subscriber, hub, subscriber
from volcano_locks_server.events.project_feed import ProjectFeed
from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.clock_history import NO_HISTORY
from volcano_locks_server.rules.errors import LockError, StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, ForceRelease, Release, Renew
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .hub_nodes import MINE, OTHER, PROJECT, Node, advance, lock, summaries, taken, timers, turns

TAKE = Acquire(MINE, 30, "host/1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(clock: ManualClock) -> AsyncIterator[Node]:
    node = Node(MemoryStore(clock), clock)
    node.hub.start()
    yield node
    await node.hub.close()
    assert timers(clock) == 0


async def test_events_reach_the_subscribers_of_their_lock_only(node: Node) -> None:
    """EVENT-1, EVENT-2, HTTP-2: by key, by prefix, and never from another project."""
    one, some, all_ = await node.subscribe(key="a1"), await node.subscribe(prefix="a"), await node.subscribe()
    await node.perform("a1", TAKE)
    await node.perform("a12", TAKE)
    await node.perform("b", TAKE)
    await node.perform("a1", TAKE, project_id="another")
    await node.perform("a1", Renew(MINE, 30))
    await node.perform("a1", Release(MINE))
    await node.perform("b", ForceRelease())
    assert summaries(one) == ["acquired a1", "renewed a1", "released a1"]
    assert summaries(some) == ["acquired a1", "acquired a12", "renewed a1", "released a1"]
    assert summaries(all_) == [
        "acquired a1",
        "acquired a12",
        "acquired b",
        "renewed a1",
        "released a1",
        "force_released b",
    ]


async def test_changes_of_a_wait_queue_are_published(node: Node) -> None:
    """EVENT-2."""
    watcher = await node.subscribe()
    node.hub.publish([LockEvent("waiting", lock("a"), None, "host/2", 7, "held")])
    node.hub.publish([LockEvent("gave_up", lock("a"), None, "host/2", 8, "hung_up")])
    assert summaries(watcher) == ["waiting a", "gave_up a"]


async def test_an_expiry_is_published_when_lease_and_grace_end(node: Node, clock: ManualClock) -> None:
    """EVENT-3: without a command for the lock; renewals move the expiry, to an earlier instant too."""
    watcher = await node.subscribe()
    await node.perform("a", TAKE)
    await node.perform("b", Acquire(MINE, 3_600))
    await advance(clock, 20_000)
    await node.perform("a", Renew(MINE, 30))
    await node.perform("b", Renew(MINE, 10))
    assert summaries(watcher) == ["acquired a", "acquired b", "renewed a", "renewed b"]
    await advance(clock, 10_999)
    assert summaries(watcher) == []
    await advance(clock, 1)
    (numbered,) = taken(watcher)
    assert numbered.event is not None
    assert (numbered.event.kind, numbered.event.lock.key) == ("expired", "b")
    assert numbered.event.at_ms == clock.now_ms() == numbered.at_ms
    await advance(clock, 20_000)
    assert summaries(watcher) == ["expired a"]


async def test_an_expiry_is_published_once(node: Node, clock: ManualClock) -> None:
    """EVENT-3: a later takeover, release or force release does not publish it again."""
    watcher = await node.subscribe()
    for key in ("a", "b", "c"):
        await node.perform(key, Acquire(MINE, 5))
    await advance(clock, 5_000 + GRACE_MS)
    assert summaries(watcher)[3:] == ["expired a", "expired b", "expired c"]
    await node.perform("a", Acquire(OTHER, 30))
    await node.perform("b", Release(MINE))
    await node.perform("c", ForceRelease())
    assert summaries(watcher) == ["acquired a"]


async def test_the_expiry_of_a_lease_older_than_the_feed_is_published_in_time(node: Node, clock: ManualClock) -> None:
    """EVENT-3: the feed lists older leases. It publishes no expiry from before its start, not even at a takeover."""
    await node.perform("long_over", Acquire(MINE, 5))
    await advance(clock, 60_000)
    await node.perform("a", TAKE)
    await node.perform("given_back", TAKE)
    for number in range(hub.LIST_LIMIT + 10):
        await node.perform(f"many{number}", TAKE, project_id="another")
        await node.perform(f"many{number}", TAKE)
    watcher = await node.subscribe()
    await node.perform("given_back", Release(MINE))
    await node.perform("long_over", TAKE)
    assert summaries(watcher) == ["released given_back", "acquired long_over"]
    await advance(clock, 30_000 + GRACE_MS)
    expired = summaries(watcher)
    assert len(expired) == len(set(expired)) == hub.LIST_LIMIT + 12
    assert {"expired a", "expired long_over", f"expired many{hub.LIST_LIMIT + 9}"} <= set(expired)


async def test_a_release_while_the_list_is_read_is_followed_by_no_expiry(node: Node, clock: ManualClock) -> None:
    """EVENT-3: the list may be older than the events."""
    await node.perform("a", Acquire(MINE, 5))
    page = await node.store.list_locks(LockQuery(PROJECT, 10, held=True))
    watcher = await node.subscribe()
    await node.perform("a", Release(MINE))
    for _, record in page.records:
        node.hub._expiries.note_listed(lock("a"), record, page.now_ms)  # type: ignore[arg-type]
    await advance(clock, 60_000)
    assert summaries(watcher) == ["released a"]


async def test_a_lease_that_is_held_after_a_jump_expires_when_the_hold_ends(node: Node, clock: ManualClock) -> None:
    """EVENT-3, LEASE-17: for a feed that begins after the jump, from the list."""
    await node.perform("a", TAKE)
    node.store.history = NO_HISTORY.after_jump(clock.jump(3_600_000), 3_600_000)
    watcher = await node.subscribe()
    await advance(clock, 30_000 + GRACE_MS - 1)
    assert summaries(watcher) == []
    await advance(clock, 1)
    assert summaries(watcher) == ["expired a"]


async def test_nothing_is_kept_without_subscribers(node: Node, clock: ManualClock) -> None:
    """EVENT-6: the hub is live from the first subscriber until a minute after the last."""
    assert not node.hub.live
    watcher = await node.subscribe()
    assert node.hub.live
    await node.perform("a", TAKE)
    node.hub.unsubscribe(watcher)
    node.hub.unsubscribe(watcher)
    await advance(clock, hub.LINGER_MS - 1)
    assert node.hub.live
    await advance(clock, 1)
    assert not node.hub.live
    assert (node.hub.subscriber_count, node.hub._feeds, len(node.hub._expiries), timers(clock)) == (0, {}, 0, 0)


async def test_a_client_that_resumes_within_a_minute_misses_nothing(node: Node, clock: ManualClock) -> None:
    """EVENT-5: from the last id it saw, or from the id of the beginning."""
    watcher = await node.subscribe(prefix="a")
    began_at = watcher.began_at
    await node.perform("a", TAKE)
    (first,) = taken(watcher)
    node.hub.unsubscribe(watcher)
    await node.perform("b", TAKE)
    await node.perform("a", Release(MINE))
    await advance(clock, hub.LINGER_MS - 1)
    again = await node.subscribe(prefix="a", after=first.id)
    assert again.began_at == first.id
    assert summaries(again) == ["released a"]
    from_the_beginning = await node.subscribe(after=began_at)
    assert summaries(from_the_beginning) == ["acquired a", "acquired b", "released a", "expired b"]
    await node.perform("a", Acquire(OTHER, 30))
    assert summaries(again) == summaries(from_the_beginning) == ["acquired a"]


async def test_an_id_that_cannot_be_resumed_from_gets_a_reset(node: Node, clock: ManualClock) -> None:
    """EVENT-5: too old, of another node, of an earlier feed, or no id at all."""
    node.budgets.kept_events.limit = 6
    watcher = await node.subscribe()
    oldest = watcher.began_at
    await node.perform_batch([("a", TAKE), ("a", Release(MINE)), ("b", TAKE)])
    assert summaries(await node.subscribe(after=oldest)) == ["acquired a", "released a", "acquired b"]
    await node.perform("b", Release(MINE))
    assert summaries(await node.subscribe(after=oldest)) == ["reset too_old"]
    epoch, number = oldest.split("-")
    for unknown in ("x", f"{'0' * 12}-{number}", f"{epoch}-5", f"{epoch}-", "1" * 9_000, f"{epoch}-1\x00"):
        assert summaries(await node.subscribe(after=unknown)) == ["reset unknown_id"]
    for one in list(node.hub._feeds[PROJECT].subscribers):
        node.hub.unsubscribe(one)
    await advance(clock, hub.LINGER_MS)
    resumed = await node.subscribe(after=oldest)
    assert summaries(resumed) == ["reset unknown_id"]
    assert resumed.began_at.split("-")[0] != epoch


async def test_missing_more_than_a_queue_holds_is_a_reset(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-5, EVENT-7: otherwise the client's stream would end at once and resume from the same id in a loop."""
    monkeypatch.setattr(subscriber, "QUEUE_MAX", 3)
    oldest = (await node.subscribe()).began_at
    await node.perform_batch([(key, TAKE) for key in ("a1", "a2", "a3", "b")])
    assert summaries(await node.subscribe(prefix="a", after=oldest)) == ["acquired a1", "acquired a2", "acquired a3"]
    behind = await node.subscribe(after=oldest)
    assert summaries(behind) == ["reset too_old"]
    await node.perform("c", TAKE)
    assert summaries(behind) == ["acquired c"]


async def test_a_client_can_resume_from_the_id_of_a_reset(node: Node) -> None:
    """EVENT-5: a client that did not receive that reset gets one when it resumes."""
    node.budgets.kept_events.limit = 6
    watcher = await node.subscribe()
    await node.perform_batch([("a", TAKE), ("b", TAKE)])
    before = taken(watcher)[-1].id
    node.hub._missed()
    (reset,) = taken(watcher)
    await node.perform_batch([(key, TAKE) for key in ("c", "d", "e")])
    assert summaries(await node.subscribe(after=before)) == ["reset too_old"]
    assert summaries(await node.subscribe(after=reset.id)) == ["acquired c", "acquired d", "acquired e"]


async def test_a_subscriber_that_is_too_slow_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7: its queue is bounded, and other subscribers are not affected."""
    monkeypatch.setattr(subscriber, "QUEUE_MAX", 3)
    slow, quick = await node.subscribe(), await node.subscribe()
    seen = []
    for key in "abcd":
        await node.perform(key, TAKE)
        seen += summaries(quick)
    assert slow.ended
    assert taken(slow) == []
    assert len(seen) == 4
    assert not quick.ended


async def test_a_subscriber_takes_many_events_in_parts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7: so a thousand slow readers do not hold a thousand copies of their pending events."""
    monkeypatch.setattr(subscriber, "TAKE_MAX", 2)
    watcher = await node.subscribe()
    await node.perform_batch([(key, TAKE) for key in "abcde"])
    async with asyncio.timeout(30):
        parts = [[numbered.event.lock.key for numbered in await watcher.take() if numbered.event] for _ in range(3)]
    assert parts == [["a", "b"], ["c", "d"], ["e"]]
    waiting = asyncio.create_task(watcher.take())
    await turns()
    assert not waiting.done()
    watcher.wake()
    assert await waiting == []


async def test_subscribers_are_bounded(node: Node) -> None:
    """EVENT-7: when a subscriber leaves, another may subscribe."""
    node.budgets.streams.limit = 1
    first = await node.subscribe()
    with pytest.raises(LockError) as refused:
        await node.subscribe()
    assert (refused.value.code, refused.value.retry_after_seconds) == ("lock_service_unavailable", 1)
    node.hub.unsubscribe(Subscriber(PROJECT))
    with pytest.raises(LockError):
        await node.subscribe()
    node.hub.unsubscribe(first)
    await node.subscribe()


async def test_stopping_ends_all_subscribers_and_refuses_new_ones(node: Node) -> None:
    """EVENT-7, HTTP-23."""
    watcher = await node.subscribe()
    waiting = asyncio.create_task(watcher.take())
    await turns()
    node.hub.end_subscribers()
    assert await asyncio.wait_for(waiting, 30) == []
    assert watcher.ended
    with pytest.raises(LockError, match="stopping"):
        await node.subscribe()


async def test_a_list_that_fails_is_retried(node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-3: the expiry of an older lease is still published."""
    monkeypatch.setattr(hub, "LIST_RETRY_SECONDS", 0.0)
    await node.perform("a", TAKE)
    listed, refusals = node.store.list_locks, [1, 2]

    async def list_locks(query: LockQuery) -> object:
        if refusals:
            refusals.pop()
            raise StoreUnavailableError("store_error", "broken")
        return await listed(query)

    monkeypatch.setattr(node.store, "list_locks", list_locks)
    watcher = await node.subscribe()
    await turns()
    await advance(clock, 30_000 + GRACE_MS)
    assert summaries(watcher) == ["expired a"]


async def test_renewals_and_releases_keep_the_expiry_heap_bounded(node: Node, clock: ManualClock) -> None:
    """EVENT-6: with a TTL that grows and shrinks, and leases released at once."""
    await node.subscribe(key="none")
    for number in range(3_000):
        await node.perform("a", Acquire(MINE, 5 + 2 * (number % 2)))
        await node.perform(f"b{number}", Acquire(MINE, 3_600))
        await node.perform(f"b{number}", Release(MINE))
    assert len(node.hub._expiries._heap) <= 1_010


@pytest.mark.real_time
async def test_an_expiry_is_published_in_time_by_the_systems_clock() -> None:
    """EVENT-3: not before the grace ends, and soon after; the limit here suits a busy machine."""
    clock = SystemClock()
    node = Node(MemoryStore(clock), clock)
    watcher = await node.subscribe()
    now_ms = clock.now_ms()
    node.hub.publish([LockEvent("acquired", lock("a"), 1, None, now_ms, "free", now_ms + 100 - GRACE_MS)])
    assert summaries(watcher) == ["acquired a"]
    watcher._awake.clear()
    (numbered,) = await asyncio.wait_for(watcher.take(), 30)
    assert (numbered.why, numbered.at_ms) == ("not_renewed", now_ms + 100)
    assert 0 <= clock.now_ms() - numbered.at_ms < 1_000
    await node.hub.close()


async def test_subscribers_of_other_locks_cost_an_event_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-1, EVENT-6: the hub does not even ask them whether the event matches."""
    given: list[Subscriber] = []
    monkeypatch.setattr(Subscriber, "put", lambda watcher, _event, _to_wake: given.append(watcher))
    others = [await node.subscribe(key=f"b{number}") for number in range(20)]
    others += [await node.subscribe(prefix=prefix) for prefix in ("ax", "b", "abc", "abcde")]
    mine = [await node.subscribe(key="abcd"), await node.subscribe(prefix=""), await node.subscribe(prefix="abcd")]
    gone = await node.subscribe(prefix="a")
    node.hub.unsubscribe(gone)
    await node.perform("abcd", TAKE)
    assert set(given) == {*mine, others[-2]}
    assert len(given) == 4
    for watcher in (*others, *mine):
        node.hub.unsubscribe(watcher)
    channel = node.hub._feeds[PROJECT]
    assert (channel._by_key, channel._by_prefix, channel._prefix_lengths) == ({}, {}, ())


def test_an_event_is_queued_for_subscribers_in_the_order_in_which_they_came() -> None:
    """EVENT-4: of one lock and of a prefix, whatever their addresses in memory are."""
    queued: list[Subscriber] = []

    class Recording(Subscriber):
        def put(self, numbered: NumberedEvent, to_wake: dict[Subscriber, None] | None = None) -> None:
            queued.append(self)
            super().put(numbered, to_wake)

    feed = ProjectFeed(0)
    subscribers = [Recording(PROJECT, key="x") for _ in range(40)]
    subscribers = [*subscribers[::2], *subscribers[1::2]]
    for one in subscribers:
        feed.add(one, None, 0)
    feed.publish(LockEvent("released", lock("x"), 1, None, 0, "released"))
    feed.reset(0, "missed")
    assert queued == subscribers + subscribers
