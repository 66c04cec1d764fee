"""The life of one `with_lock` block, for threads and asyncio: acquire, renew, stop renewing, release.

Leaving (SDK-5): the renewer ends before the release is sent, and a response still under way cannot restart it. The
release is bounded in time. The outcome:

- The body raised: its error propagates. A loss or a failed release is attached to it as a note.
- The body succeeded, but the lock was lost at some time: `LockOwnershipLostError`.
- The body succeeded while holding the lock throughout, but the release was not confirmed: the block succeeds. Its
  work was protected, and reporting a failure would invite doing it twice; the lock expires by itself. The error is
  kept in `guard.release_error` and logged.
"""

from collections.abc import Mapping
from math import ceil
from weakref import WeakValueDictionary

from volcano_locks.clock import Clock
from volcano_locks.errors import LOCK_HELD, LockHeldError, LockOwnershipLostError, VolcanoError
from volcano_locks.holding.hold import Hold
from volcano_locks.log import log
from volcano_locks.protocol.arguments import TTL_SECONDS_MIN, checked_hold
from volcano_locks.protocol.backoff import BACKOFF_SECONDS_MAX, random_fraction
from volcano_locks.protocol.checked_operations import CheckedOperations
from volcano_locks.protocol.effects import Operation
from volcano_locks.protocol.lease import Lease
from volcano_locks.protocol.messages import seen_quota
from volcano_locks.protocol.operations import ATTEMPTS_MAX, WAIT_SLICE_SECONDS, release_if_acquired
from volcano_locks.protocol.renewal_plan import SeenQuota

RENEWAL_END_SECONDS_MAX = 1.0
RELEASE_SECONDS_MAX = 5.0
RELEASE_LOST_SECONDS_MAX = 1.0


class BlocksOfClient:
    """What the blocks of one client share: their holds, by key and thread or task. A dropped hold no longer counts.

    A block inside a block on the same key of the same thread or task would wait for itself for ever, so it is refused
    (SDK-26). `last_headers` are those of the client's last response.
    """

    def __init__(self) -> None:
        self.last_headers: Mapping[str, str] = {}
        self._holds: WeakValueDictionary[tuple[str, object], Hold] = WeakValueDictionary()

    def quota(self) -> SeenQuota | None:
        """The quota in the last response, if any (SDK-3)."""
        return seen_quota(self.last_headers)

    def check(self, key: str, entering: object) -> None:
        """Raise `LockHeldError` if the thread or task `entering` is in a block on `key` whose hold is not lost."""
        hold = self._holds.get((key, entering))
        if hold is not None and hold.not_held_error() is None:
            raise LockHeldError(
                f"lock {key!r} is held by an outer block of the same thread or task: blocks are not re-entrant",
                key=key,
                expires_at=hold.lease.expires_at,
                fencing_token=hold.lease.fencing_token,
                code=LOCK_HELD,
            )

    def enter(self, key: str, entering: object, hold: Hold) -> None:
        """The block was entered."""
        self._holds[key, entering] = hold

    def leave(self, key: str, entering: object, hold: Hold) -> None:
        """The block is being left. If its hold was lost, an inner block may have replaced it."""
        if self._holds.get((key, entering)) is hold:
            self._holds.pop((key, entering), None)


class Block:
    """One block. `hold` exists once it was entered."""

    def __init__(
        self,
        key: str,
        operations: CheckedOperations,
        clock: Clock,
        acquire: Operation[Lease],
        shared: BlocksOfClient,
        *,
        hold_at_least: float | None = None,
        renew_every: float | None = None,
    ) -> None:
        self._hold_seconds = checked_hold(hold_at_least)
        self._entered_at = 0.0
        self._key = key
        self._operations = operations
        self.clock = clock
        self._acquire = acquire
        self._shared = shared
        self._renew_every = renew_every
        self._entered_by: object = None
        self.hold: Hold | None = None
        self.release_error: VolcanoError | None = None

    def enter(self, entering: object) -> Operation[Hold]:
        """Acquire, for the thread or task `entering`. The caller then starts the renewals."""
        if self._entered_by is not None:
            raise RuntimeError("a with_lock(…) block can be entered only once: call with_lock again")
        self._entered_by = entering
        return self._enter(entering)

    def _enter(self, entering: object) -> Operation[Hold]:
        self._shared.check(self._key, entering)
        began_at = self.clock.now()
        lease: Lease | None = None
        try:
            lease = yield from self._acquire
            self._entered_at = self.clock.now()
            timeout_seconds = self._operations.timeout_seconds
            acquired_at = max(began_at, _acquired_after(lease, timeout_seconds))
            self.hold = Hold(
                lease,
                self.clock,
                timeout_seconds,
                random_fraction(),
                acquired_at=acquired_at,
                renew_every=self._renew_every,
                quota=self._shared.quota(),
            )
            self._shared.enter(self._key, entering, self.hold)
        except GeneratorExit:
            raise
        except BaseException as error:
            if lease is not None:
                yield from release_if_acquired(lease.key, lease.token, error)
            raise
        return self.hold

    def renew(self, seconds: float) -> Operation[None]:
        """Renew once, within `seconds`. Raises no error: the hold takes the outcome (case 2)."""
        hold = self.hold
        assert hold is not None
        try:
            lease = yield from self._operations.renew_once(hold.lease, seconds)
        except LockOwnershipLostError as error:
            hold.lose(error)
        except Exception as error:  # noqa: BLE001 - after any error the lease may still be alive
            log.warning("lock %s was not renewed, trying again: %s", hold.lease.key, error)
            hold.failed(error)
        else:
            hold.renewed(lease, self._shared.quota())

    def stop(self) -> None:
        """Stop renewing and mark the guard as lost. May be repeated."""
        if self.hold is not None:
            self._shared.leave(self._key, self._entered_by, self.hold)
            self.hold.leave()

    def needs_last_renewal(self) -> bool:
        """Whether leaving now renews once more; a renewal under way must then end first (SDK-12)."""
        return self._remaining_hold_seconds() > 0

    def leave(self) -> Operation[LockOwnershipLostError | None]:
        """Stop renewing, release, and return the loss, if any."""
        hold = self.hold
        if hold is None:
            return None
        self.stop()
        loss = hold.loss()
        if hold.forked or (loss is not None and loss.status is not None):
            return loss
        try:
            yield from self._release_or_extend(hold, loss)
        except LockOwnershipLostError as error:
            return loss or error
        except VolcanoError as error:
            self.not_released(error)
        return loss

    def not_released(self, error: VolcanoError) -> None:
        """The release was not confirmed."""
        assert self.hold is not None
        self.release_error = error
        if self.hold.loss() is None:
            log.warning("lock %s was not released and stays held until it expires: %s", self.hold.lease.key, error)

    def _release_or_extend(self, hold: Hold, loss: LockOwnershipLostError | None) -> Operation[None]:
        """Release, or let the lease expire at the end of `hold_at_least` (SDK-12)."""
        now, remaining_seconds = self.clock.now(), self._remaining_hold_seconds()
        until = now + RELEASE_LOST_SECONDS_MAX
        if loss is None:
            until = max(min(now + RELEASE_SECONDS_MAX, hold.deadline()), until)
        if remaining_seconds <= 0 or loss is not None:
            yield from self._operations.release_at_end(hold.lease, until)
        else:
            ttl_seconds = max(ceil(remaining_seconds), TTL_SECONDS_MIN)
            yield from self._operations.renew_at_end(hold.lease, ttl_seconds, until)

    def _remaining_hold_seconds(self) -> float:
        return self._entered_at + self._hold_seconds - self.clock.now()


def _acquired_after(lease: Lease, timeout_seconds: float) -> float:
    """An instant before the grant. After a wait, the lease may be known from a later request or its confirmation."""
    assert lease.deadline is not None
    longest_call = WAIT_SLICE_SECONDS + ATTEMPTS_MAX * (timeout_seconds + BACKOFF_SECONDS_MAX)
    return lease.deadline - lease.ttl_seconds - longest_call


def exit_error(
    body_error: BaseException | None, loss: LockOwnershipLostError | None, release_error: VolcanoError | None
) -> LockOwnershipLostError | None:
    """What leaving the block raises: the loss, or None if the body has its own error, which then gets notes."""
    if body_error is None:
        return loss
    for other in (loss, release_error):
        if other is not None and other is not body_error:
            body_error.add_note(f"{type(other).__name__}: {other}")
    return None
