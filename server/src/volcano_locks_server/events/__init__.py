"""Lock events: what happens to locks, published to subscribers on this node and on its peers (spec/watching.md)."""

from .event import EVENT_NAMES, LockEvent, lock_events
from .hub import EventHub
from .subscriber import NumberedEvent, Subscriber

__all__ = ["EVENT_NAMES", "EventHub", "LockEvent", "NumberedEvent", "Subscriber", "lock_events"]
