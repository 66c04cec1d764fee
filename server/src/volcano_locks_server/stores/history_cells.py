"""The stored forms of the history, the same in every store: an entry, and the facts about a hold in its lock's record.

Both are JSON arrays. The facts begin with the fencing token that they belong to: a node of 0.1.0 leaves them behind
when it writes another lease into the row, so they count only if the token matches (HISTORY-2).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ..ports.lock_store import EndedHold
from ..rules.history import HoldEntry
from ..rules.hold import HoldFacts
from ..rules.lease import Held

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode  # a LockKey is a str
_decode_facts: Final = msgspec.json.Decoder(tuple[int, HoldFacts]).decode
_decode_entry: Final = msgspec.json.Decoder(HoldEntry).decode


def facts_cell(held: Held) -> str | None:
    """The facts of a hold, for the column of its record."""
    facts = held.facts
    return None if facts is None else _encode((held.fencing_token, facts)).decode()


def facts_of(cell: str | bytes | None, fencing_token: int) -> HoldFacts | None:
    """The facts in that column; None if they belong to another lease. No rule depends on them."""
    if cell is None:
        return None
    try:
        token, facts = _decode_facts(cell)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return facts if token == fencing_token else None


def entry_text(entry: HoldEntry) -> str:
    """The JSON of an entry."""
    return _encode(entry).decode()


def entries_text(ended: Sequence[EndedHold]) -> str:
    """The JSON of the entries of one commit, each with its project id and key: [[project_id, key], entry]."""
    return _encode(ended).decode()


def entry_in(text: str | bytes) -> HoldEntry | None:
    """The entry in that JSON, None if it cannot be decoded: its hold is then missing in the history."""
    try:
        return _decode_entry(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
