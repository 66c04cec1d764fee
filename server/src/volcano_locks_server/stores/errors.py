"""What every store says in the same words: refusals of the registry, list cursors, and a clock that is behind.

A cursor is the place in the order of creation after which the next page begins. It is opaque to callers, and
one list's cursor is refused by another's.
"""

from datetime import UTC, datetime

from ..rules.errors import LockError, StoreUnavailableError
from ..rules.values import shown


def project_not_found() -> LockError:
    return LockError("not_found", "no project has this id")


def service_key_not_found() -> LockError:
    return LockError("not_found", "this project has no service key with this id")


def project_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"a project named {shown(name)} exists already: choose another name")


def service_key_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"this project has a service key named {shown(name)} already: choose another name")


def clock_behind(now_ms: int, newest_ms: int) -> StoreUnavailableError:
    """The clock reads earlier than an instant this store has served already: judging by it could revive a lease."""
    return StoreUnavailableError(
        "clock_behind",
        f"the clock reads {instant(now_ms)} but this store has served {instant(newest_ms)} already: "
        "set the machine's clock right; it serves again when the clock has caught up",
    )


def instant(at_ms: int) -> str:
    """`at_ms` for people, or the bare number where no calendar holds it."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
