"""Messages of an untrusted channel: whatever they contain, memory is bounded and no stream breaks (EVENT-8)."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volcano_locks_server.events import peer_state
from volcano_locks_server.events.peer_messages import AHEAD_MS_MAX, AT_MS_MAX, parse
from volcano_locks_server.http.event_stream import encode
from volcano_locks_server.rules.values import FENCING_TOKEN_MAX
from volcano_locks_server.testing import START_MS, ManualClock

from .hub_nodes import PROJECT, lock, nodes, summaries, taken, turns

EVENT = ["event", "peer", "acquired", PROJECT, "x", 7, "web-1", START_MS, "free", START_MS + 30_000]
ENDED = ["event", "peer", "released", PROJECT, "x", 7, "web-1", START_MS, "released", None]
FORCED = ["event", "peer", "force_released", PROJECT, "x", 7, "web-1", START_MS, "forced", None, "it hangs"]
WAITING = ["event", "peer", "waiting", PROJECT, "x", None, "web-1", START_MS, "held", None]
FIELDS = ("tag", "node", "kind", "project_id", "key", "fencing_token", "holder", "at_ms", "why", "expires_at_ms")

numbers = st.one_of(
    st.integers(),
    st.integers(-2, 2),
    st.sampled_from([2**53 - 1, 2**53, 2**63, 10**30, START_MS, AT_MS_MAX, AT_MS_MAX + 1]),
    st.floats(),
)
texts = st.one_of(
    st.text(max_size=200), st.sampled_from(["", "x", PROJECT, "peer", "expired", "a\n\nevent: forged", "\x00"])
)
values = st.one_of(st.none(), st.booleans(), numbers, texts, st.lists(texts, max_size=2))
tags = st.sampled_from(["hear", "telling", "line", "freed", "event", "?"])
forged = st.one_of(
    st.binary(max_size=300),
    st.tuples(tags, st.lists(values, max_size=10)).map(lambda parts: [parts[0], *parts[1]]),
    st.tuples(st.sampled_from([EVENT, ENDED, WAITING, FORCED]), st.integers(0, 10), values).map(
        lambda parts: [parts[2] if place == parts[1] else value for place, value in enumerate(parts[0])]
    ),
)


def packed(message: Any) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(forged, min_size=1, max_size=8))
async def test_no_message_breaks_a_stream(messages: list[Any]) -> None:
    """EVENT-8, case 62: each event that reaches a stream can be sent, as a single event."""
    async with nodes(1, ManualClock()) as (bus, (node,)):
        watcher = await node.subscribe()
        for message in messages:
            bus.nodes[0].on_message(packed(message))
        await turns()
        for numbered in taken(watcher):
            block = encode(numbered)
            assert block.count(b"\n\n") == 1
            assert block.count(b"event: ") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", "n" * 65),
        ("node", "n\n"),
        ("project_id", ""),
        ("key", "k" * 129),
        ("key", "../x"),
        ("fencing_token", 0),
        ("fencing_token", FENCING_TOKEN_MAX + 1),
        ("fencing_token", None),
        ("holder", "a b"),
        ("holder", "h" * 129),
        ("at_ms", -1),
        ("at_ms", AT_MS_MAX),
        ("at_ms", START_MS + AHEAD_MS_MAX + 1),
        ("why", "a\nb"),
        ("why", "w" * 33),
        ("expires_at_ms", None),
        ("expires_at_ms", START_MS - 1),
        ("expires_at_ms", START_MS + 7_776_000_001),
    ],
)
async def test_an_event_with_a_field_outside_its_limits_is_ignored(field: str, value: object) -> None:
    """EVENT-8, case 62."""
    async with nodes(1, ManualClock()) as (bus, (node,)):
        watcher = await node.subscribe()
        changed = list(EVENT)
        changed[FIELDS.index(field)] = value
        bus.nodes[0].on_message(packed(changed))
        assert summaries(watcher) == []
        bus.nodes[0].on_message(packed(EVENT))
        assert summaries(watcher) == ["acquired x"]


@pytest.mark.parametrize("reason", ["r" * 201, "", "a\nb", "a\x1b[2Jb", "a\u202eb", "a\u200bb", "a\x85b", 7, ["r"]])
async def test_a_reason_outside_its_limits_is_ignored_with_its_event(reason: object) -> None:
    """EVENT-8, EVENT-10, case 62."""
    async with nodes(1, ManualClock()) as (bus, (node,)):
        watcher = await node.subscribe()
        bus.nodes[0].on_message(packed([*FORCED[:-1], reason]))
        bus.nodes[0].on_message(packed([*ENDED, "only a force release has a reason"]))
        assert summaries(watcher) == []
        bus.nodes[0].on_message(packed(FORCED))
        (received,) = taken(watcher)
        assert received.event is not None
        assert received.event.reason == "it hangs"


@pytest.mark.parametrize("waiters", [-1, 10_001, 2**70, 1.5])
def test_a_queue_length_outside_its_limits_is_ignored(waiters: object) -> None:
    """EVENT-8."""
    assert parse(packed(["line", "peer", PROJECT, "x", waiters])) is None


async def test_queues_of_made_up_nodes_and_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-8: a known node can still change its queue length."""
    monkeypatch.setattr(peer_state, "PEER_QUEUES_MAX", 50)
    monkeypatch.setattr(peer_state, "PEERS_MAX", 20)
    async with nodes(1, ManualClock()) as (bus, (node,)):
        receive = bus.nodes[0].on_message
        receive(packed(["line", "real", PROJECT, "x", 3]))
        for number in range(200):
            receive(packed(["line", f"made-up-{number}", PROJECT, "x", 1]))
            receive(packed(["line", "made-up", PROJECT, f"x-{number}", 1]))
            receive(packed(["hear", f"made-up-{number}", True, True, False]))
        receive(packed(["line", "real", PROJECT, "x", 0]))
        peers = node.hub._peers
        assert peers is not None
        state = peers._state
        assert state._queue_count == sum(map(len, state._queues.values())) <= 50
        assert len(state._interests) <= 20
        assert node.hub.waiters(lock("x")) < 50
