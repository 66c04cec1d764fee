"""One batch may hold several acquires and releases of a lock: what it grants to this node's waiters is bounded."""

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.handoff import Asked, Heads, Serving
from volcano_locks_server.rules.lease import HELD, Acquire, Granted, LockRecord, Release
from volcano_locks_server.rules.values import LockKey

LOCK = RecordKey("a-project", LockKey.parse("k"))
NOW_MS = 1_784_556_000_000


def outcomes(*, grants_max: int) -> list[object]:
    """Of a batch in which ann comes to wait and is granted, gives the lock back, and ben comes to wait."""
    serving = Serving({LOCK: Heads((), grants_max)}, watched=False)
    ann, ben = Acquire(b"ann", 30), Acquire(b"ben", 30)
    batch = [Asked(ann, place="ann's"), Asked(Release(b"ann")), Asked(ben, place="ben's")]
    record: LockRecord | None = None
    told: list[object] = []
    for asked in batch:
        record, outcome = serving.judge(LOCK, record, asked, NOW_MS)
        told.append(outcome)
    return told


def test_a_waiter_granted_as_it_joins_counts_among_the_grants_in_a_row() -> None:
    """WAIT-10: where others wait, this batch leaves them the lock once it has granted as many as it may."""
    first, _, second = outcomes(grants_max=1)
    assert isinstance(first, Granted)
    assert second is HELD


def test_a_batch_that_may_grant_more_does() -> None:
    """WAIT-2."""
    first, _, second = outcomes(grants_max=2)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fencing_token > first.fencing_token
