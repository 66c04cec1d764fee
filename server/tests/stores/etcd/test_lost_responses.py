"""If etcd's response is lost, the outcome of the batch is unknown, and the store does not repeat it silently."""

import time
from collections.abc import AsyncIterator

import pytest
from testsupport.engines import etcd
from testsupport.engines.processes import BUSY_SECONDS
from testsupport.fault_proxy import FaultProxy

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import Records, StepResult
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores import open_store
from volcano_locks_server.stores.etcd.endpoints import CALL_SECONDS_MAX

from ..store_actions import increment, key, until_ready

pytestmark = pytest.mark.real_time


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """A connection to a member whose responses can be held back."""
    async with FaultProxy(int(etcd.shared().members[0].host.rpartition(":")[2])) as opened:
        yield opened


async def test_a_batch_whose_response_is_lost_is_unavailable_and_done_once(proxy: FaultProxy) -> None:
    """LEASE-16: the batch took effect, but its caller does not learn that, and the store does not repeat it."""
    prefix = etcd.new_prefix()
    through = await open_store(f"etcd://127.0.0.1:{proxy.port}/{prefix}", SystemClock())
    assert await increment(through.locks, key("a")) == 1
    steps = 0

    def step(records: Records, now_ms: int) -> StepResult:
        nonlocal steps
        steps += 1
        proxy.responses.clear()  # the read has its response, the write will not
        record = records[key("a")]
        assert record is not None
        return StepResult({key("a"): Free(record.fencing_token + 1, now_ms)}, [None])

    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        await through.locks.update([key("a")], step)
    assert caught.value.cause_code == "etcd_late"
    assert time.monotonic() - began < CALL_SECONDS_MAX + BUSY_SECONDS
    assert steps == 1
    proxy.forward_all()
    await until_ready(through)
    assert await increment(through.locks, key("a")) == 3
    await through.close()
