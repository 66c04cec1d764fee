"""Shares of projects in streams, kept events and watched leases (EVENT-9): one project never silences another."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from volcano_locks_server.events import Subscriber, stream_turns, unwatched
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, Release
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .hub_nodes import MINE, PROJECT, Node, advance, summaries, timers, turns

GREEDY, MODEST = "greedy", PROJECT
TAKE = Acquire(MINE, 30)
OVER_MS = 30_000 + GRACE_MS


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


async def refusal(node: Node, project_id: str) -> tuple[str, int | None]:
    with pytest.raises(LockError) as refused:
        await node.hub.subscribe(Subscriber(project_id))
    return refused.value.code, refused.value.retry_after_seconds


async def test_a_project_has_a_share_of_the_streams(node: Node) -> None:
    """EVENT-9, case 61: half for one project, a quarter while more than half is in use; then 503 for all."""
    node.budgets.streams.limit = 4
    greedy = [await node.subscribe(project_id=GREEDY) for _ in range(2)]
    assert await refusal(node, GREEDY) == ("too_many_streams", 1)
    await node.subscribe()
    assert await refusal(node, MODEST) == ("too_many_streams", 1)
    node.hub.unsubscribe(greedy.pop())
    await node.subscribe()
    assert await refusal(node, GREEDY) == ("too_many_streams", 1)
    await node.subscribe(project_id="third")
    assert await refusal(node, "fourth") == ("lock_service_unavailable", 1)
    assert node.hub.subscriber_count == 4


async def test_many_streams_of_a_project_get_their_events_in_turns(node: Node, clock: ManualClock) -> None:
    """EVENT-9: at most 10 wake up in 10 ms, those that have waited for longest first, and none misses an event."""
    streams = [await node.subscribe(project_id=GREEDY) for _ in range(stream_turns.STREAMS_AT_ONCE + 5)]
    takes = [asyncio.create_task(stream.take()) for stream in streams]
    modest = asyncio.create_task((await node.subscribe()).take())
    await node.perform("a", TAKE, GREEDY)
    await node.perform("a", TAKE)
    await turns()
    assert modest.done(), "streams of other projects do not wait"
    assert not any(take.done() for take in takes)
    await advance(clock, stream_turns.TURN_MS)
    assert [take.done() for take in takes] == [True] * 10 + [False] * 45
    again = asyncio.create_task(streams[0].take())
    await node.perform("a", Release(MINE), GREEDY)
    for _ in range(5):
        await advance(clock, stream_turns.TURN_MS)
    assert all(take.done() for take in takes)
    assert [len(await take) for take in takes] == [1] * 10 + [2] * 45
    assert again.done()
    node.hub.unsubscribe(streams[20])
    await advance(clock, stream_turns.TURN_MS)
    assert timers(clock) == 1, "the end of the lease that the modest project watches"


async def test_the_events_of_one_project_displace_its_own(node: Node) -> None:
    """EVENT-9: a client of a quiet project resumes from an old id, however many events the others have."""
    node.budgets.kept_events.limit = 8
    modest = (await node.subscribe()).began_at
    await node.perform_batch([("a", TAKE), ("a", Release(MINE))], MODEST)
    greedy = (await node.subscribe(project_id=GREEDY)).began_at
    for number in range(20):
        await node.perform(f"k{number}", TAKE, GREEDY)
    assert summaries(await node.subscribe(after=modest)) == ["acquired a", "released a"]
    assert summaries(await node.subscribe(after=greedy, project_id=GREEDY)) == ["reset too_old"]
    assert node.budgets.kept_events.used_by(GREEDY) == 3
    for project_id in ("third", "fourth"):
        await node.subscribe(project_id=project_id)
        await node.perform_batch([("a", TAKE), ("b", TAKE), ("c", TAKE)], project_id)
    assert node.budgets.kept_events.used == 8
    fifth = (await node.subscribe(project_id="fifth")).began_at
    await node.perform("a", TAKE, "fifth")
    assert summaries(await node.subscribe(after=fifth, project_id="fifth")) == ["acquired a"]
    assert node.budgets.kept_events.used == 8


async def test_kept_events_are_given_back(node: Node, clock: ManualClock) -> None:
    """EVENT-5, EVENT-9: when a reset drops them, and when the feed of their project ends."""
    watcher = await node.subscribe()
    await node.perform_batch([("a", TAKE), ("b", TAKE)])
    node.hub._missed()
    await turns()
    assert node.budgets.kept_events.used == 0
    await node.perform("a", Release(MINE))
    node.hub.unsubscribe(watcher)
    await advance(clock, 60_000)
    assert [budget.used for budget in node.budgets] == [0] * len(list(node.budgets))


async def test_the_leases_of_one_project_do_not_silence_another(node: Node, clock: ManualClock) -> None:
    """EVENT-3, EVENT-9, case 61: listed ones and new ones."""
    node.budgets.watched_leases.limit = 8
    await node.perform_batch([(f"early{number}", TAKE) for number in range(10)], GREEDY)
    await node.subscribe(project_id=GREEDY)
    await node.perform_batch([(f"late{number}", TAKE) for number in range(10)], GREEDY)
    assert node.budgets.watched_leases.used_by(GREEDY) == 4
    modest = await node.subscribe()
    await node.perform_batch([("a", TAKE), ("b", TAKE)], MODEST)
    await advance(clock, OVER_MS)
    assert summaries(modest) == ["acquired a", "acquired b", "expired a", "expired b"]


async def test_streams_of_leases_that_are_not_watched_get_resets(node: Node, clock: ManualClock) -> None:
    """EVENT-9: at most every ten seconds, until all leases of the project are watched; no other project gets one."""
    node.budgets.watched_leases.limit = 4
    modest = await node.subscribe()
    greedy = await node.subscribe(project_id=GREEDY)
    await node.perform_batch([(key, TAKE) for key in "abcd"], GREEDY)
    await turns()
    assert summaries(greedy) == [*(f"acquired {key}" for key in "abcd"), "reset missed"]
    await advance(clock, unwatched.RESETS_APART_MS - 1)
    await node.perform("e", TAKE, GREEDY)
    assert summaries(greedy) == ["acquired e"]
    await advance(clock, 1)
    assert summaries(greedy) == ["reset missed"]
    for key in "abc":
        await node.perform(key, Release(MINE), GREEDY)
    await advance(clock, unwatched.RESETS_APART_MS)
    assert summaries(greedy) == ["released a", "released b", "released c", "reset missed"]
    await advance(clock, unwatched.RESETS_APART_MS)
    assert summaries(greedy) == [], "all of its leases are watched, so no other reset is due"
    await advance(clock, OVER_MS)
    assert summaries(greedy) == ["expired d", "expired e"]
    assert summaries(modest) == []


async def test_a_new_feed_with_too_many_leases_gets_resets(node: Node, clock: ManualClock) -> None:
    """EVENT-9: for leases from before the stream began."""
    node.budgets.watched_leases.limit = 2
    await node.perform_batch([(key, TAKE) for key in "abc"])
    watcher = await node.subscribe()
    await turns()
    assert summaries(watcher) == ["reset missed"]
    node.hub.unsubscribe(watcher)
    await advance(clock, 60_000)
    assert node.budgets.watched_leases.used == 0


async def test_projects_take_turns_while_their_leases_are_listed(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-3, EVENT-9: the many leases of one project do not delay the list of another."""
    monkeypatch.setattr("volcano_locks_server.events.hub.LIST_LIMIT", 1)
    await node.perform_batch([(f"k{number}", TAKE) for number in range(10)], GREEDY)
    await node.perform("a", TAKE)
    listed: list[str] = []
    list_locks = node.store.list_locks

    async def recorded(query):  # type: ignore[no-untyped-def]
        listed.append(query.project_id)
        return await list_locks(query)

    monkeypatch.setattr(node.store, "list_locks", recorded)
    first, second = Subscriber(GREEDY), Subscriber(MODEST)
    await node.hub.subscribe(first)
    await node.hub.subscribe(second)
    while not node.hub.is_idle:
        await turns()
    assert listed.index(MODEST) < 3
    assert listed.count(GREEDY) >= 10
