"""The way from one node of two to the engine is slow, breaks, and falls silent: nothing acknowledged is lost."""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from e2e.one_node.conftest import ServerProcess
from e2e.one_node.crowd import TTL_SECONDS, now
from testsupport.fault_proxy import Wire

from .crowd import NodesCrowd

LATE_SECONDS = 0.1
CUTS = 6
HALF_OPEN_SECONDS = 3
CUT_OFF_SECONDS = TTL_SECONDS + 3
pytestmark = pytest.mark.real_time


async def test_what_happens_on_the_way_to_the_engine_loses_nothing(
    store: str, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 25, case 30: parts are late, connections break in mid-transaction, answers are lost while
    requests arrive, and then nothing passes until every lease the node knew of is over."""
    engine = store.partition("://")[0]
    port = urlsplit(store).port
    assert port is not None
    async with Wire(port) as wire:
        cut_off, other = await asyncio.to_thread(new_nodes, store.replace(f":{port}", f":{wire.port}"), store)
        service_key = await asyncio.to_thread(other.new_service_key)
        async with NodesCrowd([cut_off.url, other.url], service_key) as crowd:
            wire.late_seconds = LATE_SECONDS
            await asyncio.sleep(2)
            await crowd.seconds_to_a_grant(now(), cut_off.url)
            wire.late_seconds = 0.0
            for _ in range(CUTS):
                await asyncio.sleep(0.3)
                wire.cut()
            took = await crowd.seconds_to_a_grant(now(), cut_off.url)
            measured(f"{engine}: a node's connections were cut; by itself", took)
            wire.answers.clear()
            await asyncio.sleep(HALF_OPEN_SECONDS)
            wire.answers.set()
            took = await crowd.seconds_to_a_grant(now(), cut_off.url)
            measured(f"{engine}: a node that heard no answers hears them again; by itself", took)
            kept_at = now()
            wire.keep_all()
            took = await crowd.seconds_to_a_grant(kept_at, other.url)
            measured(f"{engine}: a node was cut off from the engine; by another", took)
            await asyncio.sleep(CUT_OFF_SECONDS)
            silent_for = now() - max(grant.answered_at for grant in crowd.grants if grant.url == cut_off.url)
            assert silent_for > CUT_OFF_SECONDS / 2, "it granted without its store"
            passed_at = now()
            wire.pass_all()
            took = await crowd.seconds_to_a_grant(passed_at, cut_off.url)
            measured(f"{engine}: a node reaches the engine again; by itself", took)
            await asyncio.sleep(0.5)
            await crowd.work_until(lambda: crowd.has_had(50, takeovers=3))
            await crowd.dismiss()
    crowd.check()
    assert crowd.unavailable > 0, "nobody met the fault"
