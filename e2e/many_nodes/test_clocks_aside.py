"""One node of three whose machine's date is wrong, a little and a lot."""

import asyncio
import re
import subprocess
import time
from collections.abc import Callable

import httpx2
import pytest
from e2e.one_node.conftest import ServerProcess
from e2e.one_node.crowd import TTL_SECONDS
from testsupport.engines import etcd, postgres

from .crowd import NodesCrowd

LITTLE_SECONDS = 0.8
OVER_SECONDS = TTL_SECONDS + 3  # by then, abandoned leases have ended and changed hands between nodes
pytestmark = pytest.mark.real_time


def faked(seconds: float) -> dict[str, str]:
    """The environment of a process for which the date is so far ahead, while its steady clocks are right."""
    library = "/usr/$LIB/faketime/libfaketimeMT.so.1"  # of Debian's libfaketime; the loader knows what $LIB is
    environment = {"LD_PRELOAD": library, "FAKETIME": f"{seconds:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    began = time.time()
    told = float(subprocess.run(["date", "+%s.%N"], env=environment, capture_output=True, check=True).stdout)
    # What cannot be preloaded is passed over by the loader, and then all would be well for the wrong reason.
    assert -0.1 < told - seconds - began < time.time() - began + 0.1, "the tests need libfaketime: apt-get install"
    return environment


def asked(url: str) -> httpx2.Response:
    with httpx2.Client(timeout=30) as client:
        return client.get(url)


async def test_a_little_is_absorbed(new_nodes: Callable[..., list[ServerProcess]]) -> None:
    """LEASE-1, LEASE-6: etcd's nodes judge by their own clocks, and the margin and the grace are wider than this."""

    async def absorbed(seconds: float) -> None:
        store = etcd.shared().url()
        (right,) = await asyncio.to_thread(new_nodes, store)
        (aside,) = await asyncio.to_thread(new_nodes, store, environment=faked(seconds))
        service_key = await asyncio.to_thread(right.new_service_key)
        async with NodesCrowd([right.url, aside.url], service_key) as crowd:
            await asyncio.sleep(OVER_SECONDS)
            await crowd.work_until(lambda: crowd.grants_by_the_laziest() > 30 and crowd.takeovers() >= 3)
            await crowd.dismiss()
        crowd.check(skew_seconds=LITTLE_SECONDS)
        for node in (right, aside):
            metrics = await asyncio.to_thread(asked, f"{node.url}/metrics")
            assert re.search(r'cause="clock_(skew|behind)"\} [1-9]', metrics.text) is None, "refused for its clock"

    await asyncio.gather(absorbed(LITTLE_SECONDS), absorbed(-LITTLE_SECONDS))


@pytest.mark.parametrize("seconds", [30, -30])
async def test_a_lot_is_refused(seconds: float, new_nodes: Callable[..., list[ServerProcess]]) -> None:
    """LEASE-1, LEASE-6: over etcd that node serves nothing, and its log, its metrics and `/readyz` say why."""
    store = etcd.shared().url()
    nodes = new_nodes(store, store)
    (aside,) = new_nodes(store, environment=faked(seconds))
    service_key = nodes[0].new_service_key()
    async with NodesCrowd([node.url for node in (*nodes, aside)], service_key) as crowd:
        await asyncio.sleep(2)
        await crowd.work_until(lambda: len(crowd.grants) > 30 and crowd.unavailable > 0)
        ready = await asyncio.to_thread(asked, f"{aside.url}/readyz")
        metrics = await asyncio.to_thread(asked, f"{aside.url}/metrics")
        crowd.turn_from(aside.url)
        await crowd.dismiss()
    crowd.check()
    assert ready.status_code == 503
    assert "clock_skew" in ready.text
    assert re.search(r'cause="clock_skew"\} [1-9]', metrics.text)
    assert re.search(r"(29|30|31)\.\d s (ahead|later).*set the machines' clocks right", aside.said())
    assert {grant.url for grant in crowd.grants} == {node.url for node in nodes}


async def test_postgresql_alone_tells_the_time(new_nodes: Callable[..., list[ServerProcess]]) -> None:
    """LEASE-1, LEASE-6: over PostgreSQL the nodes' dates are nobody's business."""
    server = postgres.shared()
    store = server.url(server.new_database())
    nodes = new_nodes(store) + new_nodes(store, environment=faked(30)) + new_nodes(store, environment=faked(-30))
    urls = [node.url for node in nodes]
    async with NodesCrowd(urls, nodes[0].new_service_key()) as crowd:
        await asyncio.sleep(OVER_SECONDS)
        await crowd.work_until(lambda: crowd.grants_by_the_laziest() > 30 and crowd.takeovers() >= 3)
        await crowd.dismiss()
    crowd.check()
    assert crowd.unavailable == 0
