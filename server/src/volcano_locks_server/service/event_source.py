"""Connects the wait queues and batches of a service to its event hub.

While no event is wanted, batches record none, so events cost nothing when there are no subscribers (EVENT-6).
"""

from typing import Final

from ..events import EventHub, LockEvent, lock_events
from ..ports.clock import Clock
from ..ports.lock_store import LockStore, RecordKey
from ..ports.signals import Signals
from ..queue.node_queues import WaitQueues
from ..queue.waiter import Waiter
from ..queue.waiter_table import RemovalReason
from ..rules.lease import Command, LockRecord, Outcome, RevokeGrant


class EventRecorder:
    """The events of one run of a batch's step (`handoff.CommandRecorder`)."""

    def __init__(self, hub: EventHub) -> None:
        self._hub: Final = hub
        self._events: Final[list[LockEvent]] = []

    def record(
        self,
        key: RecordKey,
        command: Command,
        before: LockRecord | None,
        after: LockRecord | None,
        outcome: Outcome | None,
        *,
        now_ms: int,
        waiter: Waiter | None,
    ) -> None:
        if outcome is None:
            return
        waited = waiter is not None and waiter.announced
        why = "waited" if waited else "given_back" if isinstance(command, RevokeGrant) else None
        self._events.extend(lock_events(key, command, before, after, outcome, now_ms=now_ms, why=why))

    def publish(self) -> None:
        if self._hub.live:
            self._hub.publish(self._events)


def connected_hub(store: LockStore, clock: Clock, queues: WaitQueues, signals: Signals | None) -> EventHub:
    """The event hub of a service with these wait queues."""
    hub = EventHub(store, clock, queues, signals=signals)

    def set_live(live: bool) -> None:
        queues.new_recorder = (lambda: EventRecorder(hub)) if live else None

    def waiting(lock: RecordKey, holder: str | None) -> None:
        hub.queue_changed(lock)
        if hub.live:
            hub.publish((LockEvent("waiting", lock, None, holder, clock.now_ms(), "held"),))

    def removed(lock: RecordKey, holder: str | None, reason: RemovalReason) -> None:
        hub.queue_changed(lock)
        if hub.live and reason != "granted":
            hub.publish((LockEvent("gave_up", lock, None, holder, clock.now_ms(), reason),))

    hub.on_live = set_live
    queues.table.on_waiting, queues.table.on_removed = waiting, removed
    queues.fairness.others_wait = hub.others_wait
    return hub
