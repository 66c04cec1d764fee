"""Hand-offs of one batch: several acquires and releases of a lock stay within its limit of grants."""

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.handoff import HandoffStep, PendingCommand, QueueSnapshot
from volcano_locks_server.queue.node_turn import HANDOFFS_IN_A_ROW_MAX, NodeTurn
from volcano_locks_server.queue.waiter import Waiter
from volcano_locks_server.rules.lease import Acquire, Free, Granted, LockRecord, Release, held_by
from volcano_locks_server.rules.values import LockKey

LOCK = RecordKey("a-project", LockKey.parse("k"))
NOW_MS = 1_784_556_000_000
RECORD = Free(NOW_MS - 1, NOW_MS - 1)


def outcomes(*, grants_before: int) -> list[object]:
    """A batch in which ann acquires with a wait, releases, and ben acquires with a wait, while a peer has waiters."""
    turn = NodeTurn("a", grants_before, RECORD.fencing_token, others_wait=True)
    step = HandoffStep({LOCK: QueueSnapshot((), turn)}, records_changes=False)
    ann, ben = Acquire(b"ann", 30), Acquire(b"ben", 30)
    batch = [
        PendingCommand(ann, waiter=Waiter(LOCK, ann)),
        PendingCommand(Release(b"ann")),
        PendingCommand(ben, waiter=Waiter(LOCK, ben)),
    ]
    record: LockRecord | None = RECORD
    results: list[object] = []
    for pending in batch:
        record, outcome = step.evaluate(LOCK, record, pending, NOW_MS)
        results.append(outcome)
    return results


def test_a_grant_to_a_joining_waiter_counts_toward_the_limit() -> None:
    """WAIT-10: at its limit, a batch leaves the lock to other nodes. No lease blocks the waiter then (HTTP-28)."""
    first, _, second = outcomes(grants_before=HANDOFFS_IN_A_ROW_MAX - 1)
    assert isinstance(first, Granted)
    assert second == held_by(None)


def test_a_batch_below_its_limit_grants_more() -> None:
    """WAIT-2."""
    first, _, second = outcomes(grants_before=HANDOFFS_IN_A_ROW_MAX - 2)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fencing_token > first.fencing_token


def test_waiters_that_join_in_one_batch_keep_their_order() -> None:
    """WAIT-4."""
    step = HandoffStep({LOCK: QueueSnapshot(())}, records_changes=False)
    holder, ann, ben = (Acquire(name, 30) for name in (b"holder", b"ann", b"ben"))
    waiters = [Waiter(LOCK, ann), Waiter(LOCK, ben)]
    batch = [PendingCommand(holder), *(PendingCommand(waiter.acquire, waiter=waiter) for waiter in waiters)]
    record: LockRecord | None = None
    for pending in (*batch, PendingCommand(Release(b"holder"))):
        record, _ = step.evaluate(LOCK, record, pending, NOW_MS)
    assert [served.waiter for served in step.report().served] == [waiters[0]]
    assert step.report().joined == waiters
