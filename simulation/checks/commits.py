"""Checks what the engines committed: fencing tokens rise, and an update replaces exactly what its step saw."""

from typing import Final

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.lease import Damaged, Free, Held, LockRecord, StoredRecord

from ..clocks import START_SECONDS
from ..stores.observed import Update
from ..world import World, shown_token

CLOCK_SECONDS_SHOWN: Final = 0.5


class Commits:
    """`last` is the record of each lock as it was committed last."""

    def __init__(self, world: World) -> None:
        self.last: Final[dict[RecordKey, LockRecord]] = {}
        self._world: Final = world
        self._highest_token: Final[dict[RecordKey, int]] = {}

    def committed(self, update: Update) -> None:
        for key, after in update.changed.items():
            before, known = update.before[key], self.last.get(key)
            if known is not None and (before is None or not _is_same(before, known)):
                self._fail(
                    "not_atomic", key, f"an update of {update.node} replaced a record that its step had not seen"
                )
            if isinstance(after, Held):
                self._check_token(key, after, known)
            self.last[key] = after
            self._world.note(update.node, f"commits: {self._shown(after, update.now_ms)}", key.key)

    def _check_token(self, key: RecordKey, after: Held, known: LockRecord | None) -> None:
        highest = self._highest_token.get(key, -1)
        is_same_lease = isinstance(known, Held) and known.fencing_token == after.fencing_token
        if is_same_lease and isinstance(known, Held) and known.owner_digest == after.owner_digest:
            return
        if after.fencing_token <= highest:
            self._fail(
                "token_not_rising",
                key,
                f"a new lease got fencing {shown_token(after.fencing_token)}, not above {shown_token(highest)}",
            )
        self._highest_token[key] = after.fencing_token

    def _shown(self, record: LockRecord, now_ms: int) -> str:
        ahead = now_ms / 1_000 - START_SECONDS - self._world.now
        clock = f", by a clock that is {ahead:+.1f} s off" if abs(ahead) >= CLOCK_SECONDS_SHOWN else ""
        if isinstance(record, Free):
            return f"free, last {shown_token(record.fencing_token)}{clock}"
        left = (record.expires_at_ms - now_ms) / 1_000
        return f"held by {record.holder}, {shown_token(record.fencing_token)}, for {left:.1f} s{clock}"

    def _fail(self, kind: str, key: RecordKey, message: str) -> None:
        self._world.violate(kind, f"{key.key}: {message}", key.key)


def _is_same(before: StoredRecord, known: LockRecord) -> bool:
    if isinstance(before, Damaged) or type(before) is not type(known):
        return False
    if isinstance(before, Held) and isinstance(known, Held):
        return (before.owner_digest, before.fencing_token, before.expires_at_ms) == (
            known.owner_digest,
            known.fencing_token,
            known.expires_at_ms,
        )
    return before.fencing_token == known.fencing_token
