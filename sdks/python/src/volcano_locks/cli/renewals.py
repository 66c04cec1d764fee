"""When a holder last renewed its lease, and whether it seems to have stopped."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from .durations import span_text

if TYPE_CHECKING:
    from volcano_locks.protocol.lock_view import LockView

MARGIN_SECONDS: Final = 1


def is_not_renewing(view: "LockView", now: datetime) -> bool:
    """Whether half of the TTL has passed since the last renewal. Clients renew after a third of it at the latest."""
    if not view.held or view.renewed_at is None or view.ttl_seconds is None:
        return False
    return (now - view.renewed_at).total_seconds() > view.ttl_seconds / 2 + MARGIN_SECONDS


def ago_text(instant: datetime, now: datetime) -> str:
    """How long ago that was, such as `2m 5s ago`."""
    return f"{span_text((now - instant).total_seconds())} ago"
