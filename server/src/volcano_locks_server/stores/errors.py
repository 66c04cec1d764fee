"""Errors that every store raises with the same message: registry conflicts, and a clock that is behind."""

from datetime import UTC, datetime
from typing import Final

from ..rules.errors import LockError, StoreUnavailableError
from ..rules.values import shown

CLOCK_RECORD: Final = "clock"
"""The name of the record of a store's clock, for operators (CLI-31)."""


def project_not_found() -> LockError:
    return LockError("not_found", "no project has this id")


def service_key_not_found() -> LockError:
    return LockError("not_found", "this project has no service key with this id")


def project_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"a project named {shown(name)} exists already: choose another name")


def service_key_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"this project has a service key named {shown(name)} already: choose another name")


def admin_token_not_found() -> LockError:
    return LockError("not_found", "no admin token has this id")


def admin_token_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"an admin token named {shown(name)} exists already: choose another name")


class ClockDamagedError(StoreUnavailableError):
    """The record of the store's clock is missing or cannot be decoded, so nothing is decided (LEASE-18)."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "clock_damaged",
            f"the record of the store's clock is damaged ({reason}): run volcano-locks doctor --repair {CLOCK_RECORD}",
        )
        self.reason: Final = reason


def clock_behind(now_ms: int, newest_ms: int) -> StoreUnavailableError:
    """The clock reads earlier than an instant that this store has served, so deciding by it could revive a lease."""
    return StoreUnavailableError(
        "clock_behind",
        f"the clock reads {format_instant(now_ms)} but this store has served {format_instant(newest_ms)} already: "
        "set the machine's clock right; it serves again when the clock has caught up",
    )


def refuse_clock_far_behind(clock: str, now_ms: int, newest_ms: int, behind_max_ms: int) -> None:
    """At the start: raise StoreUnavailableError if the clock is too far behind to catch up, so that an operator has to
    set it. `clock` names the clock.
    """
    if newest_ms - now_ms > behind_max_ms:
        raise StoreUnavailableError(
            "clock_behind",
            f"{clock} reads {format_instant(now_ms)} but the store was written at "
            f"{format_instant(newest_ms)}: set {clock} right, then start again; "
            "if the store was written under a clock that was ahead, see volcano-locks reset-clock",
        )


def format_instant(at_ms: int) -> str:
    """`at_ms` in ISO 8601, or the number of milliseconds if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
