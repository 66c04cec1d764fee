# ruff: noqa: PT012, SIM117 - a block is entered, used and left in one statement
"""The example in the docstring of `volcano_locks.testing` (SDK-10)."""

import pytest

from volcano_locks import LockOwnershipLostError
from volcano_locks.sync.block import LockGuard
from volcano_locks.testing import FakeClient, ManualClock


def test_the_example_of_the_docstring_holds() -> None:
    clock = ManualClock()
    guards: list[LockGuard] = []
    with pytest.raises(LockOwnershipLostError):
        with FakeClient(clock) as client, client.locks.with_lock("nightly", ttl=30) as guard:
            guards.append(guard)
            clock.advance(300)
            assert not guard.lost
            clock.jump(31)
            assert guard.lost
    assert guards[0].lost
