from collections.abc import AsyncIterator

import pytest

from volcano_locks_server.testing import ManualClock

from .harness import Harness


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """The wait queues are empty when a test ends."""
    harness = Harness(ManualClock())
    yield harness
    harness.store.gate.set()
    await harness.service.close()
    left = harness.service.queues
    assert (left.table.request_count, len(left.table), left.table.queues, len(left._undelivered)) == (0, 0, {}, 0)
