"""Connects the wait queues and batches of a service to its event hub.

While no event is wanted, batches record none, so events cost nothing when there are no subscribers (EVENT-6).
"""

from ..events import EventHub, LockEvent, lock_events
from ..ports.clock import Clock
from ..ports.lock_store import LockStore, RecordKey
from ..ports.signals import Signals
from ..queue.handoff import LockChange
from ..queue.node_queues import WaitQueues
from ..queue.waiter_table import RemovalReason
from ..rules.lease import Refused, Release, RevokeGrant
from ..rules.shares import Budgets
from .activity import Activity


def connected_hub(
    store: LockStore,
    clock: Clock,
    queues: WaitQueues,
    signals: Signals | None,
    budgets: Budgets,
    *,
    activity: Activity,
) -> EventHub:
    """The event hub of a service with these wait queues. `activity` counts the waits."""
    hub = EventHub(store, clock, queues, signals=signals, budgets=budgets)

    def set_live(live: bool) -> None:
        queues.on_changes = publish_changes if live else None

    def publish_changes(changes: list[LockChange]) -> None:
        if hub.live:
            hub.publish([event for change in changes for event in _events(change)])
            for change in changes:
                if isinstance(change.command, Release) and isinstance(change.outcome, Refused):
                    hub.token_withdrawn(change.key)

    def waiting(lock: RecordKey, holder: str | None) -> None:
        activity.queued(lock, clock.now_ms())
        hub.queue_changed(lock)
        if hub.live:
            hub.publish((LockEvent("waiting", lock, None, holder, clock.now_ms(), "held"),))

    def removed(lock: RecordKey, holder: str | None, reason: RemovalReason) -> None:
        if reason == "granted":
            activity.handed_off(lock, clock.now_ms())
        hub.queue_changed(lock)
        if hub.live and reason != "granted":
            hub.publish((LockEvent("gave_up", lock, None, holder, clock.now_ms(), reason),))

    hub.on_live = set_live
    queues.table.on_waiting, queues.table.on_removed = waiting, removed
    queues.fairness.others_wait = hub.others_wait
    return hub


def _events(change: LockChange) -> tuple[LockEvent, ...]:
    waited = change.waiter is not None and change.waiter.announced
    why = "waited" if waited else "given_back" if isinstance(change.command, RevokeGrant) else None
    key, command, before, after, outcome, now_ms, _waiter = change
    return lock_events(key, command, before, after, outcome, now_ms=now_ms, why=why)
