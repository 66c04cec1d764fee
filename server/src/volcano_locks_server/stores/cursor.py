"""List cursors: the position, in order of creation, after which the next page begins.

A cursor is opaque to clients, and a cursor of one list is refused by another.
"""

import re
from typing import Final

from ..rules.errors import LockError
from ..rules.values import shown

_POSITION: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def encode_cursor(kind: str, position: int) -> str:
    """The cursor of the page that begins after `position` of the list `kind`."""
    return f"{kind}.{position}"


def decode_cursor(kind: str, cursor: str | None) -> int:
    """The position after which the page begins, 0 for the first page.

    Raises LockError `invalid_request` for a cursor that is not one of this list.
    """
    if cursor is None:
        return 0
    cursor_kind, _, position = cursor.partition(".")
    if cursor_kind != kind or _POSITION.fullmatch(position) is None:
        raise LockError(
            "invalid_request", f"cursor must be the next_cursor of an earlier page of this list; got {shown(cursor)}"
        )
    return int(position)
