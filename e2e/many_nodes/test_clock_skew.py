"""One node whose machine's clock is wrong, by a little or by a lot."""

import asyncio
import re
import subprocess
import time
from collections.abc import Callable

import httpx2
import pytest
from e2e.load_clients import TTL_SECONDS
from testsupport.engines import etcd, postgres
from testsupport.server_process import ServerProcess

from .multi_node_load import MultiNodeLoadClients

SMALL_SKEW_SECONDS = 0.8
LOAD_SECONDS = TTL_SECONDS + 3  # by then, abandoned leases have expired and been taken over on other nodes
pytestmark = pytest.mark.real_time


def shifted_clock(seconds: float) -> dict[str, str]:
    """The environment of a process whose date is that far ahead, while its monotonic clocks are right."""
    library = "/usr/$LIB/faketime/libfaketimeMT.so.1"  # of Debian's libfaketime; the loader knows what $LIB is
    environment = {"LD_PRELOAD": library, "FAKETIME": f"{seconds:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    began = time.time()
    shifted = float(subprocess.run(["date", "+%s.%N"], env=environment, capture_output=True, check=True).stdout)
    # The loader ignores a missing library, and then the test would pass for the wrong reason.
    assert -0.1 < shifted - seconds - began < time.time() - began + 0.1, "the tests need libfaketime: apt-get install"
    return environment


def get(url: str) -> httpx2.Response:
    with httpx2.Client(timeout=30) as client:
        return client.get(url)


async def test_a_small_skew_is_tolerated(new_nodes: Callable[..., list[ServerProcess]]) -> None:
    """LEASE-1, LEASE-6: over etcd each node uses its own clock; margin and grace are longer than this skew."""

    async def tolerated(seconds: float) -> None:
        store = etcd.shared().url()
        (right,) = await asyncio.to_thread(new_nodes, store)
        (skewed,) = await asyncio.to_thread(new_nodes, store, environment=shifted_clock(seconds))
        service_key = await asyncio.to_thread(right.new_service_key)
        async with MultiNodeLoadClients([right.url, skewed.url], service_key) as clients:
            await asyncio.sleep(LOAD_SECONDS)
            await clients.work_until(lambda: clients.fewest_grants_of_a_node() > 30 and clients.takeovers() >= 3)
            await clients.finish()
        clients.check(skew_seconds=SMALL_SKEW_SECONDS)
        for node in (right, skewed):
            metrics = await asyncio.to_thread(get, f"{node.url}/metrics")
            assert re.search(r'cause="clock_(skew|behind)"\} [1-9]', metrics.text) is None, (
                "requests were refused because of the clock"
            )

    await asyncio.gather(tolerated(SMALL_SKEW_SECONDS), tolerated(-SMALL_SKEW_SECONDS))


@pytest.mark.parametrize("seconds", [30, -30])
async def test_a_large_skew_is_refused(seconds: float, new_nodes: Callable[..., list[ServerProcess]]) -> None:
    """LEASE-1, LEASE-6: over etcd that node refuses every request; its log, metrics and `/readyz` show the cause."""
    store = etcd.shared().url()
    nodes = new_nodes(store, store)
    (skewed,) = new_nodes(store, environment=shifted_clock(seconds))
    service_key = nodes[0].new_service_key()
    async with MultiNodeLoadClients([node.url for node in (*nodes, skewed)], service_key) as clients:
        await asyncio.sleep(2)
        await clients.work_until(lambda: len(clients.grants) > 30 and clients.unavailable > 0)
        ready = await asyncio.to_thread(get, f"{skewed.url}/readyz")
        metrics = await asyncio.to_thread(get, f"{skewed.url}/metrics")
        clients.stop_using(skewed.url)
        await clients.finish()
    clients.check()
    assert ready.status_code == 503
    assert "clock_skew" in ready.text
    assert re.search(r'cause="clock_skew"\} [1-9]', metrics.text)
    assert re.search(r"(29|30|31)\.\d s (ahead|later).*then restart its node", skewed.output())
    assert {grant.url for grant in clients.grants} == {node.url for node in nodes}


async def test_postgresql_ignores_the_nodes_clocks(new_nodes: Callable[..., list[ServerProcess]]) -> None:
    """LEASE-1, LEASE-6: over PostgreSQL only the database's clock counts."""
    server = postgres.shared()
    store = server.url(server.new_database())
    nodes = (
        new_nodes(store)
        + new_nodes(store, environment=shifted_clock(30))
        + new_nodes(store, environment=shifted_clock(-30))
    )
    urls = [node.url for node in nodes]
    async with MultiNodeLoadClients(urls, nodes[0].new_service_key()) as clients:
        await asyncio.sleep(LOAD_SECONDS)
        await clients.work_until(lambda: clients.fewest_grants_of_a_node() > 30 and clients.takeovers() >= 3)
        await clients.finish()
    clients.check()
    assert clients.unavailable == 0
