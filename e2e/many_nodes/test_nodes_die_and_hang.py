"""Nodes that are killed with -9, or stop in the middle of what they do and go on later: nothing promised is lost."""

import asyncio
import os
import random
import signal
from collections.abc import Callable

import pytest
from e2e.one_node.conftest import ServerProcess
from e2e.one_node.crowd import TTL_SECONDS, now

from .crowd import NodesCrowd

NODES = 3
KILLS = {"postgresql": 5, "etcd": 2}  # over etcd, a node that starts waits until its dead self is silent
KILLS_MAX = 12
STOPPED_SECONDS = TTL_SECONDS + 4  # a lease that is granted just before it has passed its margin and grace then
pytestmark = pytest.mark.real_time


async def test_killed_nodes_lose_nothing(
    store: str, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-3, LEASE-6, LEASE-14, case 25, case 30."""
    engine = store.partition("://")[0]
    dice = random.Random(9)
    nodes = new_nodes(*[store] * NODES)
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        for number in range(KILLS_MAX):
            if number >= KILLS[engine] and crowd.cut_off:  # a kill while nothing is asked proves nothing
                break
            await asyncio.sleep(dice.uniform(0.3, 0.8))
            victim = nodes[number % NODES]
            killed_at = now()
            victim.kill()
            others = [node.url for node in nodes if node is not victim]
            measured(f"{engine}: a node was killed; by another", await crowd.seconds_to_a_grant(killed_at, *others))
            begun_at = now()
            await asyncio.to_thread(victim.start)
            took = await crowd.seconds_to_a_grant(begun_at, victim.url)
            measured(f"{engine}: a node was started after its kill; by itself", took)
        await asyncio.sleep(0.5)
        await crowd.work_until(lambda: crowd.has_had(50))
        await crowd.dismiss()
    crowd.check()
    assert crowd.cut_off > 0


async def test_nodes_that_hang_lose_nothing(
    store: str, new_nodes: Callable[..., list[ServerProcess]], measured: Callable[[str, float], None]
) -> None:
    """LEASE-6, LEASE-14, case 30: one node is stopped until every lease it knew of is over, another again and again
    for a moment; what they had begun to do does no harm when they go on."""
    engine = store.partition("://")[0]
    dice = random.Random(5)
    nodes = new_nodes(*[store] * NODES)
    hung, halting, steady = nodes
    async with NodesCrowd([node.url for node in nodes], nodes[0].new_service_key()) as crowd:
        await asyncio.sleep(1)
        stopped_at = now()
        os.kill(hung.pid, signal.SIGSTOP)
        measured(f"{engine}: a node hung; by another", await crowd.seconds_to_a_grant(stopped_at, steady.url))
        while now() < stopped_at + STOPPED_SECONDS:
            os.kill(halting.pid, signal.SIGSTOP)
            await asyncio.sleep(dice.uniform(0.1, 0.9))
            os.kill(halting.pid, signal.SIGCONT)
            await asyncio.sleep(dice.uniform(0.1, 0.9))
        went_on_at = now()
        os.kill(hung.pid, signal.SIGCONT)
        took = await crowd.seconds_to_a_grant(went_on_at, hung.url)
        measured(f"{engine}: a node went on after {STOPPED_SECONDS} s; by itself", took)
        await asyncio.sleep(0.5)
        await crowd.work_until(lambda: crowd.has_had(50, takeovers=3))
        await crowd.dismiss()
    crowd.check()
