"""The reason of a force release in the messages between nodes, of this release and of 0.1.0 (EVENT-8, EVENT-10)."""

from typing import Annotated

import msgspec
import pytest

from volcano_locks_server.events import LockEvent, peer_messages
from volcano_locks_server.events.event import Kind
from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.ports.signals import SIGNAL_BYTES_MAX
from volcano_locks_server.rules.values import (
    FENCING_TOKEN_MAX,
    HOLDER_LENGTH_MAX,
    KEY_LENGTH_MAX,
    REASON_LENGTH_MAX,
    LockKey,
)
from volcano_locks_server.testing import START_MS

LOCK = RecordKey("6f1f1c3e-6d4e-4c55-9b6b-4a5b6b1c2d3e", LockKey("k" * KEY_LENGTH_MAX))


class EventMessageOf010(msgspec.Struct, array_like=True, frozen=True, tag="event"):
    """`EventMessage` as released with 0.1.0, with the checks of EVENT-8."""

    node: str
    kind: Kind
    project_id: str
    key: str
    fencing_token: Annotated[int, msgspec.Meta(ge=1, le=FENCING_TOKEN_MAX)] | None
    holder: str | None
    at_ms: int
    why: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,32}\Z")]
    expires_at_ms: int | None


def forced(reason: str | None) -> LockEvent:
    holder = '"' * HOLDER_LENGTH_MAX
    return LockEvent("force_released", LOCK, FENCING_TOKEN_MAX, holder, START_MS, "forced", reason=reason)


@pytest.mark.parametrize("reason", [None, "it hangs", '"' * REASON_LENGTH_MAX, "\U0010ffff" * REASON_LENGTH_MAX])
def test_a_reason_arrives_at_every_node(reason: str | None) -> None:
    """EVENT-10: the longest message fits, and a node of 0.1.0 understands all of it but the reason."""
    sent = peer_messages.encode(peer_messages.message_of("n" * peer_messages.ID_LENGTH_MAX, forced(reason)))
    assert len(sent) <= SIGNAL_BYTES_MAX
    message = peer_messages.parse(sent)
    assert isinstance(message, peer_messages.EventMessage)
    assert peer_messages.event_of(message, START_MS) == forced(reason)
    old = msgspec.json.decode(sent, type=EventMessageOf010)
    assert (old.kind, old.fencing_token, old.why, old.expires_at_ms) == (
        "force_released", FENCING_TOKEN_MAX, "forced", None,
    )  # fmt: skip


def test_the_event_of_a_node_of_010_has_no_reason() -> None:
    """EVENT-10."""
    old = EventMessageOf010("node", "force_released", LOCK.project_id, "x", 7, None, START_MS, "forced", None)
    message = peer_messages.parse(msgspec.json.encode(old))
    assert isinstance(message, peer_messages.EventMessage)
    event = peer_messages.event_of(message, START_MS)
    assert event is not None
    assert event.reason is None
