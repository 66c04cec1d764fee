"""Hand-offs of one batch: several acquires and releases of a lock stay within its limit of grants."""

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.handoff import HandoffStep, PendingCommand, QueueSnapshot
from volcano_locks_server.queue.waiter import Waiter
from volcano_locks_server.rules.lease import Acquire, Granted, LockRecord, Release, held_by
from volcano_locks_server.rules.values import LockKey

LOCK = RecordKey("a-project", LockKey.parse("k"))
NOW_MS = 1_784_556_000_000


def outcomes(*, grants_max: int) -> list[object]:
    """A batch in which ann acquires with a wait, releases, and ben acquires with a wait."""
    step = HandoffStep({LOCK: QueueSnapshot((), grants_max)}, records_changes=False)
    ann, ben = Acquire(b"ann", 30), Acquire(b"ben", 30)
    batch = [
        PendingCommand(ann, waiter=Waiter(LOCK, ann)),
        PendingCommand(Release(b"ann")),
        PendingCommand(ben, waiter=Waiter(LOCK, ben)),
    ]
    record: LockRecord | None = None
    results: list[object] = []
    for pending in batch:
        record, outcome = step.evaluate(LOCK, record, pending, NOW_MS)
        results.append(outcome)
    return results


def test_a_grant_to_a_joining_waiter_counts_toward_the_limit() -> None:
    """WAIT-10: at its limit, a batch leaves the lock to other nodes. No lease blocks the waiter then (HTTP-28)."""
    first, _, second = outcomes(grants_max=1)
    assert isinstance(first, Granted)
    assert second == held_by(None)


def test_a_batch_below_its_limit_grants_more() -> None:
    """WAIT-2."""
    first, _, second = outcomes(grants_max=2)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fencing_token > first.fencing_token


def test_waiters_that_join_in_one_batch_keep_their_order() -> None:
    """WAIT-4."""
    step = HandoffStep({LOCK: QueueSnapshot((), 9)}, records_changes=False)
    holder, ann, ben = (Acquire(name, 30) for name in (b"holder", b"ann", b"ben"))
    waiters = [Waiter(LOCK, ann), Waiter(LOCK, ben)]
    batch = [PendingCommand(holder), *(PendingCommand(waiter.acquire, waiter=waiter) for waiter in waiters)]
    record: LockRecord | None = None
    for pending in (*batch, PendingCommand(Release(b"holder"))):
        record, _ = step.evaluate(LOCK, record, pending, NOW_MS)
    assert [served.waiter for served in step.report().served] == [waiters[0]]
    assert step.report().joined == waiters
