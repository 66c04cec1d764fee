"""What every store says in the same words: refusals of the registry, list cursors, and a clock that is behind.

A cursor is the place in the order of creation after which the next page begins. It is opaque to callers, and
one list's cursor is refused by another's.
"""

import re
from datetime import UTC, datetime
from typing import Final

from ..errors import LockError, StoreUnavailableError
from ..limits import shown

_CURSOR: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def project_not_found() -> LockError:
    return LockError("not_found", "no project has this id")


def service_key_not_found() -> LockError:
    return LockError("not_found", "this project has no service key with this id")


def project_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"a project named {shown(name)} exists already: choose another name")


def service_key_name_taken(name: str) -> LockError:
    return LockError("name_taken", f"this project has a service key named {shown(name)} already: choose another name")


def cursor_after(kind: str, place: int) -> str:
    """The cursor of the page that begins behind `place` of the list `kind`."""
    return f"{kind}.{place}"


def place_of(kind: str, cursor: str | None) -> int:
    """The place behind which the page begins, 0 for the first. LockError `invalid_request` for a strange cursor."""
    if cursor is None:
        return 0
    begin, _, place = cursor.partition(".")
    if begin != kind or _CURSOR.fullmatch(place) is None:
        raise LockError(
            "invalid_request", f"cursor must be the next_cursor of an earlier page of this list; got {shown(cursor)}"
        )
    return int(place)


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
