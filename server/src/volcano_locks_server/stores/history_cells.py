"""The stored forms of the history in the SQL stores: an entry, and what a lock's record says about its last hold.

Both are JSON arrays. The record of a lease has the facts that its columns lack, that of a free lock the entry of the
hold that ended. They begin with the fencing token of that hold: a node of 0.1.0 leaves them behind when it writes
another lease into the row, so they count only if the token matches (HISTORY-2).
"""

from typing import Final

import msgspec

from ..rules.hold import HoldEntry, HoldFacts
from ..rules.lease import Free, LockRecord

_encode: Final = msgspec.json.Encoder().encode
_decode_facts: Final = msgspec.json.Decoder(tuple[int, HoldFacts]).decode
_decode_entry: Final = msgspec.json.Decoder(HoldEntry).decode


def hold_cell(record: LockRecord) -> str | None:
    """What the record says about its last hold, for its column `hold_facts`."""
    if isinstance(record, Free):
        return None if record.last_hold is None else entry_text(record.last_hold)
    return None if record.facts is None else _encode((record.fencing_token, record.facts)).decode()


def facts_of(cell: str | bytes | None, fencing_token: int) -> HoldFacts | None:
    """The facts in that column, for a lease; None if they belong to another one. No rule depends on them."""
    if cell is None:
        return None
    try:
        token, facts = _decode_facts(cell)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return facts if token == fencing_token else None


def last_hold_of(cell: str | bytes | None, fencing_token: int) -> HoldEntry | None:
    """The entry in that column, for a free lock; None if it belongs to another hold."""
    entry = None if cell is None else entry_in(cell)
    return entry if entry is not None and entry.fencing_token == fencing_token else None


def entry_text(entry: HoldEntry) -> str:
    """The JSON of an entry."""
    return _encode(entry).decode()


def entry_in(text: str | bytes) -> HoldEntry | None:
    """The entry in that JSON, None if it cannot be decoded: its hold is then missing in the history."""
    try:
        return _decode_entry(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
