"""Grants that no client received, until they are revoked (WAIT-5, WAIT-9).

Such a lease would block the lock for its whole TTL. A `RevokeGrant` ends it, and is retried while the store fails. It
is cancelled if the same token acquires again. A grant that is not revoked in REVOKE_TRIES_MAX tries, or before the
service ends, expires by itself.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..ports.clock import Clock, Timer
from ..ports.lock_store import RecordKey
from ..rules.errors import LockError
from ..rules.lease import Granted, Outcome, RevokeGrant
from .handoff import PendingCommand
from .waiter import WaitResult

REVOKE_TRIES_MAX: Final = 60
RETRY_MS_MAX: Final = 1_000

Submit = Callable[[RecordKey, PendingCommand], "asyncio.Future[Outcome | None]"]


@dataclass(slots=True, eq=False)
class _Revocation:
    key: RecordKey
    command: RevokeGrant
    submitted: "asyncio.Future[Outcome | None] | None" = None
    timer: Timer | None = None
    tries: int = 0

    def cancel(self) -> None:
        for pending in (self.submitted, self.timer):
            if pending is not None:
                pending.cancel()


class UndeliveredGrants:
    """The undelivered grants of one node, by lock and token. `close` ends every timer."""

    def __init__(self, clock: Clock, submit: Submit) -> None:
        self._clock: Final = clock
        self._revocations: Final[dict[tuple[RecordKey, bytes], _Revocation]] = {}
        self._submit: Final = submit
        self._stopped = False

    def __len__(self) -> int:
        return len(self._revocations)

    def has_any_of(self, keys: Iterable[RecordKey]) -> bool:
        """Whether a grant of one of these locks must be revoked."""
        return bool(self._revocations) and not {key for key, _ in self._revocations}.isdisjoint(keys)

    def revoke(self, key: RecordKey, command: RevokeGrant) -> None:
        """Revoke a grant, and retry until it is done."""
        self.discard(key, command.owner_digest)
        revocation = self._revocations[key, command.owner_digest] = _Revocation(key, command)
        self._try(revocation)

    def revoke_result(self, key: RecordKey, owner_digest: bytes, result: WaitResult) -> None:
        """Revoke what a wait was granted, if no client knows of it."""
        if result.undelivered and isinstance(result.outcome, Granted):
            self.revoke(key, RevokeGrant(owner_digest, result.outcome.fencing_token, result.at_ms))

    def discard(self, key: RecordKey, owner_digest: bytes) -> None:
        """The token acquired again: what it was granted is not revoked."""
        revocation = self._revocations.pop((key, owner_digest), None)
        if revocation is not None:
            revocation.cancel()

    def stop(self) -> None:
        """Retry nothing from now on."""
        self._stopped = True

    def close(self) -> None:
        """To be called after the last batch."""
        for revocation in self._revocations.values():
            revocation.cancel()
        self._revocations.clear()

    def _try(self, revocation: _Revocation) -> None:
        revocation.timer = None
        revocation.tries += 1
        try:
            revocation.submitted = self._submit(revocation.key, PendingCommand(revocation.command))
        except LockError:
            self._retry_later(revocation)
        else:
            revocation.submitted.add_done_callback(lambda done: self._tried(revocation, done))

    def _tried(self, revocation: _Revocation, done: "asyncio.Future[Outcome | None]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self._retry_later(revocation)
        elif self._is_current(revocation):
            del self._revocations[revocation.key, revocation.command.owner_digest]

    def _retry_later(self, revocation: _Revocation) -> None:
        if not self._is_current(revocation):
            return
        if self._stopped or revocation.tries >= REVOKE_TRIES_MAX:
            del self._revocations[revocation.key, revocation.command.owner_digest]
        else:
            revocation.timer = self._clock.call_in(RETRY_MS_MAX, lambda: self._try(revocation))

    def _is_current(self, revocation: _Revocation) -> bool:
        return self._revocations.get((revocation.key, revocation.command.owner_digest)) is revocation
