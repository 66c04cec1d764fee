"""Several nodes over one store: what happens on one is told on the others, and wakes the lines there."""

import json

import pytest

from volcano_locks_server.events import hub, peer_state, peers
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, Release, Renew
from volcano_locks_server.testing import ManualClock, SignalBus

from .hub_nodes import MINE, OTHER, lock, moved, nodes, taken, timers, turns, until, words

TAKE = Acquire(MINE, 30, "host/1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def overheard(bus: SignalBus) -> list[list[object]]:
    """What goes over the bus from now on, in a list that grows."""
    said: list[list[object]] = []
    first = bus.nodes[0]
    heard = first.heard

    def hear(message: bytes) -> None:
        said.append(json.loads(message))
        heard(message)

    first.heard = hear
    return said


async def test_events_of_one_node_are_told_at_the_others(clock: ManualClock) -> None:
    """EVENT-4: from the moment the stream begins, with the same fields, once each."""
    async with nodes(3, clock) as (_, (a, b, c)):
        watchers = [await one.watch(prefix="n") for one in (a, b)]
        await b.do("nightly", TAKE)
        await c.do("nightly", Renew(MINE, 60))
        await turns()
        await a.do("nightly", Release(MINE))
        await c.do("other", TAKE)
        await turns()
        told = [[one.event for one in taken(watcher)] for watcher in watchers]
        assert told[0] == told[1]
        assert [one.kind for one in told[0] if one is not None] == ["acquired", "renewed", "released"]


async def test_an_end_is_told_once_at_each_node(clock: ManualClock) -> None:
    """EVENT-3, EVENT-4: wherever it was acquired, renewed and taken over."""
    async with nodes(2, clock) as (_, (a, b)):
        watchers = [await one.watch() for one in (a, b)]
        await a.do("x", Acquire(MINE, 5))
        await turns()
        await moved(clock, 3_000)
        await b.do("x", Renew(MINE, 5))
        await turns()
        await moved(clock, 5_000 + GRACE_MS - 1)
        assert [words(watcher) for watcher in watchers] == [["acquired x", "renewed x"]] * 2
        await moved(clock, 1)
        await a.do("x", Acquire(OTHER, 5))
        await turns()
        assert [words(watcher) for watcher in watchers] == [["expired x", "acquired x"]] * 2


async def test_nodes_that_nobody_wants_to_hear_are_silent(clock: ManualClock) -> None:
    """EVENT-6: nothing is told but to who asked, and no longer than they want it."""
    async with nodes(2, clock) as (bus, (a, b)):
        said = overheard(bus)
        await a.do("x", TAKE)
        await turns()
        assert (said, a.hub.live, b.hub.live) == ([], False, False)
        watcher = await b.watch()
        assert a.hub.live
        await a.do("x", Release(MINE))
        await turns()
        assert [one[0] for one in said] == ["hear", "telling", "event"]
        b.hub.unsubscribe(watcher)
        await moved(clock, hub.LINGER_MS)
        await turns()
        assert not a.hub.live
        del said[:]
        await a.do("x", Acquire(OTHER, 5))
        await turns()
        assert said == []
        await moved(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert timers(clock) == 0


async def test_a_silent_node_is_forgotten(clock: ManualClock) -> None:
    """EVENT-6: one that died while somebody watched there."""
    async with nodes(2, clock) as (bus, (a, b)):
        await b.watch()
        b.queues.waiting[lock("x")] = 2
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        assert a.hub.live
        bus.loses = True
        for _ in range(5):
            await moved(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert (a.hub.others_wait(lock("x")), a.hub.live) == (False, True)
        await moved(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert not a.hub.live


async def test_interest_is_said_again_for_as_long_as_it_lasts(clock: ManualClock) -> None:
    """EVENT-4, WAIT-10."""
    async with nodes(2, clock) as (_, (a, b)):
        watcher = await b.watch()
        b.queues.waiting[lock("x")] = 2
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        for _ in range(30):
            await moved(clock, peers.QUEUE_LENGTHS_EVERY_MS)
            await turns()
            assert (a.hub.live, a.hub.waiters(lock("x"))) == (True, 2)
        await a.do("x", TAKE)
        await turns()
        assert words(watcher) == ["acquired x"]


async def test_a_lock_that_is_freed_wakes_the_lines_of_others(clock: ManualClock) -> None:
    """WAIT-10: of that lock alone, and only where it stayed free."""
    async with nodes(3, clock) as (_, (a, b, c)):
        await a.do("x", TAKE)
        b.queues.waiting[lock("x")] = 1
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        del b.queues.rechecked[:]
        await a.do_all([("x", Release(MINE)), ("x", Acquire(OTHER, 30)), ("y", TAKE), ("y", Release(MINE))])
        await turns()
        assert b.queues.rechecked == []
        await a.do("x", Release(OTHER))
        await turns()
        assert b.queues.rechecked == [lock("x")]
        assert lock("x") not in a.queues.rechecked + c.queues.rechecked


async def test_how_many_wait_is_known_everywhere(clock: ManualClock) -> None:
    """LIST-3, WAIT-10: one's own line and those of the others."""
    async with nodes(2, clock) as (_, (a, b)):
        for node, count in ((a, 1), (b, 3)):
            node.queues.waiting[lock("x")] = count
            node.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.waiters(lock("x")) == b.hub.waiters(lock("x")) == 4)
        assert a.hub.others_wait(lock("x"))
        assert not a.hub.others_wait(lock("y"))
        b.queues.waiting[lock("x")] = 0
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.waiters(lock("x")) == 1)
        assert not a.hub.others_wait(lock("x"))


async def test_who_comes_back_to_a_kept_place_is_known_of_again(clock: ManualClock) -> None:
    """WAIT-6, WAIT-10: else the others would grant to their own lines for ever."""
    async with nodes(2, clock) as (_, (a, b)):
        b.queues.waiting[lock("x")] = 1
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        b.queues.waiting[lock("x")] = 0  # a pause between two waits, and the place is kept
        await moved(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert not a.hub.others_wait(lock("x"))
        b.queues.waiting[lock("x")] = 1
        await moved(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert a.hub.others_wait(lock("x"))
        await moved(clock, peers.WAITS_KEPT_MS + peer_state.INTEREST_VALID_MS)
        await a.do("x", TAKE)
        del b.queues.rechecked[:]
        await a.do("x", Release(MINE))
        await turns()
        assert b.queues.rechecked == [lock("x")]


async def test_a_node_that_stops_takes_back_what_it_said(clock: ManualClock) -> None:
    """WAIT-10, EVENT-6: the others need not wait for its silence, also where its line ended this moment."""
    async with nodes(2, clock) as (_, (a, b)):
        await b.watch()
        for key in ("x", "y"):
            b.queues.waiting[lock(key)] = 2
            b.hub.queue_changed(lock(key))
        await until(lambda: a.hub.others_wait(lock("x")) and a.hub.others_wait(lock("y")))
        b.queues.waiting.clear()
        b.hub.queue_changed(lock("x"))
        await b.hub.close()
        await turns()
        assert not a.hub.others_wait(lock("x"))
        assert not a.hub.others_wait(lock("y"))
        assert not a.hub.live


async def test_a_line_that_begins_looks_once_the_others_know_of_it(clock: ManualClock) -> None:
    """WAIT-10: what was freed before they knew was not told."""
    async with nodes(2, clock) as (_, (_, b)):
        b.queues.waiting[lock("x")] = 1
        b.hub.queue_changed(lock("x"))
        assert b.queues.rechecked == []
        await turns()
        assert b.queues.rechecked == [None]


async def test_what_may_be_missing_is_told_as_a_reset_and_looked_for(clock: ManualClock) -> None:
    """EVENT-5, WAIT-10: at most every ten seconds, and leases acquired meanwhile still end in time."""
    async with nodes(2, clock) as (bus, (a, b)):
        watcher = await b.watch()
        bus.loses = True
        await a.do("x", TAKE)
        await turns()
        bus.loses = False
        del b.queues.rechecked[:]
        bus.miss()
        await turns()
        assert words(watcher) == ["reset missed"]
        assert b.queues.rechecked == [None]
        bus.miss()
        bus.miss()
        await turns()
        assert words(watcher) == []
        await moved(clock, hub.RESETS_APART_MS)
        assert words(watcher) == ["reset missed"]
        await moved(clock, 30_000 + GRACE_MS - hub.RESETS_APART_MS)
        assert words(watcher) == ["expired x"]


async def test_a_node_that_comes_later_learns_what_is_wanted(clock: ManualClock) -> None:
    """EVENT-4, EVENT-5: and the watchers are told that it may have done something before."""
    async with nodes(3, clock) as (bus, (a, b, late)):
        gone = bus.nodes.pop()
        watcher = await b.watch()
        await late.do("x", TAKE)
        assert not late.hub.live
        bus.nodes.append(gone)
        gone.missed()
        await turns()
        assert late.hub.live
        assert words(watcher) == ["reset missed"]
        await late.do("x", Release(MINE))
        await turns()
        assert words(watcher) == ["released x"]
        assert a.hub.live


async def test_events_that_were_overtaken_are_not_told(clock: ManualClock) -> None:
    """EVENT-4: a renewal that is heard after the release of its lease brings nothing back."""
    async with nodes(2, clock) as (bus, (a, b)):
        watcher = await b.watch()
        await a.do("x", Acquire(MINE, 5))
        await turns()
        held_back: list[bytes] = []
        hear = bus.nodes[1].heard
        bus.nodes[1].heard = held_back.append
        await a.do("x", Renew(MINE, 5))
        await turns()
        bus.nodes[1].heard = hear
        await b.do("x", Release(MINE))
        for message in held_back:
            hear(message)
        await moved(clock, 10_000)
        assert words(watcher) == ["acquired x", "released x"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b'["event"]',
        b'["nobody","n"]',
        b'["hear",1,2,3,4]',
        b'["line","n","project","../x",1]',
        b'["line","n","project","x",-1]',
        b'["freed","n","project",""]',
        b'["event","n","acquired","project","not a key",1,null,1,"free",2]',
        b'["event","n","shouted","project","x",1,null,1,"free",2]',
        b"[" * 10_000,
    ],
)
async def test_strange_messages_are_passed_over(clock: ManualClock, message: bytes) -> None:
    """EVENT-4: of another release, or of a stranger."""
    async with nodes(2, clock) as (bus, (a, b)):
        watcher = await b.watch()
        bus.nodes[0].heard(message)
        bus.nodes[1].heard(message)
        await a.do("x", TAKE)
        await turns()
        assert words(watcher) == ["acquired x"]
        assert a.hub.waiters(lock("x")) == 0


async def test_no_message_holds_a_digest(clock: ManualClock) -> None:
    """LEASE-15, EVENT-2."""
    async with nodes(2, clock) as (bus, (a, b)):
        said = overheard(bus)
        await b.watch()
        await a.do_all([("x", TAKE), ("x", Renew(MINE, 30)), ("x", Release(MINE))])
        await turns()
        assert len(said) == 5
        assert "mmm" not in repr(said)
