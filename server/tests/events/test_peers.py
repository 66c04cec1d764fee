"""Peers: events, freed locks and queue lengths travel between nodes over one store."""

import json

import pytest
from testsupport.server_ports import SignalBus

from volcano_locks_server.events import hub, peer_state, peers
from volcano_locks_server.rules.lease import GRACE_MS, Acquire, Release, Renew
from volcano_locks_server.testing import ManualClock

from .hub_nodes import MINE, OTHER, advance, lock, nodes, summaries, taken, timers, turns, until

TAKE = Acquire(MINE, 30, "host/1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def recorded_messages(bus: SignalBus) -> list[list[object]]:
    """The messages on the bus from now on, in a list that grows."""
    sent: list[list[object]] = []
    first = bus.nodes[0]
    on_message = first.on_message

    def record(message: bytes) -> None:
        sent.append(json.loads(message))
        on_message(message)

    first.on_message = record
    return sent


async def test_events_of_one_node_reach_subscribers_of_the_others(clock: ManualClock) -> None:
    """EVENT-4: from the beginning of the stream, with the same fields, once each."""
    async with nodes(3, clock) as (_, (a, b, c)):
        subscribers = [await one.subscribe(prefix="n") for one in (a, b)]
        await b.perform("nightly", TAKE)
        await c.perform("nightly", Renew(MINE, 60))
        await turns()
        await a.perform("nightly", Release(MINE))
        await c.perform("other", TAKE)
        await turns()
        events = [[numbered.event for numbered in taken(watcher)] for watcher in subscribers]
        assert events[0] == events[1]
        assert [event.kind for event in events[0] if event is not None] == ["acquired", "renewed", "released"]


async def test_an_expiry_is_published_once_on_each_node(clock: ManualClock) -> None:
    """EVENT-3, EVENT-4: no matter on which nodes the lease was acquired, renewed and taken over."""
    async with nodes(2, clock) as (_, (a, b)):
        subscribers = [await one.subscribe() for one in (a, b)]
        await a.perform("x", Acquire(MINE, 5))
        await turns()
        await advance(clock, 3_000)
        await b.perform("x", Renew(MINE, 5))
        await turns()
        await advance(clock, 5_000 + GRACE_MS - 1)
        assert [summaries(watcher) for watcher in subscribers] == [["acquired x", "renewed x"]] * 2
        await advance(clock, 1)
        await a.perform("x", Acquire(OTHER, 5))
        await turns()
        assert [summaries(watcher) for watcher in subscribers] == [["expired x", "acquired x"]] * 2


async def test_nodes_send_nothing_that_no_peer_wants(clock: ManualClock) -> None:
    """EVENT-6: messages end when no peer wants them any longer."""
    async with nodes(2, clock) as (bus, (a, b)):
        sent = recorded_messages(bus)
        await a.perform("x", TAKE)
        await turns()
        assert (sent, a.hub.live, b.hub.live) == ([], False, False)
        watcher = await b.subscribe()
        assert a.hub.live
        await a.perform("x", Release(MINE))
        await turns()
        assert [one[0] for one in sent] == ["hear", "telling", "event"]
        b.hub.unsubscribe(watcher)
        await advance(clock, hub.LINGER_MS)
        await turns()
        assert not a.hub.live
        del sent[:]
        await a.perform("x", Acquire(OTHER, 5))
        await turns()
        assert sent == []
        await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert timers(clock) == 0


async def test_a_silent_peer_is_forgotten(clock: ManualClock) -> None:
    """EVENT-6: a node that died while it had subscribers."""
    async with nodes(2, clock) as (bus, (a, b)):
        await b.subscribe()
        b.queues.waiting[lock("x")] = 2
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        assert a.hub.live
        bus.loses = True
        for _ in range(5):
            await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert (a.hub.others_wait(lock("x")), a.hub.live) == (False, True)
        await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert not a.hub.live


async def test_interest_is_repeated_for_as_long_as_it_lasts(clock: ManualClock) -> None:
    """EVENT-4, WAIT-10."""
    async with nodes(2, clock) as (_, (a, b)):
        watcher = await b.subscribe()
        b.queues.waiting[lock("x")] = 2
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        for _ in range(30):
            await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
            await turns()
            assert (a.hub.live, a.hub.waiters(lock("x"))) == (True, 2)
        await a.perform("x", TAKE)
        await turns()
        assert summaries(watcher) == ["acquired x"]


async def test_a_freed_lock_is_rechecked_by_its_waiting_peers(clock: ManualClock) -> None:
    """WAIT-10: that lock alone, and only if it stayed free."""
    async with nodes(3, clock) as (_, (a, b, c)):
        await a.perform("x", TAKE)
        b.queues.waiting[lock("x")] = 1
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        del b.queues.rechecked[:]
        await a.perform_batch([("x", Release(MINE)), ("x", Acquire(OTHER, 30)), ("y", TAKE), ("y", Release(MINE))])
        await turns()
        assert b.queues.rechecked == []
        await a.perform("x", Release(OTHER))
        await turns()
        assert b.queues.rechecked == [lock("x")]
        assert lock("x") not in a.queues.rechecked + c.queues.rechecked


async def test_queue_lengths_are_known_on_every_node(clock: ManualClock) -> None:
    """LIST-3, WAIT-10: of the node's own queue and of its peers' queues."""
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


async def test_queue_lengths_are_sent_in_the_order_in_which_the_queues_changed(clock: ManualClock) -> None:
    """WAIT-10: at once and when they are repeated, whatever the hashes of the keys are."""
    async with nodes(2, clock) as (bus, (_, b)):
        sent = recorded_messages(bus)
        keys = [f"lock-{number}" for number in (7, 3, 9, 1, 8, 2, 6, 4)]
        for key in keys:
            b.queues.waiting[lock(key)] = 1
            b.hub.queue_changed(lock(key))
        await until(lambda: sum(message[0] == "line" for message in sent) == len(keys))
        await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert [message[3] for message in sent if message[0] == "line"] == keys + keys


async def test_a_rejoined_kept_waiter_is_announced_to_peers_again(clock: ManualClock) -> None:
    """WAIT-6, WAIT-10: otherwise its peers would never yield to it."""
    async with nodes(2, clock) as (_, (a, b)):
        b.queues.waiting[lock("x")] = 1
        b.hub.queue_changed(lock("x"))
        await until(lambda: a.hub.others_wait(lock("x")))
        b.queues.waiting[lock("x")] = 0  # a pause between two waits; the waiter is kept
        await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert not a.hub.others_wait(lock("x"))
        b.queues.waiting[lock("x")] = 1
        await advance(clock, peers.QUEUE_LENGTHS_EVERY_MS)
        assert a.hub.others_wait(lock("x"))
        await advance(clock, peers.WAITS_KEPT_MS + peer_state.INTEREST_VALID_MS)
        await a.perform("x", TAKE)
        del b.queues.rechecked[:]
        await a.perform("x", Release(MINE))
        await turns()
        assert b.queues.rechecked == [lock("x")]


async def test_a_node_that_stops_withdraws_what_it_sent(clock: ManualClock) -> None:
    """WAIT-10, EVENT-6: peers need not wait until it expires, even if a queue of the node ended just now."""
    async with nodes(2, clock) as (_, (a, b)):
        await b.subscribe()
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


async def test_a_new_queue_is_rechecked_once_its_peers_know_of_it(clock: ManualClock) -> None:
    """WAIT-10: peers sent no message about locks that were freed before that."""
    async with nodes(2, clock) as (_, (_, b)):
        b.queues.waiting[lock("x")] = 1
        b.hub.queue_changed(lock("x"))
        assert b.queues.rechecked == []
        await turns()
        assert b.queues.rechecked == [None]


async def test_lost_messages_cause_a_reset_and_a_recheck(clock: ManualClock) -> None:
    """EVENT-5, WAIT-10: at most every ten seconds; leases acquired meanwhile still expire in time."""
    async with nodes(2, clock) as (bus, (a, b)):
        watcher = await b.subscribe()
        bus.loses = True
        await a.perform("x", TAKE)
        await turns()
        bus.loses = False
        del b.queues.rechecked[:]
        bus.miss()
        await turns()
        assert summaries(watcher) == ["reset missed"]
        assert b.queues.rechecked == [None]
        bus.miss()
        bus.miss()
        await turns()
        assert summaries(watcher) == []
        await advance(clock, hub.RESETS_APART_MS)
        assert summaries(watcher) == ["reset missed"]
        await advance(clock, 30_000 + GRACE_MS - hub.RESETS_APART_MS)
        assert summaries(watcher) == ["expired x"]


async def test_a_peer_that_vanishes_causes_a_reset(clock: ManualClock) -> None:
    """EVENT-4: once, within 30 seconds. It may have committed what it did not publish; one that stops has not."""
    async with nodes(3, clock) as (bus, (a, b, c)):
        watcher = await a.subscribe()
        for _ in range(4):
            await advance(clock, 5_000)
        await b.hub.close()
        del bus.nodes[1]
        for _ in range(8):
            await advance(clock, 5_000)
        assert summaries(watcher) == []
        bus.nodes.pop()  # c is killed, between its commit and the event
        await c.perform("x", Acquire(MINE, 60))
        for _ in range(6):
            await advance(clock, 5_000)
        assert summaries(watcher) == ["reset missed"]
        for _ in range(8):
            await advance(clock, 5_000)
        assert summaries(watcher) == ["expired x"]


async def test_a_node_that_joins_later_learns_what_its_peers_want(clock: ManualClock) -> None:
    """EVENT-4, EVENT-5: subscribers get a reset for what the node did before."""
    async with nodes(3, clock) as (bus, (a, b, late)):
        gone = bus.nodes.pop()
        watcher = await b.subscribe()
        await late.perform("x", TAKE)
        assert not late.hub.live
        bus.nodes.append(gone)
        gone.on_missed()
        await turns()
        assert late.hub.live
        assert summaries(watcher) == ["reset missed"]
        await late.perform("x", Release(MINE))
        await turns()
        assert summaries(watcher) == ["released x"]
        assert a.hub.live


async def test_overtaken_events_are_not_published(clock: ManualClock) -> None:
    """EVENT-4: a renewal that arrives after the release of its lease."""
    async with nodes(2, clock) as (bus, (a, b)):
        watcher = await b.subscribe()
        await a.perform("x", Acquire(MINE, 5))
        await turns()
        held_back: list[bytes] = []
        receive = bus.nodes[1].on_message
        bus.nodes[1].on_message = held_back.append
        await a.perform("x", Renew(MINE, 5))
        await turns()
        bus.nodes[1].on_message = receive
        await b.perform("x", Release(MINE))
        for message in held_back:
            receive(message)
        await advance(clock, 10_000)
        assert summaries(watcher) == ["acquired x", "released x"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b'["event"]',
        b'["unknown","n"]',
        b'["hear",1,2,3,4]',
        b'["line","n","project","../x",1]',
        b'["line","n","project","x",-1]',
        b'["freed","n","project",""]',
        b'["event","n","acquired","project","not a key",1,null,1,"free",2]',
        b'["event","n","shouted","project","x",1,null,1,"free",2]',
        b"[" * 10_000,
    ],
)
async def test_unknown_messages_are_ignored(clock: ManualClock, message: bytes) -> None:
    """EVENT-4: of another release, or forged."""
    async with nodes(2, clock) as (bus, (a, b)):
        watcher = await b.subscribe()
        bus.nodes[0].on_message(message)
        bus.nodes[1].on_message(message)
        await a.perform("x", TAKE)
        await turns()
        assert summaries(watcher) == ["acquired x"]
        assert a.hub.waiters(lock("x")) == 0


async def test_no_message_holds_a_digest(clock: ManualClock) -> None:
    """LEASE-15, EVENT-2."""
    async with nodes(2, clock) as (bus, (a, b)):
        sent = recorded_messages(bus)
        await b.subscribe()
        await a.perform_batch([("x", TAKE), ("x", Renew(MINE, 30)), ("x", Release(MINE))])
        await turns()
        assert len(sent) == 5
        assert "mmm" not in repr(sent)
