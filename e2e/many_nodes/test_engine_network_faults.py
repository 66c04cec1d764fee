"""The network between one of two nodes and the engine is slow, breaks, goes silent: no acknowledged lease is lost."""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from e2e.load_clients import TTL_SECONDS, now
from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerProcess

from .multi_node_load import MultiNodeLoadClients

DELAY_SECONDS = 0.1
CUTS = 6
HALF_OPEN_SECONDS = 3
ISOLATED_SECONDS = TTL_SECONDS + 3
pytestmark = pytest.mark.real_time


async def test_network_faults_to_the_engine_lose_no_lease(
    store: str, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 25, case 30: delays, connections that break during a transaction, lost responses, and
    then a full partition until every lease that the node knew is over."""
    engine = store.partition("://")[0]
    port = urlsplit(store).port
    assert port is not None
    async with FaultProxy(port) as proxy:
        isolated, other = await asyncio.to_thread(new_nodes, store.replace(f":{port}", f":{proxy.port}"), store)
        service_key = await asyncio.to_thread(other.new_service_key)
        async with MultiNodeLoadClients([isolated.url, other.url], service_key) as clients:
            proxy.delay_seconds_max = DELAY_SECONDS
            await asyncio.sleep(2)
            await clients.seconds_to_a_grant(now(), isolated.url)
            proxy.delay_seconds_max = 0.0
            for _ in range(CUTS):
                await asyncio.sleep(0.3)
                proxy.cut()
            took = await clients.seconds_to_a_grant(now(), isolated.url)
            measured(f"{engine}: a node's connections were cut; by that node", took)
            proxy.responses.clear()
            await asyncio.sleep(HALF_OPEN_SECONDS)
            proxy.responses.set()
            took = await clients.seconds_to_a_grant(now(), isolated.url)
            measured(f"{engine}: a node's lost responses arrive again; by that node", took)
            held_at = now()
            proxy.hold_all()
            took = await clients.seconds_to_a_grant(held_at, other.url)
            measured(f"{engine}: a node was isolated from the engine; by another node", took)
            await asyncio.sleep(ISOLATED_SECONDS)
            silent_for = now() - max(grant.responded_at for grant in clients.grants if grant.url == isolated.url)
            assert silent_for > ISOLATED_SECONDS / 2, "the node granted leases without its store"
            restored_at = now()
            proxy.forward_all()
            took = await clients.seconds_to_a_grant(restored_at, isolated.url)
            measured(f"{engine}: a node reaches the engine again; by that node", took)
            await asyncio.sleep(0.5)
            await clients.work_until(lambda: clients.has_completed(50, takeovers=3))
            await clients.finish()
    clients.check()
    assert clients.unavailable > 0, "no request met the fault"
