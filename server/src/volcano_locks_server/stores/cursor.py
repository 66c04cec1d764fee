"""List cursors: the place in the order of creation after which the next page begins.

A cursor is opaque to callers, and a cursor of one list is refused by another.
"""

import re
from typing import Final

from ..rules.errors import LockError
from ..rules.values import shown

_CURSOR: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


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
